"""Finite inputs that dequantise to an infinity: where the nearest value is 2^128, nowhere else."""

import numpy as np
import pytest

from mxstats.formats import E2M1, E2M3, E3M2, E4M3, E5M2, INT8, BlockFormat, ElementFormat, quantize

LARGEST = np.finfo(np.float32).max
# The first |x| that rounds up to 2^128, as multiples of 2^127.
FIRST = [(E4M3, 1.9375), (E2M3, 1.9375), (E5M2, 1.875), (E3M2, 1.875), (E2M1, 1.75),
         (ElementFormat(3, 4), 1.96875)]  # fmt: skip


def dequantized(x, element, rule):
    with np.errstate(over="raise"):
        block = np.array([x, 1.0, -x], dtype=np.float32)
        found = quantize(block, BlockFormat(element), scale_rule=rule)
    values = found.dequantize()
    assert found.scales[0] < 255
    # In float64 the product is exact, and the nearest there is.
    exact = element.values[found.codes].astype(float) * 2.0 ** (found.scales.astype(int) - 127)
    assert np.array_equal(np.isinf(values), np.abs(exact) == 2.0**128)
    return np.abs(values[[0, 2]])


@pytest.mark.parametrize("rule", ["ceil", "even", "rceil"])
@pytest.mark.parametrize(("element", "first"), FIRST, ids=[e.name for e, _ in FIRST])
def test_rounding_up_to_the_end_of_float32(element, first, rule):
    first = np.float32(first * 2.0**127)
    assert np.isinf(dequantized(first, element, rule)).all()
    assert np.isinf(dequantized(LARGEST, element, rule)).all()
    assert np.isfinite(dequantized(np.nextafter(first, np.float32(0)), element, rule)).all()


def test_floor_and_fixed_point_saturate_first():
    for element, _ in FIRST:
        assert np.isfinite(dequantized(LARGEST, element, "floor")).all()
    for rule in ("floor", "ceil", "even", "rceil"):
        assert np.isfinite(dequantized(LARGEST, INT8, rule)).all()


def test_elements_without_an_exponent_above_zero():
    # emax = 0: the scale stops at 2^127, and 2 is above the largest element.
    for rule in ("floor", "ceil", "even", "rceil"):
        assert np.isfinite(dequantized(LARGEST, ElementFormat(1, 2, bias=1), rule)).all()
