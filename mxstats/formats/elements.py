"""Element formats as values: a sign, exponent bits, mantissa bits, and what the top codes mean.

A format with exponent field E (bias b) and mantissa field M of m bits holds ±2^(E−b)(1 + M/2^m) for
E > 0 and the subnormals ±2^(1−b)·M/2^m for E = 0. With no exponent bits it is fixed point: numbers
of one integer bit and m fraction bits in two's complement, used symmetrically (INT8: −127/64 to
127/64).
Everything else (emax, largest, codes) is derived from these fields (OCP MX v1.0, section 5.3).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Specials = Literal["none", "nan", "ieee"]


@dataclass(frozen=True)
class ElementFormat:
    """A sign-magnitude floating-point element, or a fixed-point one when exponent_bits is 0.

    Parameters
    ----------
    exponent_bits, mantissa_bits
        Widths of the two fields; with the sign they make at most 8 bits.
    bias
        Exponent bias; 2^(exponent_bits−1) − 1 when not given.
    specials
        ``"none"``: every code is a number. ``"nan"``: the code with all bits set is NaN (as in
        E4M3). ``"ieee"``: the top exponent holds infinity and NaN (as in E5M2).
    name
        For tables; made of the fields when not given.

    Raises
    ------
    TypeError
        Widths that are not integers.
    ValueError
        Widths out of range, or specials that leave no number.
    """

    exponent_bits: int
    mantissa_bits: int
    bias: int | None = None
    specials: Specials = "none"
    name: str = ""

    def __post_init__(self) -> None:
        for field in ("exponent_bits", "mantissa_bits"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{field} must be an integer, got {value!r}")
        if self.bias is not None and (
            isinstance(self.bias, bool) or not isinstance(self.bias, int)
        ):
            raise TypeError(f"bias must be an integer or None, got {self.bias!r}")
        if self.exponent_bits < 0 or self.mantissa_bits < 0:
            raise ValueError(
                f"exponent_bits={self.exponent_bits}, mantissa_bits={self.mantissa_bits}: "
                f"neither may be negative"
            )
        if self.specials not in ("none", "nan", "ieee"):
            raise ValueError(f"specials={self.specials!r}: must be none, nan or ieee")
        if not 2 <= self.bits <= 8:
            raise ValueError(
                f"exponent_bits={self.exponent_bits}, mantissa_bits={self.mantissa_bits}: an "
                f"element of {self.bits} bits; 2 to 8 can be stored"
            )
        if self.is_fixed_point and (self.specials != "none" or self.bias is not None):
            raise ValueError("exponent_bits=0: a fixed-point element has no bias and no specials")
        if self.specials == "ieee" and self.exponent_bits < 2:
            raise ValueError("specials='ieee' needs exponent_bits of at least 2")
        if self._top_magnitude < 1:
            raise ValueError(
                f"specials={self.specials!r}: leaves no number but 0 to exponent_bits="
                f"{self.exponent_bits}, mantissa_bits={self.mantissa_bits}"
            )
        if not -100 <= (self.bias or 0) <= 100 or self.emax > 127:
            raise ValueError(
                f"bias={self.bias}: must be from -100 to 100 and leave a largest value below "
                f"2^128, so that float32 holds every value"
            )
        if not self.name:
            kind = f"INT{self.bits}" if self.is_fixed_point else (
                f"E{self.exponent_bits}M{self.mantissa_bits}"
            )  # fmt: skip
            object.__setattr__(self, "name", kind)

    @property
    def is_fixed_point(self) -> bool:
        """Whether the codes are integers in two's complement."""
        return self.exponent_bits == 0

    @property
    def bits(self) -> int:
        """Bits of a code, the sign (and the integer bit of a fixed-point element) included."""
        return 1 + max(self.exponent_bits, 1 if self.is_fixed_point else 0) + self.mantissa_bits

    @property
    def exponent_bias(self) -> int:
        """The bias in force; 0 for a fixed-point element."""
        if self.is_fixed_point:
            return 0
        return 2 ** (self.exponent_bits - 1) - 1 if self.bias is None else self.bias

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal value; of the integer bit for fixed point."""
        return 0 if self.is_fixed_point else 1 - self.exponent_bias

    @property
    def emax(self) -> int:
        """Exponent of the largest value."""
        return int(np.frexp(self.largest)[1]) - 1

    @cached_property
    def _top_magnitude(self) -> int:
        """The largest finite value's code without its sign."""
        everything = 2 ** (self.bits - 1) - 1
        if self.specials == "ieee":
            return everything - 2**self.mantissa_bits
        return everything - (self.specials == "nan")

    @property
    def largest(self) -> float:
        """Largest finite value."""
        return float(self.magnitudes[-1])

    @property
    def smallest_normal(self) -> float:
        """Smallest positive value with a full mantissa; the step of a fixed-point element."""
        return self.smallest if self.is_fixed_point else 2.0**self.emin

    @property
    def smallest(self) -> float:
        """Smallest positive value, the spacing of the subnormals."""
        return 2.0 ** (self.emin - self.mantissa_bits)

    @cached_property
    def magnitudes(self) -> NDArray[np.float64]:
        """The finite values from 0 to ``largest`` in order: the value of each magnitude code."""
        code = np.arange(self._top_magnitude + 1)
        exponent, mantissa = code >> self.mantissa_bits, code & (2**self.mantissa_bits - 1)
        if self.is_fixed_point:
            values = code * self.smallest
        else:
            normal = exponent > 0
            significand = mantissa / 2**self.mantissa_bits + normal
            values = np.ldexp(significand, np.where(normal, exponent, 1) - self.exponent_bias)
        values = np.asarray(values, dtype=np.float64)
        values.flags.writeable = False
        return values

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """The value of every code, [2^bits], float32: NaN and infinities where the codes are those.

        The fixed-point code that has no opposite (−128 for INT8) keeps its own value; nothing is
        ever rounded to it.
        """
        code = np.arange(2**self.bits)
        half = 2 ** (self.bits - 1)
        if self.is_fixed_point:
            table = np.where(code < half, code, code - 2 * half) * self.smallest
        else:
            above = np.full(half - 1 - self._top_magnitude, np.nan)
            if self.specials == "ieee":
                above[0] = np.inf
            positive = np.concatenate([self.magnitudes, above])
            table = np.concatenate([positive, -positive])
        table = table.astype(np.float32)
        table.flags.writeable = False
        return table


E4M3 = ElementFormat(4, 3, specials="nan")
E5M2 = ElementFormat(5, 2, specials="ieee")
E3M2 = ElementFormat(3, 2)
E2M3 = ElementFormat(2, 3)
E2M1 = ElementFormat(2, 1)
INT8 = ElementFormat(0, 6)
