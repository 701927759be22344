"""Why a layer strays: its channels, its tokens, and the factor, in numbers that add up to ℓ."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mxstats.measure.rows import measure_rows
from mxstats.measure.weighted_bounds import WeightedBounds
from mxstats.theory.bounds import OutputBounds

CHANNELS, TOKENS = 3, 5
# Of a longer layer, rows at even distances stand for all where a channel is taken out.
_ROWS = 2000


@dataclass(frozen=True)
class Explanation:
    """Channels and tokens of a layer."""

    channels: pd.DataFrame
    """``channel``, ``share`` of Σx² (mean over rows), ``ln_r`` of these rows, ``ln_r_without`` (the
    channel set to zero), and ``effect``, the first less the second."""
    tokens: pd.DataFrame
    """The rows whose ℓ is furthest from the median: ``row``, ``token``, ``position``, ``text``,
    ``log_ratio`` = ``ln_c`` − ``ln_crest`` − ``ln_spread``, ``absmax``, ``absmax_channel``."""


def explain(
    rows: NDArray[np.float32], bounds: OutputBounds | WeightedBounds, tokens: pd.DataFrame
) -> Explanation:
    """Explain a layer's rows, [rows, hidden_size], of which one at least can be measured.

    ``tokens`` is :meth:`ActivationStore.tokens`.
    """
    return Explanation(_channels(rows, bounds), _tokens(rows, bounds, tokens))


def _channels(rows: NDArray[np.float32], bounds: OutputBounds | WeightedBounds) -> pd.DataFrame:
    kept = measure_rows(rows, bounds).table.index.to_numpy()
    kept = kept[:: max(1, -(-len(kept) // _ROWS))]
    x = rows[kept].astype(np.float64)
    whole = measure_rows(x, bounds).table
    z = x / whole["rms"].to_numpy()[:, None]
    share = np.mean(z * z, axis=0) / x.shape[1]
    lines = []
    for channel in np.argsort(-share, kind="stable")[:CHANNELS].tolist():
        held = x[:, channel].copy()
        x[:, channel] = 0.0
        without = measure_rows(x, bounds).table["log_ratio"]
        x[:, channel] = held
        # A row of that channel alone has no ratio without it.
        ln_r = float(whole["log_ratio"].loc[without.index].mean())
        ln_r_without = float(without.mean())
        lines.append(
            {
                "channel": channel,
                "share": float(share[channel]),
                "ln_r": ln_r,
                "ln_r_without": ln_r_without,
                "effect": ln_r - ln_r_without,
            }
        )
    return pd.DataFrame(lines)


def _tokens(
    rows: NDArray[np.float32], bounds: OutputBounds | WeightedBounds, tokens: pd.DataFrame
) -> pd.DataFrame:
    table = measure_rows(rows, bounds).table
    distance = (table["log_ratio"] - table["log_ratio"].median()).abs()
    far = table.loc[distance.sort_values(ascending=False, kind="stable").index[:TOKENS]]
    found = far[["log_ratio", "ln_c", "ln_crest", "ln_spread", "absmax", "absmax_channel"]]
    found = found.reset_index()
    known = len(tokens) > 0 and len(rows) % len(tokens) == 0
    token = found["row"] // max(1, len(rows) // max(1, len(tokens)))
    found["token"] = token if known else pd.NA
    found["position"] = tokens["position"].to_numpy()[token] if known else pd.NA
    found["text"] = tokens["text"].to_numpy()[token] if known else ""
    return found
