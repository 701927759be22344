"""Partial moments of a distribution: P, E|X| and E X² over |X| > e^u, at rms = 1.

The named families and samples have them in closed form. For a distribution of scipy.stats

    E[|X|^k ; |X| > t] = t^k S(t) + I_k(t),    I_k(t) = ∫_t^∞ k s^(k−1) S(s) ds,

and a quadrature for each of a million t would take minutes. So k e^(ku) S(e^u) is interpolated by a
polynomial on panels of u, halved until it is one to rounding, and I_k comes from the
antiderivatives. S is interpolated as well: some of scipy's tails are quadratures themselves.
"""

from collections.abc import Callable

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import NDArray

from mxstats.theory.distributions import Distribution, Samples, ScipyDistribution

Array = NDArray[np.float64]
PartialMoments = Callable[[Array], tuple[Array, Array, Array]]

# Twelve nodes on a part of an octave are good to 1e-15 for a smooth density; 40 halvings make a
# panel with a kink in it narrower than its rounding.
_NODES = 12
_HALVINGS = 40
# Below e^−45 of the RMS E|X| and E X² are complete to 1e-19.
_LOW = -45.0
# Last coefficients of a polynomial this small are rounding: of E X² = 1, or of the panel's largest.
_RESOLVED, _RESOLVED_SHARE = 1e-16, 1e-14
# Of E X² = 1; the RMS, which is the unit, is itself accepted at an error of 1e-9.
_ACCEPTED = 1e-8


def partial_moments(dist: Distribution | Samples, high: float) -> PartialMoments:
    """Return the map from u to P, E|X| and E X² over |X| > e^u; right for u up to ``high``.

    Beyond ``high`` it is any number from 0 to the value there. Raises ValueError where the
    distribution is not smooth enough to be interpolated to 1e-8.
    """
    if isinstance(dist, Samples):
        return dist.survivals
    if isinstance(dist, ScipyDistribution):
        return _interpolated(dist, high)

    def closed_form(u: Array) -> tuple[Array, Array, Array]:
        # The ends are limits; a finite number far beyond double precision does for them.
        u = np.clip(u, -745.0, 745.0)
        logs = dist.log_survival(u), dist.log_mean_survival(u), dist.log_square_survival(u)
        count, mean, square = (np.exp(log) for log in logs)
        return count, mean, square

    return closed_form


def _interpolated(dist: ScipyDistribution, high: float) -> PartialMoments:
    edges, series = _panels(dist, high)
    high, half = float(edges[-1]), 0.5 * np.diff(edges)
    antiderivatives, beyond = [], []
    for k in (1, 2):
        # From the panel's right end down, so that it is a sum of positive parts.
        falling = -legendre.legint(series[k], lbnd=1.0) * half
        parts = legendre.legvander(np.array([-1.0]), _NODES)[0] @ falling
        # I_k beyond the last panel, by the distribution's own quadrature.
        log_whole = (dist.log_mean_survival, dist.log_square_survival)[k - 1](np.array(high))
        rest = np.exp(log_whole) - np.exp(k * high + dist.log_survival(np.array(high)))
        ends = np.append(np.cumsum(parts[::-1])[::-1], 0.0) + max(float(rest), 0.0)
        if k == 2 and not abs(ends[0] - 1.0) <= _ACCEPTED:
            raise ValueError(
                f"distribution {dist.name}: its partial moments add up to E X² = {ends[0]:.12g} "
                f"instead of 1; its logsf is not smooth"
            )
        antiderivatives.append(falling)
        beyond.append(ends[1:])

    def moments(u: Array) -> tuple[Array, Array, Array]:
        inside = np.clip(u, _LOW, high)
        panel = np.clip(np.searchsorted(edges, inside, side="right") - 1, 0, half.size - 1)
        x = (inside - edges[panel]) / half[panel] - 1.0
        count = np.maximum(legendre.legval(x, series[0][:, panel], tensor=False), 0.0)
        mean, square = (
            np.exp(k * inside) * count
            + beyond[k - 1][panel]
            + legendre.legval(x, antiderivatives[k - 1][:, panel], tensor=False)
            for k in (1, 2)
        )
        within = u <= high
        return count * within, mean * within, square * within

    return moments


def _panels(dist: ScipyDistribution, high: float) -> tuple[Array, list[Array]]:
    """Edges of the panels, and Legendre coefficients [nodes, panels] of S, e^u S and 2e^(2u) S."""
    nodes, weights = legendre.leggauss(_NODES)
    to_series = (np.arange(_NODES)[:, None] + 0.5) * legendre.legvander(nodes, _NODES - 1).T
    to_series *= weights

    def at_nodes(start: Array, end: Array) -> Array:
        """U and ln S at the nodes, [2, nodes, panels]."""
        u = start + 0.5 * (end - start) * (1.0 + nodes[:, None])
        return np.stack([u, dist.log_survival(u)])

    breaks = [cut for cut in dist.log_breakpoints if _LOW < cut < high]
    high = min(high, dist.log_breakpoints[-1])
    octaves = np.linspace(_LOW, high, int(np.ceil((high - _LOW) / np.log(2.0))) + 1)
    edges = np.unique(np.append(octaves, breaks))
    start, end = edges[:-1], edges[1:]
    points = at_nodes(start, end)
    for _ in range(_HALVINGS):
        size = np.abs(to_series @ (2.0 * np.exp(2.0 * points[0] + points[1])))
        last = size[-2:].max(axis=0)
        coarse = (last * (end - start) > _RESOLVED) & (last > _RESOLVED_SHARE * size.max(axis=0))
        if not coarse.any():
            break
        middle = 0.5 * (start + end)[coarse]
        halves = np.append(start[coarse], middle), np.append(middle, end[coarse])
        start, end = (
            np.append(old[~coarse], new) for old, new in zip((start, end), halves, strict=True)
        )
        points = np.concatenate([points[..., ~coarse], at_nodes(*halves)], axis=-1)
    order = np.argsort(start)
    u, log_survival = points[..., order]
    integrands = [max(k, 1) * np.exp(k * u + log_survival) for k in range(3)]
    return np.append(start[order], high), [to_series @ one for one in integrands]
