"""NVFP4: the tensor's scale g, the block scales, and the order of the divisions."""

import tracemalloc

import numpy as np
import pytest

from mxstats import formats
from mxstats.formats import BlockFormat, quantize
from mxstats.formats.rounding import encode
from tests.formats.inputs import around

SINGLE = BlockFormat(formats.E2M1, 16, formats.E4M3_SCALE)


def f32(*values):
    return np.array([values], dtype=np.float32)


def test_g_is_amax_over_the_largest_element_and_scale():
    x = f32(*[0.5] * 20, -3.0, *[0.25] * 20)
    found = quantize(x, "NVFP4")
    assert found.tensor_scale == float(np.float32(3.0) / np.float32(448 * 6))
    # The block that holds amax has the largest scale, and amax the largest element.
    assert found.scales.tolist()[0][1] == 0x7E
    assert found.codes[0, 20] == 0b1111
    # a/6/g of the first block is 448·0.5/3 = 74.67, between 72 and 80.
    assert formats.E4M3_SCALE.values[found.scales[0, 0]] == 72


def test_g_is_a_normal_float32():
    tiny = f32(2.0**-120, 2.0**-149)
    found = quantize(tiny, "NVFP4")
    assert found.tensor_scale == 2.0**-126
    # (2^-120/6)/2^-126 = 10.67 → 11; 2^-120/(11·2^-126) = 5.8 → 6
    assert formats.E4M3_SCALE.values[found.scales[0, 0]] == 11
    assert found.codes.tolist() == [[7, 0]]
    # With the smallest normal scale.
    smaller = quantize(f32(2.0**-132), "NVFP4")
    assert formats.E4M3_SCALE.values[smaller.scales[0, 0]] == 2.0**-6
    assert smaller.dequantize().tolist() == [[2.0**-132]]


def test_a_tensor_of_zeros():
    x = np.zeros((2, 40), dtype=np.float32)
    x[1, 7] = -0.0
    found = quantize(x, "NVFP4")
    assert found.tensor_scale == 1.0
    assert set(found.scales.ravel().tolist()) == {0x08}  # 2^-6, no NaN and no zero
    assert np.flatnonzero(found.codes).tolist() == [47]
    assert found.codes[1, 7] == 0b1000
    assert not found.dequantize().any()


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_blocks_with_nan_or_infinity(odd):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 48)).astype(np.float32)
    x[1, 20] = odd
    found = quantize(x, "NVFP4")
    # amax is over the finite values, those of the dead block included.
    amax = np.abs(x[np.isfinite(x)]).max()
    assert found.tensor_scale == float(amax / np.float32(2688))
    assert found.scales[1, 1] == 0x7F
    assert not found.codes[1, 16:32].any()
    values = found.dequantize()
    assert np.isnan(values[1, 16:32]).all()
    assert np.isnan(values).sum() == 16
    x[1, 20] = 0
    clean = quantize(x, "NVFP4", tensor_scale=found.tensor_scale)
    others = np.delete(np.arange(9), 4)
    assert np.array_equal(found.scales.ravel()[others], clean.scales.ravel()[others])
    found_blocks, clean_blocks = found.codes.reshape(9, 16), clean.codes.reshape(9, 16)
    assert np.array_equal(found_blocks[others], clean_blocks[others])
    whole = quantize(np.full((2, 16), odd, dtype=np.float32), "NVFP4")
    assert (whole.tensor_scale, whole.scales.tolist()) == (1.0, [[0x7F], [0x7F]])


def test_the_division_is_by_the_product_and_no_reciprocal():
    # On ties of e2m1·fl32(s·g) every other order gives other codes somewhere.
    rng = np.random.default_rng(1)
    g = np.float32(0.0123)
    s = formats.E4M3_SCALE.values[8:0x7F]
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=np.float32)
    rows = np.empty((s.size, 16), dtype=np.float32)
    rows[:, 1:] = rng.choice(ties, (s.size, 15)) * (s * g)[:, None]
    rows[:, 0] = np.float32(6) * (s * g)
    found = quantize(rows, "NVFP4", tensor_scale=float(g))
    assert np.array_equal(found.scales[:, 0], np.arange(8, 0x7F))
    divisor = (s * g)[:, None]
    assert np.array_equal(found.codes, encode(rows / divisor, formats.E2M1))
    for other in (
        rows * (np.float32(1) / divisor),
        rows / s[:, None] / g,
        rows / g / s[:, None],
        rows * ((np.float32(1) / g) / s[:, None]),
    ):
        assert other.dtype == np.float32
        assert np.any(found.codes != encode(other, formats.E2M1))


def test_the_scale_is_divided_by_six_first():
    # (a/6)/g in float32, and not a/(6g), fl32(1/6)·a/g or a/g/6: next to the midpoints of E4M3
    # these give other scales now and then.
    rng = np.random.default_rng(3)
    six = np.float32(6)
    table = formats.E4M3_SCALE.values[8:0x7F].astype(np.float64)
    middle = (table[:-1] + table[1:]) / 2
    apart = np.zeros(3, dtype=int)
    for g in rng.uniform(0.01, 0.02, 30).astype(np.float32):
        near = around(middle * 6 * float(g), np.float32)[:, None]
        found = quantize(near, "NVFP4", tensor_scale=float(g)).scales
        others = near / (six * g), near * (np.float32(1) / six) / g, near / g / six
        assert np.array_equal(found, encode(near / six / g, formats.E4M3))
        apart += [np.sum(found != encode(other, formats.E4M3)) for other in others]
    assert np.all(apart > 0)


def test_a_static_tensor_scale():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((64, 64)).astype(np.float32)
    own = quantize(x, "NVFP4")
    given = quantize(x, "NVFP4", tensor_scale=own.tensor_scale)
    assert np.array_equal(own.codes, given.codes)
    assert np.array_equal(own.scales, given.scales)
    # A larger one is safe, and only moves the scales down; g is rounded to float32.
    static = quantize(x, "NVFP4", tensor_scale=0.01)
    assert static.tensor_scale == float(np.float32(0.01))
    assert static.scales.max() < own.scales.max()
    # A power of two more changes the scales' exponents and no code, while they are normal.
    double = quantize(x, "NVFP4", tensor_scale=2 * own.tensor_scale)
    assert np.array_equal(double.scales + 8, own.scales)
    assert np.array_equal(double.codes, own.codes)
    # The blocks' scales are never zero: too large a g makes 2^-6 of all, and codes of 0.
    lost = quantize(x, "NVFP4", tensor_scale=1e6)
    assert set(lost.scales.ravel().tolist()) == {0x08}
    assert not (lost.codes & 7).any()


def test_scales_without_a_tensor_scale():
    # 3/6 = 0.5; 10/6 = 1.667 → 1.625 of E4M3's 1.625 and 1.75
    found = quantize(np.concatenate([f32(*[3] * 16), f32(*[10] * 16)], axis=1), SINGLE)
    assert formats.E4M3_SCALE.values[found.scales].tolist() == [[0.5, 1.625]]
    assert found.tensor_scale is None
    # E5M3 reaches further in both directions; both have the same 3 bits.
    wide = BlockFormat(formats.E2M1, 16, formats.E5M3_SCALE)
    x = f32(6e4)
    assert formats.E5M3_SCALE.values[quantize(x, wide).scales].tolist() == [[10240.0]]
    small = f32(2.0**-12)
    assert quantize(small, wide).dequantize().tolist() == [[2.0**-12]]
    # E4M3's smallest, 2^-6, is too coarse for it: 2^-12/2^-6 is below half of 0.5.
    assert quantize(small, SINGLE).dequantize().tolist() == [[0.0]]


def test_no_scale_is_a_subnormal():
    codes = np.arange(8)
    for scale in (formats.E4M3_SCALE, formats.E5M3_SCALE):
        fmt = BlockFormat(formats.E2M1, 16, scale)
        x = (scale.values[codes] * 6)[:, None]
        assert set(quantize(x, fmt).scales.ravel().tolist()) == {8}


@pytest.mark.parametrize("shape", [(2**22,), (1, 2**22), (2**22, 1), (8, 2**19), (2**12, 2**10)])
def test_amax_is_found_wherever_it_is_in_little_memory(shape):
    x = np.ones(shape, dtype=np.float16)
    for at in (0, x.size // 3, x.size - 1):
        x.ravel()[at] = -3.0 - at % 5
        amax = np.float32(np.abs(x.min()))
        tracemalloc.start()
        found = quantize(x, "NVFP4")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert found.tensor_scale == float(amax / np.float32(2688))
        # Codes and scales are 1 + 1/16 bytes an element (2 with blocks of one, padded to 16: 17),
        # and what is worked on is 2^16 elements at a time, of some tens of bytes.
        codes = 17 if shape[-1] == 1 else 1.07
        assert peak < codes * x.size + x.size + 80 * 2**16
        x.ravel()[at] = 1.0
