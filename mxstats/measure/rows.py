"""What one row says of the estimate: R, and the two factors that explain it.

For a row x with block maxima m_k, block mean squares q_k and RMS² = Σ n_k q_k / D,

    crest  = M_p(m) / M_p(√q)      the shape inside the blocks
    spread = M_p(√q) / RMS         how unequal the blocks are; 1 for p = 2 and equal blocks
    r̂ = M_p(m)/c̃,   R = RMS/r̂,   ℓ = ln R = ln c̃ − ln crest − ln spread.

Under a weight for each block, r̂² = mean_k w_k m_k², the constant that the row sees is M_2(m)/r̂:
with it in the place of c̃ the same sum holds.

Everything is relative to the row's own absmax in float64, so that fp16 rows of 300 and float64 rows
of 1e200 come out as exactly as others.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mxstats.measure.blocks import block_measures, log_power_mean
from mxstats.measure.weighted_bounds import WeightedBounds
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


def measure_rows(rows: ArrayLike, bounds: OutputBounds | WeightedBounds) -> RowMeasures:
    """Measure the estimate on each row of ``rows``.

    Parameters
    ----------
    rows
        [n_rows, hidden_size], any real dtype (bfloat16 of ml_dtypes too).
    bounds
        From :func:`mxstats.output_bounds`: carries p, block_size, hidden_size, c̃; or
        :class:`WeightedBounds`, which carries weights for the blocks.

    Returns
    -------
    RowMeasures
        ``table`` has, in the unit of the input: ``rms``, ``absmax`` (first at ``absmax_channel``),
        ``estimate`` (r̂); without unit: ``ratio`` (R), ``log_ratio`` (ℓ), ``ln_c`` (ln c̃, the same
        in each row but under weights), ``ln_crest``, ``ln_spread``, ``channel_kurtosis``
        (mean x⁴/(mean x²)² over the row's channels, about zero, not excess: 3 for a Gaussian),
        ``output_absmax`` and ``output_rms`` (of y = x/r̂, which is R), ``inside_bounds``.

    Raises
    ------
    TypeError
        Rows that are not real numbers.
    ValueError
        Rows that are not [n_rows, hidden_size] with the bounds' hidden_size.
    """
    found = block_measures(rows, block_size=bounds.block_size, hidden_size=bounds.hidden_size)
    log_mean = log_power_mean(found.maxima, bounds.p)
    log_mean_rms = log_power_mean(np.sqrt(found.squares), bounds.p)
    if isinstance(bounds, WeightedBounds):
        estimate = np.sqrt(np.mean(bounds.weights * found.maxima**2, axis=1))
        ln_c = log_mean - np.log(estimate)
    else:
        estimate = np.exp(log_mean) / bounds.constant
        ln_c = np.full(len(log_mean), np.log(bounds.constant))
    ratio = found.rms / estimate
    output_absmax = 1.0 / estimate
    table = pd.DataFrame(
        {
            "rms": found.rms * found.absmax,
            "absmax": found.absmax,
            "absmax_channel": found.absmax_channel,
            "estimate": estimate * found.absmax,
            "ratio": ratio,
            "log_ratio": np.log(ratio),
            "ln_c": ln_c,
            "ln_crest": log_mean - log_mean_rms,
            "ln_spread": log_mean_rms - np.log(found.rms),
            "channel_kurtosis": found.fourth / found.rms**4,
            "output_absmax": output_absmax,
            "output_rms": ratio,
            "inside_bounds": inside_bounds(output_absmax, ratio, bounds),
        },
        index=pd.Index(found.row, name="row"),
    )
    return RowMeasures(table, found.nonfinite_rows, found.zero_rows)


def inside_bounds(
    output_absmax: Array, output_rms: Array, bounds: OutputBounds | WeightedBounds
) -> NDArray[np.bool_]:
    """Whether outputs keep to the bounds, to 1e-12 of their size."""
    above, below = 1.0 + BOUND_TOLERANCE, 1.0 - BOUND_TOLERANCE
    return (
        (output_absmax <= bounds.max_abs * above)
        & (output_rms <= bounds.rms_high * above)
        & (output_rms >= bounds.rms_low * below)
    )
