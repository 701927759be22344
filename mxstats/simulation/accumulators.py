"""Moments of a stream of numbers, kept in a form that can be merged.

With M_j = Σ (x − x̄)^j, two sets a and b of n_a and n_b numbers, n = n_a + n_b, f = n_b/n, g = n_a/n
and δ = x̄_b − x̄_a merge to (Chan, Golub and LeVeque 1979; Pébay 2008)

    x̄  = x̄_a + f δ
    M_2 = M_2a + M_2b + n f g δ²
    M_3 = M_3a + M_3b + n f g (g − f) δ³ + 3δ (g M_2b − f M_2a)
    M_4 = M_4a + M_4b + n f g (g² − f g + f²) δ⁴ + 6δ² (g² M_2b + f² M_2a) + 4δ (g M_3b − f M_3a)

in which no large numbers cancel. From them come the standard errors of the mean, √(s²/n), and of
the unbiased variance s², whose own variance is (μ_4 − σ⁴ (n−3)/(n−1)) / n.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean, central sums and extremes of every channel of an array; the numbers' own unit.

    All arrays have the shape of the channels. What needs more numbers than there are is nan: the
    mean and the extremes of none, a variance or standard error of one.
    """

    count: int
    """n, the same for every channel."""
    mean: Array
    """x̄."""
    second: Array
    """Σ (x − x̄)²."""
    third: Array
    """Σ (x − x̄)³."""
    fourth: Array
    """Σ (x − x̄)⁴."""
    smallest: Array
    largest: Array

    @classmethod
    def empty(cls, shape: tuple[int, ...] = ()) -> "Moments":
        """Moments of no numbers, which :func:`merge` leaves out; ``shape``: the channels'."""
        zero, unknown = np.zeros(shape), np.full(shape, np.nan)
        return cls(0, unknown, zero, zero, zero, unknown, unknown)

    @classmethod
    def of(cls, values: ArrayLike, axis: int = 0) -> "Moments":
        """Moments along ``axis`` of real ``values``; the other axes are the channels.

        Two passes in float64: the mean, then the deviations from it. Values that are not finite are
        not sought out: they make the channel's sums nan.
        """
        x = np.asarray(values, dtype=np.float64)
        count = x.shape[axis]
        if count == 0:
            return cls.empty(tuple(np.delete(x.shape, axis).tolist()))
        mean = x.mean(axis, keepdims=True)
        deviation = x - mean
        square = deviation * deviation
        second, fourth = square.sum(axis), np.sum(square * square, axis)
        square *= deviation
        return cls(
            count=count,
            mean=mean.squeeze(axis),
            second=second,
            third=square.sum(axis),
            fourth=fourth,
            smallest=x.min(axis),
            largest=x.max(axis),
        )

    @property
    def variance(self) -> Array:
        """Unbiased variance s² = M_2/(n−1)."""
        return self._needs(2, self.second / max(self.count - 1, 1))

    @property
    def std(self) -> Array:
        """s, the root of the unbiased variance."""
        return np.sqrt(self.variance)

    @property
    def skewness(self) -> Array:
        """μ_3/σ³ = √n M_3 / M_2^(3/2): 0 for a Gaussian."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self._needs(2, np.sqrt(self.count) * self.third / self.second**1.5)

    @property
    def kurtosis(self) -> Array:
        """μ_4/σ⁴ = n M_4 / M_2², not the excess: 3 for a Gaussian."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self._needs(2, self.count * self.fourth / self.second**2)

    @property
    def mean_stderr(self) -> Array:
        """Standard error of the mean, s/√n, for independent numbers."""
        return self.std / np.sqrt(max(self.count, 1))

    @property
    def variance_stderr(self) -> Array:
        """Standard error of s², √((μ_4 − σ⁴ (n−3)/(n−1))/n), by the sample's own moments."""
        n = max(self.count, 2)
        plug_in = self.fourth / n - (self.second / n) ** 2 * ((n - 3) / (n - 1))
        # Rounding may leave a hair below 0 where all deviations are alike.
        return self._needs(2, np.sqrt(np.maximum(plug_in, 0.0) / n))

    @property
    def std_stderr(self) -> Array:
        """Standard error of s by the delta method: that of s², over 2s; 0 where s is 0."""
        std, stderr = self.std, self.variance_stderr
        return np.where(std == 0.0, 0.0, stderr / np.where(std == 0.0, 1.0, 2.0 * std))

    def root_stderr(self, p: ArrayLike) -> Array:
        """Standard error of x̄^(1/p) by the delta method, x̄^(1/p − 1)/p times that of the mean."""
        exponent = np.asarray(p, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.mean_stderr * self.mean ** (1.0 / exponent - 1.0) / exponent

    def _needs(self, count: int, values: Array) -> Array:
        return values if self.count >= count else np.full_like(values, np.nan)


def merge(a: Moments, b: Moments) -> Moments:
    """Moments of the numbers of ``a`` followed by those of ``b``, which have the same channels.

    A pure function of both: merging in a given order gives the same bits every time. Another
    grouping differs by rounding alone. Raises ValueError where the channels differ.
    """
    if a.mean.shape != b.mean.shape:
        raise ValueError(
            f"moments of channels {a.mean.shape} and {b.mean.shape} do not merge: "
            f"both must have the same shape"
        )
    if a.count == 0 or b.count == 0:
        return a if b.count == 0 else b
    n = a.count + b.count
    g, f = a.count / n, b.count / n
    delta = b.mean - a.mean
    between = n * f * g * delta**2
    return Moments(
        count=n,
        mean=a.mean + f * delta,
        second=a.second + b.second + between,
        third=a.third
        + b.third
        + between * (g - f) * delta
        + 3.0 * delta * (g * b.second - f * a.second),
        fourth=a.fourth
        + b.fourth
        + between * (g * g - f * g + f * f) * delta**2
        + 6.0 * delta**2 * (g * g * b.second + f * f * a.second)
        + 4.0 * delta * (g * b.third - f * a.third),
        smallest=np.minimum(a.smallest, b.smallest),
        largest=np.maximum(a.largest, b.largest),
    )


def stack(parts: Sequence[Moments], axis: int = 0) -> Moments:
    """Side by side as one accumulator: parts of equal count and channels, along a new ``axis``.

    Raises ValueError where the counts differ.
    """
    counts = {part.count for part in parts}
    if len(counts) != 1:
        raise ValueError(f"moments of {sorted(counts)} numbers do not stack: counts must be equal")
    fields = ("mean", "second", "third", "fourth", "smallest", "largest")
    arrays = {name: np.stack([getattr(part, name) for part in parts], axis) for name in fields}
    return Moments(count=counts.pop(), **arrays)
