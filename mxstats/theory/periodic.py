"""Functions of log2 σ with period 1: a mean over the period and extremes that are searched for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar

Array = NDArray[np.float64]

# The trapezoidal rule over a period converges geometrically for a smooth function and as 1/size²
# for one with corners; it is doubled until it stands still.
_FIRST, MOST = 32, 8192
# A share of 1e-16 is none.
_NOTHING = 1e-16
# Points at a time where a step function is asked for between all its jumps.
_PIECE = 4096


@dataclass(frozen=True)
class Periodic:
    """A quantity as a function of log2 σ, which repeats with period 1."""

    function: Callable[[Array], Array]
    """Its values for an array of log2 σ, of the same shape."""
    mean: float
    """Mean over a period; of the logarithm (a geometric mean) where the quantity says so."""
    low: float
    """Smallest value (largest lower bound), searched for, not read off a grid."""
    high: float
    """Largest value (smallest upper bound)."""

    def at(self, log2_sigma: ArrayLike) -> Any:
        """Value(s) at log2 of the rows' RMS; a float for a scalar.

        Raises ValueError unless it is finite, TypeError where it is no real number.
        """
        try:
            where = np.asarray(log2_sigma)
        except ValueError:
            raise TypeError(f"log2_sigma must be rectangular, got {log2_sigma!r}") from None
        if where.dtype.kind not in "fiu":
            raise TypeError(f"log2_sigma must be a real number, got {log2_sigma!r}")
        where = where.astype(np.float64)
        if not np.all(np.isfinite(where)):
            raise ValueError(f"log2_sigma must be finite, got {log2_sigma!r}")
        values = self.function(where.ravel()).reshape(where.shape)
        return float(values) if values.ndim == 0 else values


def periodic(
    function: Callable[[Array], Array],
    *,
    what: str,
    geometric: bool = False,
    still: float = 1e-13,
    most: int = MOST,
) -> Periodic:
    """Return ``function`` with its mean and extremes over one period.

    The grid is doubled until two successive means differ from the one before by at most ``still``,
    relative, or until it has ``most`` points. Raises ValueError naming ``what`` where a value is
    NaN.
    """
    (found,) = together(
        lambda where: function(where)[None], (what,), geometric=geometric, still=still, most=most
    )
    return found


def together(
    function: Callable[[Array], Array],
    what: tuple[str, ...],
    *,
    geometric: bool = False,
    still: float = 1e-13,
    most: int = MOST,
) -> list[Periodic]:
    """Return one Periodic for each row of ``function``: [n] → [quantities, n], on one grid.

    An infinite value is its row's extreme and makes its mean infinite. Else as :func:`periodic`.
    """
    grid = np.arange(_FIRST) / _FIRST
    values = _numbers(function, grid, what)
    mean, agreed = _means(values, geometric), 0
    while grid.size < most and agreed < 2:
        between = grid + 0.5 / grid.size
        more = _numbers(function, between, what)
        values = np.stack([values, more], axis=-1).reshape(len(values), -1)
        grid = np.stack([grid, between], axis=-1).ravel()
        previous, mean = mean, _means(values, geometric)
        # Two coarse grids may agree by chance; three hardly do.
        agreed = agreed + 1 if _same(mean, previous, still) else 0
    found = []
    for row, one in enumerate(values):

        def of_row(where: Array, row: int = row) -> Array:
            return function(where)[row]

        low, high = (_extreme(of_row, grid, one, sign) for sign in (1.0, -1.0))
        found.append(Periodic(of_row, mean[row], low, high))
    return found


def step_function(function: Callable[[Array], Array], jumps: Array, *, falling: bool) -> Periodic:
    """Return a function that only jumps, with its exact mean and extremes.

    ``jumps`` are all places where it may jump, modulo 1. Between them it is constant, or, where it
    is ``falling``, proportional to 1/σ; the mean is then the geometric one.
    """
    jumps = np.unique(np.mod(jumps, 1.0))
    edges = np.append(jumps, jumps[0] + 1.0)
    # What is shorter than the rounding of its ends has no middle.
    keep = np.diff(edges) > 1e-14
    start, end = edges[:-1][keep], edges[1:][keep]
    middle, half = 0.5 * (start + end), 0.5 * (end - start)
    pieces = [middle[at : at + _PIECE] for at in range(0, middle.size, _PIECE)]
    values = np.concatenate([function(piece) for piece in pieces])
    # ln(K/σ) is linear in log2 σ: its mean over a piece is its value in the middle.
    mean = np.average(np.log(values) if falling else values, weights=half)
    swing = np.exp2(half) if falling else 1.0
    return Periodic(
        function,
        float(np.exp(mean) if falling else mean),
        float(np.min(values / swing)),
        float(np.max(values * swing)),
    )


def grid_mean(function: Callable[[Array], Array], size: int, *, geometric: bool = False) -> float:
    """Mean of ``function`` over ``size`` points of a period."""
    return _means(function(np.arange(size) / size)[None], geometric)[0]


def _numbers(function: Callable[[Array], Array], where: Array, what: tuple[str, ...]) -> Array:
    values = function(where)
    bad = np.argwhere(np.isnan(values))
    if bad.size:
        row, column = bad[0]
        raise ValueError(f"{what[row]} cannot be computed: NaN at log2_sigma={where[column]:g}")
    return values


def _means(values: Array, geometric: bool) -> list[float]:
    means = np.exp(np.mean(np.log(values), axis=-1)) if geometric else np.mean(values, axis=-1)
    return means.tolist()


def _same(means: list[float], previous: list[float], still: float) -> bool:
    return all(
        one == before or abs(one - before) <= max(still * abs(one), _NOTHING)
        for one, before in zip(means, previous, strict=True)
    )


def _extreme(function: Callable[[Array], Array], grid: Array, values: Array, sign: float) -> float:
    at = int(np.argmin(sign * values))
    if np.isinf(values[at]):
        return float(values[at])
    step = 1.0 / grid.size
    found = minimize_scalar(
        lambda where: sign * float(function(np.array([where]))[0]),
        bounds=(grid[at] - step, grid[at] + step),
        method="bounded",
        # Of a smooth extreme that is full precision, of a corner 1e-8 of its slope.
        options={"xatol": 1e-8},
    )
    return float(sign * min(sign * values[at], found.fun))
