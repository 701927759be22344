"""The error of a quantisation against sums taken element by element, exactly where counted."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxstats.formats import FORMATS, Quantized, ScaleRule, quantization_error, quantize, statistics

# Every format with every rule that it takes.
CASES = [
    pytest.param(fmt, rule, id=f"{fmt.name}-{rule}")
    for fmt in FORMATS.values()
    for rule in (ScaleRule if fmt.scale.is_power_of_two else [None])
]
# Sums of at most 10^4 terms of one sign in two orders differ by less than 10^4 · 2^−53 = 1.1e-12.
SUMS = 2e-12


def one_by_one(x, quantized):
    """Sums in exact arithmetic, an element at a time; x has two axes, blocks along the last."""
    fmt, g = quantized.fmt, quantized.tensor_scale
    signal = noise = Fraction(0)
    worst = Fraction(0)
    clipped = flushed = nan = 0
    for i, j in np.ndindex(x.shape):
        scale = fmt.scale.values[quantized.scales[i, j // fmt.block_size]]
        if g is not None:
            scale = scale * np.float32(g)
        if math.isnan(scale):
            nan += 1
            continue
        value, wide = Fraction(float(x[i, j])), Fraction(float(scale))
        element = Fraction(float(fmt.element.values[quantized.codes[i, j]]))
        error = abs(value - element * wide)
        signal += value**2
        noise += error**2
        worst = max(worst, error)
        clipped += abs(value) > Fraction(fmt.element.largest) * wide
        flushed += value != 0 and element == 0
    return float(signal), float(noise), float(worst), clipped, flushed, nan


def assert_same(found, x, quantized):
    signal, noise, worst, clipped, flushed, nan = one_by_one(x, quantized)
    assert found.signal == pytest.approx(signal, rel=SUMS)
    assert found.noise == pytest.approx(noise, rel=SUMS)
    assert found.max_abs_error == worst  # one subtraction, rounded once
    assert (found.clipped, found.flushed, found.nan_elements) == (clipped, flushed, nan)
    measured = x.size - nan
    assert found.elements == x.size
    assert found.clipped_share == clipped / measured
    assert found.flushed_share == flushed / measured
    assert found.relative_rms_error == pytest.approx(math.sqrt(noise / signal), rel=SUMS)
    # d(10 log10 r) = 4.34 dr/r
    assert found.snr_db == pytest.approx(10 * math.log10(signal / noise), abs=10 * SUMS)


def heavy_tailed(shape, seed=0):
    """Values over thirty binades, so that much is clipped and much flushed."""
    random = np.random.default_rng(seed)
    return random.standard_normal(shape) * np.exp2(random.integers(-15, 15, shape))


@pytest.mark.parametrize(("fmt", "rule"), CASES)
@pytest.mark.parametrize("spread", ["gaussian", "heavy"])
def test_against_sums_in_exact_arithmetic(fmt, rule, spread):
    x = (
        heavy_tailed((6, 75))
        if spread == "heavy"
        else np.random.default_rng(1).normal(size=(6, 75))
    )
    x = x.astype(np.float32)
    x[2, 3] = 0.0
    x[3, 40] = np.inf
    quantized = quantize(x, fmt, scale_rule=rule)
    found = quantization_error(x, quantized)
    assert_same(found, x, quantized)
    assert found.blocks == 6 * -(-75 // fmt.block_size)
    assert found.nan_blocks == 1
    assert found.nan_elements == fmt.block_size


@settings(max_examples=40)
@given(
    st.sampled_from(list(FORMATS)),
    st.integers(1, 5),
    st.integers(1, 70),
    st.integers(0, 1000),
    st.sampled_from([np.float16, ml_dtypes.bfloat16, np.float32, np.float64]),
)
def test_any_shape_and_dtype(name, rows, columns, seed, dtype):
    x = np.random.default_rng(seed).standard_normal((rows, columns)).astype(dtype)
    quantized = quantize(x, name)
    found = quantization_error(x, quantized)
    signal, noise, worst, *counts = one_by_one(x, quantized)
    assert found.signal == pytest.approx(signal, rel=SUMS)
    assert found.noise == pytest.approx(noise, rel=SUMS)
    assert found.max_abs_error == worst
    assert [found.clipped, found.flushed, found.nan_elements] == counts


def test_a_block_by_hand():
    # FLOOR on absmax 7: scale 2^0 of E2M1, whose largest is 6.
    x = np.array([7.0, 6.0, -0.25, 0.2, 0.0, 2.5], dtype=np.float32)
    found = quantization_error(x, quantize(x, "mxfp4_e2m1"))
    # x̂ = 6, 6, −0, 0, 0, 2
    assert found.signal == 49 + 36 + 0.0625 + np.float64(np.float32(0.2)) ** 2 + 6.25
    assert found.noise == 1 + 0.0625 + np.float64(np.float32(0.2)) ** 2 + 0.25
    assert found.max_abs_error == 1.0
    assert (found.clipped, found.flushed) == (1, 2)
    assert found.clipped_share == 1 / 6
    # Six codes of 4 bits and a scale of 8.
    assert found.stored_bits == 32
    assert found.bits_per_element == 32 / 6


def test_stored_bits_of_whole_blocks_are_the_formats_own():
    x = np.ones((4, 96), dtype=np.float32)
    for fmt in FORMATS.values():
        found = quantization_error(x, quantize(x, fmt))
        tensor_scale = 32 if fmt.tensor_scale else 0
        assert found.stored_bits == x.size * fmt.bits_per_element + tensor_scale
    nvfp4 = quantization_error(x, quantize(x, "nvfp4"))
    assert nvfp4.stored_bits == x.size * 4.5 + 32


def test_any_axis_is_the_last_one_moved():
    x = heavy_tailed((5, 40, 3)).astype(np.float32)
    for axis in range(-3, 3):
        moved = np.ascontiguousarray(np.moveaxis(x, axis, -1))
        found = quantization_error(x, quantize(x, "mxfp8_e4m3", axis=axis))
        there = quantization_error(moved, quantize(moved, "mxfp8_e4m3"))
        assert found.noise == pytest.approx(there.noise, rel=SUMS)
        assert (found.clipped, found.flushed) == (there.clipped, there.flushed)
        assert found.max_abs_error == there.max_abs_error


@pytest.mark.parametrize("piece", [1, 7, 64, 100, 1000])
@pytest.mark.parametrize(("shape", "axis"), [((1500,), 0), ((30, 50), 1), ((30, 50), 0),
                                             ((2, 70, 9), 1), ((1, 1, 1200), 2)])  # fmt: skip
def test_pieces_change_nothing(monkeypatch, piece, shape, axis):
    x = heavy_tailed(shape).astype(np.float32)
    quantized = quantize(x, "mxfp6_e2m3", axis=axis)
    whole = quantization_error(x, quantized)
    monkeypatch.setattr(statistics, "_PIECE", piece)
    found = quantization_error(x, quantized)
    assert found.noise == pytest.approx(whole.noise, rel=SUMS)
    assert found.signal == pytest.approx(whole.signal, rel=SUMS)
    for name in ("elements", "blocks", "clipped", "flushed", "max_abs_error", "stored_bits"):
        assert getattr(found, name) == getattr(whole, name)


def test_where_float32_would_overflow():
    # RCEIL gives FLT_MAX the scale 2^120, of which it is 256 − 2^−16: the element 256, x̂ = 2^128.
    x = np.array([np.finfo(np.float32).max])
    found = quantization_error(x, quantize(x, "mxfp8_e4m3", scale_rule="rceil"))
    assert found.max_abs_error == 2.0**104
    assert found.clipped == 0


@pytest.mark.parametrize("g", [2.0**-110, 3e38])
def test_a_given_tensor_scale(g):
    x = heavy_tailed((3, 40)).astype(np.float32) * np.float32(448 * 6 * g / 2**17 if g < 1 else 1)
    quantized = quantize(x, "nvfp4", tensor_scale=g)
    signal, noise, *_ = one_by_one(x, quantized)
    found = quantization_error(x, quantized)
    assert found.noise == pytest.approx(noise, rel=SUMS)
    assert found.signal == pytest.approx(signal, rel=SUMS)


def test_zeros_exact_values_and_nothing():
    zeros = quantization_error(np.zeros(40), quantize(np.zeros(40), "mxfp8_e4m3"))
    assert (zeros.signal, zeros.noise, zeros.flushed, zeros.clipped) == (0.0, 0.0, 0, 0)
    assert math.isnan(zeros.snr_db)
    assert math.isnan(zeros.relative_rms_error)
    exact = np.array([1.0, -2.0, 0.5])
    found = quantization_error(exact, quantize(exact, "mxfp8_e4m3"))
    assert (found.noise, found.relative_rms_error, found.snr_db) == (0.0, 0.0, math.inf)
    x = np.full(40, np.nan)
    found = quantization_error(x, quantize(x, "mxfp8_e4m3"))
    assert (found.nan_blocks, found.nan_elements) == (2, 40)
    assert math.isnan(found.clipped_share)
    assert math.isnan(found.snr_db)


def test_torch_tensors_give_the_same():
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(3).standard_normal((4, 70)).astype(ml_dtypes.bfloat16)
    tensor = torch.from_numpy(x.astype(np.float32)).bfloat16()
    there = quantization_error(tensor, quantize(tensor, "nvfp4"))
    assert there == quantization_error(x, quantize(x, "nvfp4"))


def test_it_is_a_value():
    x = np.ones(3)
    found = quantization_error(x, quantize(x, "mxint8"))
    with pytest.raises(AttributeError):
        found.noise = 0.0


def test_bad_input():
    x = np.ones((2, 32), dtype=np.float32)
    quantized = quantize(x, "mxfp8_e4m3")
    with pytest.raises(ValueError, match=r"x has shape \(64,\); what was quantised has \(2, 32\)"):
        quantization_error(x.ravel(), quantized)
    with pytest.raises(TypeError, match="x has dtype uint8; the floats"):
        quantization_error(quantized.codes, quantized)
    with pytest.raises(TypeError, match="x has dtype int64"):
        quantization_error(x.astype(np.int64), quantized)
    for bad in (np.nan, np.inf):
        other = x.copy()
        other[1, 1] = bad
        with pytest.raises(ValueError, match="x is not what was quantised"):
            quantization_error(other, quantized)
    assert isinstance(quantized, Quantized)
