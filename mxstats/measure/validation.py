"""A captured model against the theory: one line a (layer, p)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mxstats.activations import ActivationStore, sample_store
from mxstats.measure.rows import measure_rows
from mxstats.theory import log_ratio_std, output_bounds
from mxstats.theory.bounds import OutputBounds


def validate(
    store: ActivationStore | str | Path | None = None,
    *,
    p: float | Sequence[float] = (1.0, 2.0),
    block_size: int = 32,
    distribution: Any = "gaussian",
    layers: Sequence[str] | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> pd.DataFrame:
    """Measure the RMS estimate on the rows of a store, layer by layer.

    Parameters
    ----------
    store
        An :class:`mxstats.ActivationStore` or the path of one; None takes the bundled sample of
        SmolLM2-135M (64 tokens, all 61 norm inputs).
    p, block_size, distribution
        The constant c̃ under test, as :func:`mxstats.constant` takes them.
    layers
        Names of the layers to measure; None takes all.
    progress
        Called with a layer's name and the share done, 0 to 1, before each layer.

    Returns
    -------
    DataFrame
        A row per (layer, p), in the model's order:

        - ``layer``, ``role``, ``index``, ``hidden_size``, ``p``, ``rows`` (measured),
          ``nonfinite_rows``, ``zero_rows`` (both excluded);
        - ``r_median``, ``r_q05``, ``r_q95``, ``r_low``, ``r_high`` (smallest, largest): R = RMS/r̂,
          1 when the estimate is right; ``r_std_theory``: √(V/K), what sampling alone would give;
        - ``ln_r`` = ``ln_c`` − ``ln_crest`` − ``ln_spread``, means over the rows;
        - ``absmax`` (largest magnitude, the model's unit), ``channel_kurtosis`` (median over rows,
          3 for a Gaussian);
        - ``output_absmax`` against ``bound_max_abs``, and ``bound_rms_low``, ``bound_rms_high`` for
          R; ``inside_bounds``: whether every row keeps to all three.

    Raises
    ------
    StoreError
        The store or a shard of it is damaged.
    ValueError, TypeError
        As :func:`mxstats.constant`; an unknown layer; no row left to measure in a layer.
    """
    source = _open(store)
    exponents: list[float] = np.atleast_1d(p).tolist()
    if np.ndim(p) > 1 or not exponents:
        raise ValueError(f"p must be a number or a list of them, got {p!r}")
    if isinstance(layers, str):
        raise TypeError(f"layers must be a list of names, got the string {layers!r}")
    wanted = [layer for layer in source.layers if layers is None or layer.name in layers]
    if layers is not None and not layers:
        raise ValueError("layers is empty; name at least one, or None for all")
    missing = sorted(set(layers or ()) - {layer.name for layer in wanted})
    if missing:
        raise ValueError(
            f"layers: {', '.join(missing)} not in the store; it has "
            f"{source.layers[0].name} … {source.layers[-1].name} ({len(source.layers)})"
        )
    expectations = _Expectations(distribution, block_size)
    lines = []
    for at, layer in enumerate(wanted):
        if progress is not None:
            progress(layer.name, at / len(wanted))
        rows = source.rows(layer.name)
        for exponent in exponents:
            bounds, std = expectations.of(exponent, layer.hidden_size)
            measures = _layer_line(rows, bounds, layer.name)
            lines.append(
                {"layer": layer.name, "role": layer.role, "index": layer.index}
                | measures
                | {"r_std_theory": std}
            )
    return pd.DataFrame(lines)


class _Expectations:
    """The bounds and √(V/K) of each (p, hidden_size), computed once a call."""

    def __init__(self, distribution: Any, block_size: int) -> None:
        self._given = {"distribution": distribution, "block_size": block_size}
        self._known: dict[tuple[float, int], tuple[OutputBounds, float]] = {}

    def of(self, p: float, hidden_size: int) -> tuple[OutputBounds, float]:
        key = (p, hidden_size)
        if key not in self._known:
            at = {"p": p, "hidden_size": hidden_size} | self._given
            self._known[key] = output_bounds(**at), log_ratio_std(**at)
        return self._known[key]


def _layer_line(rows: Any, bounds: OutputBounds, name: str) -> dict[str, Any]:
    measured = measure_rows(rows, bounds)
    table = measured.table
    if table.empty:
        raise ValueError(
            f"layer {name}: no row to measure ({measured.nonfinite_rows} of {len(rows)} have NaN "
            f"or infinities, {measured.zero_rows} are zero)"
        )
    ratio = table["ratio"]
    return {
        "hidden_size": bounds.hidden_size,
        "p": bounds.p,
        "rows": len(table),
        "r_median": ratio.median(),
        "r_q05": ratio.quantile(0.05),
        "r_q95": ratio.quantile(0.95),
        "r_low": ratio.min(),
        "r_high": ratio.max(),
        "ln_r": table["log_ratio"].mean(),
        "ln_c": float(np.log(bounds.constant)),
        "ln_crest": table["ln_crest"].mean(),
        "ln_spread": table["ln_spread"].mean(),
        "absmax": table["absmax"].max(),
        "channel_kurtosis": table["channel_kurtosis"].median(),
        "output_absmax": table["output_absmax"].max(),
        "bound_max_abs": bounds.max_abs,
        "bound_rms_low": bounds.rms_low,
        "bound_rms_high": bounds.rms_high,
        "inside_bounds": bool(table["inside_bounds"].all()),
        "nonfinite_rows": measured.nonfinite_rows,
        "zero_rows": measured.zero_rows,
    }


def _open(store: ActivationStore | str | Path | None) -> ActivationStore:
    if store is None:
        return sample_store()
    return store if isinstance(store, ActivationStore) else ActivationStore(store)
