"""A captured model against the theory: one line a (layer, p)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mxstats.activations import ActivationStore, sample_store
from mxstats.activations.manifest import LayerInfo
from mxstats.formats import BlockFormat, ScaleRule, block_format
from mxstats.formats.reference import check_rule
from mxstats.measure.choice import chosen_layers
from mxstats.measure.expectations import Expectation, Expectations, need_torch
from mxstats.measure.kernel_rows import KernelSettings, kernel_summary, run_kernel
from mxstats.measure.rows import measure_rows
from mxstats.measure.summaries import outlier_summary, ratio_summary
from mxstats.measure.verdicts import verdict

_KERNEL_FORMAT = "MXFP8_E4M3"


def validate(
    store: ActivationStore | str | Path | None = None,
    *,
    p: float | Sequence[float] | None = None,
    block_size: int | None = None,
    distribution: Any = "gaussian",
    constants: Any = None,
    layers: Sequence[str] | None = None,
    kernel: bool | None = None,
    fmt: BlockFormat | str | None = None,
    scale_rule: ScaleRule | str | None = None,
    backend: str = "auto",
    eps: float = 1e-5,
    progress: Callable[[str, float], None] | None = None,
) -> pd.DataFrame:
    """Measure the RMS estimate on the rows of a store, layer by layer.

    Parameters
    ----------
    store
        An :class:`mxstats.ActivationStore` or the path of one; None takes the bundled sample of
        SmolLM2-135M (64 tokens, all 61 norm inputs).
    p
        One exponent or several; 1 and 2 when not given, 2 with ``constants``.
    block_size
        That of the format, and 32 without one, when not given.
    distribution
        Whose constant c̃ is under test, as :func:`mxstats.constant` takes it, where ``constants``
        has none; and whose √(V/K) stands beside what is seen.
    constants
        Constants or weights of layers in place of c̃: a :class:`RowCalibration`, the path of the
        file it was saved to, a mapping of names, or a number. Needs torch but for the first.
    layers
        Names of the layers to measure; None takes all.
    kernel
        Whether the rows also run through :func:`mxstats.kernels.mxnorm`, which needs torch; when
        not given, where ``fmt``, ``scale_rule`` or another ``backend`` than ``"auto"`` is.
    fmt, scale_rule, eps
        Of the kernel; MXFP8_E4M3 and FLOOR when not given.
    backend
        ``"triton"``, ``"torch"``, or ``"auto"``: Triton where there is a GPU.
    progress
        Called with a layer's name and the share done, 0 to 1, before each layer.

    Returns
    -------
    DataFrame
        A row per (layer, p), in the model's order. Columns whose names end in ``_rest`` are the
        same without the first token of each window.

        - ``layer``, ``role``, ``index``, ``hidden_size``, ``p``, ``block_size``, ``rows``
          (measured),
          ``nonfinite_rows``, ``zero_rows`` (both excluded), ``constant_from``;
        - ``r_median``, ``r_q05``, ``r_q95``, ``r_low``, ``r_high`` (smallest, largest): R = RMS/r̂,
          1 when the estimate is right; ``r_std_theory``: √(V/K), what sampling alone would give;
        - ``ln_r`` = ``ln_c`` − ``ln_crest`` − ``ln_spread``, means over the rows; ``ln_r_theory``,
          what sampling alone would give; ``ln_r_std`` over rows, and ``share_crest``,
          ``share_spread``, the factors' shares of its square;
        - ``absmax`` (largest magnitude, the model's unit), ``channel_kurtosis`` (median over rows
          of mean x⁴/(mean x²)² over channels, 3 for a Gaussian), and the columns of
          :func:`mxstats.measure.summaries.outlier_summary`, with ``massive_token`` (its number in
          the text), ``massive_position`` (in its window) and ``massive_text``;
        - ``output_absmax`` against ``bound_max_abs``, and ``bound_rms_low``, ``bound_rms_high`` for
          R; ``inside_bounds``: whether every row keeps to all three;
        - ``verdict`` and ``why`` (:func:`mxstats.measure.verdicts.verdict`);
        - with the kernel: ``format``, ``scale_rule``, ``backend``, ``device``,
          ``twin_differences`` (rows of which any bit of codes, scales or ρ̃ is not the torch
          twin's; missing where the twin ran) and the columns of
          :func:`mxstats.measure.kernel_rows.kernel_summary`.

    Raises
    ------
    StoreError
        The store, a shard of it or its tokens are damaged.
    ValueError, TypeError
        As :func:`mxstats.constant` and :func:`mxstats.kernels.mxnorm`; an unknown layer; no row
        left to measure in a layer; several p with constants; a format with ``kernel=False``.
    ModuleNotFoundError
        torch or Triton is needed and missing.
    """
    source = open_store(store)
    if p is None:
        p = (1.0, 2.0) if constants is None else 2.0
    exponents: list[float] = np.atleast_1d(np.asarray(p)).tolist()
    if np.ndim(p) > 1 or not exponents:
        raise ValueError(f"p must be a number or a list of them, got {p!r}")
    if constants is not None and len(exponents) > 1:
        raise ValueError(f"p={p!r}: constants are of one p")
    wanted = chosen_layers(source, layers)
    settings = _kernel_settings(kernel, fmt, scale_rule, backend, eps, block_size, source)
    if block_size is None:
        block_size = 32 if settings is None else settings.fmt.block_size
    names = [layer.name for layer in source.layers]
    expectations = Expectations(distribution, block_size, constants, names, exponents[0])
    tokens = source.tokens()
    lines = []
    for at, layer in enumerate(wanted):
        if progress is not None:
            progress(layer.name, at / len(wanted))
        rows = source.rows(layer.name)
        for exponent in exponents:
            expected = expectations.of(exponent, layer)
            lines.append(_line(rows, layer, expected, tokens, settings))
    table = pd.DataFrame(lines)
    if "twin_differences" in table:
        table["twin_differences"] = table["twin_differences"].astype("Int64")
    return table


def open_store(store: ActivationStore | str | Path | None) -> ActivationStore:
    """Return the store, opened where it is a path; None is the bundled sample."""
    if store is None:
        return sample_store()
    return store if isinstance(store, ActivationStore) else ActivationStore(store)


def token_of_row(row: int, rows: int, tokens: int) -> int | None:
    """Which token a row belongs to, None where the rows are not a multiple of the tokens."""
    return row // (rows // tokens) if tokens and rows % tokens == 0 else None


def _kernel_settings(
    kernel: bool | None,
    fmt: BlockFormat | str | None,
    scale_rule: ScaleRule | str | None,
    backend: str,
    eps: float,
    block_size: int | None,
    source: ActivationStore,
) -> KernelSettings | None:
    asked = fmt is not None or scale_rule is not None or backend != "auto"
    if kernel is None:
        kernel = asked
    if not kernel:
        if asked:
            raise ValueError(
                f"kernel=False: fmt={fmt}, scale_rule={scale_rule}, backend={backend!r} are of the "
                f"kernel"
            )
        return None
    form = block_format(_KERNEL_FORMAT if fmt is None else fmt)
    if block_size is not None:
        form = form.with_block_size(block_size)
    check_rule(scale_rule, form)
    need_torch("the kernel")
    return KernelSettings(form, scale_rule, eps, backend, source.manifest.dtype)


def _line(
    rows: NDArray[np.float32],
    layer: LayerInfo,
    expected: Expectation,
    tokens: pd.DataFrame,
    settings: KernelSettings | None,
) -> dict[str, Any]:
    bounds = expected.bounds
    measured = measure_rows(rows, bounds)
    table = measured.table
    if table.empty:
        raise ValueError(
            f"layer {layer.name}: no row to measure ({measured.nonfinite_rows} of {len(rows)} have "
            f"NaN or infinities, {measured.zero_rows} are zero)"
        )
    rest = table.loc[~_is_first(table.index.to_numpy(), len(rows), tokens)]
    line: dict[str, Any] = {
        "layer": layer.name,
        "role": layer.role,
        "index": layer.index,
        "hidden_size": layer.hidden_size,
        "p": bounds.p,
        "block_size": bounds.block_size,
        "rows": len(table),
        "rows_rest": len(rest),
        "nonfinite_rows": measured.nonfinite_rows,
        "zero_rows": measured.zero_rows,
        "constant_from": expected.constant_from,
    }
    outliers = outlier_summary(rows, table)
    line |= ratio_summary(table) | outliers
    line |= _where(outliers["massive_row"], len(rows), tokens)
    line |= {
        "r_std_theory": expected.std,
        "ln_r_theory": expected.mean,
        "bound_max_abs": bounds.max_abs,
        "bound_rms_low": bounds.rms_low,
        "bound_rms_high": bounds.rms_high,
        "inside_bounds": bool(table["inside_bounds"].all()),
    }
    line |= _rest(ratio_summary(rest) | outlier_summary(rows, rest))
    line["verdict"], line["why"] = verdict(line)
    if settings is not None:
        run = run_kernel(rows, bounds, settings)
        rule = check_rule(settings.scale_rule, settings.fmt)
        line |= {
            "format": settings.fmt.name,
            "scale_rule": None if rule is None else str(rule),
            "backend": run.backend,
            "device": run.device,
            "twin_differences": None if run.differs is None else int(run.differs.sum()),
        }
        line |= kernel_summary(run, rows, table, bounds, settings.eps)
        line |= _rest(kernel_summary(run, rows, rest, bounds, settings.eps))
    return line


def _rest(columns: dict[str, Any]) -> dict[str, Any]:
    return {f"{name}_rest": value for name, value in columns.items()}


def _is_first(kept: NDArray[np.int64], rows: int, tokens: pd.DataFrame) -> NDArray[np.bool_]:
    """Whether rows are of the first token of a window; none is where that cannot be told."""
    if not len(tokens) or rows % len(tokens):
        return np.zeros(len(kept), dtype=bool)
    return tokens["position"].to_numpy()[kept // (rows // len(tokens))] == 0


def _where(row: int, rows: int, tokens: pd.DataFrame) -> dict[str, Any]:
    token = token_of_row(row, rows, len(tokens))
    if token is None:
        return {"massive_token": None, "massive_position": None, "massive_text": ""}
    return {
        "massive_token": token,
        "massive_position": int(tokens["position"].iloc[token]),
        "massive_text": str(tokens["text"].iloc[token]),
    }
