"""Simulation beside theory: how many standard errors lie between them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mxstats.simulation.cell import Cell, make_cell
from mxstats.simulation.simulate import simulate
from mxstats.theory.block_maximum import block_moments, log_moment
from mxstats.theory.bounds import OutputBounds
from mxstats.theory.distributions import Samples
from mxstats.theory.distributions import distribution as as_distribution
from mxstats.theory.error import log_ratio_mean, log_ratio_std, rms_error

Array = NDArray[np.float64]

INFINITE = "infinite in theory"
INFINITE_ORDER = "finite, but its leading order in 1/K is infinite"
NO_STDERR = "the simulated value's own variance is infinite"
LEADING_ORDER = "leading order in 1/K"
BOUND = "theory is a bound"
UNDEFINED_ORDER = "finite, but its leading order in 1/K is inf − inf"
NO_MAXIMUM = "no theory of a row's maximum for samples"

_LEADING = (
    "log_ratio_mean",
    "log_ratio_std",
    "scaled_bias",
    "scaled_variance",
    "ratio_mean",
    "ratio_std",
    "mean_max_abs",
)
_BOUNDS = ("max_abs", "rms_low", "rms_high")


def compare(
    distribution: Any = "gaussian",
    *,
    p: ArrayLike = 2.0,
    block_size: int = 32,
    hidden_size: int = 4096,
    rows: int = 10_000,
    seed: int = 0,
    backend: str = "auto",
    chunk_rows: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> pd.DataFrame:
    """Simulate a cell and set theory beside it, quantity by quantity; rms = 1.

    Parameters, quantities and errors are those of :func:`simulate`. The theory of constant, moment,
    moment_variance, covariance and variance is exact for the distribution. That of the ratio's mean
    and spread is leading order in 1/K: E ℓ ≈ bias/K, Std ℓ ≈ Std R ≈ √(V/K),
    E R ≈ 1 + (bias + V/2)/K, and for mean_max_abs E max|x| of a row, c̃(1, D) (not for samples);
    given enough rows a simulation shows what is left out. max_abs, rms_low and rms_high are set
    beside their bounds.

    Returns
    -------
    DataFrame
        Columns ``quantity``, ``p``, ``simulated``, ``stderr``, ``theory``, ``z`` =
        (simulated − theory)/stderr, ``note``. Where theory is infinite it says inf and z is nan, as
        it is wherever theory or the standard error has no finite value; the note says why.
    """
    dist = as_distribution(distribution)
    cell = make_cell(dist, p, block_size, hidden_size)
    simulated = simulate(
        dist,
        p=p,
        block_size=block_size,
        hidden_size=hidden_size,
        rows=rows,
        seed=seed,
        backend=backend,
        chunk_rows=chunk_rows,
        progress=progress,
    )
    quantities = simulated["quantity"]
    n = len(quantities) // len(cell.p)
    of_quantity = theory(cell)
    expected = np.stack([of_quantity[name] for name in quantities[:n]], axis=-1).ravel()
    value, stderr = simulated["value"].to_numpy(), simulated["stderr"].to_numpy()
    usable = np.isfinite(expected) & np.isfinite(stderr) & (stderr > 0.0)
    z = np.full(value.shape, np.nan)
    z[usable] = (value - expected)[usable] / stderr[usable]
    return pd.DataFrame(
        {
            "quantity": quantities,
            "p": simulated["p"],
            "simulated": value,
            "stderr": stderr,
            "theory": expected,
            "z": z,
            "note": [_note(*row) for row in zip(quantities, expected, stderr, strict=True)],
        }
    )


def theory(cell: Cell) -> dict[str, Array]:
    """Return the theory of every quantity of :func:`simulate`, each of shape [P]."""
    p, k = np.asarray(cell.p), cell.n_blocks
    given = {"p": p, "block_size": cell.block_size}
    block, error = block_moments(cell.dist, **given), rms_error(cell.dist, **given)
    std = np.asarray(log_ratio_std(cell.dist, **given, hidden_size=cell.hidden_size))
    bias = k * np.asarray(log_ratio_mean(cell.dist, **given, hidden_size=cell.hidden_size))
    scaled = k * std**2
    constant = np.exp(cell.log_constant)
    with np.errstate(over="ignore"):
        bounds = [
            OutputBounds(one, cell.block_size, cell.hidden_size, float(c))
            for one, c in zip(cell.p, constant, strict=True)
        ]
    # Samples are asked to be large for a block, not for a row.
    sampled = isinstance(cell.dist, Samples)
    row_maximum = np.nan if sampled else np.exp(log_moment(cell.dist, 1.0, cell.hidden_size))
    with np.errstate(invalid="ignore"):
        ratio_mean = 1.0 + (bias + 0.5 * scaled) / k
    return {
        "constant": constant,
        "moment": cell.mean_power,
        "moment_variance": block.relative_variance * cell.mean_power**2,
        "covariance": block.relative_covariance * cell.mean_power,
        "variance": np.asarray(error.variance),
        "log_ratio_mean": bias / k,
        "log_ratio_std": std,
        "scaled_bias": bias,
        "scaled_variance": scaled,
        "ratio_mean": ratio_mean,
        "ratio_std": std,
        "max_abs": np.array([b.max_abs for b in bounds]),
        "mean_max_abs": np.full(p.shape, row_maximum),
        "rms_low": np.array([b.rms_low for b in bounds]),
        "rms_high": np.array([b.rms_high for b in bounds]),
    }


def _note(quantity: str, expected: float, stderr: float) -> str:
    if quantity in _BOUNDS:
        return BOUND
    if np.isinf(expected):
        return INFINITE_ORDER if quantity in _LEADING else INFINITE
    if np.isnan(expected):
        if quantity == "mean_max_abs":
            return NO_MAXIMUM
        return UNDEFINED_ORDER
    if np.isinf(stderr):
        return NO_STDERR
    return LEADING_ORDER if quantity in _LEADING else ""
