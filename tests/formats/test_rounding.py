"""Element rounding: every code, every midpoint and its neighbours. Zero tolerance throughout."""

import numpy as np
import pytest

from mxstats import formats
from mxstats.formats import BlockFormat, ElementFormat, quantize
from mxstats.formats.rounding import encode
from tests.formats.byte_table import RULES
from tests.formats.inputs import DTYPES, MX, fuzz, with_dead_blocks

USER = [
    ElementFormat(3, 4),
    ElementFormat(5, 0),
    ElementFormat(4, 0, bias=8),  # its exponent field has the other parity than float32's
    ElementFormat(1, 2),
    ElementFormat(0, 2),
    ElementFormat(3, 1, specials="ieee"),
    ElementFormat(2, 5, bias=-7, specials="nan"),
]
ELEMENTS = [fmt.element for fmt in MX] + USER


def is_sign_magnitude(element):
    return element.exponent_bits > 0


def code_of(magnitude_code, negative, element):
    """The code of ±magnitude, by the layout: sign bit or two's complement."""
    if is_sign_magnitude(element):
        return magnitude_code + negative * 2 ** (element.bits - 1)
    return (-magnitude_code if negative else magnitude_code) % 2**element.bits


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
def test_every_code_comes_back(element, dtype):
    codes = np.arange(2**element.bits)
    values = element.values.astype(dtype)
    if not is_sign_magnitude(element):
        # The code without an opposite is a value too, and saturates to the one that has one.
        half = 2 ** (element.bits - 1)
        assert encode(values[half : half + 1], element).tolist() == [half + 1]
        codes = np.delete(codes, half)
    codes = codes[np.isfinite(values[codes])]
    assert codes.size >= 2**element.bits - 8
    assert np.array_equal(encode(values[codes], element), codes)


@pytest.mark.parametrize("rule", ["floor", "even", "rceil"])
@pytest.mark.parametrize("fmt", MX, ids=lambda fmt: fmt.name)
def test_every_code_comes_back_from_blocks(fmt, rule):
    # Next to the largest value these rules give the scale 2^k, so each code must come back as it
    # is; CEIL gives the next power of two.
    element = fmt.element
    values = element.values[np.isfinite(element.values)]
    values = values[np.abs(values) <= element.largest]
    for k in (-100, -9, 0, 7, 100):
        blocks = np.stack([np.full_like(values, element.largest), values], axis=1) * np.float32(
            2.0**k
        )
        found = quantize(blocks, fmt, scale_rule=rule)
        assert set(found.scales.ravel().tolist()) == {127 + k}
        assert np.array_equal(found.codes[:, 1], encode(values, element))
        dequantised = found.dequantize()
        assert np.array_equal(dequantised, blocks)
        # An integer code has no −0.
        signed = np.signbit(dequantised) == np.signbit(blocks)
        assert np.all(signed | ((blocks == 0) & (not is_sign_magnitude(element))))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
def test_midpoints_and_their_neighbours(element, dtype):
    low = np.arange(element.magnitudes.size - 1)
    exact = (element.magnitudes[:-1] + element.magnitudes[1:]) / 2
    middle = exact.astype(dtype)
    assert np.array_equal(middle, exact)
    infinity = dtype(np.inf)
    for values, wanted in (
        (middle, low + low % 2),  # ties to the even code
        (np.nextafter(middle, -infinity), low),
        (np.nextafter(middle, infinity), low + 1),
    ):
        for negative in (0, 1):
            signed = -values if negative else values
            assert encode(signed, element).tolist() == [
                code_of(int(code), negative, element) for code in wanted
            ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
def test_saturation(element, dtype):
    top = element.magnitudes.size - 1
    largest = dtype(element.largest)
    step = dtype(element.magnitudes[-1] - element.magnitudes[-2])
    values = np.array(
        [largest, largest + step / 2, largest + step, 10 * largest, np.finfo(dtype).max]
    )
    assert values.dtype == dtype
    for negative in (0, 1):
        found = encode(-values if negative else values, element)
        assert set(found.tolist()) == {code_of(top, negative, element)}


E2M1_TIES = {0.25: 0, 0.75: 1, 1.25: 1, 1.75: 2, 2.5: 2, 3.5: 4, 5: 4}
INT8_TIES = {0.5: 0, 1.5: 2, 2.5: 2, 63.5: 64, 125.5: 126, 126.5: 126, 127.5: 127, 128: 127}


def test_ties_of_e2m1():
    # The block's scale is 1 where its absmax is 6 (FLOOR: 2^2, less emax = 2).
    blocks = np.array([[6.0, x, -x] for x in E2M1_TIES], dtype=np.float32)
    found = quantize(blocks, "MXFP4_E2M1").dequantize()
    assert found.tolist() == [[6.0, y, -y] for y in E2M1_TIES.values()]


def test_ties_of_int8():
    blocks = np.array([[1.5, x / 64, -x / 64] for x in INT8_TIES], dtype=np.float32)
    found = quantize(blocks[:-2], "MXINT8").codes.view(np.int8)
    assert found.tolist() == [[96, y, -y] for y in list(INT8_TIES.values())[:-2]]
    # Above 127/64 FLOOR clips; −128 is never used.
    clipped = quantize(blocks[-2:-1], "MXINT8").codes.view(np.int8)
    assert clipped.tolist() == [[96, 127, -127]]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "fmt", [*MX, BlockFormat(ElementFormat(3, 4), 24)], ids=lambda fmt: fmt.name
)
def test_quantising_twice_changes_nothing(fmt, rule, dtype):
    rows = with_dead_blocks(fuzz(DTYPES[dtype], 40 * 75, seed=8).reshape(40, 75), 8)
    once = quantize(rows, fmt, scale_rule=rule).dequantize()
    # Rounded up to 2^128 a value is beyond float32, and its block no longer finite.
    bound = 2.0**127
    block = np.arange(75) // fmt.block_size
    for k in range(block[-1] + 1):
        part = rows[:, block == k].astype(np.float64)
        once[np.ix_(np.abs(part).max(axis=1) >= bound, block == k)] = 0
    twice = quantize(once, fmt, scale_rule=rule).dequantize()
    assert np.array_equal(once, twice, equal_nan=True)
    live = ~np.isnan(once)
    assert np.array_equal(np.signbit(once[live]), np.signbit(twice[live]))
    assert np.count_nonzero(once[live]) > 600


@pytest.mark.parametrize("rule", ["ceil", "even", "rceil"])
def test_the_largest_float32_rounds_up_to_infinity(rule):
    top = np.full((1, 1), np.finfo(np.float32).max)
    assert quantize(top, "MXFP8_E4M3", scale_rule=rule).dequantize().tolist() == [[np.inf]]
    # FLOOR clips it instead.
    assert quantize(top, "MXFP8_E4M3").dequantize().tolist() == [[1.75 * 2.0**127]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_quantising_twice_with_floating_scales_changes_nothing(dtype):
    # g is part of the format's state: kept, the values stay. Made anew from amax = fl32(6·448·g) it
    # may differ by a rounding.
    rng = np.random.default_rng(9)
    rows = rng.standard_normal((40, 75)) * np.exp2(rng.integers(-14, 3, (40, 1)))
    rows = with_dead_blocks(rows.astype(DTYPES[dtype]), 9)
    first = quantize(rows, "NVFP4")
    once = first.dequantize()
    twice = quantize(once, "NVFP4", tensor_scale=first.tensor_scale).dequantize()
    assert np.array_equal(once, twice, equal_nan=True)
    for scale in (formats.E4M3_SCALE, formats.E5M3_SCALE):
        fmt = BlockFormat(formats.E2M1, 16, scale)
        once = quantize(rows, fmt).dequantize()
        assert np.array_equal(once, quantize(once, fmt).dequantize(), equal_nan=True)


def test_zeros_keep_their_signs():
    row = np.array([[0.0, -0.0, 0.0]], dtype=np.float32)
    for fmt in MX:
        found = quantize(row, fmt)
        assert found.scales.tolist() == [[0]]
        minus = 0 if fmt.element.name == "INT8" else 2 ** (fmt.element.bits - 1)
        assert found.codes.tolist() == [[0, minus, 0]]
        assert found.dequantize().tolist() == [[0, 0, 0]]


def test_blocks_with_nan_or_infinity():
    rows = np.ones((1, 96), dtype=np.float32)
    for odd in (np.nan, np.inf, -np.inf):
        rows[0, 40] = odd
        for fmt in MX:
            for rule in RULES:
                found = quantize(rows, fmt, scale_rule=rule)
                assert found.scales[0, 1] == 255
                assert not found.codes[0, 32:64].any()
                alone = quantize(rows[:, :32], fmt, scale_rule=rule)
                assert np.array_equal(found.codes[:, :32], alone.codes)
                assert np.array_equal(found.scales[0, [0, 2]], alone.scales[0, [0, 0]])
                assert np.isnan(found.dequantize()[0, 32:64]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_signalling_nans_are_nans_and_no_warning(dtype):
    # As little of a mantissa as there is: arithmetic on it raises the invalid flag.
    quiet = np.array([np.inf], dtype=DTYPES[dtype])
    signalling = (quiet.view(f"u{quiet.itemsize}") + 1).view(quiet.dtype)
    row = np.concatenate([signalling, np.ones(39, dtype=quiet.dtype)])[None]
    for fmt in formats.FORMATS.values():
        for rule in RULES if not fmt.tensor_scale else [None]:
            found = quantize(row, fmt, scale_rule=rule)
            assert found.scales[0, 0] == fmt.scale.nan_code
            assert found.scales[0, 1] != fmt.scale.nan_code
