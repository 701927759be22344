"""Functions of log2 σ with period 1: a mean over the period and extremes that are searched for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar

Array = NDArray[np.float64]

# The trapezoidal rule over a period converges geometrically for a smooth function; it is doubled
# until it stands still. Samples make a step function, for which the last size has to do.
_FIRST, MOST = 32, 8192
# Enough for samples, whose own error is far above that of a mean over so many points.
SAMPLED = 256
# A share of 1e-16 is none.
_NOTHING = 1e-16


@dataclass(frozen=True)
class Periodic:
    """A quantity as a function of log2 σ, which repeats with period 1."""

    function: Callable[[Array], Array]
    """Its values for an array of log2 σ, of the same shape."""
    mean: float
    """Mean over a period; of the logarithm (a geometric mean) where the quantity says so."""
    low: float
    """Smallest value, searched for, not read off a grid."""
    high: float
    """Largest value."""

    def at(self, log2_sigma: ArrayLike) -> Any:
        """Value(s) at log2 of the rows' RMS; a float for a scalar."""
        where = np.asarray(log2_sigma, dtype=float)
        if not np.all(np.isfinite(where)):
            raise ValueError(f"log2_sigma must be finite, got {log2_sigma!r}")
        values = self.function(where.ravel()).reshape(where.shape)
        return float(values) if values.ndim == 0 else values


def periodic(
    function: Callable[[Array], Array],
    *,
    geometric: bool = False,
    still: float = 1e-13,
    most: int = MOST,
) -> Periodic:
    """Return ``function`` with its mean and extremes over one period.

    ``still`` is the relative change of the mean at which doubling the grid ends, ``most`` its
    largest size.
    """
    size = _FIRST
    grid = np.arange(size) / size
    values = function(grid)
    mean = _mean(values, geometric)
    while size < most:
        between = grid + 0.5 / size
        values = np.stack([values, function(between)], axis=1).ravel()
        grid = np.stack([grid, between], axis=1).ravel()
        size *= 2
        previous, mean = mean, _mean(values, geometric)
        if abs(mean - previous) <= max(still * abs(mean), _NOTHING):
            break
    low = _extreme(function, grid, values, sign=1.0)
    high = _extreme(function, grid, values, sign=-1.0)
    return Periodic(function, mean, low, high)


def _mean(values: Array, geometric: bool) -> float:
    return float(np.exp(np.mean(np.log(values))) if geometric else np.mean(values))


def _extreme(function: Callable[[Array], Array], grid: Array, values: Array, sign: float) -> float:
    at = int(np.argmin(sign * values))
    step = 1.0 / grid.size
    found = minimize_scalar(
        lambda where: sign * float(function(np.array([where]))[0]),
        bounds=(grid[at] - step, grid[at] + step),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return float(sign * min(sign * values[at], found.fun))
