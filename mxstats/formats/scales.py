"""Block scales: the formats they are stored in, and the rules that choose a power of two.

E8M0 holds 2^(s−127) for the byte s = 0 … 254; 255 is NaN (OCP MX v1.0, section 5.4). Floating scale
formats are unsigned, with subnormals, the code with all bits set being NaN. Exponents are read from
the bits of a float32, never from a logarithm, which is wrong next to a power of two.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mxstats.formats.elements import ElementFormat

_MANTISSA = np.uint32(0x7FFFFF)
_LARGEST_E8M0 = 254
_NAN_E8M0 = 255


class ScaleRule(StrEnum):
    """How the power of two of a block follows from its absmax a (float32: exponent E, mantissa M).

    FLOOR takes E − emax (OCP), and clips values above largest·scale; CEIL rounds the exponent up;
    EVEN rounds a to the element's mantissa first; RCEIL rounds the exponent of a/largest up, the
    smallest scale that never clips.
    """

    FLOOR = "floor"
    CEIL = "ceil"
    EVEN = "even"
    RCEIL = "rceil"

    @classmethod
    def _missing_(cls, value: object) -> "ScaleRule | None":
        known = {rule.value: rule for rule in cls}
        if isinstance(value, str) and value.lower() in known:
            return known[value.lower()]
        raise ValueError(f"scale_rule={value!r} is unknown; known are {', '.join(known)}")


@dataclass(frozen=True)
class ScaleFormat:
    """An unsigned format of at most 8 bits for a block's scale.

    Parameters
    ----------
    exponent_bits, mantissa_bits
        Widths; no sign. Without mantissa bits it is E8M0, the only power-of-two format.
    bias
        2^(exponent_bits−1) − 1 when not given.

    Raises
    ------
    ValueError
        More than 8 bits, a power-of-two format other than E8M0, or a bias beyond float32.
    """

    exponent_bits: int
    mantissa_bits: int
    bias: int | None = None

    def __post_init__(self) -> None:
        for field in ("exponent_bits", "mantissa_bits"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{field} must be an integer, got {value!r}")
        if self.bias is not None and (
            isinstance(self.bias, bool) or not isinstance(self.bias, int)
        ):
            raise TypeError(f"bias must be an integer or None, got {self.bias!r}")
        if self.mantissa_bits < 0 or self.exponent_bits < 2 or self.bits > 8:
            raise ValueError(
                f"exponent_bits={self.exponent_bits}, mantissa_bits={self.mantissa_bits}: a scale "
                f"has at least 2 exponent bits and 8 bits in all at most"
            )
        if self.is_power_of_two and (self.exponent_bits, self.bias) not in ((8, None), (8, 127)):
            raise ValueError(f"{self.name}: without mantissa bits a scale must be E8M0 (bias 127)")
        top_exponent = 2**self.exponent_bits - 1 - self.exponent_bias
        if not self.is_power_of_two and not (top_exponent <= 127 and self.exponent_bias <= 127):
            raise ValueError(f"bias={self.bias}: float32 does not hold all {self.name} scales")

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"E{self.exponent_bits}M{self.mantissa_bits}"

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self.exponent_bits + self.mantissa_bits

    @property
    def is_power_of_two(self) -> bool:
        """Whether every scale is a power of two, so that a rule has to choose it."""
        return self.mantissa_bits == 0

    @property
    def exponent_bias(self) -> int:
        """The bias in force."""
        return 2 ** (self.exponent_bits - 1) - 1 if self.bias is None else self.bias

    @property
    def nan_code(self) -> int:
        """The code of a block that has no number: all bits set."""
        return 2**self.bits - 1

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """The value of every code, [2^bits], float32; the last is NaN."""
        code = np.arange(2**self.bits)
        exponent, mantissa = code >> self.mantissa_bits, code & (2**self.mantissa_bits - 1)
        if self.is_power_of_two:
            table = np.ldexp(1.0, exponent - self.exponent_bias)
        else:
            normal = exponent > 0
            significand = mantissa / 2**self.mantissa_bits + normal
            table = np.ldexp(significand, np.where(normal, exponent, 1) - self.exponent_bias)
        # The top code of E8M0 would be 2^128; it is the NaN.
        with np.errstate(over="ignore"):
            table = table.astype(np.float32)
        table[self.nan_code] = np.nan
        table.flags.writeable = False
        return table

    @property
    def largest(self) -> float:
        """Largest scale."""
        return float(self.values[self.nan_code - 1])

    @property
    def smallest_normal(self) -> float:
        """Smallest scale with a full mantissa; smaller ones are not used (a zero scale divides)."""
        return 2.0 ** (-self.exponent_bias if self.is_power_of_two else 1 - self.exponent_bias)


E8M0 = ScaleFormat(8, 0)
E4M3_SCALE = ScaleFormat(4, 3)
E5M3_SCALE = ScaleFormat(5, 3)


def e8m0_bytes(
    absmax: NDArray[np.float32], element: ElementFormat, rule: ScaleRule
) -> NDArray[np.uint8]:
    """Return the E8M0 byte of blocks with these absmax values.

    A zero gives byte 0; an infinity or NaN 255; a finite block never 255: beyond 2^127 the scale
    saturates at 254.
    """
    absmax = np.ascontiguousarray(absmax, dtype=np.float32)
    bits = absmax.view(np.uint32)
    exponent = (bits >> np.uint32(23)).astype(np.int32)
    if rule is ScaleRule.FLOOR:
        byte = exponent - element.emax
    elif rule is ScaleRule.CEIL:
        byte = exponent + ((bits & _MANTISSA) > 0) - element.emax
    elif rule is ScaleRule.EVEN:
        half = np.uint32(1 << (22 - element.mantissa_bits))
        byte = ((bits + half) >> np.uint32(23)).astype(np.int32) - element.emax
    else:
        # Infinite where the largest value is below 1: saturates, as its exponent field says.
        with np.errstate(over="ignore", invalid="ignore"):  # invalid: of a signalling NaN
            ratio = absmax / np.float32(element.largest)
        byte = _rounded_up_exponent(ratio)
    byte = np.where(absmax > 0.0, np.clip(byte, 0, _LARGEST_E8M0), 0)
    return np.where(np.isfinite(absmax), byte, _NAN_E8M0).astype(np.uint8)


def _rounded_up_exponent(ratio: NDArray[np.float32]) -> NDArray[np.int32]:
    """Exponent field of the smallest power of two not below ``ratio``."""
    bits = ratio.view(np.uint32)
    exponent, mantissa = (bits >> np.uint32(23)).astype(np.int32), bits & _MANTISSA
    # Byte 0 is 2^−127, the subnormal 0x400000: only above it a subnormal needs byte 1.
    above = np.where(exponent > 0, mantissa > 0, mantissa > np.uint32(0x400000))
    return exponent + above


def floating_bytes(
    absmax: NDArray[np.float32],
    element: ElementFormat,
    scale: ScaleFormat,
    tensor_scale: np.float32 | None = None,
) -> NDArray[np.uint8]:
    """Return the code of (absmax/largest)/g in a floating scale format, float32 throughout.

    Rounded to nearest, ties to even, no smaller than the smallest normal; NaN for a block whose
    absmax is not finite. Raises ValueError where a block's scale rounds to more than the format
    holds.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = absmax / np.float32(element.largest)
        if tensor_scale is not None:
            ratio = ratio / tensor_scale
    finite = np.isfinite(absmax)
    wanted = np.maximum(np.where(finite, ratio, 0).astype(np.float64), scale.smallest_normal)
    exponent = np.frexp(wanted)[1] - 1
    spacing = np.ldexp(1.0, exponent - scale.mantissa_bits)
    rounded = np.rint(wanted / spacing) * spacing
    if np.any(rounded > scale.largest):
        raise ValueError(
            f"scale: a block needs {rounded.max():.6g} = absmax/{element.largest:g}"
            f"{'' if tensor_scale is None else '/tensor_scale'}, but {scale.name} holds at most "
            f"{scale.largest:g}"
        )
    code = np.searchsorted(scale.values[: scale.nan_code], rounded.astype(np.float32))
    return np.where(finite, code, scale.nan_code).astype(np.uint8)
