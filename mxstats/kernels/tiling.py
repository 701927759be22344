"""How the kernels of the norms cut their rows into tiles of whole blocks."""

from dataclasses import dataclass
from functools import cache

from mxstats.kernels.arguments import row_chunks

# A row of up to this many elements stays in registers between its estimate and its cast.
LONGEST_IN_REGISTERS = 16_384
# Elements of a tile of a row that is too long for registers, and warps that work on it.
_STREAMED_TILE, _STREAMED_WARPS = 4096, 8
# Tiles a row that are unrolled at most: more of them take long to compile.
_MOST_TILES = 16
# Elements of a program that a warp works on, 32 a thread.
_WARP_ELEMENTS = 1024
# Warps at most for the bytes that a program holds. Fewer and fuller warps are faster: while some
# programs of a multiprocessor wait for their row, others write theirs.
_FEW_WARPS, _FEW_WARPS_BYTES = 4, 32_768
# From here on a row that is one tile is cut in two, so that its sum begins with half of it.
_LONG_TILE = 4096
# Bytes that a warp reads in one instruction, 16 a thread: a tile has no use for more warps, and a
# row is not cut into smaller ones.
_WARP_BYTES = 512


@dataclass(frozen=True)
class Config:
    """What may be tuned; no choice changes a result."""

    rows: int
    """Rows a program, a power of two of at most 128."""
    blocks: int
    """Blocks a tile, a power of two."""
    num_warps: int
    num_stages: int = 1
    load_eviction: str = ""
    """Eviction policy of inputs that are read once; "evict_first" costs 4 % on an H200."""
    store_cache: str = ""
    """Cache modifier of the codes."""


@cache
def config(hidden_size: int, block_size: int, itemsize: int) -> Config:
    """Return the configuration for rows of ``hidden_size`` values of ``itemsize`` bytes.

    A row whose number of blocks is a power of two is one tile. Another is cut into equal tiles with
    little padding: a mask up to the next power of two would leave threads idle, up to half of them.
    Of short rows a program takes several.
    """
    n_blocks = -(-hidden_size // block_size)
    width = padded_width(hidden_size, block_size)
    if hidden_size > LONGEST_IN_REGISTERS:
        return Config(1, max(1, _STREAMED_TILE // width), _STREAMED_WARPS)
    least = _WARP_BYTES // itemsize
    tiles, blocks = row_chunks(n_blocks, most=min(_MOST_TILES, -(-n_blocks * width // least)))
    if tiles == 1 and blocks > 1 and blocks * width >= _LONG_TILE:
        tiles, blocks = 2, blocks // 2
    rows = max(1, min(32, _WARP_ELEMENTS // power_of_two(tiles * blocks * width)))
    held, tile = rows * tiles * blocks * width, rows * blocks * width
    few = _FEW_WARPS if held * itemsize <= _FEW_WARPS_BYTES else 2 * _FEW_WARPS
    most = min(few, held // _WARP_ELEMENTS, tile * itemsize // _WARP_BYTES)
    # The power of two not above it.
    return Config(rows, blocks, num_warps=power_of_two(max(1, most) // 2 + 1))


def padded_width(hidden_size: int, block_size: int) -> int:
    """Width of a block in a tile, a power of two; a block longer than the row is cut to the row."""
    return power_of_two(min(block_size, hidden_size))


def power_of_two(n: int) -> int:
    """Smallest power of two not below n."""
    return 1 << (n - 1).bit_length()
