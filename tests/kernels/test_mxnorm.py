"""MXNorm: Triton, its torch twin and a NumPy reference on the reference quantiser, to the bit."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from mxstats import formats
from mxstats.formats import BlockFormat, ScaleRule
from mxstats.kernels import launching
from mxstats.kernels.mxnorm import mxnorm
from mxstats.kernels.mxnorm_arguments import static_tensor_scale
from tests.formats.inputs import MX, fuzz, with_dead_blocks
from tests.kernels.mxnorm_reference import NUMPY, as_torch, check, reference

NVFP4 = formats.NVFP4
# A block size that is no power of two, a scale with a mantissa but no tensor scale, no mantissa.
OTHERS = [
    BlockFormat(formats.E4M3, 24),
    BlockFormat(formats.E2M1, 16, formats.E5M3_SCALE),
    BlockFormat(formats.ElementFormat(4, 0), 8),
]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Uninitialised memory holds NaN and 255: what a kernel leaves unwritten shows."""
    real, made = launching._empty, []

    def empty(shape, strides, dtype, device):
        made.append(real(shape, strides, dtype, device))
        return made[-1].fill_(255 if dtype == torch.uint8 else math.nan)

    monkeypatch.setattr(launching, "_empty", empty)
    return made


def test_every_output_of_the_kernel_is_poisoned_first(poisoned, device):
    x = torch.ones(3, 64, device=device)
    outputs = mxnorm(x, c=1.7, residual=x, backend="triton")
    at = {one.data_ptr() for one in poisoned}
    assert len(at) == 4
    assert all(one.data_ptr() in at for one in outputs)


def run(x, device, backend, *, weights=None, residual=None, **options):
    return mxnorm(
        as_torch(x, device),
        weights=None if weights is None else torch.tensor(weights, device=device),
        residual=None if residual is None else as_torch(residual, device),
        backend=backend,
        **options,
    )


def compare(x, device, backend, *, scale_layout="rows", **options):
    outputs = run(x, device, backend, scale_layout=scale_layout, **options)
    check(outputs, reference(x, **options), scale_layout)
    return outputs


def gaussian(rows, hidden_size, dtype="bfloat16", seed=0):
    values = np.random.default_rng(seed).standard_normal((rows, hidden_size))
    return values.astype(NUMPY[dtype])


def fuzzed(rows, hidden_size, dtype="bfloat16", seed=0):
    return fuzz(NUMPY[dtype], rows * hidden_size, seed).reshape(rows, hidden_size)


def weights_for(n_blocks, seed=1):
    return np.random.default_rng(seed).uniform(1 / 32, 1, n_blocks).astype(np.float32)


@pytest.mark.parametrize("p", [1, 2, 0.5, 3])
@pytest.mark.parametrize("dtype", NUMPY)
def test_equals_the_reference(device, backend, dtype, p):
    # A short last block; every magnitude of the dtype, subnormals and its ends included.
    compare(with_dead_blocks(fuzzed(40, 80, dtype), 1), device, backend, p=p, c=1.7)


@pytest.mark.parametrize("dtype", NUMPY)
def test_weights(device, backend, dtype):
    weights = weights_for(3)
    compare(with_dead_blocks(fuzzed(24, 80, dtype, 2), 3), device, backend, weights=weights)


def test_weights_of_bf16_are_taken_as_float32(device, backend):
    weights = torch.tensor([0.1, 0.7, 0.3], dtype=torch.bfloat16, device=device)
    found = mxnorm(as_torch(gaussian(4, 80), device), weights=weights, backend=backend)
    check(found, reference(gaussian(4, 80), weights=weights.float().cpu().numpy()))


@pytest.mark.parametrize("rule", ScaleRule)
@pytest.mark.parametrize("fmt", MX, ids=lambda fmt: fmt.name)
def test_elements_and_rules(device, backend, fmt, rule):
    x = np.concatenate([gaussian(8, 64), fuzzed(8, 64, seed=4)])
    compare(x, device, backend, c=1.8, fmt=fmt, scale_rule=rule)


@pytest.mark.parametrize("fmt", OTHERS, ids=lambda fmt: fmt.name)
def test_other_formats(device, backend, fmt):
    compare(np.concatenate([gaussian(8, 100), fuzzed(8, 100)]), device, backend, c=1.8, fmt=fmt)


@pytest.mark.parametrize("given", ["c", "p=1", "weights", "number", "tensor"])
def test_nvfp4(device, backend, given):
    # A short last block, and rows that reach the bound: a single spike, all equal.
    x = np.concatenate([gaussian(8, 72), fuzzed(8, 72, seed=5)])
    x[0], x[1] = 0, 3
    x[0, 17] = -5
    options = {
        "c": {"c": 1.75},
        "p=1": {"c": 1.72, "p": 1},
        "weights": {"weights": weights_for(5)},
        "number": {"c": 1.75, "tensor_scale": 0.01},
        "tensor": {"c": 1.75, "tensor_scale": 0.01},
    }[given]
    expected = reference(x, fmt="NVFP4", **options)
    if given == "tensor":
        options["tensor_scale"] = torch.tensor(0.01, device=device)
    check(run(x, device, backend, fmt="NVFP4", **options), expected)


def test_static_tensor_scale_is_reached_by_a_spike(device, backend):
    x = np.zeros((1, 64), dtype=np.float32)
    x[0, 20] = 1e6
    found = run(x, device, backend, c=1.75, fmt=NVFP4, eps=1e-12)
    assert found.scales.tolist() == [[8, 126, 8, 8]]  # the largest; blocks of zeros the smallest
    assert found.codes[0, 20] == 7
    g = static_tensor_scale(NVFP4, 64, c=1.75)
    assert g == float(np.float32(1.75 * 2 / (6 * 448)))
    weights = torch.tensor([0.5, 0.04, 1.0, 0.3], device=device)
    # 0.04 in float32 is 0.04·(1 − 2e-8): half an ulp of g is 6e-8.
    assert static_tensor_scale(NVFP4, 64, weights=weights) == pytest.approx(10 / 2688, rel=1e-7)


def test_a_given_tensor_scale_that_is_too_small_saturates(device, backend):
    x = np.full((1, 32), 4, dtype=np.float32)
    found = run(x, device, backend, c=1.0, fmt=NVFP4, tensor_scale=1e-6)
    assert set(found.scales.flatten().tolist()) == {126}
    assert set(found.codes.flatten().tolist()) == {7}


@pytest.mark.parametrize("hidden_size", [1, 32, 33, 48, 96, 576, 1056, 2048, 5120])
def test_hidden_sizes(device, backend, hidden_size):
    rows = 3 if hidden_size < 2048 else 1
    compare(gaussian(rows, hidden_size), device, backend, c=1.8)


@pytest.mark.parametrize("options", [{"c": 1.8}, {"c": 1.7, "p": 3}, {"weights": weights_for(514)}])
def test_rows_that_are_read_twice(device, backend, options):
    x = gaussian(2, 16_440)
    x[0, 16_400] = 1e3  # in the last tile
    compare(x, device, backend, residual=gaussian(2, 16_440, seed=9), **options)


@pytest.mark.parametrize("dtype", NUMPY)
def test_residual(device, backend, dtype):
    x, residual = fuzzed(16, 80, dtype, 6), fuzzed(16, 80, dtype, 7)
    residual[::2] = gaussian(8, 80, dtype)
    x[::2] = gaussian(8, 80, dtype, 8)
    if dtype == "float16":  # whose sums would overflow in most rows
        x[1::2] *= np.float16(2**-9)
        residual[1::2] *= np.float16(2**-9)
    found = compare(x, device, backend, residual=residual, c=1.8, p=1)
    # The sum is torch's own.
    torch_sum = as_torch(x) + as_torch(residual)
    assert torch.equal(found.residual.cpu().nan_to_num(7.0), torch_sum.nan_to_num(7.0))


@pytest.mark.parametrize("p", [2, 1, 3])
@pytest.mark.parametrize("rule", ScaleRule)
def test_estimate_from_scales(device, backend, rule, p):
    x = with_dead_blocks(np.concatenate([gaussian(8, 80), fuzzed(8, 80, seed=10)]), 11)
    x[3, 32:] = 0
    compare(x, device, backend, p=p, c=0.01, scale_rule=rule, estimate_from="scales")


@pytest.mark.parametrize(
    ("fmt", "tensor_scale"), [(NVFP4, 0.05), (OTHERS[1], None)], ids=["NVFP4", "E5M3"]
)
def test_estimate_from_floating_scales(device, backend, fmt, tensor_scale):
    x = gaussian(8, 72)
    x[1, 16:] = 0
    x[2, 5] = np.nan
    options = {"fmt": fmt, "tensor_scale": tensor_scale, "estimate_from": "scales"}
    # The power mean of scales is a sixth of that of maxima.
    compare(x, device, backend, c=1.75 / 6, **options)


# Two tiles of 128 rows, and of four columns.
TALL = BlockFormat(formats.E4M3, 4)


@pytest.mark.parametrize(
    ("rows", "hidden_size", "fmt"),
    [(5, 80, formats.MXFP8_E4M3), (131, 18, TALL), (3, 72, NVFP4)],
    ids=["short", "tall", "NVFP4"],
)
def test_blocked_layout(device, backend, rows, hidden_size, fmt):
    x = gaussian(rows, hidden_size)
    found = compare(x, device, backend, c=1.8, fmt=fmt, scale_layout="blocked")
    n_blocks = -(-hidden_size // fmt.block_size)
    flat = run(x, device, backend, c=1.8, fmt=fmt)
    assert torch.equal(formats.from_blocked(found.scales, rows, n_blocks), flat.scales)


def test_special_rows(device, backend):
    x = gaussian(12, 64, "float32")
    x[0] = 0
    x[1] = -0.0
    x[2, 7] = 1e5  # a massive channel
    x[3, 40] = np.nan
    x[4, 40] = -np.inf
    x[5] = np.float32(2.0**-149)
    x[6, :32] = 0
    x[10] = x[7]
    x[7] *= np.float32(1e25)
    x[8] *= np.float32(1e-30)
    x[9] = np.finfo(np.float32).max
    for p in (1, 2, 3):
        found = compare(x, device, backend, p=p, c=1.8)
        rho, scales, codes = found.rho.cpu(), found.scales.cpu(), found.codes.cpu()
        assert rho[0] == rho[1] == np.float32(1 / np.sqrt(np.float64(np.float32(1e-5))))
        assert not codes[0].any()
        assert (codes[1] == 0x80).all()
        assert not scales[:2].any()
        assert rho[3:5].isnan().all()
        assert not codes[3:5].any()
        assert (scales[3:5] == 255).all()
        # The same row at another scale: ε = 1e-5 is half of that of r̂², above 0.2, at rms = 1.
        assert rho[7].item() * 1e25 == pytest.approx(rho[10].item(), rel=3e-5)


def test_fp16_of_300_has_the_right_rms(device, backend):
    x = np.where(np.arange(64) % 2, 300, -300).astype(np.float16)[None]
    found = compare(x, device, backend, c=1.0)
    assert found.rho.item() == np.float32(1 / np.sqrt(9e4 + 1e-5))


def test_bf16_ties(device, backend):
    # Halfway between two codes of E4M3, and at the borders of every rule, with ρ̃ near 1.
    x = np.tile(np.arange(1, 2, 1 / 128), (4, 1)) * np.array([[1], [2], [448], [2.0**-20]])
    for rule in ScaleRule:
        compare(x.astype(ml_dtypes.bfloat16), device, backend, c=1.0, scale_rule=rule, eps=1e-30)


def test_rows_with_strides_and_leading_axes(device, backend):
    wide = gaussian(6, 100)
    x = as_torch(wide, device)[:, 7:87]
    residual = as_torch(gaussian(6, 81, seed=3), device)[:, 1:]
    options = {"c": 1.8, "backend": backend}
    view = mxnorm(x, residual=residual, **options)
    # Contiguous copies of the slices.
    expected = reference(wide[:, 7:87], residual=gaussian(6, 81, seed=3)[:, 1:], c=1.8)
    check(view, expected)
    cube = mxnorm(x.reshape(2, 3, 80), residual=residual.reshape(2, 3, 80), **options)
    assert cube.codes.shape == cube.residual.shape == (2, 3, 80)
    assert cube.scales.shape == (2, 3, 3)
    assert cube.rho.shape == (2, 3)
    check(cube, expected)
    single = mxnorm(x[4], **options)
    assert single.codes.shape == (80,)
    assert single.scales.shape == (3,)
    assert single.rho.shape == ()
    assert single.residual is None


@pytest.mark.parametrize("scale_layout", ["rows", "blocked"])
def test_no_rows(device, backend, scale_layout):
    x = torch.zeros((0, 80), dtype=torch.bfloat16, device=device)
    found = mxnorm(x, c=1.8, residual=x, scale_layout=scale_layout, backend=backend)
    assert found.codes.shape == found.residual.shape == (0, 80)
    assert found.scales.shape == ((0, 3) if scale_layout == "rows" else (0,))
    assert found.rho.shape == (0,)


def test_inputs_are_left_alone(device, backend):
    x, residual = as_torch(gaussian(4, 80), device), as_torch(gaussian(4, 80, seed=1), device)
    copies = x.clone(), residual.clone()
    mxnorm(x, residual=residual, c=1.8, backend=backend)
    assert torch.equal(x, copies[0])
    assert torch.equal(residual, copies[1])


@pytest.mark.parametrize("p", [1, 2])
def test_dequantised_output_is_within_the_bound(device, backend, p):
    c, n_blocks = 1.75, 8
    x = gaussian(8, 256, "float32")
    x[1] = 0
    x[1, 100] = 7  # a spike attains the bound
    x[2, 3] = 1e5
    x[3, 32:] = 0
    found = run(x, device, backend, p=p, c=c, scale_rule="rceil", eps=1e-12)
    y = formats.Quantized(found.codes, found.scales, formats.MXFP8_E4M3, -1).dequantize()
    # An element of three mantissa bits is rounded by at most 2^-4 of itself.
    bound = c * n_blocks ** (1 / p)
    largest = y.abs().amax(1).cpu()
    assert largest.max() <= bound * (1 + 2**-4)
    assert largest[1] >= bound * (1 - 2**-4)
