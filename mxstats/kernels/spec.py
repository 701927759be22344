"""A block format and a scale rule as the plain numbers that a kernel is compiled for.

Every field is a value of the format or derived from it (:mod:`mxstats.formats`); nothing is stated
twice. A :class:`CastSpec` is one ``tl.constexpr`` of a kernel, and its :attr:`~CastSpec.key` is one
string argument of a ``torch.library`` operator.
"""

from ast import literal_eval
from dataclasses import astuple, dataclass
from functools import cached_property, lru_cache

from mxstats.formats import BlockFormat, ScaleRule, block_format

FLOATING_SCALE = -1
FLOOR, CEIL, EVEN, RCEIL = range(4)
_RULES = {
    ScaleRule.FLOOR: FLOOR,
    ScaleRule.CEIL: CEIL,
    ScaleRule.EVEN: EVEN,
    ScaleRule.RCEIL: RCEIL,
}


@dataclass(frozen=True)
class CastSpec:
    """What a kernel has to know of a block format and its scale rule."""

    exponent_bits: int
    """0 for a fixed-point element."""
    mantissa_bits: int
    bias: int
    top_code: int
    """The largest finite value's code without its sign."""
    largest: float
    emax: int
    emin: int
    block_size: int
    rule: int
    """FLOOR, CEIL, EVEN or RCEIL; FLOATING_SCALE where the scale is not a power of two."""
    has_hardware_cast: bool
    """Whether the element's codes are those of the hardware's E4M3 or E5M2."""
    scale_mantissa_bits: int
    scale_bias: int
    scale_nan: int
    scale_largest: float
    scale_smallest_normal: float
    has_tensor_scale: bool

    @property
    def is_fixed_point(self) -> bool:
        """Whether the codes are integers in two's complement."""
        return self.exponent_bits == 0

    @property
    def is_rounded_by_adder(self) -> bool:
        """Whether a float32 sum rounds to the element: it has an anchor, and an even code a tie."""
        return (
            0 < self.mantissa_bits <= 23
            and self.exponent_bits > 0
            and (self.emax + 23 - self.mantissa_bits <= 127)
        )

    @property
    def far(self) -> float:
        """Beyond any element, and finite when multiplied by the reciprocal of a scale."""
        return 2.0**100 if self.emax < 99 else 2.0**126

    @property
    def is_floating_scale(self) -> bool:
        """Whether the scale has a mantissa, so that no rule chooses it."""
        return self.rule == FLOATING_SCALE

    @property
    def bits(self) -> int:
        """Bits of a code, the sign included."""
        return 1 + max(self.exponent_bits, 1 if self.is_fixed_point else 0) + self.mantissa_bits

    @property
    def smallest(self) -> float:
        """Spacing of the subnormals, the step of a fixed-point element."""
        return 2.0 ** (self.emin - self.mantissa_bits)

    @property
    def least_tensor_scale(self) -> float:
        """The smallest g: below it quotients by g lose digits, or the product s·g vanishes."""
        return max(2.0**-126, 2.0**-149 / self.scale_smallest_normal)

    @cached_property
    def key(self) -> str:
        """A string from which :func:`from_key` makes the same spec."""
        return repr(astuple(self))

    def n_blocks(self, length: int) -> int:
        """K = ⌈length/block_size⌉."""
        return -(-length // self.block_size)

    # Triton hashes and prints a constexpr at every launch and for the name of every function.
    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"CastSpec{self.key}"


def cast_spec(fmt: BlockFormat | str, scale_rule: ScaleRule | str | None = None) -> CastSpec:
    """Return the spec of a format and a rule.

    Parameters
    ----------
    fmt
        A format or its name.
    scale_rule
        FLOOR (OCP's rule) when not given; a format with floating scales (NVFP4) has none.

    Raises
    ------
    TypeError
        ``fmt`` is neither a format nor a name.
    ValueError
        Unknown format or rule; a rule for a format with floating scales.
    """
    return _cast_spec(block_format(fmt), scale_rule)


@lru_cache
def _cast_spec(fmt: BlockFormat, scale_rule: ScaleRule | str | None) -> CastSpec:
    element, scale = fmt.element, fmt.scale
    if scale.is_power_of_two:
        rule = _RULES[ScaleRule.FLOOR if scale_rule is None else ScaleRule(scale_rule)]
    elif scale_rule is None:
        rule = FLOATING_SCALE
    else:
        raise ValueError(
            f"scale_rule={str(scale_rule)!r}: {fmt.name} has floating {scale.name} scales, for "
            f"which there is no rule to choose"
        )
    layout = (element.exponent_bits, element.mantissa_bits, element.exponent_bias, element.specials)
    return CastSpec(
        exponent_bits=element.exponent_bits,
        mantissa_bits=element.mantissa_bits,
        bias=element.exponent_bias,
        top_code=element.magnitudes.size - 1,
        largest=element.largest,
        emax=element.emax,
        emin=element.emin,
        block_size=fmt.block_size,
        rule=rule,
        has_hardware_cast=layout in ((4, 3, 7, "nan"), (5, 2, 15, "ieee")),
        scale_mantissa_bits=scale.mantissa_bits,
        scale_bias=scale.exponent_bias,
        scale_nan=scale.nan_code,
        scale_largest=scale.largest,
        scale_smallest_normal=scale.smallest_normal,
        has_tensor_scale=fmt.tensor_scale,
    )


@lru_cache
def from_key(key: str) -> CastSpec:
    """Return the spec that :attr:`CastSpec.key` describes."""
    return CastSpec(*literal_eval(key))
