"""An array of values as its empirical distribution, with the error that its size brings."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mxstats.theory.distributions.families import Array

# Below this many values a block the expected maximum is mostly the sample's own largest value.
VALUES_PER_BLOCK_ELEMENT = 100
JACKKNIFE_GROUPS = 50


class Estimate(NamedTuple):
    """A value computed from a sample, with its standard error (1 σ, same unit and shape)."""

    value: Any
    stderr: Any

    def __float__(self) -> float:
        return float(self.value)

    def __str__(self) -> str:
        return f"{self.value} ± {self.stderr}"


@dataclass(frozen=True, eq=False)
class Samples:
    """The empirical distribution of ``values``: each equally likely, drawn with replacement.

    Any shape; the magnitudes are used in units of their RMS. Raises ValueError for values that are
    not finite or all zero, TypeError for anything that is not real numbers.
    """

    values: NDArray[Any]
    counted: int = 0
    """The size that the size checks go by, where it is not that of ``values``: a part of a sample
    in the jackknife counts as the whole, which is the one whose size was asked for."""

    def __post_init__(self) -> None:
        if isinstance(self.values, np.ma.MaskedArray):
            raise TypeError("samples must not be a masked array; pass its .compressed() values")
        values = np.asarray(self.values)
        if values.dtype.kind not in "fiu" and values.dtype.name != "bfloat16":
            raise TypeError(f"samples must be real numbers, got dtype {values.dtype}")
        values = np.abs(values.astype(np.float64)).ravel()
        object.__setattr__(self, "counted", max(self.counted, values.size))
        if self.counted < VALUES_PER_BLOCK_ELEMENT:
            raise ValueError(
                f"samples: {values.size} values; at least {VALUES_PER_BLOCK_ELEMENT} a block "
                f"element are needed"
            )
        if not np.all(np.isfinite(values)):
            bad = int(np.sum(~np.isfinite(values)))
            raise ValueError(
                f"samples: {bad} of {values.size} values are NaN or infinite; drop them"
            )
        if not np.any(values):
            raise ValueError("samples: all values are zero, so their RMS is 0")
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    @property
    def name(self) -> str:
        return f"samples (n={self.values.size})"

    @property
    def tail_index(self) -> float:
        return np.inf

    @cached_property
    def rms(self) -> float:
        largest = self.values.max()
        return float(largest * np.sqrt(np.mean((self.values / largest) ** 2)))

    @cached_property
    def sorted_magnitudes(self) -> Array:
        """|X| in rising order at rms = 1."""
        return np.sort(self.values) / self.rms

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Draws of the magnitude |X|, with replacement, at rms = 1."""
        return self.values[rng.integers(self.values.size, size=shape)] / self.rms

    def require_size(self, block_size: int) -> None:
        """Raise ValueError where the sample is too small for blocks of ``block_size``."""
        needed = VALUES_PER_BLOCK_ELEMENT * block_size
        if self.counted < needed:
            raise ValueError(
                f"samples: {self.values.size} values are too few for block_size={block_size}; "
                f"at least {needed} ({VALUES_PER_BLOCK_ELEMENT} a block element) are needed"
            )

    def log_moment(self, p: float, block_size: int) -> float:
        """Ln E[m^p], exact for the empirical distribution: Σ t_i^p (F_i^B − F_{i−1}^B)."""
        return _log_mean(p * self._log_magnitudes, self._log_weights(block_size), p)

    def log_square_moment(self, p: float, block_size: int) -> float:
        """Ln E[x_1² m^p], which is Σ t_i^p (G_i F_i^(B−1) − G_{i−1} F_{i−1}^(B−1)), rms = 1."""
        n, t = self.values.size, self.sorted_magnitudes
        rank = np.arange(1, n + 1)
        square = np.cumsum(t * t) / n
        if block_size == 1:
            with np.errstate(divide="ignore"):
                return _log_mean(p * self._log_magnitudes, 2.0 * np.log(t) - np.log(n), p)
        # G_i F_i^(B−1) − G_{i−1} F_{i−1}^(B−1) as two rising parts, so that nothing cancels.
        log_power = (block_size - 1) * np.log(rank / n)
        with np.errstate(divide="ignore"):
            own = 2.0 * np.log(t) - np.log(n) + log_power
            before = np.log(np.concatenate([[0.0], square[:-1]]))
            rise = np.log(-np.expm1((block_size - 1) * np.log1p(-1.0 / rank)))
        log_weights = np.logaddexp(own, before + log_power + rise)
        return _log_mean(p * self._log_magnitudes, log_weights, p)

    def survivals(self, u: Array) -> tuple[Array, Array, Array]:
        """Return P, E|X| and E X² over |X| > e^u, at rms = 1, of the empirical distribution."""
        above = np.searchsorted(self._log_magnitudes, u, side="right")
        return tuple(tail[above] for tail in self._tails)  # pyright: ignore[reportReturnType]

    @cached_property
    def _tails(self) -> tuple[Array, Array, Array]:
        t, n = self.sorted_magnitudes, self.values.size
        totals = (np.cumsum((t**k)[::-1])[::-1] / n for k in range(3))
        count, mean, square = (np.append(total, 0.0) for total in totals)
        return count, mean, square

    def block_maximum(
        self, block_size: int, *, closed: bool
    ) -> tuple[Callable[[Array], Array], float, float, float]:
        """Return ln P(m <= e^u) (m < e^u where ``closed``), and least, median and largest ln m."""
        ordered, n = self._log_magnitudes, self.values.size

        def log_cdf(u: Array) -> Array:
            below = np.searchsorted(ordered, u, side="left" if closed else "right")
            with np.errstate(divide="ignore"):
                return block_size * np.log(below / n)

        median = ordered[min(int(n * 0.5 ** (1.0 / block_size)), n - 1)]
        positive = ordered[np.isfinite(ordered)]
        return log_cdf, float(positive[0]), float(median), float(positive[-1])

    def jackknife(self, statistic: Callable[["Samples"], ArrayLike]) -> Estimate:
        """``statistic`` of the whole sample, and its delete-a-group jackknife standard error.

        The groups are 50 runs of consecutive values, so that values that were measured together
        (the channels of one token, say) leave together.
        """
        value = np.asarray(statistic(self))
        parts = np.array_split(self.values, JACKKNIFE_GROUPS)
        if sum(bool(np.any(part)) for part in parts) < 2:
            raise ValueError(
                "samples: all values but zeros lie within one fiftieth of the array, so that no "
                "standard error can be formed; shuffle them if their order means nothing"
            )
        left_out = np.array(
            [
                statistic(Samples(np.concatenate(parts[:g] + parts[g + 1 :]), self.values.size))
                for g in range(JACKKNIFE_GROUPS)
            ]
        )
        spread = np.var(left_out, axis=0)
        return Estimate(value[()], np.sqrt((JACKKNIFE_GROUPS - 1) * spread)[()])

    @cached_property
    def _log_magnitudes(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(self.sorted_magnitudes)

    def _log_weights(self, block_size: int) -> Array:
        """ln(F_i^B − F_{i−1}^B) with F_i = i/n."""
        rank = np.arange(1, self.values.size + 1)
        with np.errstate(divide="ignore"):
            rise = np.log(-np.expm1(block_size * np.log1p(-1.0 / rank)))
        return block_size * np.log(rank / self.values.size) + rise


def _log_mean(log_values: Array, log_weights: Array, p: float) -> float:
    """Ln Σ w e^v for weights that add up to 1; exact as p, and with it v, goes to 0."""
    if p < 0.5:
        return float(np.log1p(np.sum(np.exp(log_weights) * np.expm1(log_values))))
    log_terms = log_values + log_weights
    peak = np.max(log_terms)
    return float(peak + np.log(np.sum(np.exp(log_terms - peak))))
