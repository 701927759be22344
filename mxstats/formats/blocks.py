"""Block formats: elements that share a scale. The OCP MX formats and NVFP4 as values."""

from ast import literal_eval
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace

from mxstats.formats.elements import E2M1, E2M3, E3M2, E4M3, E5M2, INT8, ElementFormat
from mxstats.formats.packing import integer
from mxstats.formats.scales import E4M3_SCALE, E8M0, ScaleFormat


@dataclass(frozen=True)
class BlockFormat:
    """``block_size`` elements that share one scale.

    Parameters
    ----------
    element, scale
        The formats of the elements and of the scale.
    block_size
        Elements a block, along the quantised axis; a last block may be shorter.
    tensor_scale
        Whether a float32 scale for the whole tensor stands before the block scales (NVFP4).
    name
        For tables; made of the parts when not given.

    Raises
    ------
    TypeError
        Parts of the wrong kind.
    ValueError
        block_size below 1; a tensor scale over power-of-two scales, which need none.
    """

    element: ElementFormat
    block_size: int = 32
    scale: ScaleFormat = E8M0
    tensor_scale: bool = False
    name: str = ""
    key: str = field(init=False, repr=False, compare=False)
    """All of it as one string, from which :func:`format_of_key` makes the format again."""

    def __post_init__(self) -> None:
        if not isinstance(self.element, ElementFormat):
            raise TypeError(f"element must be an ElementFormat, got {self.element!r}")
        if not isinstance(self.scale, ScaleFormat):
            raise TypeError(f"scale must be a ScaleFormat, got {self.scale!r}")
        object.__setattr__(self, "block_size", integer(self.block_size, "block_size"))
        if self.block_size < 1:
            raise ValueError(f"block_size={self.block_size}: must be at least 1")
        if self.tensor_scale and self.scale.is_power_of_two:
            raise ValueError("tensor_scale=True: power-of-two scales have the range and take none")
        if not self.name:
            object.__setattr__(self, "name", self._made_name)
        parts = (astuple(self.element), astuple(self.scale))
        own = (self.block_size, self.tensor_scale, self.name)
        object.__setattr__(self, "key", repr((*parts, *own)))

    def with_block_size(self, block_size: int) -> "BlockFormat":
        """Return the same format with other blocks; ValueError below 1, TypeError if no integer.

        A given name gets the block size behind it (MXFP8_E4M3/64); one that was made is made anew.
        """
        block_size = integer(block_size, "block_size")
        if block_size == self.block_size:
            return self
        if self.name == self._made_name:
            return replace(self, block_size=block_size, name="")
        base = self.name.removesuffix(f"/{self.block_size}")
        own = replace(self, block_size=block_size, name=base)
        # Back at its own block size, a known format is itself again.
        return own if own == FORMATS.get(base) else replace(own, name=f"{base}/{block_size}")

    @property
    def _made_name(self) -> str:
        return f"{self.element.name}/{self.block_size}/{self.scale.name}"

    @property
    def bits_per_element(self) -> float:
        """Stored bits an element, its share of the block's scale, a byte, included."""
        return self.element.bits + 8 / self.block_size


MXFP8_E4M3 = BlockFormat(E4M3, name="MXFP8_E4M3")
MXFP8_E5M2 = BlockFormat(E5M2, name="MXFP8_E5M2")
MXFP6_E3M2 = BlockFormat(E3M2, name="MXFP6_E3M2")
MXFP6_E2M3 = BlockFormat(E2M3, name="MXFP6_E2M3")
MXFP4_E2M1 = BlockFormat(E2M1, name="MXFP4_E2M1")
MXINT8 = BlockFormat(INT8, name="MXINT8")
NVFP4 = BlockFormat(E2M1, block_size=16, scale=E4M3_SCALE, tensor_scale=True, name="NVFP4")

FORMATS = {
    fmt.name: fmt
    for fmt in (MXFP8_E4M3, MXFP8_E5M2, MXFP6_E3M2, MXFP6_E2M3, MXFP4_E2M1, MXINT8, NVFP4)
}


def block_format(fmt: BlockFormat | str) -> BlockFormat:
    """Return a format by its name or its key, or the format itself.

    Raises ValueError for an unknown name, listing the known ones; TypeError for anything else.
    """
    if isinstance(fmt, BlockFormat):
        return fmt
    if not isinstance(fmt, str):
        raise TypeError(f"fmt must be a BlockFormat or its name, got {fmt!r}")
    if fmt.startswith("("):
        return format_of_key(fmt)
    found = FORMATS.get(fmt.upper())
    if found is None:
        raise ValueError(f"fmt={fmt!r} is unknown; known are {', '.join(FORMATS)}")
    return found


def format_of_key(key: str) -> BlockFormat:
    """Return the format whose :attr:`BlockFormat.key` is given; ValueError for any other string."""
    try:
        element, scale, block_size, tensor_scale, name = literal_eval(key)
        return BlockFormat(
            ElementFormat(*element), block_size, ScaleFormat(*scale), tensor_scale, name
        )
    except (SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"key={key!r} is not that of a block format: {error}") from None


def block_formats(
    formats: Mapping[str, BlockFormat] | Iterable[BlockFormat | str],
) -> list[BlockFormat]:
    """Return several formats, given as a mapping or as formats and names, in their order.

    Raises as :func:`block_format`, and ValueError where two have one name.
    """
    found = [
        block_format(f) for f in (formats.values() if isinstance(formats, Mapping) else formats)
    ]
    names = [fmt.name for fmt in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"formats: {names.count(name)} are named {name!r}; give each its own")
    return found
