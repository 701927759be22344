"""Block-maximum moments by mpmath, from the density: the oracle of the theory's tests.

With f and F the density and distribution function of the magnitude |X|,

    E[m^p]     = ∫ B f F^(B−1) t^p dt
    E[m^p Σx²] = ∫ B f F^(B−1) t^p (t² + (B−1) G/F) dt,    G(t) = ∫_0^t u² f(u) du.

The package integrates survival functions in ln t instead, in double precision; nothing is shared.
Only the absolute accuracy of F matters here, so that no tail is ever needed. Distributions are in
their own standard unit (Laplace of scale 1, Student-t of scale 1, …) and have their RMS in closed
form beside them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from mpmath import mp, mpf

# Split points of the integral: where the expected number of exceedances a block, B·S(t), is this.
EXCEEDANCES = (300, 100, 30, 10, 3, 1, 0.1, 1e-3, 1e-6, 1e-12, 1e-24)


@dataclass(frozen=True)
class Magnitude:
    """|X| in its own unit."""

    density: Callable
    cdf: Callable
    rms: Callable
    """E[X²]^(1/2), a call so that it has the precision in force."""
    square: Callable | None = None
    """G(t)."""
    fourth: Callable | None = None
    """E X⁴."""
    edges: tuple[int, ...] = ()
    """Kinks, and the end of a bounded support."""
    bounded: bool = False
    tail: float = field(default=float("inf"))
    """E|X|^p is finite for p < tail."""


def gaussian() -> Magnitude:
    def density(t):
        return mp.sqrt(2 / mp.pi) * mp.exp(-t * t / 2)

    def cdf(t):
        return mp.erf(t / mp.sqrt(2))

    return Magnitude(
        density, cdf, lambda: mpf(1), lambda t: cdf(t) - t * density(t), lambda: mpf(3)
    )


def laplace() -> Magnitude:
    return Magnitude(
        density=lambda t: mp.exp(-t),
        cdf=lambda t: -mp.expm1(-t),
        rms=lambda: mp.sqrt(2),
        square=lambda t: 2 - mp.exp(-t) * (t * t + 2 * t + 2),
        fourth=lambda: mpf(24),
    )


def student_t(df: float) -> Magnitude:
    """Student-t; integer df by the finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4."""
    nu = mpf(df)

    @cache
    def norm(_precision):
        return 2 * mp.gamma((nu + 1) / 2) / (mp.sqrt(nu * mp.pi) * mp.gamma(nu / 2))

    def density(t):
        return norm(mp.prec) * (1 + t * t / nu) ** (-(nu + 1) / 2)

    def cdf(t):
        if df != int(df):
            argument = -t * t / nu
            return norm(mp.prec) * t * mp.hyp2f1(mpf(1) / 2, (nu + 1) / 2, mpf(3) / 2, argument)
        n = int(df)
        square = 1 / (1 + t * t / nu)  # cos²θ, tan θ = t/√ν
        sine = t / mp.sqrt(nu + t * t)
        term = mp.sqrt(square) if n % 2 else mpf(1)
        total = mpf(0)
        for k in range((n - 1) // 2 if n % 2 else n // 2):
            total += term
            odd = 2 * k + (2 if n % 2 else 1)
            term *= square * odd / (odd + 1)
        if n % 2:
            return 2 / mp.pi * (mp.atan(t / mp.sqrt(nu)) + sine * total)
        return sine * total

    return Magnitude(
        density,
        cdf,
        rms=lambda: mp.sqrt(nu / (nu - 2)),
        # By parts, as d[(ν+u²) f] = (1−ν) u f du.
        square=lambda t: (nu * cdf(t) - t * (nu + t * t) * density(t)) / (nu - 2),
        fourth=lambda: 3 * nu**2 / ((nu - 2) * (nu - 4)),
        tail=float(df),
    )


def uniform_shifted() -> Magnitude:
    """Uniform on [−1, 2]: the density of |X| halves at 1."""
    return Magnitude(
        density=lambda t: mpf(2) / 3 if t < 1 else mpf(1) / 3,
        cdf=lambda t: 2 * t / 3 if t < 1 else (1 + t) / 3,
        rms=lambda: mpf(1),
        edges=(1, 2),
        bounded=True,
    )


def logistic() -> Magnitude:
    return Magnitude(
        density=lambda t: 2 * mp.exp(-t) / (1 + mp.exp(-t)) ** 2,
        cdf=lambda t: mp.tanh(t / 2),
        rms=lambda: mp.pi / mp.sqrt(3),
    )


def gennorm(beta: float) -> Magnitude:
    b = mpf(beta)
    return Magnitude(
        density=lambda t: b / mp.gamma(1 / b) * mp.exp(-(t**b)),
        cdf=lambda t: mp.gammainc(1 / b, 0, t**b, regularized=True),
        rms=lambda: mp.sqrt(mp.gamma(3 / b) / mp.gamma(1 / b)),
    )


def expon() -> Magnitude:
    return Magnitude(
        density=lambda t: mp.exp(-t), cdf=lambda t: -mp.expm1(-t), rms=lambda: mp.sqrt(2)
    )


def norm_shifted() -> Magnitude:
    """Normal with mean 1 and standard deviation 1."""
    return Magnitude(
        density=lambda t: mp.npdf(t, 1) + mp.npdf(t, -1),
        cdf=lambda t: (mp.erf((t - 1) / mp.sqrt(2)) + mp.erf((t + 1) / mp.sqrt(2))) / 2,
        rms=lambda: mp.sqrt(2),
    )


def magnitude(name: str) -> Magnitude:
    """Return the magnitude called ``name``: ``gaussian``, ``student-t:5``, ``gennorm:8``, …."""
    kind, _, parameter = name.partition(":")
    plain = {
        "gaussian": gaussian,
        "laplace": laplace,
        "logistic": logistic,
        "expon": expon,
        "norm-shifted": norm_shifted,
        "uniform-shifted": uniform_shifted,
    }
    if kind in plain:
        return plain[kind]()
    return {"student-t": student_t, "gennorm": gennorm}[kind](float(parameter))


class BlockMaximum:
    """Moments of the largest of ``block_size`` magnitudes, in the distribution's own unit.

    All of them share the densities at the nodes, which are most of the cost.
    """

    def __init__(self, x: Magnitude, block_size: int) -> None:
        self.x, self.block_size = x, block_size
        self._known: dict = {}
        self._points = self._split()

    def moment(self, p) -> Any:
        """E[m^p]."""
        return self._integrate(lambda t: self._at(t)[0] * t**p, p)

    def log_mean(self) -> Any:
        """E[ln m]."""
        return self._integrate(lambda t: self._at(t)[0] * mp.log(t), mpf(0))

    def square_moment(self, p) -> Any:
        """E[m^p Σx²]."""
        b, partial = self.block_size, self.x.square
        assert partial is not None

        def integrand(t):
            of_largest, of_others = self._at(t)
            return (of_largest * t * t + of_others * b * (b - 1) * partial(t)) * t**p

        return self._integrate(integrand, p + 2)

    def _at(self, t):
        """B f F^(B−1) and f F^(B−2) at t."""
        if t not in self._known:
            f = self.x.density(t)
            b = self.block_size
            if f < mpf(10) ** (-8 * mp.dps):  # below every digit kept, with any power of t
                self._known[t] = (mpf(0), mpf(0))
            else:
                cdf = self.x.cdf(t)
                others = f * cdf ** (b - 2) if b >= 2 else mpf(0)
                self._known[t] = (b * f * cdf ** (b - 1), others)
        return self._known[t]

    def _split(self) -> list:
        x, points = self.x, [mpf(0)]
        for expected in EXCEEDANCES:
            goal = 1 - mpf(expected) / self.block_size
            if not 0 < goal < 1:
                continue
            low, high = mpf(-60), mpf(60)  # ln t
            for _ in range(60):
                middle = (low + high) / 2
                inside = not (x.bounded and mp.exp(middle) >= x.edges[-1])
                low, high = (
                    (middle, high) if inside and x.cdf(mp.exp(middle)) < goal else (low, middle)
                )
            points.append(mp.exp(high))
        kept = sorted({*points, *map(mpf, x.edges)})
        return kept if x.bounded else [*kept, mp.inf]

    def _integrate(self, integrand: Callable, power) -> Any:
        if self.x.tail == float("inf"):
            return mp.quad(integrand, self._points)
        # Power-law tail: t = T y^(−k) makes the integrand vanish linearly at y = 0.
        last, k = self._points[-2], 2 / (mpf(self.x.tail) - power)
        body = mp.quad(integrand, self._points[:-1])
        return body + mp.quad(
            lambda y: integrand(last * y ** (-k)) * k * last * y ** (-k - 1), [0, 1]
        )


def constant(name: str, p: float, block_size: int, maximum: BlockMaximum | None = None) -> Any:
    """E[m^p]^(1/p)/RMS; at p = 0 its limit exp(E ln m)/RMS."""
    x = magnitude(name)
    maximum = maximum or BlockMaximum(x, block_size)
    if p == 0:
        return mp.exp(maximum.log_mean()) / x.rms()
    return maximum.moment(mpf(p)) ** (1 / mpf(p)) / x.rms()


def moments(
    name: str, p: float, block_size: int, maximum: BlockMaximum | None = None
) -> dict[str, Any]:
    """Relative Var(m^p), Cov(q, m^p), Var(q), and V and the bias built from them, at rms = 1."""
    x = magnitude(name)
    maximum = maximum or BlockMaximum(x, block_size)
    p, square = mpf(p), x.rms() ** 2
    assert x.fourth is not None
    mean = maximum.moment(p)
    variance = maximum.moment(2 * p) / mean**2 - 1
    covariance = maximum.square_moment(p) / (block_size * square * mean) - 1
    square_variance = (x.fourth() / square**2 - 1) / block_size
    return {
        "mean": mean / x.rms() ** p,
        "relative_variance": variance,
        "relative_covariance": covariance,
        "square_variance": square_variance,
        "variance": square_variance / 4 - covariance / p + variance / p**2,
        "bias": variance / (2 * p) - square_variance / 4,
    }
