"""The 128×4 blocked layout of block scales that the matrix units of NVIDIA's Blackwell read.

Scales [rows, K] are padded with zeros to multiples of 128 × 4. Each 128 × 4 tile is stored as 512
bytes, in which entry (r, c) of the tile lies at offset (r mod 32)·16 + ⌊r/32⌋·4 + c; the tiles
follow one another in row-major order. Source: cuBLAS documentation, "1D block scaling factors
layout". It is the same for E8M0 scales of 32 elements and E4M3 scales of 16.
"""

from typing import Any

import numpy as np

from mxstats.formats.packing import integer, uint8_array
from mxstats.formats.tensors import like

_TILE_ROWS = 128
_TILE_COLUMNS = 4
# A tile's rows as offsets see them: r = 32·⌊r/32⌋ + (r mod 32).
_OUTER, _INNER = 4, 32


def to_blocked(scales: Any) -> Any:
    """Return scales in the blocked layout.

    Parameters
    ----------
    scales
        uint8, [rows, K], NumPy or torch: the scales of blocks along the last axis.

    Returns
    -------
    uint8, [512·⌈rows/128⌉·⌈K/4⌉], of the kind that came; 0 where there is no scale.

    Raises
    ------
    TypeError
        Not an array of uint8.
    ValueError
        Not two axes.
    """
    array = uint8_array(scales, "scales")
    if array.ndim != 2:
        raise ValueError(f"scales has {array.ndim} axes; two are needed, [rows, K]")
    rows, columns = array.shape
    down, across = _tiles(rows, columns)
    padded = np.zeros((down * _TILE_ROWS, across * _TILE_COLUMNS), dtype=np.uint8)
    padded[:rows, :columns] = array
    tiles = padded.reshape(down, _OUTER, _INNER, across, _TILE_COLUMNS)
    return like(tiles.transpose(0, 3, 2, 1, 4).reshape(-1), scales)


def from_blocked(blocked: Any, rows: int, columns: int) -> Any:
    """Return scales [rows, columns] from the blocked layout: the inverse of :func:`to_blocked`.

    Parameters
    ----------
    blocked
        uint8, 512·⌈rows/128⌉·⌈columns/4⌉ bytes in any shape, NumPy or torch. What stands in the
        padding is not looked at: a kernel need not write it.
    rows, columns
        Shape of the scales.

    Returns
    -------
    uint8, [rows, columns], of the kind that came.

    Raises
    ------
    TypeError
        Not an array of uint8, or a shape that is not of integers.
    ValueError
        A negative shape, or one that takes another number of bytes.
    """
    array = uint8_array(blocked, "blocked")
    rows, columns = integer(rows, "rows"), integer(columns, "columns")
    if rows < 0 or columns < 0:
        raise ValueError(f"rows={rows}, columns={columns}: neither may be negative")
    down, across = _tiles(rows, columns)
    needed = down * across * _TILE_ROWS * _TILE_COLUMNS
    if array.size != needed:
        raise ValueError(
            f"blocked has {array.size} bytes; rows={rows}, columns={columns} take {needed}"
        )
    tiles = array.reshape(down, across, _INNER, _OUTER, _TILE_COLUMNS).transpose(0, 3, 2, 1, 4)
    padded = tiles.reshape(down * _TILE_ROWS, across * _TILE_COLUMNS)
    return like(padded[:rows, :columns].copy(), blocked)


def _tiles(rows: int, columns: int) -> tuple[int, int]:
    """Number of tiles down and across."""
    return -(-rows // _TILE_ROWS), -(-columns // _TILE_COLUMNS)
