"""One layer's rows as a calibration needs them: 1 + K numbers a row, and where the row belongs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxstats.activations.manifest import LayerInfo
from mxstats.measure.blocks import block_measures, log_power_mean
from mxstats.measure.sequences import Sequences

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """What all layers of a calibration have in common."""

    p: float
    block_size: int
    first_token_weight: float
    folds: int
    sequences: Sequences
    draws: NDArray[np.int64]
    """How often each resample takes each group, [resamples, groups]."""
    sampling_limits: Mapping[int, float]
    """√(V/K) by hidden size."""


@dataclass(frozen=True, eq=False)
class LayerRows:
    """One layer's rows as a fit needs them."""

    info: LayerInfo
    log_constant: Array
    """ln(M_p(m)/RMS), [rows]."""
    shares: Array
    """m²/(K RMS²), [rows, K]; without rows where a scalar is fitted."""
    omega: Array
    """Weight of each row, [rows]."""
    group: NDArray[np.int64]
    fold: NDArray[np.int64]
    first: NDArray[np.bool_]
    """Whether the row is of the first token of its window."""
    sampling_limit: float
    """√(V/K)."""
    nonfinite_rows: int
    zero_rows: int


def gather(rows: Any, info: LayerInfo, plan: Plan, *, with_shares: bool) -> LayerRows:
    """Measure the rows of a layer, [rows, hidden_size].

    Raises ValueError where there is no row to fit, or no telling which token a row belongs to.
    """
    found = block_measures(rows, block_size=plan.block_size, hidden_size=info.hidden_size)
    if not found.row.size:
        raise ValueError(
            f"layer {info.name}: no row to fit ({found.nonfinite_rows} of {len(rows)} have NaN or "
            f"infinities, {found.zero_rows} are zero)"
        )
    token = plan.sequences.token_of_rows(len(rows), info.name)[found.row]
    first = plan.sequences.position[token] == 0
    group = plan.sequences.group[token]
    shares = (found.maxima / found.rms[:, None]) ** 2 / found.maxima.shape[1]
    return LayerRows(
        info=info,
        log_constant=log_power_mean(found.maxima, plan.p) - np.log(found.rms),
        shares=shares if with_shares else shares[:0],
        omega=np.where(first, plan.first_token_weight, 1.0),
        group=group,
        fold=plan.sequences.folds(plan.folds)[group],
        first=first,
        sampling_limit=plan.sampling_limits[info.hidden_size],
        nonfinite_rows=found.nonfinite_rows,
        zero_rows=found.zero_rows,
    )
