"""Partial moments of scipy's distributions: against closed forms and mpmath, and loud failures."""

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from mxstats.theory import distribution
from mxstats.theory.partial_moments import partial_moments

HIGH = 8.0


@pytest.mark.parametrize(
    ("scipys", "ours"),
    [
        (stats.norm(scale=3.0), "gaussian"),
        (stats.laplace(), "laplace"),
        (stats.t(2.2), "student-t:2.2"),
        (stats.t(9), "student-t:9"),
    ],
    ids=["norm", "laplace", "t 2.2", "t 9"],
)
def test_families_have_their_closed_forms(scipys, ours):
    # Off the panels' edges, and far below and far above the RMS.
    u = np.concatenate([[-np.inf, -60.0], np.linspace(-44.9, HIGH - 0.01, 977)])
    for found, exact in zip(
        partial_moments(distribution(scipys), HIGH)(u),
        partial_moments(distribution(ours), HIGH)(u),
        strict=True,
    ):
        # Sums of hundreds of panels; relative in the tail, where steps are large. A Gaussian's
        # tail below 1e-17 counts for nothing.
        np.testing.assert_allclose(found, exact, rtol=2e-12, atol=1e-17)


@pytest.mark.parametrize("u", [-3.0, -0.2, 0.0, 0.4, np.log(np.sqrt(3)) - 1e-6, 0.6])
def test_uniform_has_its_polynomials(u):
    b, t = np.sqrt(3.0), np.minimum(np.exp(u), np.sqrt(3.0))
    exact = 1 - t / b, (b * b - t * t) / (2 * b), (b**3 - t**3) / (3 * b)
    found = partial_moments(distribution(stats.uniform(-1, 2)), HIGH)(np.array([u]))
    # b³ − t³ next to the end of the support is a difference of numbers of 5.
    np.testing.assert_allclose(np.ravel(found), exact, rtol=0, atol=4e-15)


def test_a_density_that_is_infinite_at_zero():
    # gamma(1/2): the density is x^(−1/2)e^(−x)/√π, E x² = 3/4; S itself is not smooth in t.
    found = partial_moments(distribution(stats.gamma(0.5)), HIGH)
    for t in (1e-9, 1e-3, 0.3, 2.0, 11.0):
        with mp.workdps(25):
            exact = [
                mp.gammainc(mp.mpf(k) + 0.5, t) / mp.sqrt(mp.pi) / mp.sqrt(0.75) ** k
                for k in range(3)
            ]
        values = np.ravel(found(np.array([np.log(t / np.sqrt(0.75))])))
        # scipy's own gammaincc is good to about 1e-14.
        np.testing.assert_allclose(values, [float(one) for one in exact], rtol=1e-12)


def test_moments_that_do_not_add_up_are_refused():
    dist = distribution(stats.norm())
    # An RMS that is a millionth too large, as of a density that no quadrature resolves.
    vars(dist)["_rms"] = 1.000001
    with pytest.raises(
        ValueError, match=r"E X² = 0\.999998\d* instead of 1; its logsf is not smooth"
    ):
        partial_moments(dist, HIGH)
