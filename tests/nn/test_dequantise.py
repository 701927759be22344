"""Codes and scales back to numbers: every code under every scale, against the formats' values."""

import numpy as np
import pytest
import torch

from mxstats import formats
from mxstats.formats import BlockFormat, ElementFormat, Quantized
from mxstats.kernels.spec import cast_spec
from mxstats.nn.dequantise import decoding, decoding_of, dequantise, element_values, scale_values
from mxstats.nn.products import decoded
from mxstats.nn.settings import cast_settings
from tests.nn.oracle import E3M4_24, E4M3_E5M3, rows_of

# What no standard format has: no mantissa, a far bias, three bits of fixed point, other scales.
USER = (
    E3M4_24,
    E4M3_E5M3,
    BlockFormat(ElementFormat(4, 0), block_size=8),
    BlockFormat(ElementFormat(2, 5, bias=90), block_size=16),
    BlockFormat(ElementFormat(5, 2, bias=20, specials="nan"), block_size=16),
    BlockFormat(ElementFormat(0, 2), block_size=20),
    BlockFormat(ElementFormat(1, 6), scale=formats.ScaleFormat(3, 4), block_size=16),
)
FORMATS = (*formats.FORMATS.values(), *USER)
every_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)


def finite_codes(fmt):
    return np.flatnonzero(np.isfinite(fmt.element.values)).astype(np.uint8)


def every_pair(fmt):
    """Codes [n scales, all finite codes in whole blocks] and a scale for each row's blocks."""
    codes = finite_codes(fmt)
    n_blocks = -(-codes.size // fmt.block_size)
    codes = np.resize(codes, n_blocks * fmt.block_size)
    scales = np.arange(fmt.scale.nan_code + 1, dtype=np.uint8)
    return np.tile(codes, (scales.size, 1)), np.tile(scales[:, None], (1, n_blocks))


def equal(found, wanted):
    """Equal values and types, signs of zeros included."""
    found, wanted = found.float(), torch.as_tensor(wanted)
    np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    ordinary = ~wanted.isnan()
    assert torch.equal(found.signbit()[ordinary], wanted.signbit()[ordinary])


@every_format
def test_every_element_and_every_scale(fmt):
    how = decoding(fmt.key)
    codes = finite_codes(fmt)
    for dtype in (torch.float32, torch.bfloat16):
        # At most 8 bits: an element is exact in bfloat16.
        equal(element_values(torch.from_numpy(codes), how, dtype), fmt.element.values[codes])
    scales = np.arange(fmt.scale.nan_code + 1, dtype=np.uint8)
    equal(scale_values(torch.from_numpy(scales), how), fmt.scale.values[scales])


@every_format
@pytest.mark.parametrize("axis", [1, 0])
def test_every_code_under_every_scale(fmt, axis):
    codes, scales = every_pair(fmt)
    g = 0.0123 if fmt.tensor_scale else None
    wanted = Quantized(codes, scales, fmt, -1, g and float(np.float32(g))).dequantize()
    codes, scales = torch.from_numpy(codes), torch.from_numpy(scales)
    if axis == 0:
        codes, scales, wanted = codes.t(), scales.t(), wanted.T
    how = decoding(fmt.key)
    arguments = (codes, scales, how)
    found = dequantise(*arguments, axis=axis, dtype=torch.float32, tensor_scale=g)
    equal(found, np.ascontiguousarray(wanted))
    if g is not None:
        as_tensor = torch.tensor(g, dtype=torch.float32)
        again = dequantise(*arguments, axis=axis, dtype=torch.float32, tensor_scale=as_tensor)
        equal(again, np.ascontiguousarray(wanted))


@every_format
@pytest.mark.parametrize("length", [1, 7, 50, 96])
@pytest.mark.parametrize("axis", [1, 0])
def test_short_last_blocks(fmt, length, axis):
    rng = np.random.default_rng(3)
    n_blocks = -(-length // fmt.block_size)
    codes = rng.choice(finite_codes(fmt), (5, length))
    scales = rng.integers(0, fmt.scale.nan_code, (5, n_blocks), dtype=np.uint8)
    if axis == 0:
        codes, scales = np.ascontiguousarray(codes.T), np.ascontiguousarray(scales.T)
    g = 0.5 if fmt.tensor_scale else None
    wanted = Quantized(codes, scales, fmt, axis, g).dequantize()
    found = dequantise(
        torch.from_numpy(codes),
        torch.from_numpy(scales),
        decoding(fmt.key),
        axis=axis,
        dtype=torch.float32,
        tensor_scale=g,
    )
    equal(found, wanted)


@every_format
def test_bfloat16_is_exact_down_to_its_smallest_subnormal(fmt):
    how = decoding(fmt.key)
    assert how.fits_bfloat16 == (fmt not in (USER[-1],)), "7 bits times 5 are 12"
    if not how.fits_bfloat16:
        return
    codes, scales = every_pair(fmt)
    exact = Quantized(codes, scales, fmt, -1, 1.0 if fmt.tensor_scale else None).dequantize()
    exact = torch.from_numpy(exact)
    found = dequantise(
        torch.from_numpy(codes), torch.from_numpy(scales), how, axis=1, dtype=torch.bfloat16
    )
    assert found.dtype == torch.bfloat16
    # A product of more than 8 − k bits needs k binades above the last place of the subnormals.
    inside = (exact.abs() >= 2.0**-126) | (exact == 0.0) | exact.isnan()
    equal(found[inside], exact[inside])
    # Below them, the nearest number that there is.
    equal(found, exact.bfloat16().float())


@every_format
def test_what_the_quantiser_makes_comes_back(fmt):
    x = rows_of(50, 40, seed=4)
    for axis in (0, 1):
        made = formats.quantize(x, fmt, axis=axis)
        cast, _ = cast_settings(fmt)
        g = made.tensor_scale
        operand = decoded(made.codes, made.scales, cast, axis, g)
        assert operand.factor is None
        equal(operand.values, made.dequantize())


def test_a_scale_that_is_nan_makes_its_block_nan_alone():
    x = rows_of(2, 96, seed=5)
    x[0, 40] = float("inf")
    for name in ("MXFP8_E4M3", "NVFP4"):
        made = formats.quantize(x, name)
        cast, size = cast_settings(name)
        values = decoded(made.codes, made.scales, cast, 1, made.tensor_scale).values
        dead = torch.zeros(2, 96, dtype=torch.bool)
        dead[0, 40 // size * size : (40 // size + 1) * size] = True
        assert torch.equal(values.isnan(), dead)


def test_a_decoding_is_that_of_its_format_with_any_block_size():
    sixteen = formats.MXFP8_E4M3.with_block_size(16)
    assert decoding(sixteen.key) == decoding("MXFP8_E4M3")._replace(block_size=16)
    assert decoding_of(cast_spec("NVFP4", None)) == decoding("nvfp4")
