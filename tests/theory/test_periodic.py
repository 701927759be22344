"""Mean and extremes over a period: of smooth functions, of corners, of steps, of no numbers."""

import numpy as np
import pytest

from mxstats.theory.periodic import periodic, step_function, together


def test_two_grids_that_agree_by_chance_do_not_end_the_search():
    # cos² of 64 periods: 1 on 32 and on 64 points, 1/2 on average.
    found = periodic(lambda x: np.cos(64 * np.pi * x) ** 2, what="cos")
    assert found.mean == pytest.approx(0.5, abs=1e-15)
    assert found.low == pytest.approx(0.0, abs=1e-12)


def test_corners_converge_as_the_square_of_the_step():
    found = periodic(lambda x: np.abs(np.mod(x, 1.0) - 0.37), what="corner", most=1024)
    # ∫ |x − c| = (c² + (1−c)²)/2; 1024 points, and a jump of 0.26 between the periods.
    assert found.mean == pytest.approx((0.37**2 + 0.63**2) / 2, abs=0.26 / 1024)
    # The corner itself, to the tolerance of the search.
    assert found.low == pytest.approx(0.0, abs=1e-7)


def test_no_number_is_an_error_and_infinity_an_answer():
    def function(x):
        return np.stack([x, np.where(x == 0.25, np.nan, x)])

    with pytest.raises(ValueError, match=r"second cannot be computed: NaN at log2_sigma=0\.25"):
        together(function, ("first", "second"))
    found = periodic(lambda x: np.where(x == 0.25, np.inf, np.cos(2 * np.pi * x)), what="pole")
    assert (found.mean, found.high, found.low) == (np.inf, np.inf, -1.0)


def test_steps_are_exact():
    # 3 on [0.1, 0.7), 1 from 0.7 to 1.1.
    def function(x):
        return np.where((np.mod(x - 0.1, 1.0)) < 0.6, 3.0, 1.0)

    found = step_function(function, np.array([1.7, 0.1]), falling=False)
    assert (found.mean, found.low, found.high) == (pytest.approx(2.2, abs=1e-15), 1.0, 3.0)


def test_falling_steps_are_exact():
    # 1/σ from 0.3 on, starting anew: ln of it has the mean −(0.3 + 1.3)/2·ln 2.
    def function(x):
        return 2.0 ** -(np.mod(x - 0.3, 1.0) + 0.3)

    found = step_function(function, np.array([0.3]), falling=True)
    assert found.mean == pytest.approx(2.0**-0.8, rel=1e-15)
    assert found.high == pytest.approx(2.0**-0.3, rel=1e-15)
    assert found.low == pytest.approx(2.0**-1.3, rel=1e-15)
