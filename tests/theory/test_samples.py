"""An array of samples: exact for its empirical distribution, with a true standard error."""

from itertools import product

import numpy as np
import pytest

import mxstats as mxs
from mxstats.theory import log_ratio_std
from mxstats.theory.distributions import Samples

# Sums of up to 27 million equal terms, pairwise, against sums of 300 unequal ones.
ROUNDING = 1e-12


def smooth(n: int) -> np.ndarray:
    return np.random.default_rng(5).laplace(size=n) * 37.0


def tied(n: int) -> np.ndarray:
    """Six magnitudes, zero among them, both signs: nearly every draw is a tie."""
    return np.random.default_rng(6).choice([-2.0, -1.0, -0.25, 0.0, 0.25, 1.0, 3.0], size=n)


def every_block(x: np.ndarray, block_size: int):
    """(m, q) of every block of values drawn with replacement, rms = 1, in pieces."""
    x = np.abs(x) / np.sqrt(np.mean(x**2))
    if block_size == 1:
        yield x, x**2
    elif block_size == 2:
        yield np.maximum.outer(x, x), np.add.outer(x**2, x**2) / 2
    else:
        for first in x:
            m = np.maximum(first, np.maximum.outer(x, x))
            yield m, (first**2 + np.add.outer(x**2, x**2)) / 3


def average(x: np.ndarray, block_size: int, value) -> float:
    return float(np.mean([np.mean(value(m, q)) for m, q in every_block(x, block_size)]))


CASES = list(product([smooth, tied], [0.5, 1.0, 2.0], [1, 2, 3]))
IDS = [f"{make.__name__}, p={p:g}, B={size}" for make, p, size in CASES]


@pytest.mark.parametrize(("make", "p", "block_size"), CASES, ids=IDS)
def test_constant_is_that_of_every_block(make, p, block_size):
    x = make(300)
    wanted = average(x, block_size, lambda m, q: m**p) ** (1.0 / p)
    assert mxs.constant(x, p=p, block_size=block_size).value == pytest.approx(wanted, rel=ROUNDING)


@pytest.mark.parametrize(("make", "p", "block_size"), CASES, ids=IDS)
def test_error_is_that_of_every_block(make, p, block_size):
    x = make(300)
    mean = average(x, block_size, lambda m, q: m**p)
    variance = average(x, block_size, lambda m, q: (q / 2 - m**p / (p * mean) - 0.5 + 1 / p) ** 2)
    of_m = average(x, block_size, lambda m, q: (m**p / mean - 1) ** 2)
    of_q = average(x, block_size, lambda m, q: (q - 1) ** 2)
    error = mxs.rms_error(x, p=p, block_size=block_size)
    # Zero for one value at p = 2, hence the absolute part; the terms that cancel are below 10.
    assert error.variance == pytest.approx(variance, rel=ROUNDING, abs=1e-11)
    assert error.bias == pytest.approx(of_m / (2 * p) - of_q / 4, rel=ROUNDING, abs=1e-11)
    assert error.std(9) == pytest.approx(np.sqrt(max(variance, 0.0)) / 3, abs=1e-5)


def test_short_last_block_of_a_sample():
    x = smooth(300)
    first = average(x, 3, lambda m, q: m)
    last = average(x, 2, lambda m, q: m)
    got = mxs.constant(x, p=1.0, block_size=3, hidden_size=8).value
    assert got == pytest.approx((2 * first + last) / 3, rel=ROUNDING)


def test_shape_scale_sign_and_type_do_not_matter():
    x = smooth(3200)
    wanted = mxs.constant(x, p=[1.0, 2.0], block_size=[[8], [32]])
    assert wanted.value.shape == wanted.stderr.shape == (2, 2)
    for other in (x.reshape(10, 320), -x, 1e4 * x, list(x), Samples(x)):
        got = mxs.constant(other, p=[1.0, 2.0], block_size=[[8], [32]])
        np.testing.assert_allclose(got.value, wanted.value, rtol=ROUNDING)
        np.testing.assert_allclose(got.stderr, wanted.stderr, rtol=1e-9)  # of differences of values
    half = (x * 8).astype(np.float16)
    np.testing.assert_array_equal(
        mxs.constant(half, block_size=8).value,
        mxs.constant(half.astype(np.float64), block_size=8).value,
    )
    # Squares that a double cannot hold.
    np.testing.assert_allclose(
        mxs.constant(x * 1e250, p=[1.0, 2.0], block_size=[[8], [32]]).value,
        wanted.value,
        rtol=ROUNDING,
    )


def test_a_constant_sample_has_constant_one_and_no_error():
    x = np.full(3200, -7.0)
    estimate = mxs.constant(x, block_size=32)
    assert estimate.value == pytest.approx(1.0, rel=ROUNDING)
    assert estimate.stderr <= ROUNDING
    assert abs(mxs.rms_error(x, block_size=32).variance) <= ROUNDING


# --- the standard error --------------------------------------------------------------------------


def exact_stderr(p: float, block_size: int, n: int) -> float:
    """Standard error of c̃ from n Gaussian values, by the influence function of ln c̃.

    Contaminating F at x moves E[m^p] = ∫ p t^(p−1) (1 − F^B) dt by
    ∫ p t^(p−1) B F^(B−1) (1[x > t] − S) dt, and ln RMS by (x² − 1)/2.
    """
    from scipy import special

    # Midpoints to 9 σ: smooth integrands, error far below the Monte-Carlo noise it is used with.
    step = 9.0 / 9000
    t = (np.arange(9000) + 0.5) * step
    cdf, density = special.erf(t / np.sqrt(2.0)), np.sqrt(2.0 / np.pi) * np.exp(-t * t / 2.0)
    kernel = p * t ** (p - 1.0) * block_size * cdf ** (block_size - 1) * step
    mean = np.sum(p * t ** (p - 1.0) * (1.0 - cdf**block_size)) * step
    influence = (np.cumsum(kernel) - np.sum(kernel * (1.0 - cdf))) / (p * mean) - (
        t * t - 1.0
    ) / 2.0
    constant = mean ** (1.0 / p)
    return float(constant * np.sqrt(np.sum(influence**2 * density) * step / n))


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_standard_error_is_the_exact_one_and_the_spread(p):
    rng, n, size, repeats = np.random.default_rng(11), 2000, 8, 200
    estimates = [mxs.constant(rng.standard_normal(n), p=p, block_size=size) for _ in range(repeats)]
    values = np.array([e.value for e in estimates])
    stderrs = np.array([e.stderr for e in estimates])
    exact = exact_stderr(p, size, n)
    # Delete-a-group: each variance has a relative noise of √(2/49) = 20 %, their mean over 200
    # samples 1.4 %; four of those, and 2 % for what is of second order in 1/n.
    assert np.mean(stderrs**2) / exact**2 == pytest.approx(1.0, abs=0.08)
    # The variance of 200 values has a relative noise of √(2/199) = 10 %; four of those.
    assert np.var(values, ddof=1) / exact**2 == pytest.approx(1.0, abs=0.4)
    # And the values lie around the truth: bias is of order 1/n, below a fifth of the spread here.
    truth = mxs.constant(p=p, block_size=size)
    assert abs(values.mean() - truth) <= (4.0 / np.sqrt(repeats) + 0.2) * exact


def test_standard_error_counts_values_that_go_together():
    # Every token's channels share a scale: the error is that of the tokens, not of the values.
    rng = np.random.default_rng(12)
    tokens = rng.standard_normal((100, 64)) * np.exp(0.7 * rng.standard_normal((100, 1)))
    together = mxs.constant(tokens, block_size=32).stderr
    shuffled = mxs.constant(rng.permuted(tokens.ravel()), block_size=32).stderr
    assert together > 1.5 * shuffled


def test_error_of_a_sample_has_its_standard_error():
    x = np.random.default_rng(13).standard_normal(20_000)
    error = mxs.rms_error(x, p=2.0, block_size=16)
    truth = mxs.rms_error(p=2.0, block_size=16)
    assert 0.0 < error.stderr_variance < 0.1 * error.variance
    # Four standard errors, 10 % of noise in each of which (50 groups) is allowed for.
    assert abs(error.variance - truth.variance) <= 4.4 * error.stderr_variance
    assert abs(error.bias - truth.bias) <= 4.4 * error.stderr_bias


def test_bounds_and_row_error_of_a_sample():
    x = np.random.default_rng(14).standard_normal(6400)
    c = mxs.constant(x, p=1.0, block_size=32).value
    bounds = mxs.output_bounds(x, p=1.0, block_size=32, hidden_size=4096)
    assert bounds.max_abs == pytest.approx(128.0 * c, rel=ROUNDING)
    std = log_ratio_std(x, p=1.0, block_size=32, hidden_size=4096)
    assert std == pytest.approx(mxs.rms_error(x, p=1.0, block_size=32).std(128), rel=ROUNDING)


# --- how many are needed -------------------------------------------------------------------------


@pytest.mark.parametrize("call", [mxs.constant, mxs.rms_error])
def test_a_hundred_values_a_block_element_are_enough_and_one_fewer_is_not(call):
    x = smooth(3200)
    call(x, block_size=32)
    with pytest.raises(
        ValueError, match=r"3199 values are too few for block_size=32; at least 3200"
    ):
        call(x[:-1], block_size=32)


def test_small_p_reaches_the_geometric_mean_of_the_maximum():
    values = np.random.default_rng(5).normal(size=4000)
    t = np.sort(np.abs(values)) / np.sqrt(np.mean(values**2))
    rank = np.arange(1, t.size + 1) / t.size
    weights = rank**32 - (rank - 1 / t.size) ** 32
    limit = np.exp(np.sum(weights * np.log(t)))
    for p in (1e-9, 1e-14, 1e-300):
        found = mxs.constant(values, p=p, block_size=32)
        # E m^p = 1 + p E ln m: p's own order is 1e-9; the sums are good to 1e-13.
        assert found.value == pytest.approx(limit, rel=1e-8 if p == 1e-9 else 1e-12)
        assert found.stderr > 0


def test_values_in_one_fiftieth_of_the_array_have_no_standard_error():
    values = np.zeros(10_000)
    values[:150] = 1.5
    with pytest.raises(ValueError, match="no standard error can be formed; shuffle"):
        mxs.constant(values, p=2)
    assert mxs.constant(np.random.default_rng(0).permutation(values), p=2).stderr > 0


def test_masked_arrays_are_refused():
    masked = np.ma.masked_array(np.ones(5000), mask=np.arange(5000) < 10)
    with pytest.raises(TypeError, match=r"masked array; pass its \.compressed\(\)"):
        mxs.constant(masked)
