"""What the theory asks of a distribution, and the three named families.

Everything is a function of u = ln t for the magnitude |X| at RMS(X) = 1:

    ln S(u) = ln P(|X| > e^u)            ``log_survival``
    ln T(u) = ln E[X² ; |X| > e^u]       ``log_square_survival``
    ln U(u) = ln E[|X| ; |X| > e^u]      ``log_mean_survival``

S and T both fall from 1 to 0, so T is the survival function of the size-biased magnitude.
Logarithms keep both exact far beyond the range in which S itself underflows, which a Student-t
moment near its degrees of freedom needs.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]


@runtime_checkable
class Distribution(Protocol):
    """A distribution of the entries X_i, seen through its magnitude at rms = 1."""

    @property
    def name(self) -> str:
        """The name in tables and at the command line, such as ``student-t:5``."""
        ...

    @property
    def rms(self) -> float:
        """RMS(X) in the caller's own units; the families have 1."""
        ...

    @property
    def tail_index(self) -> float:
        """The largest α such that E|X|^p is finite for every p < α (inf for light tails)."""
        ...

    @property
    def log_breakpoints(self) -> tuple[float, ...]:
        """Values of u, ends included, between which S is smooth."""
        ...

    def log_survival(self, u: Array) -> Array:
        """Ln P(|X| > e^u) at rms = 1."""
        ...

    def log_square_survival(self, u: Array) -> Array:
        """Ln E[X² ; |X| > e^u] at rms = 1."""
        ...

    def log_mean_survival(self, u: Array) -> Array:
        """Natural logarithm of E[|X| ; |X| > e^u] at rms = 1."""
        ...

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Independent draws at rms = 1."""
        ...


@dataclass(frozen=True)
class _Smooth:
    """A family whose magnitude has a smooth density on (0, ∞), given at rms = 1."""

    @property
    def rms(self) -> float:
        return 1.0

    @property
    def tail_index(self) -> float:
        return np.inf

    @property
    def log_breakpoints(self) -> tuple[float, ...]:
        return (-np.inf, np.inf)


@dataclass(frozen=True)
class Gaussian(_Smooth):
    """The normal distribution at rms = 1: S = 2Φ(−t), T = S + 2tφ(t), U = 2φ(t)."""

    @property
    def name(self) -> str:
        return "gaussian"

    def log_survival(self, u: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.log(2.0) + special.log_ndtr(-np.exp(u))

    def log_square_survival(self, u: Array) -> Array:
        with np.errstate(over="ignore"):
            log_edge = 0.5 * np.log(2.0 / np.pi) + u - 0.5 * np.exp(2.0 * u)
        return np.logaddexp(self.log_survival(u), log_edge)

    def log_mean_survival(self, u: Array) -> Array:
        with np.errstate(over="ignore"):
            return 0.5 * np.log(2.0 / np.pi) - 0.5 * np.exp(2.0 * u)

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return rng.standard_normal(shape)


@dataclass(frozen=True)
class Laplace(_Smooth):
    """The Laplace distribution at rms = 1.

    S = e^(−√2 t), T = S·(1 + √2 t + t²), U = S·(t + 1/√2).
    """

    @property
    def name(self) -> str:
        return "laplace"

    def log_survival(self, u: Array) -> Array:
        with np.errstate(over="ignore"):
            return -np.sqrt(2.0) * np.exp(u)

    def log_square_survival(self, u: Array) -> Array:
        # Beyond 2^400 the exponential has long made T zero; the cap keeps inf − inf out.
        t = np.exp(np.minimum(u, 277.0))
        return np.log1p(np.sqrt(2.0) * t + t * t) - np.sqrt(2.0) * t

    def log_mean_survival(self, u: Array) -> Array:
        t = np.exp(np.minimum(u, 277.0))
        return np.log(t + np.sqrt(0.5)) - np.sqrt(2.0) * t

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return rng.laplace(scale=np.sqrt(0.5), size=shape)


@dataclass(frozen=True)
class StudentT(_Smooth):
    """Student's t with ``df`` > 2 degrees of freedom, scaled to rms = 1.

    With y = t·√(df/(df−2)) and z = df/(df + y²): S = I_z(df/2, 1/2) and
    T = I_z(df/2 − 1, 3/2), I being the regularised incomplete beta function, and
    U = E|X|·z^((df−1)/2).
    Raises ValueError for df ≤ 2, where the RMS is infinite.
    """

    df: float

    def __post_init__(self) -> None:
        if not isinstance(self.df, (int, float, np.integer, np.floating)) or isinstance(
            self.df, bool
        ):
            raise TypeError(f"df must be a real number above 2, got {self.df!r}")
        if not 2.0 < self.df < np.inf:
            raise ValueError(
                f"df={self.df:g}: Student-t needs 2 < df < inf; for df <= 2 the RMS is infinite"
            )
        object.__setattr__(self, "df", float(self.df))

    @property
    def name(self) -> str:
        return f"student-t:{self.df:g}"

    @property
    def tail_index(self) -> float:
        return self.df

    def log_survival(self, u: Array) -> Array:
        return _log_betainc(0.5 * self.df, 0.5, self._log_odds(u))

    def log_square_survival(self, u: Array) -> Array:
        return _log_betainc(0.5 * self.df - 1.0, 1.5, self._log_odds(u))

    def log_mean_survival(self, u: Array) -> Array:
        half = 0.5 * self.df
        # E|X| at rms = 1; the ratio of gammas by betaln, which stays exact for large df.
        log_mean = 0.5 * np.log(self.df - 2.0) - np.log(half - 0.5) - special.betaln(half, 0.5)
        return log_mean - (half - 0.5) * np.logaddexp(0.0, self._log_odds(u))

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return rng.standard_t(self.df, shape) * np.sqrt(1.0 - 2.0 / self.df)

    def _log_odds(self, u: Array) -> Array:
        """ln(y²/df) = ln((1−z)/z)."""
        return 2.0 * np.asarray(u, dtype=float) - np.log(self.df - 2.0)


def _log_betainc(a: float, b: float, log_odds: Array) -> Array:
    """Ln I_z(a, b) where ln((1−z)/z) is given, so that z may be far below 1e-308.

    For small z, I_z(a, b) = z^a (1−z)^b F(a+b, 1; a+1; z) / (a B(a, b)) with the hypergeometric
    series F (DLMF 8.17.8), every factor of which has a logarithm; elsewhere I itself is exact.
    """
    log_odds = np.asarray(log_odds, dtype=float)
    log_z = -np.logaddexp(0.0, log_odds)
    small = log_z < -np.log(2.0)
    out = np.empty(log_odds.shape)
    with np.errstate(over="ignore"):
        rest = 1.0 / (1.0 + np.exp(-log_odds[~small]))
    lower = special.betainc(b, a, rest)
    high = lower > 0.5
    # scipy's betaincc takes ten times as long; without it the rounding of z counts a times.
    if a > 100.0:
        upper = special.betaincc(b, a, rest[high])
    else:
        upper = special.betainc(a, b, 1.0 - rest[high])
    log_upper = np.log1p(-np.minimum(lower, 0.5))
    log_upper[high] = np.log(upper)
    out[~small] = log_upper
    log_z = log_z[small]
    z = np.exp(log_z)
    # Sixty terms, all positive: what follows is below 1e-16 at z = 1/2, for b <= 3/2.
    series = np.ones_like(z)
    for k in range(60, 0, -1):
        series *= z * ((a + b + k - 1.0) / (a + k))
        series += 1.0
    out[small] = a * log_z + b * np.log1p(-z) + np.log(series) - np.log(a) - special.betaln(a, b)
    return out
