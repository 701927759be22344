"""What one row says of the estimate: R, and the two factors that explain it.

For a row x with block maxima m_k, block mean squares q_k and RMS² = Σ n_k q_k / D,

    crest  = M_p(m) / M_p(√q)      the shape inside the blocks
    spread = M_p(√q) / RMS         how unequal the blocks are; 1 for p = 2 and equal blocks
    r̂ = M_p(m)/c̃,   R = RMS/r̂,   ℓ = ln R = ln c̃ − ln crest − ln spread.

Everything is relative to the row's own absmax in float64, so that fp16 rows of 300 and float64 rows
of 1e200 come out as exactly as others.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mxstats.theory.bounds import OutputBounds

Array = NDArray[np.float64]

# Means over at most 10^5 values in float64, summed pairwise, are good to a few 1e-15; a row that
# attains its bound must not be called outside because of the last digits.
BOUND_TOLERANCE = 1e-12


@dataclass(frozen=True)
class RowMeasures:
    """The measures of the rows that have them, and how many rows were left out and why."""

    table: pd.DataFrame
    """One line a measured row, indexed by the row's number in the input."""
    nonfinite_rows: int
    """Rows with a NaN or an infinity: excluded."""
    zero_rows: int
    """Rows of zeros only, which have no ratio: excluded."""


def measure_rows(rows: ArrayLike, bounds: OutputBounds) -> RowMeasures:
    """Measure the estimate on each row of ``rows``.

    Parameters
    ----------
    rows
        [n_rows, hidden_size], any real dtype (bfloat16 of ml_dtypes too).
    bounds
        From :func:`mxstats.output_bounds`: carries p, block_size, hidden_size, c̃.

    Returns
    -------
    RowMeasures
        ``table`` has, in the unit of the input: ``rms``, ``absmax``, ``estimate`` (r̂); without
        unit: ``ratio`` (R), ``log_ratio`` (ℓ), ``ln_crest``, ``ln_spread``, ``channel_kurtosis``
        (mean x⁴/(mean x²)² over the row's channels, about zero, not excess: 3 for a Gaussian),
        ``output_absmax`` and ``output_rms`` (of y = x/r̂, which is R), ``inside_bounds``.

    Raises
    ------
    TypeError
        Rows that are not real numbers.
    ValueError
        Rows that are not [n_rows, hidden_size] with the bounds' hidden_size.
    """
    x = _as_rows(rows, bounds.hidden_size)
    finite = np.isfinite(x).all(axis=1)
    absmax = np.max(np.abs(x), axis=1, initial=0.0)
    measured = finite & (absmax > 0.0)
    unit = absmax[measured]
    z = np.abs(x[measured]) / unit[:, None]

    lengths = bounds.block_lengths
    block_max, block_square = _blocks(z, bounds.block_size, lengths)
    log_power_mean = _log_power_mean(block_max, bounds.p)
    log_power_rms = _log_power_mean(np.sqrt(block_square), bounds.p)
    rms = np.sqrt(np.mean(z * z, axis=1))
    estimate = np.exp(log_power_mean) / bounds.constant
    ratio = rms / estimate
    output_absmax = 1.0 / estimate
    table = pd.DataFrame(
        {
            "rms": rms * unit,
            "absmax": unit,
            "estimate": estimate * unit,
            "ratio": ratio,
            "log_ratio": np.log(ratio),
            "ln_crest": log_power_mean - log_power_rms,
            "ln_spread": log_power_rms - np.log(rms),
            "channel_kurtosis": np.mean(z**4, axis=1) / rms**4,
            "output_absmax": output_absmax,
            "output_rms": ratio,
            "inside_bounds": inside_bounds(output_absmax, ratio, bounds),
        },
        index=pd.Index(np.flatnonzero(measured), name="row"),
    )
    return RowMeasures(table, int(np.sum(~finite)), int(np.sum(finite & (absmax == 0.0))))


def inside_bounds(
    output_absmax: Array, output_rms: Array, bounds: OutputBounds
) -> NDArray[np.bool_]:
    """Whether outputs keep to the bounds, to 1e-12 of their size."""
    above, below = 1.0 + BOUND_TOLERANCE, 1.0 - BOUND_TOLERANCE
    return (
        (output_absmax <= bounds.max_abs * above)
        & (output_rms <= bounds.rms_high * above)
        & (output_rms >= bounds.rms_low * below)
    )


def _as_rows(rows: ArrayLike, hidden_size: int) -> Array:
    array: NDArray[Any] = np.asarray(rows)
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise TypeError(f"rows must be real numbers, got dtype {array.dtype}")
    if array.ndim != 2 or array.shape[1] != hidden_size:
        raise ValueError(f"rows have shape {array.shape}; [n_rows, {hidden_size}] is needed")
    return array.astype(np.float64)


def _blocks(z: Array, block_size: int, lengths: NDArray[np.int64]) -> tuple[Array, Array]:
    """Largest value and mean square of each block, [n_rows, K] each."""
    padded = np.zeros((z.shape[0], lengths.size * block_size))
    padded[:, : z.shape[1]] = z
    blocks = padded.reshape(z.shape[0], lengths.size, block_size)
    return blocks.max(axis=2), np.sum(blocks * blocks, axis=2) / lengths


def _log_power_mean(values: Array, p: float) -> Array:
    """Natural logarithm of M_p along the last axis."""
    largest = values.max(axis=1)
    return np.log(largest) + np.log(np.mean((values / largest[:, None]) ** p, axis=1)) / p
