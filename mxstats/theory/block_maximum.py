"""Moments of a block's largest magnitude, exactly.

m is the largest of B independent magnitudes and F = 1 − S their distribution function, so that

    E[m^p] = ∫ p t^(p−1) (1 − F(t)^B) dt.

With t = e^u, split at the median u₀ of ln m and integrated by parts on the left,

    E[m^p] = e^(p u₀) (1 + p A),
    A = ∫_0^∞ e^(pv) (1 − F^B)(u₀+v) dv − ∫_−∞^0 e^(pv) F^B(u₀+v) dv,

in which both integrands fall at least exponentially from v = 0, nothing cancels, and the p-th root
stays exact as p → 0. The covariance with the block's mean square needs E[x₁² m^p]; there the same
integral holds with F^B replaced by G·F^(B−1), where G(t) = E[X² ; |X| ≤ t] at rms = 1: the
distribution function of the maximum when one entry is size-biased.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import elementwise

from mxstats.theory.arguments import broadcast, check_block_size, check_p
from mxstats.theory.distributions import Distribution, Samples
from mxstats.theory.distributions import distribution as as_distribution
from mxstats.theory.quadrature import integrate

Array = NDArray[np.float64]

# Below this ln S, S is near the smallest double; there 1 − (1−S)^B is B·S to all digits.
_LOG_TINY = -690.0
# The logarithm of the largest double, and the p above which the integrand's peak, far above the
# median, has to be found: it overflows from p = 170 on.
_LOG_LARGEST = 709.0
_LARGE_P = 32.0
# A relative variance is of order p² and known to about 1e-16·p.
SMALLEST_P_OF_VARIANCE = 1e-6
# Octaves above the median that a sum may run through: a tail index as close as 0.003 to p.
_MOST_OCTAVES = 20_000


class BlockMoments(NamedTuple):
    """Moments over one block at rms = 1: of m^p, and of q, the block's mean square (E q = 1)."""

    log_mean: Array
    """ln E[m^p]."""
    relative_variance: Array
    """Var(m^p) / (E m^p)², or inf."""
    relative_covariance: Array
    """Cov(q, m^p) / E m^p, or inf."""
    square_variance: Array
    """Var(q), or inf."""


def log_moment(dist: Distribution | Samples, p: ArrayLike, block_size: ArrayLike) -> Array:
    """Ln E[m^p] at rms = 1, broadcast over p and block_size (arguments already checked)."""
    if isinstance(dist, Samples):
        return _each(dist.log_moment, dist, p, block_size)
    return _log_moment(_plain_maximum, dist, p, block_size)


def log_square_moment(dist: Distribution | Samples, p: ArrayLike, block_size: ArrayLike) -> Array:
    """Ln E[x₁² m^p] at rms = 1, x₁ being one entry of the block."""
    if isinstance(dist, Samples):
        return _each(dist.log_square_moment, dist, p, block_size)
    return _log_moment(_size_biased_maximum, dist, p, block_size)


def block_moments(
    distribution: Any = "gaussian", *, p: ArrayLike = 2.0, block_size: ArrayLike = 32
) -> BlockMoments:
    """E[m^p], Var(m^p), Cov(q, m^p) and Var(q) of one block at rms = 1.

    q = Σx²/B is the block's mean square. Var(m^p) is infinite for 2p >= the tail index, Var(q) for
    4 >= it, the covariance for p + 2 >= it when B = 1 and, as the largest entry carries both, for
    every B.

    Raises
    ------
    ValueError
        As :func:`mxstats.constant`; p below 1e-6, where variances relative to p² lose their digits;
        p so large that Var(m^p)/(E m^p)² is beyond double precision.
    """
    dist = as_distribution(distribution)
    p, block_size = broadcast(p=check_p(p, dist), block_size=check_block_size(block_size))
    if np.any(p < SMALLEST_P_OF_VARIANCE):
        raise ValueError(
            f"p={np.min(p):g}: variances relative to p² lose their digits below "
            f"p = {SMALLEST_P_OF_VARIANCE:g}"
        )
    tail = dist.tail_index
    log_mean = log_moment(dist, p, block_size)
    twice = _where_finite(2.0 * p < tail, p, lambda ok, q: log_moment(dist, 2 * q, block_size[ok]))
    cross = _where_finite(
        p + 2.0 < tail, p, lambda ok, q: log_square_moment(dist, q, block_size[ok])
    )
    fourth = log_moment(dist, 4.0, 1) if tail > 4.0 else np.inf
    with np.errstate(over="ignore"):
        relative_variance = np.expm1(twice - 2.0 * log_mean)
    overflown = np.isinf(relative_variance) & (2.0 * p < tail)
    if np.any(overflown):
        raise ValueError(
            f"p={np.min(p[overflown]):g}: Var(m^p)/(E m^p)² is beyond double precision; "
            f"use a smaller p"
        )
    return BlockMoments(
        log_mean=log_mean,
        relative_variance=relative_variance,
        relative_covariance=np.expm1(cross - log_mean),
        square_variance=np.expm1(fourth) / block_size,
    )


def log_block_quantile(dist: Distribution, log_probability: ArrayLike) -> Array:
    """Return the u at which ln P(|X| > e^u) is ``log_probability``; rms = 1."""
    goal = np.asarray(log_probability, dtype=float)

    def excess(u: Array, goal: Array) -> Array:
        return np.expm1(np.minimum(dist.log_survival(u) - goal, 700.0))

    low, high = dist.log_breakpoints[0], dist.log_breakpoints[-1]
    # e^±745 are the ends of double precision.
    bracket = (max(low, -745.0), min(high, 745.0))
    with np.errstate(all="ignore"):
        return elementwise.find_root(excess, bracket, args=(goal,)).x


class BlockTails(NamedTuple):
    """The block maximum's distribution in u = ln m, rms = 1, and the range of u that matters."""

    log_survival: Callable[[Array], Array]
    """ln P(m > e^u); P(m >= e^u) where asked for as closed."""
    log_cdf: Callable[[Array], Array]
    """ln of the complement."""
    low: float
    """Below it the distribution function is under 1e-15."""
    median: float
    high: float
    """Above it e^(p(u − median))·P(m > e^u) is under 1e-17."""


def block_tails(
    dist: Distribution | Samples, block_size: int, *, p: float = 0.0, closed: bool = False
) -> BlockTails:
    """Return the distribution of ln m for sums over steps of m, weighted by m^p.

    ``closed`` counts a maximum that equals e^u as above it, which only samples can tell.
    Raises ValueError where m^p weights the tail so much that no range of doubles holds it.
    """
    if isinstance(dist, Samples):
        dist.require_size(block_size)
        log_cdf, low, median, high = dist.block_maximum(block_size, closed=closed)
        return BlockTails(lambda u: _log1mexp(log_cdf(u)), log_cdf, low, median, high)
    cdf, survival = _plain_maximum(dist)
    n = np.float64(block_size)
    median = float(log_block_quantile(dist, _log1mexp(-np.log(2.0) / n)))
    octaves = np.log(2.0) * np.arange(_MOST_OCTAVES)
    with np.errstate(all="ignore"):
        fallen = survival(median + octaves, n) + p * octaves < -39.0
        risen = cdf(median - octaves[:500], n) < -35.0
    if not fallen.any():
        raise ValueError(
            f"p={p:g}: too close to the tail index {dist.tail_index:g} of {dist.name} for a sum"
        )
    low = median - octaves[int(np.argmax(risen)) if risen.any() else 499]
    return BlockTails(
        lambda u: survival(u, n), lambda u: cdf(u, n), low, median,
        median + octaves[int(np.argmax(fallen))],
    )  # fmt: skip


def _log_moment(
    maximum: Callable, dist: Distribution, p: ArrayLike, block_size: ArrayLike
) -> Array:
    p, n = np.broadcast_arrays(np.asarray(p, dtype=float), np.asarray(block_size, dtype=float))
    median = np.asarray(log_block_quantile(dist, _log1mexp(-np.log(2.0) / n)))
    log_cdf, log_survival = maximum(dist)

    def log_upper(u: Array, p: Array, n: Array, median: Array) -> Array:
        return p * (u - median) + log_survival(u, n)

    def upper(u: Array, p: Array, n: Array, median: Array, shift: Array) -> Array:
        return np.exp(log_upper(u, p, n, median) - shift)

    def lower(u: Array, p: Array, n: Array, median: Array) -> Array:
        return np.exp(p * (u - median) + log_cdf(u, n))

    low, high = dist.log_breakpoints[0], dist.log_breakpoints[-1]
    peak, shift = median.copy(), np.zeros(p.shape)
    far = p > _LARGE_P
    if np.any(far):
        top = np.fmax(min(high, _LOG_LARGEST), median[far])
        given = p[far], n[far], median[far]
        found, shift[far] = _peak(log_upper, median[far], top, given)
        # At an end of the range no split is needed.
        at_end = (found - median[far] < 1e-6) | (top - found < 1e-6)
        peak[far] = np.where(at_end, median[far], found)
    given = {"cuts": dist.log_breakpoints[1:-1], "what": f"E[m^p] of {dist.name}"}
    args = p, n, median
    above = integrate(upper, peak, np.fmax(high, peak), args=(*args, shift), **given)
    if np.any(far):
        above += integrate(upper, median, peak, args=(*args, shift), floor=1e-3, **given)
    # Judged against the whole, 1 + p·A, of which the lower part is the small one.
    below = integrate(lower, np.fmin(low, median), median, args=args, floor=1.0, **given)
    scaled = np.exp(-shift) * (1.0 - p * below) + p * above
    return p * median + np.where(far, shift + np.log(scaled), np.log1p(p * (above - below)))


def _peak(log_f: Callable, low: Array, high: Array, args: tuple) -> tuple[Array, Array]:
    """Return where log_f, which has one maximum, is largest, and its value there but at least 0."""
    low, high = low.copy(), high.copy()
    grid = np.linspace(0.0, 1.0, 33)
    rows = np.arange(low.size)
    peak, value = low, np.zeros(low.size)
    # Each pass narrows the range sixteenfold; twelve reach the spacing of doubles.
    for _ in range(12):
        u = low[:, None] + (high - low)[:, None] * grid
        with np.errstate(all="ignore"):
            values = np.nan_to_num(log_f(u, *(a[:, None] for a in args)), nan=-np.inf)
        best = np.argmax(values, axis=1)
        peak, value = u[rows, best], values[rows, best]
        low, high = u[rows, np.maximum(best - 1, 0)], u[rows, np.minimum(best + 1, 32)]
    return peak, np.maximum(value, 0.0)


def _plain_maximum(dist: Distribution) -> tuple[Callable, Callable]:
    def log_cdf(u: Array, n: Array) -> Array:
        return n * _log1mexp(dist.log_survival(u))

    def log_survival(u: Array, n: Array) -> Array:
        log_s = dist.log_survival(u)
        return np.where(log_s < _LOG_TINY, np.log(n) + log_s, _log1mexp(n * _log1mexp(log_s)))

    return log_cdf, log_survival


def _size_biased_maximum(dist: Distribution) -> tuple[Callable, Callable]:
    def log_cdf(u: Array, n: Array) -> Array:
        others = np.where(n == 1.0, 0.0, (n - 1.0) * _log1mexp(dist.log_survival(u)))
        return others + _log1mexp(dist.log_square_survival(u))

    def log_survival(u: Array, n: Array) -> Array:
        log_t = dist.log_square_survival(u)
        tail = np.logaddexp(log_t, np.log(n - 1.0) + dist.log_survival(u))
        return np.where(log_t < _LOG_TINY, tail, _log1mexp(log_cdf(u, n)))

    return log_cdf, log_survival


def _log1mexp(x: ArrayLike) -> Array:
    """ln(1 − e^x) for x <= 0 to full relative accuracy at both ends (Mächler 2012)."""
    x = np.minimum(x, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(x > -np.log(2.0), np.log(-np.expm1(x)), np.log1p(-np.exp(x)))


def _where_finite(finite: NDArray[np.bool_], p: Array, compute: Callable) -> Array:
    out = np.full(np.shape(p), np.inf)
    if np.any(finite):
        out[finite] = compute(finite, p[finite])
    return out


def _each(one: Callable[[float, int], float], dist: Samples, p: ArrayLike, n: ArrayLike) -> Array:
    p, n = np.broadcast_arrays(np.asarray(p, dtype=float), n)
    out = np.empty(p.shape)
    for index in np.ndindex(p.shape):
        dist.require_size(int(n[index]))
        out[index] = one(float(p[index]), int(n[index]))
    return out
