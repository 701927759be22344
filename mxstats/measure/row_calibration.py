"""Constants fitted to the rows of a store, in log error e = ln r̂ − ln RMS.

Of a scalar constant ln c is the mean of ln(M_p(m)/RMS) over the rows, exactly; of weights see
:mod:`mxstats.measure.block_weights`. The rows of a window of text are alike, so whole windows are
held out and resampled, not rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mxstats.activations import ActivationStore
from mxstats.activations.manifest import LayerInfo
from mxstats.measure.block_weights import fit_weights, normal_matrix, weight_limits
from mxstats.measure.calibrated import RowCalibration
from mxstats.measure.layer_rows import LayerRows, Plan, gather
from mxstats.measure.sequences import sequences
from mxstats.theory import log_ratio_std

Array = NDArray[np.float64]

CONFIDENCE = 0.95


def calibrate_rows(
    store: ActivationStore,
    *,
    p: float,
    block_size: int,
    per: str,
    first_token_weight: float,
    distribution: Any,
    layers: Sequence[LayerInfo],
    folds: int,
    resamples: int,
    seed: int,
    progress: Callable[[str, float], None] | None,
) -> RowCalibration:
    """As :func:`mxstats.calibrate`, of checked arguments."""
    groups = sequences(store)
    chances = np.full(groups.count, 1.0 / groups.count)
    draws = np.random.default_rng(seed).multinomial(groups.count, chances, size=resamples)
    limits = {
        size: float(log_ratio_std(distribution, p=p, block_size=block_size, hidden_size=size))
        for size in {info.hidden_size for info in layers}
    }
    plan = Plan(p, block_size, first_token_weight, folds, groups, draws, limits)
    lines, known = [], []
    constants: dict[str, float] = {}
    weights: dict[str, Array] = {}
    intervals: dict[str, tuple[Any, Any]] = {}
    for at, info in enumerate(layers):
        if progress is not None:
            progress(info.name, at / len(layers))
        rows = gather(store.rows(info.name), info, plan, with_shares=per == "block")
        if per == "model":
            known.append(rows)
            continue
        scalar = _scalar([rows], plan)
        line = _head(rows, plan, per) | scalar.columns()
        if per == "layer":
            constants[info.name] = scalar.c
            intervals[info.name] = (scalar.low, scalar.high)
            line |= _errors(rows, rows.log_constant - np.log(scalar.c), scalar.held_out(rows))
            line |= _bounds(rows, plan, scalar.c)
        else:
            found = _blocks(rows, scalar, plan)
            weights[info.name], intervals[info.name] = found.weights, found.interval
            line |= _errors(rows, _log_error(rows, found.weights), found.held_out)
            line |= found.columns
        lines.append(line)
    if per == "model":
        scalar = _scalar(known, plan)
        for rows in known:
            constants[rows.info.name] = scalar.c
            intervals[rows.info.name] = (scalar.low, scalar.high)
            inside = rows.log_constant - np.log(scalar.c)
            lines.append(
                _head(rows, plan, per)
                | scalar.columns()
                | _errors(rows, inside, scalar.held_out(rows))
                | _bounds(rows, plan, scalar.c)
            )
    about = store.manifest
    return RowCalibration(
        p=p,
        block_size=block_size,
        per=per,
        model=about.model,
        revision=about.revision,
        text=about.text,
        constants=constants,
        weights=weights,
        intervals=intervals,
        table=pd.DataFrame(lines),
    )


@dataclass(frozen=True, eq=False)
class _Scalar:
    """c of one or more layers."""

    c: float
    low: float
    high: float
    without_fold: Array
    """ln c fitted without each fold, [folds]; NaN where nothing is left."""

    def columns(self) -> dict[str, float]:
        return {"c": self.c, "c_low": self.low, "c_high": self.high}

    def held_out(self, rows: LayerRows) -> Array:
        """Errors of rows under the constant fitted without their fold."""
        return rows.log_constant - self.without_fold[rows.fold]


def _scalar(layers: list[LayerRows], plan: Plan) -> _Scalar:
    """Fit one constant; layers count alike, however many rows a token they have."""
    count = plan.sequences.count
    sums, totals = np.zeros(count), np.zeros(count)
    for rows in layers:
        share = rows.omega / rows.omega.sum()
        sums += np.bincount(rows.group, share * rows.log_constant, count)
        totals += np.bincount(rows.group, share, count)
    low, high = np.nan, np.nan
    if np.count_nonzero(totals) > 1:
        # A resample may hold only groups without a row.
        drawn = plan.draws @ totals
        some = drawn > 0.0
        low, high = _ends((plan.draws @ sums)[some] / drawn[some])
    fold = plan.sequences.folds(plan.folds)
    left = [(sums[fold != one].sum(), totals[fold != one].sum()) for one in range(fold.max() + 1)]
    return _Scalar(
        c=float(np.exp(sums.sum() / totals.sum())),
        low=float(np.exp(low)),
        high=float(np.exp(high)),
        without_fold=np.array([s / t if t > 0.0 else np.nan for s, t in left]),
    )


@dataclass(frozen=True, eq=False)
class _Blocks:
    weights: Array
    interval: tuple[Array, Array]
    held_out: Array
    columns: dict[str, Any]


def _blocks(rows: LayerRows, scalar: _Scalar, plan: Plan) -> _Blocks:
    limits = weight_limits(plan.block_size, rows.info.hidden_size)
    variance = rows.sampling_limit**2
    # Rows that count unequally tell as much as (Σω)²/Σω² that count alike.
    alike = rows.omega.sum() ** 2 / np.sum(rows.omega**2)
    fit = fit_weights(
        rows.shares, limits, scalar=scalar.c**-2, ridge=variance / alike, row_weights=rows.omega
    )
    held_out = np.full(len(rows.omega), np.nan)
    for fold, log_c in enumerate(scalar.without_fold):
        out = rows.fold == fold
        if np.isnan(log_c) or not out.any():
            continue
        omega = rows.omega[~out]
        other = fit_weights(
            rows.shares[~out],
            limits,
            scalar=float(np.exp(-2.0 * log_c)),
            ridge=variance * np.sum(omega**2) / omega.sum() ** 2,
            row_weights=omega,
        )
        held_out[out] = 0.5 * np.log(rows.shares[out] @ other.weights)
    w = fit.weights
    interval = _interval(rows, w, scalar.c**-2, variance / alike, limits, plan)
    at_low, at_high = w <= limits[0], w >= limits[1]
    return _Blocks(
        weights=w,
        interval=interval,
        held_out=held_out,
        columns={
            "w_low": w.min(),
            "w_median": float(np.median(w)),
            "w_high": w.max(),
            "at_low": int(at_low.sum()),
            "at_high": int(at_high.sum()),
            "steps": fit.steps,
            "converged": fit.converged,
            "bound_max_abs": float(np.sqrt(w.size / w.min())),
            "bound_rmsnorm": float(np.sqrt(rows.info.hidden_size)),
        },
    )


def _interval(
    rows: LayerRows, w: Array, scalar: float, ridge: float, limits: tuple[Array, Array], plan: Plan
) -> tuple[Array, Array]:
    """The ends of each weight's interval, [K] each: one Gauss-Newton step from w a resample.

    A weight at a limit stays there, as it does in most resamples.
    """
    count = plan.sequences.count
    if np.unique(rows.group).size < 2:
        return np.full(w.size, np.nan), np.full(w.size, np.nan)
    omega = rows.omega / rows.omega.sum()
    H, _ = normal_matrix(rows.shares, omega, w, scalar, ridge)
    sums = rows.shares @ w
    scores = (omega * 0.5 * np.log(sums) * 0.5 / sums)[:, None] * rows.shares
    of_group = np.zeros((count, w.size))
    np.add.at(of_group, rows.group, scores)
    free = (w > limits[0]) & (w < limits[1])
    moved = np.tile(w, (len(plan.draws), 1))
    step = np.linalg.solve(H[np.ix_(free, free)], ((plan.draws - 1) @ of_group[:, free]).T)
    moved[:, free] -= step.T
    low, high = _ends(np.clip(moved, *limits))
    return low, high


def _log_error(rows: LayerRows, w: Array) -> Array:
    return 0.5 * np.log(rows.shares @ w)


def _ends(values: Array) -> Any:
    """The ends of the central 95 % along the first axis."""
    tail = (1.0 - CONFIDENCE) / 2.0
    return np.quantile(values, [tail, 1.0 - tail], axis=0)


def _head(rows: LayerRows, plan: Plan, per: str) -> dict[str, Any]:
    info = rows.info
    return {
        "layer": info.name,
        "role": info.role,
        "index": info.index,
        "hidden_size": info.hidden_size,
        "p": plan.p,
        "block_size": plan.block_size,
        "per": per,
        "rows": len(rows.omega),
        "nonfinite_rows": rows.nonfinite_rows,
        "zero_rows": rows.zero_rows,
        "groups": int(np.unique(rows.group).size),
        "group": plan.sequences.what,
        "sampling_limit": rows.sampling_limit,
    }


def _errors(rows: LayerRows, inside: Array, held_out: Array) -> dict[str, float]:
    """RMS and 5 and 95 % points of e, of rows alike, fitted on them or on other folds."""
    found = {}
    for name, e in (("in_sample", inside), ("held_out", held_out[~np.isnan(held_out)])):
        low, high = np.quantile(e, [0.05, 0.95]) if e.size else (np.nan, np.nan)
        found |= {f"{name}_rms": _rms(e), f"{name}_q05": float(low), f"{name}_q95": float(high)}
    first = held_out[rows.first]
    return found | {"held_out_rms_first": _rms(first[~np.isnan(first)])}


def _rms(e: Array) -> float:
    return float(np.sqrt(np.mean(e * e))) if e.size else float("nan")


def _bounds(rows: LayerRows, plan: Plan, c: float) -> dict[str, float]:
    K = -(-rows.info.hidden_size // plan.block_size)
    return {
        "bound_max_abs": c * K ** (1.0 / plan.p),
        "bound_rmsnorm": float(np.sqrt(rows.info.hidden_size)),
    }
