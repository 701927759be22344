"""Rounding to an element: nearest, ties to even, saturating at the largest value; exact.

The magnitude code of a float format grows with the value, and the code of a binary float y rounded
to m mantissa bits is y's own bits, shifted right with a rounding carry, less the difference of the
two biases. Below the smallest normal, adding a number whose last place is the spacing of the
subnormals makes the adder itself round to that spacing. Works alike in float32 and float64.
"""

import numpy as np
from numpy.typing import NDArray

from mxstats.formats.elements import ElementFormat

# dtype -> (unsigned integer of its width, its mantissa bits, its exponent bias)
_LAYOUT = {np.dtype(np.float32): (np.uint32, 23, 127), np.dtype(np.float64): (np.uint64, 52, 1023)}


def encode(values: NDArray[np.floating], element: ElementFormat) -> NDArray[np.uint8]:
    """Return the code of every value, rounded to nearest, ties to even, saturated.

    ``values`` is float32 or float64, finite; −0 keeps its sign in a float format.
    """
    unsigned, mantissa_bits, bias = _LAYOUT[values.dtype]
    bits = values.view(unsigned)
    sign = bits >> unsigned(8 * values.itemsize - 1)
    if element.is_fixed_point:
        top = element.magnitudes.size - 1
        with np.errstate(over="ignore"):  # saturates all the same
            code = np.rint(values * values.dtype.type(1.0 / element.smallest))
        return np.clip(code, -top, top).astype(np.int8).view(np.uint8) & _mask(element)
    magnitude = np.abs(values)
    # In the units of this sum's last place the subnormals are the integers 0, 1, 2, …
    anchor = values.dtype.type(np.ldexp(element.smallest, mantissa_bits))
    with np.errstate(over="ignore"):  # of values that are replaced below
        code = (magnitude + anchor).view(unsigned)
    code -= anchor.view(unsigned)
    shift = unsigned(mantissa_bits - element.mantissa_bits)
    normal = magnitude.view(unsigned)
    carry = (normal >> shift) & unsigned(1)
    if element.mantissa_bits == 0 and (bias - element.exponent_bias) % 2:
        # Without mantissa bits the last bit is the exponent's, of another parity in the code.
        carry ^= unsigned(1)
    carry += unsigned((1 << (int(shift) - 1)) - 1)
    carry += normal
    carry >>= shift
    carry -= unsigned((bias - element.exponent_bias) << element.mantissa_bits)
    np.copyto(code, carry, where=magnitude >= values.dtype.type(element.smallest_normal))
    np.minimum(code, unsigned(element.magnitudes.size - 1), out=code)
    code |= sign << unsigned(element.bits - 1)
    return code.astype(np.uint8)


def _mask(element: ElementFormat) -> np.uint8:
    return np.uint8(2**element.bits - 1)
