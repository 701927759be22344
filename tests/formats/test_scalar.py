"""The array quantiser against the scalar specification, bit for bit: zero tolerance throughout."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from mxstats import formats
from mxstats.formats import BlockFormat, quantize
from tests.formats.byte_table import RULES
from tests.formats.inputs import DTYPES, MX, fuzz, specials, with_dead_blocks
from tests.formats.scalar import quantize_block


def by_the_specification(rows, fmt, rule, g=None):
    """Codes [R, n] and scales [R, K] of rows [R, n], one block at a time."""
    size = fmt.block_size
    codes, scales = [], []
    for row in rows.astype(np.float64).tolist():
        blocks = [
            quantize_block(row[i : i + size], fmt, rule, g, rows.dtype == np.float64)
            for i in range(0, len(row), size)
        ]
        codes.append([code for block, _ in blocks for code in block])
        scales.append([scale for _, scale in blocks])
    return np.array(codes), np.array(scales)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fmt", MX, ids=lambda fmt: fmt.name)
def test_fuzzed_rows(fmt, dtype, rule):
    seed = [MX.index(fmt), RULES.index(rule), list(DTYPES).index(dtype)]
    # 75 = two whole blocks and one of 11.
    rows = fuzz(DTYPES[dtype], 32 * 75, seed).reshape(32, 75)
    rows = with_dead_blocks(rows, seed)
    codes, scales = by_the_specification(rows, fmt, rule)
    found = quantize(rows, fmt, scale_rule=rule)
    assert np.array_equal(found.scales, scales)
    assert np.array_equal(found.codes, codes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fmt", MX, ids=lambda fmt: fmt.name)
def test_every_special_value_alone_in_a_block(fmt, dtype):
    odd = np.array([np.nan, np.inf, -np.inf], dtype=DTYPES[dtype])
    column = np.concatenate([specials(DTYPES[dtype]), odd])[:, None]
    for rule in RULES:
        codes, scales = by_the_specification(column, fmt, rule)
        found = quantize(column, fmt, scale_rule=rule)
        assert np.array_equal(found.scales, scales)
        assert np.array_equal(found.codes, codes)


def test_float64_is_rounded_once():
    # 17 + 2^-40 lies above the tie between 16 and 18 (E4M3 at the scale 1, which 448 sets) and
    # rounds to it in float32; 448 + 2^-40 is the float32 448 as an absmax.
    row = np.array([[448.0 + 2.0**-40, 17.0 + 2.0**-40, 17.0, 2.0**-60, 1e-300]])
    found = quantize(row, "MXFP8_E4M3")
    assert found.scales.tolist() == [[127]]
    assert found.dequantize().tolist() == [[448.0, 18.0, 16.0, 0.0, 0.0]]
    # Beyond float32 the absmax is infinite: what rounds to 2^128, and not what rounds to FLT_MAX.
    top = float(np.finfo(np.float32).max)
    rows = np.array([[top * (1 + 2.0**-26)], [2.0**128 - 2.0**103], [1e300]])
    assert quantize(rows, "MXFP8_E4M3").scales[:, 0].tolist() == [246, 255, 255]


@pytest.mark.parametrize("block_size", [1, 3, 16, 32, 100])
def test_block_sizes_and_short_last_blocks(block_size):
    fmt = BlockFormat(formats.E4M3, block_size)
    rows = fuzz(np.float32, 7 * 70, seed=block_size).reshape(7, 70)
    codes, scales = by_the_specification(rows, fmt, "rceil")
    found = quantize(rows, fmt, scale_rule="rceil")
    assert found.scales.shape == (7, -(-70 // block_size))
    assert np.array_equal(found.scales, scales)
    assert np.array_equal(found.codes, codes)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("fmt", ["MXFP8_E4M3", "NVFP4"])
def test_any_axis_is_the_last_axis_of_the_transpose(axis, fmt):
    x = fuzz(np.float32, 6 * 40 * 5, seed=1).reshape(6, 40, 5) * np.float32(2.0**-20)
    found = quantize(x, fmt, axis=axis)
    plain = quantize(np.ascontiguousarray(np.moveaxis(x, axis, -1)), fmt)
    for name in ("codes", "scales"):
        moved = np.moveaxis(getattr(found, name), axis, -1)
        assert np.array_equal(moved, getattr(plain, name))
    assert found.codes.shape == x.shape
    assert np.array_equal(np.moveaxis(found.dequantize(), axis, -1), plain.dequantize())


@pytest.mark.parametrize("dtype", DTYPES)
def test_layout_in_memory_is_of_no_matter(dtype):
    x = fuzz(DTYPES[dtype], 20 * 96, seed=2).reshape(20, 96)
    plain = quantize(x, "MXFP8_E4M3")
    padded = np.full((40, 200), np.nan, dtype=x.dtype)
    padded[::2, 5:197:2] = x
    reversed_ = np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1]
    read_only = x.copy()
    read_only.flags.writeable = False
    others = [np.asfortranarray(x), padded[::2, 5:197:2], reversed_, read_only]
    if dtype != "bfloat16":
        others.append(x.astype(x.dtype.newbyteorder()))
    for other in others:
        before = other.copy()
        found = quantize(other, "MXFP8_E4M3")
        assert np.array_equal(found.codes, plain.codes)
        assert np.array_equal(found.scales, plain.scales)
        assert np.array_equal(before, other)
    # A big-endian float64 keeps its digits: this one rounds up, its float32 down.
    digits = np.array([[448.0, 17.0 + 2.0**-40]])
    for array in (digits, digits.astype(">f8")):
        assert quantize(array, "MXFP8_E4M3").dequantize().tolist() == [[448.0, 18.0]]


def test_rows_worked_on_in_chunks_are_alike():
    # More values than one chunk; each row by itself gives the same.
    x = fuzz(np.float32, 70 * 3000, seed=3).reshape(70, 3000)
    whole = quantize(x, "MXFP6_E3M2", scale_rule="even")
    for i in range(0, 70, 7):
        alone = quantize(x[i], "MXFP6_E3M2", scale_rule="even")
        assert np.array_equal(alone.codes, whole.codes[i])
        assert np.array_equal(alone.scales, whole.scales[i])
    line = x.reshape(-1)
    assert np.array_equal(quantize(line, "MXFP4_E2M1").codes[:3008], quantize(
        line[:3008], "MXFP4_E2M1"
    ).codes)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["MXFP8_E4M3", "MXINT8", "NVFP4"])
def test_torch_tensors(name, dtype):
    torch = pytest.importorskip("torch")
    x = with_dead_blocks(fuzz(DTYPES[dtype], 16 * 75, seed=4).reshape(16, 75), 4)
    if dtype == "bfloat16":
        tensor = torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(x.copy())
    assert str(tensor.dtype) == f"torch.{dtype}"
    wanted = quantize(x, name)
    for version in (tensor, tensor.T.contiguous().T, tensor.clone().requires_grad_()):
        found = quantize(version, name)
        assert isinstance(found.codes, torch.Tensor)
        assert found.codes.dtype == found.scales.dtype == torch.uint8
        assert np.array_equal(found.codes.numpy(), wanted.codes)
        assert np.array_equal(found.scales.numpy(), wanted.scales)
        values = found.dequantize()
        assert values.dtype == torch.float32
        assert np.array_equal(values.numpy(), wanted.dequantize(), equal_nan=True)
    sideways = quantize(tensor.T, name, axis=0)
    assert np.array_equal(sideways.codes.T.numpy(), wanted.codes)
    assert np.array_equal(sideways.scales.T.numpy(), wanted.scales)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("g", [None, 0.00432, 3.0])
def test_nvfp4_by_the_specification(dtype, g):
    rng = np.random.default_rng(5)
    # Nine binades of block maxima, with many values on ties of a block whose scale is 1.
    rows = rng.standard_normal((12, 75)) * np.exp2(rng.integers(-8, 1, (12, 1)))
    rows[::3] = rng.choice([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, -6.0], (4, 75))
    rows = with_dead_blocks(rows.astype(DTYPES[dtype]), 5)
    finite = rows[np.isfinite(rows)]
    used = np.float32(np.abs(finite).max().astype(np.float32) / np.float32(2688))
    used = used if g is None else np.float32(g)
    codes, scales = by_the_specification(rows, formats.NVFP4, None, Fraction(float(used)))
    found = quantize(rows, "NVFP4", tensor_scale=g)
    assert found.tensor_scale == float(used)
    assert np.array_equal(found.scales, scales)
    assert np.array_equal(found.codes, codes)


@pytest.mark.parametrize("scale", [formats.E4M3_SCALE, formats.E5M3_SCALE])
@pytest.mark.parametrize("element", [formats.E2M1, formats.E4M3, formats.INT8])
def test_floating_scales_without_a_tensor_scale(scale, element):
    fmt = BlockFormat(element, 16, scale)
    rng = np.random.default_rng(6)
    spread = np.exp2(rng.integers(-12, 4, (40, 1)))
    rows = with_dead_blocks((rng.standard_normal((40, 40)) * spread).astype(np.float32), 6)
    codes, scales = by_the_specification(rows, fmt, None)
    found = quantize(rows, fmt)
    assert np.array_equal(found.scales, scales)
    assert np.array_equal(found.codes, codes)
    assert found.tensor_scale is None


def test_bfloat16_needs_no_torch():
    x = np.array([[1.0, -3.5]], dtype=ml_dtypes.bfloat16)
    found = quantize(x, "MXFP4_E2M1")
    assert isinstance(found.codes, np.ndarray)
    assert found.dequantize().tolist() == [[1.0, -3.0]]
