"""How rmsnorm_mx cuts a row: what its sum of squares depends on, and what its speed does."""

from dataclasses import dataclass
from functools import cache

from mxstats.kernels.tiling import config, padded_width, power_of_two

# Rows up to here are tuned one by one; what is longer is streamed.
_LONG, _STREAMED = 16_384, 4096


@dataclass(frozen=True)
class Cut:
    """No choice changes a result; the pieces, on which ρ depends, are those of the row alone."""

    rows: int
    """Rows a program works on at a time, a power of two."""
    num_warps: int
    programs: int = 0
    """Programs a multiprocessor, which go from row to row with γ in registers; 0: one a row."""
    num_stages: int = 1
    """Rows on their way at a time, and one more."""


@cache
def piece_blocks(hidden_size: int, block_size: int) -> int:
    """Blocks of a piece of a row, a power of two.

    The squares at the same place of all pieces are added in float32 before the rest is added in
    float64: conversions are the dearest of what a norm has to do, and a piece is long enough that
    the few roundings average out.
    """
    width = padded_width(hidden_size, block_size)
    if hidden_size > _LONG:
        length = _STREAMED
    elif hidden_size >= 8192 and hidden_size % 2048 == 0:
        length = 2048
    elif hidden_size > 2048:
        length = 1024
    elif hidden_size > 512:
        length = 512
    else:
        length = power_of_two(hidden_size)
    return max(1, min(length // width, power_of_two(-(-hidden_size // block_size))))


@cache
def cut(hidden_size: int, block_size: int, itemsize: int, plain: bool) -> Cut:
    """Return the cut for rows of ``hidden_size``; ``plain``: without residual, in rows' layout.

    Programs that go from row to row have the next ones on their way meanwhile: on an H200 94 % of
    the copy at a hidden size of 4096 where one program a row has 88 %. They pay where a row and γ
    leave room for it: at 11008 they are slower.
    """
    piece = piece_blocks(hidden_size, block_size) * padded_width(hidden_size, block_size)
    if hidden_size <= 512:
        short = config(hidden_size, block_size, itemsize)
        return Cut(short.rows, short.num_warps)
    num_warps = min(16, max(1, piece // 256))
    if hidden_size > _LONG or not plain or itemsize != 2:
        return Cut(1, num_warps)
    pieces = -(-hidden_size // piece)
    if piece == 512:
        return Cut(1, num_warps, 8, 3)
    if piece == 1024:
        return Cut(1, num_warps, 4 if pieces <= 5 else 3, 3) if pieces <= 8 else Cut(1, num_warps)
    return Cut(1, num_warps, 2, 4) if piece == 2048 else Cut(1, num_warps)
