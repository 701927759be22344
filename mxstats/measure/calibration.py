"""``mxs.calibrate``: constants for a distribution and a format, or fitted to a store's rows."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from mxstats.activations import ActivationStore
from mxstats.activations.places import is_url
from mxstats.formats import BlockFormat, ScaleRule, block_format
from mxstats.measure.calibrated import RowCalibration
from mxstats.measure.choice import chosen_layers
from mxstats.measure.format_calibration import FormatCalibration, calibrate_format
from mxstats.measure.row_calibration import calibrate_rows
from mxstats.theory.arguments import check_block_size, check_p
from mxstats.theory.distributions import distribution as as_distribution

PER = ("model", "layer", "block")


@overload
def calibrate(
    source: ActivationStore | os.PathLike[str],
    *,
    p: float = 2.0,
    block_size: int | None = None,
    fmt: BlockFormat | str | None = None,
    scale_rule: ScaleRule | str | None = None,
    per: str | None = None,
    first_token_weight: float | None = None,
    distribution: Any = "gaussian",
    layers: Sequence[str] | None = None,
    folds: int = 4,
    resamples: int = 1000,
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> RowCalibration: ...


@overload
def calibrate(
    source: Any = "gaussian",
    *,
    p: float = 2.0,
    block_size: int | None = None,
    fmt: BlockFormat | str | None = None,
    scale_rule: ScaleRule | str | None = None,
    per: None = None,
) -> FormatCalibration: ...


def calibrate(
    source: Any = "gaussian",
    *,
    p: float = 2.0,
    block_size: int | None = None,
    fmt: BlockFormat | str | None = None,
    scale_rule: ScaleRule | str | None = None,
    per: str | None = None,
    first_token_weight: float | None = None,
    distribution: Any = "gaussian",
    layers: Sequence[str] | None = None,
    folds: int = 4,
    resamples: int = 1000,
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> FormatCalibration | RowCalibration:
    """Return the constants of a format for a distribution, or those that fit a store's rows.

    Parameters
    ----------
    source
        A distribution as :func:`mxstats.distribution` takes it; or an
        :class:`mxstats.ActivationStore` or the path of one (a ``Path``, or a string that names a
        folder, a URL, or any string once ``per`` is given).
    p
        Exponent of the power mean, a scalar.
    block_size
        When not given the format's own, 32 where there is none.
    fmt
        A format or its name; MXFP8_E4M3 for a distribution when not given. On rows it gives the
        block size alone.
    scale_rule
        For a distribution: FLOOR when not given, none for floating scales.
    per
        For a store. ``"layer"`` (the default): one c a layer, ln c = mean ln(M_p(m)/RMS);
        ``"model"``: one c for all, in which layers count alike; ``"block"``: weights for p = 2,
        r̂² = mean_k w_k m_k², each in [1/B, 1] (:mod:`mxstats.measure.block_weights`).
    first_token_weight
        For a store: how many rows one row of the first token of a window counts for, above 0; 1
        when not given.
    distribution
        For a store: whose √(V/K) stands beside the errors, and sets the ridge of the weights.
    layers
        For a store: names of the layers; None takes all.
    folds
        For a store: parts of the text, each of which is held out once, at least 2.
    resamples, seed
        For a store: of the bootstrap over windows.
    progress
        For a store: called with a layer's name and the share done before each layer.

    Returns
    -------
    FormatCalibration
        Of a distribution.
    RowCalibration
        Of a store. Its ``table`` has a line a layer: ``layer``, ``role``, ``index``,
        ``hidden_size``, ``p``, ``block_size``, ``per``; ``rows`` fitted, ``nonfinite_rows`` and
        ``zero_rows`` left out; ``groups`` resampled and what a ``group`` is; ``c``, ``c_low``,
        ``c_high`` (95 %; NaN with one group), with weights those of the scalar that they are
        regularised towards; ``in_sample_rms``, ``_q05``, ``_q95`` of e = ln r̂ − ln RMS, the same
        ``held_out``, and ``held_out_rms_first`` over rows of first tokens; ``sampling_limit``,
        √(V/K); ``bound_max_abs``, c K^(1/p) or √(K/min w), and ``bound_rmsnorm``, √D. With weights
        also ``w_low``, ``w_median``, ``w_high``, how many are ``at_low`` and ``at_high``, ``steps``
        and ``converged``.

    Raises
    ------
    ValueError, TypeError
        As :func:`mxstats.constant`, :func:`mxstats.scale_only_constant`, :func:`mxstats.quantize`;
        an argument that is for the other kind of source; an unknown ``per`` or layer; weights for
        p other than 2; a layer without a row to fit, or whose rows belong to no tokens.
    StoreError
        The store, a shard of it or its tokens are damaged.
    """
    if not is_store(source, per):
        for name, value in (
            ("per", per),
            ("first_token_weight", first_token_weight),
            ("layers", layers),
        ):
            if value is not None:
                raise ValueError(f"{name}={value!r}: is for a store; a distribution came")
        return calibrate_format(
            source,
            p=p,
            fmt="MXFP8_E4M3" if fmt is None else fmt,
            scale_rule=scale_rule,
            block_size=block_size,
        )
    if scale_rule is not None:
        raise ValueError(
            f"scale_rule={str(scale_rule)!r}: is for a distribution; the fit on rows is of the "
            f"block maxima, before any scale"
        )
    store = source if isinstance(source, ActivationStore) else ActivationStore(source)
    kind = "layer" if per is None else per
    if kind not in PER:
        raise ValueError(f"per={per!r} is unknown; known are {', '.join(PER)}")
    if np.ndim(p):
        raise ValueError(f"p={p!r}: one exponent at a time is fitted")
    exponent = float(check_p(p, as_distribution(distribution)))
    if kind == "block" and exponent != 2.0:
        raise ValueError(f"p={p:g}: weights for blocks are for p=2 alone")
    weight = 1.0 if first_token_weight is None else float(first_token_weight)
    if not 0.0 < weight < float("inf"):
        raise ValueError(f"first_token_weight={weight:g}: must be above 0 and finite")
    for name, value, least in (("folds", folds, 2), ("resamples", resamples, 1), ("seed", seed, 0)):
        if value < least:
            raise ValueError(f"{name}={value}: must be at least {least}")
    if block_size is None:
        block_size = 32 if fmt is None else block_format(fmt).block_size
    return calibrate_rows(
        store,
        p=exponent,
        block_size=int(check_block_size(block_size)),
        per=kind,
        first_token_weight=weight,
        distribution=distribution,
        layers=chosen_layers(store, layers),
        folds=folds,
        resamples=resamples,
        seed=seed,
        progress=progress,
    )


def is_store(source: Any, per: str | None = None) -> bool:
    """Whether ``source`` is a store or the path of one, and not a distribution."""
    if isinstance(source, ActivationStore | os.PathLike):
        return True
    return is_url(source) or (
        isinstance(source, str) and (per is not None or Path(source).is_dir())
    )
