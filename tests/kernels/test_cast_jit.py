"""The casts' helpers, in Triton and in torch, against the reference on whole ranges of inputs."""

import ml_dtypes
import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from mxstats import formats
from mxstats.formats.rounding import encode as reference_encode
from mxstats.formats.scales import e8m0_bytes, floating_bytes
from mxstats.kernels import cast_jit, cast_torch
from mxstats.kernels.spec import cast_spec
from tests.formats.inputs import around, binade_borders, fuzz
from tests.kernels.cast_cases import CASES, FORMATS, case_name, to_numpy, to_torch

ALL_BF16 = np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16)
FINITE_BF16 = ALL_BF16[(ALL_BF16.view(np.uint16) & 0x7FFF) < 0x7F80]
_SIZE = tl.constexpr(4096)


@triton.jit
def _apply(x, out, g, n, SPEC: tl.constexpr, WHAT: tl.constexpr, HARDWARE: tl.constexpr):
    at = tl.program_id(0) * _SIZE + tl.arange(0, _SIZE)
    value = tl.load(x + at, mask=at < n, other=0)
    if WHAT == "encode":
        result = cast_jit.encode(value, SPEC, HARDWARE)
    elif WHAT == "scale_code":
        result = cast_jit.scale_code(value, g, SPEC).to(tl.uint8)
    elif WHAT == "inverse_scale":
        result = cast_jit.inverse_scale(value)
    elif WHAT == "floating_scale":
        result = cast_jit.floating_scale(value, SPEC)
    elif WHAT == "to_float32":
        result = cast_jit.to_float32(value)
    else:
        result = cast_jit.round_to(value, tl.bfloat16, HARDWARE)
    tl.store(out + at, result, mask=at < n)


@triton.jit
def _absmax(x, out, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, 1024)[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out + tl.arange(0, 1024), cast_jit.absmax_bits(value, 1))


@triton.jit
def _scatter(codes, out, rows, K, BLOCKED: tl.constexpr):
    row = tl.program_id(0) * 64 + tl.arange(0, 64)[:, None]
    block = tl.arange(0, 16)[None, :]
    code = tl.load(codes + row * K + block, mask=(row < rows) & (block < K), other=7)
    cast_jit.store_scales(out, code, row, block, rows, K, True, BLOCKED)


def run(what, x, spec, dtype, device, g=1.0, hardware=False):
    out = torch.empty(len(x), dtype=dtype, device=device)
    grid = (triton.cdiv(len(x), 4096),)
    _apply[grid](
        to_torch(x, device), out, g, len(x), SPEC=spec, WHAT=what, HARDWARE=hardware
    )  # fmt: skip
    return to_numpy(out)


def element_inputs(fmt):
    """Every bf16 value, each value of the element, what lies half-way, and neighbours."""
    magnitudes = fmt.element.magnitudes
    ties = (magnitudes[1:] + magnitudes[:-1]) / 2
    near = around(np.concatenate([magnitudes, ties]), np.float32, 2)
    fine = fuzz(np.dtype(np.float32), 4000, 5)
    return np.concatenate([FINITE_BF16.astype(np.float32), near, -near, fine])


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_elements_are_encoded_as_the_reference_does(fmt, backend, device):
    spec, x = cast_spec(fmt), element_inputs(fmt)
    wanted = reference_encode(x, fmt.element)
    if backend == "triton":
        np.testing.assert_array_equal(run("encode", x, spec, torch.uint8, device), wanted)
    else:
        np.testing.assert_array_equal(
            to_numpy(cast_torch.encode(to_torch(x, device), spec)), wanted
        )


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_scales_are_chosen_as_the_reference_does(case, backend, device):
    fmt, rule = case
    spec = cast_spec(fmt, rule)
    everything = [np.abs(ALL_BF16.astype(np.float32)), binade_borders(np.float32)]
    x = np.concatenate([*everything, np.abs(fuzz(np.dtype(np.float32), 4000, 6))])
    g = np.float32(0.37) if fmt.tensor_scale else None
    if rule is None:
        # Where the reference raises, kernels saturate: another test.
        with np.errstate(invalid="ignore"):
            x = x[~(x / fmt.element.largest / (g or 1) > fmt.scale.largest) | ~np.isfinite(x)]
        wanted = floating_bytes(x, fmt.element, fmt.scale, g)
    else:
        wanted = e8m0_bytes(x, fmt.element, rule)
    if backend == "triton":
        made = run("scale_code", x, spec, torch.uint8, device, float(g or 1))
    else:
        made = to_numpy(cast_torch.scale_code(to_torch(x, device), g, spec).to(torch.uint8))
    np.testing.assert_array_equal(made, wanted)


def test_a_floating_scale_saturates_where_the_reference_raises(backend, device):
    spec = cast_spec(formats.NVFP4)
    x = np.array([448 * 6, 448 * 6 * 1.2, 1e30, 3.4e38, np.inf, np.nan], dtype=np.float32)
    with pytest.raises(ValueError, match="holds at most 448"):
        floating_bytes(x[1:2], formats.E2M1, formats.E4M3_SCALE, np.float32(1))
    if backend == "triton":
        made = run("scale_code", x, spec, torch.uint8, device)
    else:
        made = to_numpy(cast_torch.scale_code(to_torch(x, device), 1.0, spec).to(torch.uint8))
    assert made.tolist() == [126, 126, 126, 126, 127, 127]


def test_the_inverse_of_every_scale_is_exact(backend, device):
    byte = np.arange(256, dtype=np.int32)
    if backend == "triton":
        spec = cast_spec(formats.MXFP8_E4M3)
        made = run("inverse_scale", byte, spec, torch.float32, device)
    else:
        made = to_numpy(cast_torch.inverse_scale(to_torch(byte, device)))
    np.testing.assert_array_equal(made[:255], np.ldexp(np.float32(1), 127 - byte[:255]))
    assert np.isnan(made[255])


@pytest.mark.parametrize("scale", [formats.E4M3_SCALE, formats.E5M3_SCALE], ids=lambda s: s.name)
def test_floating_scales_have_the_formats_values(scale, backend, device):
    spec = cast_spec(formats.BlockFormat(formats.E2M1, block_size=16, scale=scale))
    code = np.arange(2**scale.mantissa_bits, scale.nan_code, dtype=np.int32)
    if backend == "triton":
        made = run("floating_scale", code, spec, torch.float32, device)
    else:
        made = to_numpy(cast_torch.floating_scale(to_torch(code, device), spec))
    np.testing.assert_array_equal(made, scale.values[code])


def test_every_bf16_becomes_its_float32(device):
    spec = cast_spec(formats.MXFP8_E4M3)
    made = run("to_float32", ALL_BF16, spec, torch.float32, device)
    np.testing.assert_array_equal(
        made.view(np.uint32), np.arange(2**16, dtype=np.uint32) << 16
    )  # fmt: skip


@pytest.mark.parametrize("hardware", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_float32_is_rounded_to_the_nearest_bf16(hardware, device):
    border = FINITE_BF16.view(np.uint16).astype(np.uint32) << 16
    # On, just below and just above half-way, and past the largest value.
    bits = (border[:, None] + np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)).ravel()
    x = np.concatenate([bits.view(np.float32), np.float32([np.nan, np.inf, -np.inf])])
    spec = cast_spec(formats.MXFP8_E4M3)
    made = run("round_to", x, spec, torch.bfloat16, device, hardware=hardware)
    # ml_dtypes rounds to nearest even by code of its own.
    np.testing.assert_array_equal(
        made.astype(np.float32), x.astype(ml_dtypes.bfloat16).astype(float)
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_absmax_keeps_nan_and_infinity(dtype, backend, device):
    kind = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}[dtype]
    x = fuzz(np.dtype(kind), 1024 * 16, 9).reshape(1024, 16)
    x[::7, 3], x[::5, 11], x[::3, 0] = np.nan, -np.inf, kind(np.nan) * kind(-1)
    wanted = np.abs(x.astype(np.float32)).max(1)
    if backend == "triton":
        out = torch.empty(1024, dtype=torch.int32, device=device)
        _absmax[(1,)](to_torch(x, device), out, N=16)
        made = to_numpy(out).view(np.float32)
    else:
        made = to_numpy(cast_torch.absmax(to_torch(x, device), 1))
    np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize(("rows", "K"), [(1, 1), (128, 4), (129, 5), (300, 13), (64, 16)])
def test_scales_reach_their_place_in_the_blocked_layout(rows, K, backend, device):
    codes = np.random.default_rng(1).integers(1, 255, (rows, K), dtype=np.uint8)
    wanted = formats.to_blocked(codes)
    if backend == "triton":
        out = torch.full((wanted.size,), 99, dtype=torch.uint8, device=device)
        grid = (triton.cdiv(rows, 128) * 2,)
        _scatter[grid](to_torch(codes, device), out, rows, K, BLOCKED=True)
        rows_out = torch.full((rows * K,), 99, dtype=torch.uint8, device=device)
        _scatter[grid](to_torch(codes, device), rows_out, rows, K, BLOCKED=False)
        np.testing.assert_array_equal(to_numpy(rows_out), codes.ravel())
    else:
        out = cast_torch.to_layout(to_torch(codes, device), blocked=True)
    np.testing.assert_array_equal(to_numpy(out), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["MXFP8_E4M3", "MXFP8_E5M2"])
def test_the_hardware_cast_equals_the_integers(name, device):
    """Over every bf16 value under every scale, and over what lies between them."""
    spec = cast_spec(name)
    inverse = np.ldexp(np.float32(1), 127 - np.arange(255, dtype=np.int32))
    for factor in inverse:
        with np.errstate(over="ignore"):
            x = FINITE_BF16.astype(np.float32) * factor
        # An infinity saturates in both.
        made = run("encode", x, spec, torch.uint8, device, hardware=True)
        np.testing.assert_array_equal(made, run("encode", x, spec, torch.uint8, device))
    x = element_inputs(formats.FORMATS[name])
    made = run("encode", x, spec, torch.uint8, device, hardware=True)
    np.testing.assert_array_equal(made, run("encode", x, spec, torch.uint8, device))
