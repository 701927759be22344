"""The row measures against plain Python arithmetic, and what they do with odd rows."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from mxstats.measure import measure_rows
from mxstats.theory import output_bounds


def by_hand(row, p, block_size, c):
    """Each measure by its definition, one Python float at a time (math.fsum sums exactly)."""
    blocks = [row[i : i + block_size] for i in range(0, len(row), block_size)]
    maxima = [max(abs(v) for v in block) for block in blocks]
    squares = [math.fsum(v * v for v in block) / len(block) for block in blocks]
    power_mean = (math.fsum(m**p for m in maxima) / len(maxima)) ** (1 / p)
    power_rms = (math.fsum(q ** (p / 2) for q in squares) / len(squares)) ** (1 / p)
    rms = math.sqrt(math.fsum(v * v for v in row) / len(row))
    return {
        "rms": rms,
        "absmax": max(maxima),
        "estimate": power_mean / c,
        "ratio": rms * c / power_mean,
        "ln_crest": math.log(power_mean / power_rms),
        "ln_spread": math.log(power_rms / rms),
        "output_absmax": max(maxima) * c / power_mean,
    }


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("hidden_size", [64, 100, 7])
def test_measures_are_their_definitions(p, hidden_size):
    rows = np.random.default_rng(1).standard_t(3, (5, hidden_size)) * 1e3
    bounds = output_bounds(p=p, block_size=32, hidden_size=hidden_size)
    table = measure_rows(rows, bounds).table
    for number, row in enumerate(rows):
        expected = by_hand([float(v) for v in row], p, 32, bounds.constant)
        for name, value in expected.items():
            # Sums of at most 100 doubles and a few powers: some tens of roundings of 1e-16; the
            # logarithms are near 1 and take the same absolute error.
            assert table[name][number] == pytest.approx(value, rel=1e-13, abs=1e-13), name


def test_kurtosis_is_the_raw_one_of_the_row():
    row = np.random.default_rng(2).laplace(size=(1, 4096))
    table = measure_rows(row, output_bounds(hidden_size=4096)).table
    about_zero = stats.moment(row[0], 4, center=0) / stats.moment(row[0], 2, center=0) ** 2
    # Means of 4,096 terms by two summation orders: roundings of about 1e-15 at most.
    assert table["channel_kurtosis"][0] == pytest.approx(about_zero, rel=1e-13)


finite = st.floats(-1e150, 1e150, allow_subnormal=False)
rows_of = hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.just(70)), elements=finite)


@given(rows_of, st.sampled_from([0.5, 1.0, 2.0, 2.5, 4.0]))
def test_identity_and_bounds_hold_on_any_row(rows, p):
    bounds = output_bounds(p=p, block_size=32, hidden_size=70)
    measured = measure_rows(rows, bounds)
    table = measured.table
    assert len(table) + measured.zero_rows == len(rows)
    assert table["inside_bounds"].all()
    explained = np.log(bounds.constant) - table["ln_crest"] - table["ln_spread"]
    # The bar of the identity; the terms are logarithms below 10, so 1e-12 is 500 ulp of them.
    np.testing.assert_allclose(table["log_ratio"], explained, rtol=0, atol=1e-12)


def test_a_row_out_of_bounds_is_called_so():
    rows = np.random.default_rng(3).standard_normal((1, 64))
    honest = output_bounds(p=2.0, block_size=32, hidden_size=64)
    # A smaller constant scales every output down and must break the lower bound of the larger one.
    from mxstats.measure.rows import inside_bounds

    assert inside_bounds(np.array([1.0]), np.array([1.0]), honest).all()
    assert not inside_bounds(np.array([honest.max_abs * 1.001]), np.array([1.0]), honest).any()
    assert not inside_bounds(np.array([1.0]), np.array([honest.rms_high * 1.001]), honest).any()
    assert not inside_bounds(np.array([0.1]), np.array([honest.rms_low * 0.999]), honest).any()
    assert measure_rows(rows, honest).table["inside_bounds"].all()


@pytest.mark.parametrize("which", ["max_abs", "rms_low", "rms_high"])
@pytest.mark.parametrize("p", [1.0, 2.0, 4.0])
def test_witnesses_are_inside_by_the_last_digits(which, p):
    bounds = output_bounds(p=p, block_size=32, hidden_size=4096 + 5)
    assert measure_rows(bounds.witness(which)[None], bounds).table["inside_bounds"].all()


@pytest.mark.parametrize(
    ("dtype", "size"),
    [(np.float16, 300.0), (np.float32, 1e25), (np.float64, 1e200), (ml_dtypes.bfloat16, 1e30)],
)
def test_large_rows_have_the_right_rms(dtype, size):
    rows = np.full((1, 64), size, dtype=dtype)
    rows[0, ::2] *= -1
    table = measure_rows(rows, output_bounds(hidden_size=64)).table
    # All magnitudes are alike, so the RMS is that magnitude: one rounding of it.
    assert table["rms"][0] == pytest.approx(float(rows[0, 1]), rel=1e-15)


def test_smallest_subnormal_row():
    table = measure_rows(np.full((1, 64), 5e-324), output_bounds(hidden_size=64)).table
    assert table["rms"][0] == 5e-324
    # One block magnitude everywhere: R = c̃ exactly, up to one rounding.
    assert table["ratio"][0] == pytest.approx(output_bounds(hidden_size=64).constant, rel=1e-15)


def test_nonfinite_and_zero_rows_are_counted_and_left_out():
    rows = np.ones((5, 64), dtype=np.float32)
    rows[1, 3], rows[2, 5], rows[3, 7] = np.nan, np.inf, -np.inf
    rows[4] = 0.0
    measured = measure_rows(rows, output_bounds(hidden_size=64))
    assert (measured.nonfinite_rows, measured.zero_rows) == (3, 1)
    assert list(measured.table.index) == [0]


def test_rows_of_the_wrong_kind_are_refused():
    bounds = output_bounds(hidden_size=64)
    with pytest.raises(ValueError, match=r"rows have shape \(64,\); \[n_rows, 64\] is needed"):
        measure_rows(np.ones(64), bounds)
    with pytest.raises(ValueError, match=r"rows have shape \(2, 65\)"):
        measure_rows(np.ones((2, 65)), bounds)
    with pytest.raises(TypeError, match="rows must be real numbers, got dtype complex128"):
        measure_rows(np.ones((2, 64), dtype=complex), bounds)
