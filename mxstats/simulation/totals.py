"""From rows to mergeable totals: everything a simulation of a cell keeps.

Of each row only its block maxima m_k and mean squares q_k are needed; of each stream of rows only
the moments of a few numbers a block and a row. Totals merge, so that streams can be drawn anywhere.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxstats.simulation.accumulators import Moments, merge, stack
from mxstats.simulation.cell import Cell

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Totals:
    """Moments over rows and blocks; arrays over the P exponents come last. rms = 1."""

    row_powers: Moments
    """Over rows, channels [P]: mean over the row's K blocks of m_k^p."""
    blocks: Moments
    """Over full blocks, channels [3, P]: m^p, (q−1)(m^p − E m^p), q/2 − m^p/(p E m^p)."""
    ratios: Moments
    """Over rows whose RMS is not 0, channels [3, P]: ℓ = ln(RMS/r̂), R = e^ℓ, max|x|/r̂."""


def merge_totals(a: Totals, b: Totals) -> Totals:
    """Totals of the rows of ``a`` followed by those of ``b``."""
    return Totals(
        merge(a.row_powers, b.row_powers), merge(a.blocks, b.blocks), merge(a.ratios, b.ratios)
    )


def reduce_blocks(x: Array, block_size: int, chunk_rows: int) -> tuple[Array, Array]:
    """Largest magnitude m_k and mean square q_k of every block, both [rows, K]; overwrites x.

    Parameters
    ----------
    x
        Rows of shape [rows, D].
    block_size
        B; a short last block counts by its own length.
    chunk_rows
        Rows reduced at once. Each row is reduced by itself, so the result does not depend on it.
    """
    rows, width = x.shape
    full = width // block_size
    cut = full * block_size
    blocks = full + (cut < width)
    maxima, squares = np.empty((rows, blocks)), np.empty((rows, blocks))
    for start in range(0, rows, chunk_rows):
        part = slice(start, start + chunk_rows)
        y = x[part]
        blocked = y[:, :cut].reshape(len(y), full, block_size)
        np.abs(y, out=y)
        blocked.max(axis=-1, out=maxima[part, :full])
        if cut < width:
            y[:, cut:].max(axis=-1, out=maxima[part, full])
        # NumPy's own sum, not a BLAS product: its order depends on the length of a block alone.
        np.square(y, out=y)
        blocked.mean(axis=-1, out=squares[part, :full])
        if cut < width:
            y[:, cut:].mean(axis=-1, out=squares[part, full])
    return maxima, squares


def totals_of(cell: Cell, maxima: Array, squares: Array) -> Totals:
    """Totals of rows given by their block maxima and mean squares, both [rows, K], at rms = 1.

    Raises ValueError where m^p, or its fourth power, is beyond double precision.
    """
    mean_square = np.sum(squares * (cell.block_lengths / cell.hidden_size), axis=-1)
    peak = maxima.max(axis=-1, keepdims=True)
    # A row of zeros has no ratio, 0/0; any unit does for its powers.
    live = mean_square > 0.0
    relative = maxima / np.where(peak > 0.0, peak, 1.0)
    log_peak, log_rms = np.log(peak[live, 0]), 0.5 * np.log(mean_square[live])
    row_powers, blocks, ratios = [], [], []
    for p, log_c, expected in zip(cell.p, cell.log_constant, cell.mean_power, strict=True):
        # Overflow is seen by what it leaves in the sums.
        with np.errstate(over="ignore", invalid="ignore"):
            shares = relative**p
            powers = shares * peak**p
            row_powers.append(Moments.of(powers.mean(axis=-1)))
            blocks.append(_block_moments(cell, powers, squares, p, expected))
        if not np.all(np.isfinite(blocks[-1].fourth)):
            raise ValueError(
                f"p={p:g}: the fourth moment of m^p is beyond double precision for "
                f"{cell.dist.name}; use a smaller p"
            )
        # In units of the row's own peak the power mean neither overflows nor vanishes.
        log_estimate = log_peak + np.log(shares[live].mean(axis=-1)) / p - log_c
        log_ratio = log_rms - log_estimate
        largest = np.exp(log_peak - log_estimate)
        ratios.append(Moments.of(np.stack([log_ratio, np.exp(log_ratio), largest]), axis=1))
    return Totals(stack(row_powers), stack(blocks, axis=-1), stack(ratios, axis=-1))


def _block_moments(cell: Cell, powers: Array, squares: Array, p: float, expected: float) -> Moments:
    """Moments [3] over the full blocks."""
    power, square = powers[:, : cell.n_full].ravel(), squares[:, : cell.n_full].ravel()
    # One at a time: with blocks of one each is as large as the rows themselves.
    return stack(
        [
            Moments.of(power),
            Moments.of((square - 1.0) * (power - expected)),
            Moments.of(0.5 * square - power / (p * expected)),
        ]
    )
