"""All that MXNorm's kernel is compiled for."""

from dataclasses import astuple, dataclass
from functools import cache, cached_property

from mxstats.kernels.spec import CastSpec
from mxstats.kernels.tiling import LONGEST_IN_REGISTERS, Config, config, padded_width


@dataclass(frozen=True)
class Plan:
    """All that the kernel is compiled for, as one ``tl.constexpr``."""

    spec: CastSpec
    hidden_size: int
    n_blocks: int
    width: int
    """Width of a block in a tile, a power of two."""
    tiles: int
    in_registers: bool
    p: float
    weighted: bool
    has_residual: bool
    from_scales: bool
    blocked: bool
    scale_in_memory: bool
    """Whether the tensor scale is read from memory rather than an argument."""
    near: bool
    """Whether the tensor scale and the output are known to be far from under- and overflow."""
    hardware: bool
    """Whether the GPU rounds to the formats that have an instruction for it."""
    config: Config

    @cached_property
    def _text(self) -> str:
        return f"Plan{astuple(self)}"

    # Triton hashes and prints a constexpr at every launch.
    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return self._text


@cache
def plan(
    spec: CastSpec,
    hidden_size: int,
    itemsize: int,
    p: float,
    weighted: bool,
    has_residual: bool,
    from_scales: bool,
    blocked: bool,
    scale_in_memory: bool,
    near: bool,
    hardware: bool,
    tuned: Config | None = None,
) -> Plan:
    """Return the plan for rows of ``hidden_size``, with a configuration of its own if one came."""
    chosen = config(hidden_size, spec.block_size, itemsize) if tuned is None else tuned
    n_blocks = spec.n_blocks(hidden_size)
    # The blocked layout has columns of padding, which are written too.
    written = -(-n_blocks // 4) * 4 if blocked else n_blocks
    return Plan(
        spec=spec,
        hidden_size=hidden_size,
        n_blocks=n_blocks,
        width=padded_width(hidden_size, spec.block_size),
        tiles=-(-written // chosen.blocks),
        in_registers=hidden_size <= LONGEST_IN_REGISTERS,
        p=p,
        weighted=weighted,
        has_residual=has_residual,
        from_scales=from_scales,
        blocked=blocked,
        scale_in_memory=scale_in_memory,
        near=near,
        hardware=hardware,
        config=chosen,
    )
