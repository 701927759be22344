"""The mergeable accumulator against numpy and scipy on the whole data."""

from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mxstats.simulation import Moments
from mxstats.simulation.accumulators import merge, stack

RNG = np.random.default_rng(0)
# Skewed and far from zero, so that odd moments and cancellation both count.
DATA = 50.0 + RNG.exponential(size=(5000, 2, 3)) ** 1.5

FIELDS = ("mean", "second", "third", "fourth", "smallest", "largest")


def pieces(data, n):
    return [Moments.of(part) for part in np.array_split(data, n)]


@pytest.mark.parametrize("parts", [1, 2, 7, 5000])
def test_against_numpy_and_scipy(parts):
    got = reduce(merge, pieces(DATA, parts))
    n = len(DATA)
    # 5000 additions of numbers near 50 with spread near 2 leave 1e-13 or so.
    for have, want in (
        (got.mean, DATA.mean(0)),
        (got.variance, DATA.var(0, ddof=1)),
        (got.std, DATA.std(0, ddof=1)),
        (got.third / n, stats.moment(DATA, 3)),
        (got.fourth / n, stats.moment(DATA, 4)),
        (got.skewness, stats.skew(DATA)),
        (got.kurtosis, stats.kurtosis(DATA, fisher=False)),
        (got.mean_stderr, stats.sem(DATA)),
    ):
        np.testing.assert_allclose(have, want, rtol=1e-11)
    np.testing.assert_array_equal(got.smallest, DATA.min(0))
    np.testing.assert_array_equal(got.largest, DATA.max(0))
    assert got.count == n


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_axis_and_channels(axis):
    got = Moments.of(DATA, axis=axis)
    assert got.count == DATA.shape[axis]
    assert got.mean.shape == DATA.mean(axis).shape
    np.testing.assert_allclose(got.mean, DATA.mean(axis), rtol=1e-14)


def test_a_large_offset_costs_no_digits_of_the_variance():
    small = RNG.standard_normal(4000)
    shifted = small + 2.0**30
    got = reduce(merge, pieces(shifted, 9))
    # The shift itself rounds each value at 2^30·2^−53 ≈ 1e-7: a naive sum of squares would lose
    # 2^60·2^−53 ≈ 1e2.
    np.testing.assert_allclose(got.variance, small.var(ddof=1), rtol=1e-7)


values = st.lists(st.floats(-1e6, 1e6), min_size=0, max_size=20)


@given(values, values, values)
def test_merging_is_associative_within_rounding(a, b, c):
    x, y, z = (Moments.of(np.array(part)) for part in (a, b, c))
    left, right = merge(merge(x, y), z), merge(x, merge(y, z))
    whole = Moments.of(np.array(a + b + c))
    assert left.count == right.count == whole.count == len(a + b + c)
    if not whole.count:
        return
    data = np.array(a + b + c)
    size = np.max(np.abs(data))
    for name, order in zip(FIELDS, (1, 2, 3, 4, 1, 1), strict=True):
        # A sum of at most 60 terms, each below (2·size)^order, rounded a few times at 2^−53.
        atol = 1e-14 * 60 * (2 * size) ** order + 1e-300
        for one in (left, right):
            np.testing.assert_allclose(getattr(one, name), getattr(whole, name), rtol=0, atol=atol)


def test_merging_is_deterministic():
    first, second = (reduce(merge, pieces(DATA, 13)) for _ in range(2))
    for name in FIELDS:
        assert np.array_equal(getattr(first, name), getattr(second, name))


def test_standard_errors_are_the_spread_of_the_estimates():
    # 4000 repetitions of 200 numbers: the spread itself is known to √(κ/4/4000) ≈ 1.2 %, the mean
    # stated error is off by a few times 1/n = 0.5 % (plug-in moments are biased); 5 % covers both.
    data = RNG.gamma(4.0, size=(200, 4000))
    got = Moments.of(data)
    for estimate, stated in (
        (got.mean, got.mean_stderr),
        (got.variance, got.variance_stderr),
        (got.std, got.std_stderr),
        (got.mean**0.5, got.root_stderr(2.0)),
    ):
        assert np.std(estimate) == pytest.approx(np.sqrt(np.mean(stated**2)), rel=0.05)


def test_variance_stderr_by_hand():
    # x = 0, 0, 0, 4: n = 4, mean 1, μ2 = 3, μ4 = (3·1 + 81)/4 = 21, (21 − 9/3)/4 = 4.5.
    got = Moments.of(np.array([0.0, 0.0, 0.0, 4.0]))
    assert got.variance == pytest.approx(4.0, rel=1e-15)
    assert got.variance_stderr == pytest.approx(np.sqrt(4.5), rel=1e-15)
    assert got.std_stderr == pytest.approx(np.sqrt(4.5) / 4.0, rel=1e-15)


def test_too_few_numbers_are_nan():
    none, one = Moments.empty((2,)), Moments.of(np.array([[3.0, 4.0]]))
    for name in ("variance", "std", "mean_stderr", "variance_stderr", "std_stderr", "skewness"):
        assert np.isnan(getattr(one, name)).all(), name
        assert np.isnan(getattr(none, name)).all(), name
    assert np.isnan(none.mean).all()
    np.testing.assert_array_equal(one.mean, [3.0, 4.0])
    assert Moments.of(np.empty((0, 2))).mean.shape == (2,)
    assert merge(none, one) is one
    assert merge(one, none) is one


def test_constant_data_have_no_error():
    got = reduce(merge, pieces(np.full((100, 1), 0.1), 7))
    # Each piece's mean of 0.1 may be off by an ulp, 1e-17, whose square is all that is left.
    assert got.variance[0] < 1e-30
    assert got.std_stderr[0] < 1e-15


def test_channels_must_agree():
    with pytest.raises(ValueError, match=r"channels \(2,\) and \(3,\).*same shape"):
        merge(Moments.empty((2,)), Moments.empty((3,)))
    with pytest.raises(ValueError, match=r"\[1, 2\] numbers.*equal"):
        stack([Moments.of(np.ones(1)), Moments.of(np.ones(2))])


def test_frozen():
    with pytest.raises(AttributeError):
        Moments.empty().count = 3  # pyright: ignore[reportAttributeAccessIssue]
