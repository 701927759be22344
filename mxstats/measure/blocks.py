"""Rows cut into blocks: largest magnitude and mean square of each, relative to the row's absmax.

In float64, and a piece of the rows at a time: rows of fp16 300 or of float64 1e200 come out as
exactly as others, and what is kept is 2K numbers a row.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# Entries worked on at a time: some six float64 temporaries of this size make 50 MB.
_PIECE = 2**20


@dataclass(frozen=True)
class BlockMeasures:
    """The blocks of the rows that can be measured; the others are counted.

    With n measured rows and K blocks; maxima, squares and rms are those of x/absmax(x).
    """

    row: NDArray[np.int64]
    """Number of each measured row in the input, [n]."""
    absmax: Array
    """In the unit of the input, [n]."""
    absmax_channel: NDArray[np.int64]
    """Where the row's absmax first is, [n]."""
    maxima: Array
    """m_k, [n, K]."""
    squares: Array
    """q_k, the mean over the block's own length, [n, K]."""
    rms: Array
    """√(mean x²), [n]."""
    fourth: Array
    """mean x⁴, [n]."""
    nonfinite_rows: int
    zero_rows: int


def block_measures(rows: ArrayLike, *, block_size: int, hidden_size: int) -> BlockMeasures:
    """Measure the blocks of ``rows``.

    Parameters
    ----------
    rows
        [n_rows, hidden_size], any real dtype (bfloat16 of ml_dtypes too).
    block_size, hidden_size
        The last block may be short.

    Raises
    ------
    TypeError
        Rows that are not real numbers.
    ValueError
        Rows that are not [n_rows, hidden_size].
    """
    array = check_rows(rows, hidden_size)
    step = max(1, _PIECE // hidden_size)
    # One piece at least, so that an input without rows has arrays of the right shape.
    starts = range(0, max(1, len(array)), step)
    pieces = [_piece(array[first : first + step], block_size, first) for first in starts]
    found: dict[str, Any] = {
        name: np.concatenate([piece[name] for piece in pieces])
        for name in ("row", "absmax", "absmax_channel", "maxima", "squares", "rms", "fourth")
    }
    for name in ("nonfinite_rows", "zero_rows"):
        found[name] = sum(piece[name] for piece in pieces)
    return BlockMeasures(**found)


def check_rows(rows: ArrayLike, hidden_size: int) -> NDArray[Any]:
    """Return rows as an array of real numbers, [n_rows, hidden_size]; raises as above."""
    array: NDArray[Any] = np.asarray(rows)
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise TypeError(f"rows must be real numbers, got dtype {array.dtype}")
    if array.ndim != 2 or array.shape[1] != hidden_size:
        raise ValueError(f"rows have shape {array.shape}; [n_rows, {hidden_size}] is needed")
    return array


def block_lengths(block_size: int, hidden_size: int) -> NDArray[np.int64]:
    """n_k, [K]: the block size but for a short last block."""
    starts = np.arange(0, hidden_size, block_size)
    return np.minimum(block_size, hidden_size - starts)


def _piece(rows: NDArray[Any], block_size: int, first: int) -> dict[str, Any]:
    x = np.abs(rows.astype(np.float64))
    finite = np.isfinite(x).all(axis=1)
    absmax = np.max(x, axis=1, initial=0.0)
    measured = finite & (absmax > 0.0)
    unit = absmax[measured]
    z = x[measured] / unit[:, None]
    lengths = block_lengths(block_size, rows.shape[1])
    padded = np.zeros((len(z), lengths.size * block_size))
    padded[:, : z.shape[1]] = z
    blocks = padded.reshape(len(z), lengths.size, block_size)
    square = z * z
    return {
        "row": first + np.flatnonzero(measured),
        "absmax": unit,
        "absmax_channel": z.argmax(axis=1),
        "maxima": blocks.max(axis=2),
        "squares": np.sum(blocks * blocks, axis=2) / lengths,
        "rms": np.sqrt(np.mean(square, axis=1)),
        "fourth": np.mean(square * square, axis=1),
        "nonfinite_rows": int(np.sum(~finite)),
        "zero_rows": int(np.sum(finite & (absmax == 0.0))),
    }


def log_power_mean(values: Array, p: float) -> Array:
    """Natural logarithm of M_p = (mean v^p)^(1/p) along the last axis of [n, K]."""
    largest = values.max(axis=1)
    return np.log(largest) + np.log(np.mean((values / largest[:, None]) ** p, axis=1)) / p
