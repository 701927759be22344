"""One door to scipy's tanh-sinh quadrature: whole grids, tight tolerances, loud failures."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import tanhsinh

# Asked for; tanh-sinh converges quadratically, so one level beyond is the most that this costs.
_ASKED = 1e-14
# The levels below are too coarse for the error estimate: at scipy's own first level of 2 a chance
# agreement between two of them passed for convergence, at 1e-11 (Gaussian, p=0.5, B=1).
_FIRST_LEVEL = 5
# Accepted; the error estimate is pessimistic, and the tables promise 1e-9 for any distribution.
_ACCEPTED = 1e-9
# Every integral here is part of a result of order 1: an error below 1e-24 of it is none, however
# small the integral itself (the last stretch before the end of a bounded support).
_NEGLIGIBLE = 1e-15
_NARROW = 1e-12


def integrate(
    integrand: Callable[..., Any],
    low: ArrayLike,
    high: ArrayLike,
    *,
    args: tuple[Any, ...] = (),
    cuts: tuple[float, ...] = (),
    floor: float = 0.0,
    what: str,
) -> NDArray[np.float64]:
    """∫ integrand(v, *args) dv over [low, high], broadcast over limits and arguments.

    ``cuts`` are the places where the integrand is not smooth: the range is split there. ``floor``
    is the size against which an error is judged where the integral itself is smaller.
    Raises ValueError naming ``what`` where the estimated relative error stays above 1e-9.
    """
    shape = np.broadcast_shapes(np.shape(low), np.shape(high), *(np.shape(a) for a in args))
    low, high = np.broadcast_to(low, shape), np.broadcast_to(high, shape)
    args = tuple(np.broadcast_to(a, shape) for a in args)
    edges = [low, *(np.clip(cut, low, high) for cut in sorted(cuts)), high]
    total, error = np.zeros(shape), np.zeros(shape)
    for a, b in pairwise(edges):
        # A few ulp leave no room for nodes; there the midpoint rule is exact to rounding.
        narrow = (a < b) & (b - a < _NARROW * np.maximum(np.abs(a), 1.0))
        if np.any(narrow):
            middle = 0.5 * (a[narrow] + b[narrow])
            total[narrow] += (b - a)[narrow] * integrand(middle, *(x[narrow] for x in args))
        inside = (a < b) & ~narrow
        if not np.any(inside):
            continue
        with np.errstate(all="ignore"):
            part = tanhsinh(
                integrand, a[inside], b[inside], args=tuple(x[inside] for x in args),
                atol=_ASKED * floor, rtol=_ASKED, minlevel=_FIRST_LEVEL, maxlevel=12,
            )  # fmt: skip
        total[inside] += part.integral
        error[inside] += part.error
    worst = np.max(error / np.maximum(np.abs(total), max(floor, _NEGLIGIBLE)), initial=0.0)
    if not (np.all(np.isfinite(total)) and worst <= _ACCEPTED):
        raise ValueError(
            f"{what}: quadrature stopped at an estimated relative error of {worst:.1e}, "
            f"above {_ACCEPTED:.0e}; the integral may diverge or its integrand may not be smooth"
        )
    return total
