"""Fitted weights against known ones, a general minimiser, and what their limits promise."""

import numpy as np
import pytest
from scipy.optimize import minimize

from mxstats.measure.block_weights import fit_weights, weight_limits

SCALAR = 0.175  # 1/c̃² of Gaussian rows at B = 32


def rows_of(weights, n, noise=0.0, seed=0):
    """Shares a_ik whose weighted sum is 1 but for noise of this standard deviation in e."""
    rng = np.random.default_rng(seed)
    shares = rng.lognormal(0.0, 1.0, (n, len(weights)))
    e = noise * rng.standard_normal(n)
    return shares * (np.exp(2 * e) / (shares @ weights))[:, None]


def limits_of(blocks, block_size=32):
    return weight_limits(block_size, blocks * block_size)


def objective(w, shares, ridge, omega=None):
    """The sum that is minimised, spelled out a row at a time."""
    omega = np.full(len(shares), 1 / len(shares)) if omega is None else omega / omega.sum()
    errors = sum(o * (0.5 * np.log(np.dot(a, w))) ** 2 for o, a in zip(omega, shares, strict=True))
    return errors + ridge * sum((v / SCALAR - 1) ** 2 for v in w)


def test_known_weights_come_back_exactly_without_noise():
    known = np.linspace(0.05, 0.9, 12)
    found = fit_weights(rows_of(known, 40), limits_of(12), scalar=SCALAR)
    assert found.converged
    # A zero of the errors, reached quadratically; the normal matrix squares the condition of the
    # shares (about 10 here), so some 1e-16·100, and its damping of 1e-12 vanishes with the errors.
    np.testing.assert_allclose(found.weights, known, rtol=1e-10)


def test_noise_is_told_by_the_standard_errors():
    known, sigma, n = np.linspace(0.1, 0.5, 8), 0.036, 4000
    shares = rows_of(known, n, sigma)
    found = fit_weights(shares, limits_of(8), scalar=SCALAR).weights
    J = 0.5 * shares / (shares @ known)[:, None]
    stderr = sigma * np.sqrt(np.diag(np.linalg.inv(J.T @ J)))
    # Eight weights: 4 standard errors is passed once in 2,000 seeds.
    assert (np.abs(found - known) < 4 * stderr).all()


@pytest.mark.parametrize("ridge", [0.0, 1e-4, 1e-2])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_general_minimiser_finds_the_same(ridge, weighted):
    # Some true weights lie outside of the limits, so that the fit ends on them.
    shares = rows_of(np.array([0.01, 0.05, 0.3, 0.9, 1.4]), 30, 0.1, seed=3)
    low, high = limits_of(5)
    omega = np.linspace(1, 20, 30) if weighted else None
    found = fit_weights(shares, (low, high), scalar=SCALAR, ridge=ridge, row_weights=omega)
    direct = minimize(
        objective, np.full(5, SCALAR), args=(shares, ridge, omega), method="L-BFGS-B",
        bounds=list(zip(low, high, strict=True)),
        options={"maxiter": 2000, "maxfun": 50_000, "ftol": 1e-15, "gtol": 1e-10},
    )  # fmt: skip
    assert found.converged
    best = objective(found.weights, shares, ridge, omega)
    # Never above what the other found, to rounding; its gradients are finite differences of 1e-8,
    # which leave it weights good to about 1e-4 where the sum is flattest.
    assert best <= direct.fun * (1 + 1e-9)
    np.testing.assert_allclose(found.weights, direct.x, atol=2e-3)
    assert (found.weights >= low).all()
    assert (found.weights <= high).all()


def test_limits_keep_rmsnorms_bound():
    for block_size, hidden_size in ((32, 576), (32, 100), (8, 7), (1, 5), (32, 33)):
        low, high = weight_limits(block_size, hidden_size)
        K = -(-hidden_size // block_size)
        assert np.sqrt(K / low.min()) == pytest.approx(np.sqrt(hidden_size), rel=1e-15)
        if hidden_size % block_size == 0:
            assert low[0] == 1 / block_size
            assert high[0] == 1.0
        # The exact weights of a spike and of a flat block, K n_k q_k/(D m_k²).
        assert low == pytest.approx(K / hidden_size, rel=1e-15)
        assert high[-1] == pytest.approx(K * (hidden_size - (K - 1) * block_size) / hidden_size)


def test_blocks_of_one_entry_have_one_weight():
    limits = weight_limits(1, 6)
    found = fit_weights(rows_of(np.full(6, 1.0), 20, 0.2), limits, scalar=0.9)
    assert (found.weights == 1.0).all()


def test_a_block_of_zeros_stays_with_the_scalar():
    shares = rows_of(np.linspace(0.1, 0.5, 4), 50, 0.05)
    shares[:, 2] = 0.0
    for ridge in (0.0, 1e-5):
        found = fit_weights(shares, limits_of(4), scalar=SCALAR, ridge=ridge)
        assert found.converged
        assert found.weights[2] == pytest.approx(SCALAR, rel=1e-6)


def test_one_row_and_rows_all_alike():
    one = rows_of(np.full(6, SCALAR), 1) * 1.5
    for shares in (one, np.repeat(one, 30, axis=0)):
        found = fit_weights(shares, limits_of(6), scalar=SCALAR, ridge=1e-9)
        assert found.converged
        assert np.isfinite(found.weights).all()
        # Six weights can serve one row: nothing of its error of ln 1.5 / 2 = 0.2 is left.
        assert abs(0.5 * np.log(shares[0] @ found.weights)) < 1e-4


def test_the_ridge_goes_from_the_scalar_to_the_free_fit():
    shares = rows_of(np.linspace(0.05, 0.6, 6), 60, 0.05)
    free = fit_weights(shares, limits_of(6), scalar=SCALAR).weights
    gaps = [
        np.abs(fit_weights(shares, limits_of(6), scalar=SCALAR, ridge=r).weights - free).max()
        for r in (1e3, 1e-1, 1e-3, 1e-5, 1e-7)
    ]
    assert gaps == sorted(gaps, reverse=True)
    strong = fit_weights(shares, limits_of(6), scalar=SCALAR, ridge=1e3).weights
    np.testing.assert_allclose(strong, SCALAR, rtol=1e-3)


def test_far_rows_do_not_break_the_descent():
    # Estimates off by factors of up to e^6: steps are halved, and the sum only falls.
    shares = rows_of(np.linspace(0.1, 0.5, 5), 40, 3.0, seed=5)
    found = fit_weights(shares, limits_of(5), scalar=SCALAR, ridge=1e-3)
    start = objective(np.full(5, SCALAR), shares, 1e-3)
    assert objective(found.weights, shares, 1e-3) < start


def test_many_blocks_at_their_limits():
    rng = np.random.default_rng(1)
    known = rng.choice([0.0, 0.2, 1.1], 60)
    shares = rows_of(known, 300, 0.05)
    low, high = limits_of(60)
    found = fit_weights(shares, (low, high), scalar=SCALAR, ridge=1e-8)
    assert found.converged
    # Karush-Kuhn-Tucker: no free weight has a slope, none at a limit is pulled inwards.
    omega = 1 / len(shares)
    sums = shares @ found.weights
    slope = (
        omega * shares.T @ (0.5 * np.log(sums) / sums)
        + 2e-8 * (found.weights / SCALAR - 1) / SCALAR
    )
    at_low, at_high = found.weights <= low, found.weights >= high
    assert at_low.sum() > 5
    assert at_high.sum() > 5
    # Slopes of single rows are near 0.05; the last step was below 1e-9 of the scalar.
    assert (np.abs(slope[~at_low & ~at_high]) < 1e-8).all()
    assert (slope[at_low] > -1e-8).all()
    assert (slope[at_high] < 1e-8).all()
