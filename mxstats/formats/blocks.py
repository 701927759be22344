"""Block formats: elements that share a scale. The OCP MX formats and NVFP4 as values."""

from dataclasses import dataclass, replace

from mxstats.formats.elements import E2M1, E2M3, E3M2, E4M3, E5M2, INT8, ElementFormat
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

    def __post_init__(self) -> None:
        if not isinstance(self.element, ElementFormat):
            raise TypeError(f"element must be an ElementFormat, got {self.element!r}")
        if not isinstance(self.scale, ScaleFormat):
            raise TypeError(f"scale must be a ScaleFormat, got {self.scale!r}")
        if isinstance(self.block_size, bool) or not isinstance(self.block_size, int):
            raise TypeError(f"block_size must be an integer, got {self.block_size!r}")
        if self.block_size < 1:
            raise ValueError(f"block_size={self.block_size}: must be at least 1")
        if self.tensor_scale and self.scale.is_power_of_two:
            raise ValueError("tensor_scale=True: power-of-two scales have the range and take none")
        if not self.name:
            made = f"{self.element.name}/{self.block_size}/{self.scale.name}"
            object.__setattr__(self, "name", made)

    def with_block_size(self, block_size: int) -> "BlockFormat":
        """Return the same format with other blocks; ValueError below 1, TypeError if no integer."""
        if block_size == self.block_size:
            return self
        return replace(self, block_size=block_size, name=f"{self.name}/{block_size}")

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
    """Return a format by its name, or the format itself.

    Raises ValueError for an unknown name, listing the known ones; TypeError for anything else.
    """
    if isinstance(fmt, BlockFormat):
        return fmt
    if not isinstance(fmt, str):
        raise TypeError(f"fmt must be a BlockFormat or its name, got {fmt!r}")
    found = FORMATS.get(fmt.upper())
    if found is None:
        raise ValueError(f"fmt={fmt!r} is unknown; known are {', '.join(FORMATS)}")
    return found
