"""The rows of a layer in one line of numbers: R and its parts, kurtosis, massive activations."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

# Massive activations as of Sun et al., arXiv 2402.17762: magnitudes above 100 that are about a
# thousand times the median magnitude of their layer.
MASSIVE_ABS, MASSIVE_RATIO = 100.0, 1000.0
_PIECE = 2**20

RATIO_COLUMNS = (
    "r_median", "r_q05", "r_q95", "r_low", "r_high", "ln_r", "ln_r_std", "ln_c", "ln_crest",
    "ln_spread", "share_crest", "share_spread", "absmax", "channel_kurtosis", "output_absmax",
)  # fmt: skip


def ratio_summary(table: pd.DataFrame) -> dict[str, float]:
    """R over the rows of a table of :func:`measure_rows`; NaN throughout where there are none.

    ``share_crest`` and ``share_spread`` split the variance of ℓ over rows: Cov(ℓ, −ln crest)/Var ℓ
    and Cov(ℓ, −ln spread)/Var ℓ, which add up to 1 under a constant. NaN without a variance.
    """
    if table.empty:
        return dict.fromkeys(RATIO_COLUMNS, float("nan"))
    ratio, log_ratio = table["ratio"], table["log_ratio"].to_numpy()
    ln_c = table["ln_c"]
    around = log_ratio - log_ratio.mean()
    variance = float(np.mean(around**2))
    # Differences of logarithms near 1 are good to some 1e-16: below 1e-14 there is no spread.
    varies = variance > 1e-28
    values = (
        ratio.median(),
        ratio.quantile(0.05),
        ratio.quantile(0.95),
        ratio.min(),
        ratio.max(),
        log_ratio.mean(),
        np.sqrt(variance),
        ln_c.iloc[0] if ln_c.nunique() == 1 else ln_c.mean(),
        table["ln_crest"].mean(),
        table["ln_spread"].mean(),
        -float(np.mean(around * table["ln_crest"])) / variance if varies else np.nan,
        -float(np.mean(around * table["ln_spread"])) / variance if varies else np.nan,
        table["absmax"].max(),
        table["channel_kurtosis"].median(),
        table["output_absmax"].max(),
    )
    return {name: float(v) for name, v in zip(RATIO_COLUMNS, values, strict=True)}


def outlier_summary(rows: NDArray[Any], table: pd.DataFrame) -> dict[str, Any]:
    """Kurtosis and the largest magnitudes of a layer.

    Parameters
    ----------
    rows
        [rows, hidden_size], float.
    table
        Of :func:`measure_rows` for them, or some lines of it: the rows that count.

    Returns
    -------
    dict
        - ``kurtosis_pooled``: mean x⁴/(mean x²)² over all entries of all rows; 3 for a Gaussian;
        - ``kurtosis_feature_rms``: mean_j s_j⁴/(mean_j s_j²)² of the channels' RMS s_j =
          √(mean over rows x_j²), from 1 (all channels alike) to hidden_size (one channel); He et
          al., arXiv 2405.19279;
        - ``massive_ratio``: the largest magnitude over the median one; where it is:
          ``massive_row``, ``massive_channel``; ``massive``: above 100 and 1,000 times the median;
        - ``top_channel``, ``top_channel_share``: the channel that has the largest share of Σx²,
          and that share, means over rows.
    """
    if table.empty:
        return {
            "kurtosis_pooled": np.nan,
            "kurtosis_feature_rms": np.nan,
            "massive_ratio": np.nan,
            "massive_row": None,
            "massive_channel": None,
            "massive": False,
            "top_channel": None,
            "top_channel_share": np.nan,
        }
    largest = float(table["absmax"].max())
    at = table["absmax"].to_numpy().argmax()
    # Relative to the layer's largest magnitude, so that fourth powers stay in range.
    rms = table["rms"].to_numpy() / largest
    fourth = table["channel_kurtosis"].to_numpy() * rms**4
    squares, shares = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    numbers = table.index.to_numpy()
    step = max(1, _PIECE // rows.shape[1])
    for first in range(0, len(numbers), step):
        part = slice(first, first + step)
        x = rows[numbers[part]].astype(np.float64) / largest
        x *= x
        squares += x.sum(axis=0)
        shares += (x / (rms[part, None] ** 2)).sum(axis=0)
    squares /= len(numbers)
    median = float(np.median(np.abs(rows[numbers])))
    ratio = largest / median if median > 0.0 else float("inf")
    top = int(shares.argmax())
    return {
        "kurtosis_pooled": float(fourth.mean() / np.mean(rms**2) ** 2),
        "kurtosis_feature_rms": float(np.mean(squares**2) / np.mean(squares) ** 2),
        "massive_ratio": ratio,
        "massive_row": int(numbers[at]),
        "massive_channel": int(table["absmax_channel"].iloc[at]),
        "massive": largest > MASSIVE_ABS and ratio > MASSIVE_RATIO,
        "top_channel": top,
        "top_channel_share": float(shares[top] / len(numbers) / rows.shape[1]),
    }
