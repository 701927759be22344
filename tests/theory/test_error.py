"""V, the bias and the block's second moments against mpmath's density route, and by simulation."""

from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf

import mxstats as mxs
from mxstats.theory import constant, log_ratio_mean, log_ratio_std, rms_error
from tests.theory import reference
from tests.theory.cases import names, promised, relative_error, rows, stored


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(34):
        yield


def error_tolerance(name: str) -> float:
    """Ten times the constant's: V and its parts are differences of moments.

    Var(m^p)/(E m^p)² is 1e-2 or less at B = 4096, p = 1/2, from two moments near 1.
    """
    return 10.0 * promised(name)


@pytest.mark.parametrize("name", names("moments"))
def test_error_is_the_reference(name, record_property):
    worst = 0.0
    for row in rows("moments", name):
        p, size = row["p"], row["block_size"]
        error = mxs.rms_error(name, p=p, block_size=size)
        moments = mxs.block_moments(name, p=p, block_size=size)
        pairs = {
            "mean": np.exp(moments.log_mean),
            "relative_variance": moments.relative_variance,
            "relative_covariance": moments.relative_covariance,
            "square_variance": moments.square_variance,
            "variance": error.variance,
            "bias": error.bias,
        }
        for key, got in pairs.items():
            wanted = mpf(row[key])
            # Of the order of Var q, which is the scale of everything here, where it is zero (one
            # value and p = 2: q is m²).
            scale = max(abs(wanted), abs(mpf(row["square_variance"])) / 4)
            off = float(abs(mpf(float(got)) - wanted) / scale)
            worst = max(worst, off)
            assert off <= error_tolerance(name), (key, row)
    record_property("worst_relative_error", worst)
    print(f"{name}: worst relative error {worst:.1e}")


@pytest.mark.parametrize(
    ("name", "p", "block_size"), [("gaussian", 2, 32), ("laplace", 1, 16), ("student-t:10", 1, 64)]
)
def test_the_table_is_what_mpmath_gives_now(name, p, block_size):
    for key, value in reference.moments(name, p, block_size).items():
        wanted = stored("moments", name, p, block_size, key)
        # 25 digits are kept.
        assert abs(value / wanted - 1) < mpf(10) ** -24, key


@pytest.mark.parametrize("name", ["gaussian", "laplace", "student-t:5", "student-t:10"])
@pytest.mark.parametrize("t", [0.3, 1.7, 6.0])
def test_the_oracle_has_the_right_partial_second_moment(name, t):
    x = reference.magnitude(name)
    assert x.square is not None
    direct = mp.quad(lambda u: u * u * x.density(u), [0, t])
    assert abs(x.square(mpf(t)) / direct - 1) < mpf(10) ** -28  # of the 34 digits in force
    assert abs(x.cdf(mpf(t)) / mp.quad(x.density, [0, t]) - 1) < mpf(10) ** -28


@pytest.mark.parametrize(
    ("name", "p", "root_v"),
    [
        ("gaussian", 1, 0.144264),
        ("gaussian", 2, 0.152562),
        ("laplace", 1, 0.190217),
        ("laplace", 2, 0.225950),
        ("student-t:10", 1, 0.183001),
        ("student-t:10", 2, 0.223634),
    ],
)
def test_checked_values(name, p, root_v):
    error = mxs.rms_error(name, p=p, block_size=32)
    # Six decimals are stated.
    assert np.sqrt(error.variance) == pytest.approx(root_v, abs=5.1e-7)
    assert error.std(128) == pytest.approx(root_v / np.sqrt(128.0), abs=5.1e-8)


@pytest.mark.parametrize("name", ["gaussian", "laplace", "student-t:5"])
def test_one_value_at_p_2_has_no_error(name):
    error = mxs.rms_error(name, p=2, block_size=1)
    # q = m²: three equal terms of size Var(q)/4 (2 to 8 for these) cancel, each good to 1e-13.
    assert abs(error.variance) <= 1e-11
    assert abs(error.bias) <= 1e-11


@pytest.mark.parametrize(
    ("name", "p", "variance", "bias"),
    [
        ("student-t:3", 1.0, np.inf, -np.inf),  # Var(m) finite, Var(q) not
        ("student-t:3", 2.0, np.inf, np.nan),  # neither
        ("student-t:4", 1.0, np.inf, -np.inf),  # E X⁴ is just infinite
        ("student-t:5", 2.5, np.inf, np.inf),  # 2p = df, E X⁴ finite
        ("student-t:10", 7.0, np.inf, np.inf),
    ],
)
def test_infinite_moments_never_give_a_finite_number(name, p, variance, bias):
    error = mxs.rms_error(name, p=p, block_size=32)
    np.testing.assert_equal([error.variance, error.bias], [variance, bias])
    assert error.std(16) == np.inf
    assert log_ratio_std(name, p=p, block_size=32, hidden_size=100) == np.inf


def test_infinite_and_finite_cells_of_one_grid_do_not_mix():
    error = mxs.rms_error("student-t:5", p=[1.0, 2.0, 2.5, 4.0], block_size=[[16], [32]])
    assert error.variance.shape == (2, 4)
    np.testing.assert_equal(np.isfinite(error.variance), [[True, True, False, False]] * 2)
    single = mxs.rms_error("student-t:5", p=2.0, block_size=32)
    assert error.variance[1, 1] == pytest.approx(single.variance, rel=1e-13)  # the same quadrature
    assert error.std(128).shape == (2, 4)
    assert type(single.variance) is float
    assert type(single.std(128)) is float


# --- rows with a short last block ----------------------------------------------------------------


def oracle_std(name: str, p: float, hidden_size: int) -> Any:
    """√ΣVar φ_k with φ_k = n_k q_k/(2D) − m_k^p/(p ΣE m_j^p), moments from the table."""
    lengths = [min(32, hidden_size - start) for start in range(0, hidden_size, 32)]

    def get(n: int, key: str) -> Any:
        return stored("moments", name, p, n, key)

    total = mp.fsum(get(n, "mean") for n in lengths)
    variance = mpf(0)
    for n in lengths:
        mean = get(n, "mean")
        of_square = mpf(n) ** 2 * get(n, "square_variance") / (4 * mpf(hidden_size) ** 2)
        of_maximum = get(n, "relative_variance") * mean**2 / (p * total) ** 2
        of_both = n * get(n, "relative_covariance") * mean / (hidden_size * p * total)
        variance += of_square + of_maximum - of_both
    return mp.sqrt(variance)


@pytest.mark.parametrize("name", ["gaussian", "laplace", "student-t:10"])
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("hidden_size", [4, 16, 33, 48, 100, 128, 32 * 40 + 4])
def test_log_ratio_std_is_the_direct_sum(name, p, hidden_size):
    got = log_ratio_std(name, p=p, block_size=32, hidden_size=hidden_size)
    wanted = oracle_std(name, p, hidden_size)
    assert relative_error(got, wanted) <= error_tolerance(name)


def test_log_ratio_std_is_root_v_over_k_where_blocks_fit():
    sizes = np.array([32, 64, 4096])
    got = log_ratio_std("laplace", p=1, block_size=32, hidden_size=sizes)
    wanted = mxs.rms_error("laplace", p=1, block_size=32).std(sizes // 32)
    np.testing.assert_allclose(got, wanted, rtol=1e-13)  # a sum over K in place of a product


@pytest.mark.parametrize(
    ("name", "p", "hidden_size"),
    [("gaussian", 1.0, 100), ("laplace", 2.0, 48), ("laplace", 0.5, 7)],
)
def test_log_ratio_std_by_simulation(name, p, hidden_size):
    # The influence functions of a row: unbiased at any K, so that only sampling noise is left.
    rng, n = np.random.default_rng(20260313), 100_000
    draw = rng.standard_normal if name == "gaussian" else lambda s: rng.laplace(0, 0.5**0.5, s)
    x = np.abs(draw((n, hidden_size)))
    maxima = np.stack([x[:, a : a + 32].max(axis=1) for a in range(0, hidden_size, 32)], axis=1)
    mean = mxs.constant(name, p=p, block_size=32, hidden_size=hidden_size) ** p
    phi = np.mean(x * x, axis=1) / 2.0 - np.mean(maxima**p, axis=1) / (p * mean)
    squares = (phi - phi.mean()) ** 2
    stderr = squares.std() / np.sqrt(n)
    wanted = log_ratio_std(name, p=p, block_size=32, hidden_size=hidden_size) ** 2
    # Four standard errors: one chance in 16,000 for a seed not chosen for it.
    assert abs(squares.mean() - wanted) <= 4.0 * stderr


@pytest.mark.parametrize("dist", ["gaussian", "laplace", "student-t:10"])
def test_blocks_of_one_at_p_two_have_no_error_at_all(dist):
    # q = m² then, so that the influence and the bias vanish identically: exact zeros.
    found = rms_error(dist, p=2, block_size=1)
    assert (found.variance, found.bias, found.std(4)) == (0.0, 0.0, 0.0)
    assert log_ratio_std(dist, p=2, block_size=1, hidden_size=64) == 0.0
    # One block of one entry, whatever the block size.
    assert log_ratio_std(dist, p=2, block_size=32, hidden_size=1) == 0.0
    assert log_ratio_mean(dist, p=2, block_size=32, hidden_size=1) == 0.0


def test_variances_that_doubles_cannot_hold_are_refused():
    with pytest.raises(ValueError, match="p=1e-12: variances relative to p² lose their digits"):
        rms_error(p=1e-12, block_size=4)
    with pytest.raises(ValueError, match=r"p=100000: .* beyond double precision; use a smaller p"):
        rms_error(p=1e5)
    # Just above the limit the value is that of the limit p → 0, Var(q/2 − ln m), to 1e-9.
    small, smaller = (rms_error(p=p, block_size=4).variance for p in (1e-4, 1e-6))
    assert smaller == pytest.approx(small, abs=1e-5)
    assert smaller == pytest.approx(0.0539066, abs=1e-6)


def test_short_last_block_moves_the_bias():
    # D = 33 at B = 32: a whole block and one entry. By Monte Carlo of the plain definition.
    rng = np.random.default_rng(8)
    rows = rng.standard_normal((400_000, 33))
    c = constant(p=2, block_size=32, hidden_size=33)
    maxima = np.stack([np.abs(rows[:, :32]).max(axis=1), np.abs(rows[:, 32])], axis=1)
    log_ratio = 0.5 * np.log(np.mean(rows**2, axis=1) / (np.mean(maxima**2, axis=1) / c**2))
    theory = log_ratio_mean(p=2, block_size=32, hidden_size=33)
    stderr = log_ratio.std() / np.sqrt(len(rows))
    # Leading order at K = 2 leaves an eighth out. Over K, the coefficient of whole blocks would be
    # 0.0116.
    assert abs(log_ratio.mean() - theory) < 0.15 * theory + 4 * stderr
    assert log_ratio.mean() - rms_error(p=2).bias / 2 > 20 * stderr
