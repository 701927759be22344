"""The quantiser once more, one number at a time, in exact rational arithmetic.

It is written from the published rules (OCP MX v1.0; the NVFP4 order of operations) and shares
nothing with the array code but the fields of the formats: exponent bits, mantissa bits, bias,
specials, block size. Floats are taken apart by ``as_integer_ratio`` and put together by a search.
"""

import math
from bisect import bisect_left
from fractions import Fraction
from functools import cache

TWO = Fraction(2)
FLOAT32_MAX = (2 - TWO**-23) * TWO**127


def round_to_grid(x: Fraction, spacing: Fraction) -> Fraction:
    """Nearest multiple of spacing, ties to the even multiple (round() of a Fraction does that)."""
    return round(x / spacing) * spacing


def floor_log2(x: Fraction) -> int:
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess if TWO**guess <= x else guess - 1


def to_float32(x: Fraction):
    """x rounded to float32, ties to even: a Fraction, or math.inf (with its sign)."""
    if x == 0:
        return Fraction(0)
    rounded = round_to_grid(x, TWO ** (max(floor_log2(abs(x)), -126) - 23))
    if abs(rounded) > FLOAT32_MAX:
        return math.inf if x > 0 else -math.inf
    return rounded


def fields(x: Fraction) -> tuple[int, int]:
    """The biased exponent and the 23 mantissa bits of a positive float32, or of 0."""
    if x < TWO**-126:
        return 0, int(x * TWO**149)
    exponent = floor_log2(x)
    return exponent + 127, int((x / TWO**exponent - 1) * 2**23)


@cache
def magnitudes(exponent_bits, mantissa_bits, bias, specials) -> tuple[Fraction, ...]:
    """The finite magnitudes in the order of their codes."""
    if exponent_bits == 0:  # two's complement with one integer bit, used symmetrically
        return tuple(Fraction(n, 2**mantissa_bits) for n in range(2 ** (mantissa_bits + 1)))
    if bias is None:
        bias = 2 ** (exponent_bits - 1) - 1
    values = []
    for exponent in range(2**exponent_bits):
        for mantissa in range(2**mantissa_bits):
            fraction = Fraction(mantissa, 2**mantissa_bits)
            if exponent == 0:
                values.append(TWO ** (1 - bias) * fraction)
            else:
                values.append(TWO ** (exponent - bias) * (1 + fraction))
    if specials == "nan":
        values = values[:-1]
    if specials == "ieee":
        values = values[: -(2**mantissa_bits)]
    return tuple(values)


def magnitudes_of(element) -> tuple[Fraction, ...]:
    return magnitudes(element.exponent_bits, element.mantissa_bits, element.bias, element.specials)


def encode(x: Fraction, negative: bool, element) -> int:
    """The code nearest to |x|, ties to the even code, saturated, with its sign."""
    table = magnitudes_of(element)
    size = abs(x)
    above = bisect_left(table, size)
    if above == len(table):
        code = len(table) - 1
    elif above == 0:
        code = 0
    else:
        low, high = size - table[above - 1], table[above] - size
        code = above if high < low or (high == low and above % 2 == 0) else above - 1
    width = max(element.exponent_bits, 1) + element.mantissa_bits
    if element.exponent_bits == 0:
        return (-code if negative else code) % 2 ** (width + 1)
    return code + negative * 2**width


def e8m0_byte(a, element, rule: str) -> int:
    """The E8M0 byte for a block with the absmax a, a float32: a Fraction or math.inf."""
    if a == math.inf:
        return 255
    if a == 0:
        return 0
    largest = magnitudes_of(element)[-1]
    emax = floor_log2(largest)
    exponent, mantissa = fields(a)
    if rule == "floor":
        byte = exponent - emax
    elif rule == "ceil":
        byte = exponent + (mantissa > 0) - emax
    elif rule == "even":
        bits = exponent * 2**23 + mantissa + 2 ** (22 - element.mantissa_bits)
        byte = bits // 2**23 - emax
    else:
        d = to_float32(a / largest)
        if d == math.inf:
            byte = 255
        else:
            exponent, mantissa = fields(d)
            byte = exponent + (mantissa > 0 if exponent else mantissa > 0x400000)
    return min(max(byte, 0), 254)


def quantize_block(values: list[float], fmt, rule: str | None, g=None, double: bool = False):
    """Codes and scale code of one block of Python floats; ``double``: they came as float64.

    A floating scale is absmax/largest/g in float32, within the normal range of its format.
    """
    element, scale = fmt.element, fmt.scale
    nan = 2 ** (scale.exponent_bits + scale.mantissa_bits) - 1
    dead = [0] * len(values), nan
    if any(not math.isfinite(v) for v in values):
        return dead
    a = to_float32(max(abs(Fraction(v)) for v in values))
    if a == math.inf:
        return dead
    if rule is not None:
        byte = e8m0_byte(a, element, rule)
        quotients = [Fraction(v) / TWO ** (byte - 127) for v in values]
    else:
        table = magnitudes(scale.exponent_bits, scale.mantissa_bits, scale.bias, "nan")
        ratio = to_float32(a / magnitudes_of(element)[-1])
        if g is not None:
            ratio = to_float32(ratio / g)
        ratio = min(max(ratio, table[2**scale.mantissa_bits]), table[-1])
        # The scale is unsigned: its code is the magnitude's.
        above = bisect_left(table, ratio)
        low, high = ratio - table[above - 1], table[above] - ratio
        byte = above if high < low or (high == low and above % 2 == 0) else above - 1
        divisor = table[byte] if g is None else to_float32(table[byte] * g)
        # The quotient is an element of the computation's own type: float64 for float64.
        quotients = [
            Fraction(v / float(divisor)) if double else to_float32(Fraction(v) / divisor)
            for v in values
        ]
    signs = [math.copysign(1.0, v) < 0 for v in values]
    return [encode(q, s, element) for q, s in zip(quotients, signs, strict=True)], byte
