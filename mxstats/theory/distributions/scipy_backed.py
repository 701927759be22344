"""Any continuous distribution of scipy.stats, frozen or new-style, seen through |X|."""

import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import elementwise

from mxstats.theory.distributions.families import Array
from mxstats.theory.quadrature import integrate

# The slope of ln S against ln t where S is e^−150 and where it is e^−300 tells a power law, whose
# slope has settled there, from a lighter tail (a log-normal's still grows by 41 % between the two).
_FAR = (-150.0, -300.0)
_SAME_SLOPE = 0.01
# A part of E X² this small cannot be seen in any block of up to 2^20 entries.
_NO_TAIL = 1e-30


@dataclass(frozen=True)
class ScipyDistribution:
    """A scipy.stats distribution seen through |X| at rms = 1.

    S comes from the distribution's own logarithmic tails, P(|X| > t) = sf(t) + cdf(−t); T is
    t²S(t) + ∫_t^∞ 2sS(s) ds by quadrature, and U alike. RMS is about zero, not about the mean.
    Raises ValueError where the RMS is infinite or zero.
    """

    source: Any
    name: str = field(compare=False)

    def __post_init__(self) -> None:
        if not 0.0 < self._typical < np.inf:
            raise ValueError(
                f"distribution {self.name}: its quartiles are not two finite numbers, one of them "
                f"not zero; are its parameters in range?"
            )
        if not self.tail_index > 2.0:
            raise ValueError(
                f"distribution {self.name}: its RMS is infinite "
                f"(tail index {self.tail_index:.3g}; more than 2 is needed)"
            )
        if not 0.0 < self.rms < np.inf:
            raise ValueError(
                f"distribution {self.name}: its RMS is {self.rms}, not a positive number"
            )
        self._check_tails()

    def _check_tails(self) -> None:
        """Raise ValueError where the tails, as scipy computes them, miss part of E X²."""
        order = {"order": 2, "kind": "raw"} if _is_new_style(self.source) else {"order": 2}
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stated = float(np.sqrt(self.source.moment(**order)))
        # Where scipy has no closed form its moment is good to about 1e-8.
        if not abs(stated - self.rms) <= 1e-6 * self.rms:
            raise ValueError(
                f"distribution {self.name}: its tails give rms={self.rms:.9g} but its second "
                f"moment gives {stated:.9g}; its logsf is inaccurate or its RMS infinite"
            )

    @property
    def tail_index(self) -> float:
        return self._tail_index

    @cached_property
    def _tail_index(self) -> float:
        def excess(u: Array, goal: Array) -> Array:
            # Bounded and monotone, so that an S of exactly zero does no harm.
            return np.tanh((self._log_survival_raw(u + np.log(self._typical)) - goal) / 100.0)

        if np.isfinite(max(map(abs, self._support))):
            return np.inf
        found = elementwise.find_root(excess, (-0.1, 700.0), args=(np.array(_FAR),))
        # Equal roots: S falls from rounding noise to zero at once, and shows no slope.
        if not np.all(found.success) or np.ptp(found.x) < 0.01:
            return np.inf
        step = np.maximum(0.01 * found.x, 1e-3)
        values = self._log_survival_raw(np.stack([found.x - step, found.x]) + np.log(self._typical))
        near, far = (values[0] - values[1]) / step
        if not np.isfinite(far) or abs(far - near) > _SAME_SLOPE * far:
            return np.inf
        # Nine digits: what a finite difference of ln S is good for.
        return float(f"{far:.9g}")

    @property
    def rms(self) -> float:
        return self._rms

    @cached_property
    def _rms(self) -> float:
        return float(self._typical * np.sqrt(self._beyond(-np.inf, 2)))

    @property
    def log_breakpoints(self) -> tuple[float, ...]:
        return self._log_breakpoints

    @cached_property
    def _log_breakpoints(self) -> tuple[float, ...]:
        edges = {0.0, np.inf, *(abs(float(edge)) for edge in self._support)}
        top = max(abs(float(edge)) for edge in self._support)
        with np.errstate(divide="ignore"):
            return tuple(np.log(sorted(e / self.rms for e in edges if e <= top)))

    def log_survival(self, u: Array) -> Array:
        return self._log_survival_raw(np.asarray(u, dtype=float) + np.log(self.rms))

    def log_square_survival(self, u: Array) -> Array:
        return self._log_partial(u, 2)

    def log_mean_survival(self, u: Array) -> Array:
        return self._log_partial(u, 1)

    def _log_partial(self, u: Array, k: int) -> Array:
        """Ln E[|X|^k ; |X| > e^u] = ln(t^k S(t) + ∫_t^∞ k s^(k−1) S(s) ds)."""
        u = np.asarray(u, dtype=float)
        unit = np.log(self.rms / self._typical)
        edge = k * u + self.log_survival(u)
        with np.errstate(divide="ignore"):
            beyond = np.log(self._beyond(u + unit, k))
        return np.logaddexp(edge, beyond - k * unit)

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        if _is_new_style(self.source):
            draws = self.source.sample(shape, rng=rng)
        else:
            draws = self.source.rvs(size=shape, random_state=rng)
        return np.asarray(draws, dtype=float) / self.rms

    @cached_property
    def _support(self) -> tuple[float, float]:
        return tuple(float(edge) for edge in self.source.support())  # pyright: ignore

    @cached_property
    def _typical(self) -> float:
        """A magnitude of the distribution's own order, from its quartiles: the unit of the RMS."""
        quantile = self.source.icdf if _is_new_style(self.source) else self.source.ppf
        return float(np.max(np.abs([quantile(0.25), quantile(0.75)])))

    def _log_survival_raw(self, log_t: Array) -> Array:
        """Ln P(|X| > t) in the distribution's own units."""
        with np.errstate(all="ignore"):
            t = np.exp(log_t)
            if _is_new_style(self.source):
                above, below = self.source.logccdf(t), self.source.logcdf(-t)
            else:
                above, below = self.source.logsf(t), self.source.logcdf(-t)
            # Complex logarithms (new-style distributions) carry only a zero imaginary part here.
            return np.minimum(np.logaddexp(np.real(above), np.real(below)), 0.0)

    def _beyond(self, u: Array | float, k: int) -> Array:
        """∫_t^∞ k s^(k−1) S(s) ds at t = e^u, in units of ``_typical``."""

        def integrand(v: Array) -> Array:
            return k * np.exp(k * v + self._log_survival_raw(v + np.log(self._typical)))

        edges = {abs(edge) / self._typical for edge in self._support} | {1.0}
        cuts = tuple(np.log(edge) for edge in edges if 0.0 < edge < np.inf)
        # What lies below e^−300 of the typical magnitude adds nothing to a double.
        low = np.where(np.asarray(u) < -300.0, -np.inf, u)
        top = np.log(max(map(abs, self._support)) / self._typical)
        return integrate(
            integrand, low, top, cuts=cuts, floor=_NO_TAIL, what=f"E|X|^{k} of {self.name}"
        )


def _is_new_style(obj: Any) -> bool:
    return hasattr(obj, "logccdf") and hasattr(obj, "sample")


def from_scipy(obj: Any) -> ScipyDistribution | None:
    """Wrap a scipy distribution; None where ``obj`` is not one."""
    if isinstance(obj, stats.distributions.rv_frozen):
        if not isinstance(obj.dist, stats.rv_continuous):
            raise TypeError(f"distribution must be continuous, got the discrete {obj.dist.name}")
        if np.shape(obj.ppf(0.5)):
            raise TypeError(f"distribution must have scalar parameters, got {obj.args} {obj.kwds}")
        arguments = [f"{a:g}" for a in obj.args] + [f"{k}={v:g}" for k, v in obj.kwds.items()]
        return ScipyDistribution(obj, f"scipy.{obj.dist.name}({', '.join(arguments)})")
    if _is_new_style(obj):
        if any(base.__name__ == "DiscreteDistribution" for base in type(obj).__mro__):
            raise TypeError(f"distribution must be continuous, got the discrete {obj!r}")
        if np.shape(obj.icdf(0.5)):
            raise TypeError(f"distribution must have scalar parameters, got {obj!r}")
        return ScipyDistribution(obj, f"scipy.{obj!r}")
    return None
