"""MXNorm compiled for a GPU: many shapes against the torch twin, and a tensor above 2^31."""

import numpy as np
import pytest
import torch

from mxstats import formats
from mxstats.kernels.mxnorm import mxnorm

pytestmark = pytest.mark.gpu

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
FORMATS = [*formats.FORMATS.values(), formats.BlockFormat(formats.E4M3, 24)]


def same(found, expected):
    """Bit for bit, a NaN being equal to a NaN."""
    for a, b in zip(found, expected, strict=True):
        if a is None:
            assert b is None
        else:
            assert torch.equal(a.nan_to_num(-7.0), b.nan_to_num(-7.0))


def random_rows(generator, rows, hidden_size, dtype, device):
    """Rows over many powers of two, some blocks of zeros, one row with a NaN."""
    x = torch.randn((rows, hidden_size), generator=generator, device=device)
    low, high = (-12, 8) if dtype == torch.float16 else (-100, 100)
    exponent = torch.randint(low, high, (rows, 1), generator=generator, device=device)
    x = torch.ldexp(x, exponent).to(dtype)
    x[:, : hidden_size // 7] = 0
    x[rows // 2, hidden_size // 2] = torch.nan
    return x


@pytest.mark.parametrize("seed", range(40))
def test_triton_equals_torch(device, seed):
    rng = np.random.default_rng(seed)
    generator = torch.Generator(device=device).manual_seed(seed)
    hidden_size = int(rng.choice([rng.integers(1, 600), rng.integers(600, 40_000), 5120, 11_008]))
    rows = int(rng.integers(1, 400))
    dtype = DTYPES[seed % 3]
    fmt = FORMATS[seed % len(FORMATS)]
    x = random_rows(generator, rows, hidden_size, dtype, device)
    options = {"fmt": fmt, "scale_layout": ["rows", "blocked"][seed // 2 % 2]}
    if not fmt.tensor_scale:
        options["scale_rule"] = list(formats.ScaleRule)[seed // 3 % 4]
    if seed % 5 == 0:
        options["weights"] = torch.rand(-(-hidden_size // fmt.block_size), device=device) + 0.1
    else:
        options |= {"c": 1.8, "p": [1, 2, 3, 0.5][seed % 4]}
    if seed % 4 == 0:
        options["residual"] = random_rows(generator, rows, hidden_size, dtype, device)
    if seed % 7 == 0:
        options |= {"estimate_from": "scales"} | ({"tensor_scale": 0.1} if fmt.tensor_scale else {})
    same(mxnorm(x, backend="triton", **options), mxnorm(x, backend="torch", **options))


@pytest.mark.parametrize("hidden_size", [2048, 4096, 5120, 7168, 8192, 11_008, 16_384, 28_672])
def test_sizes_of_models(device, hidden_size):
    generator = torch.Generator(device=device).manual_seed(hidden_size)
    x = torch.randn((3000, hidden_size), generator=generator, device=device).bfloat16()
    same(mxnorm(x, c=1.8, backend="triton"), mxnorm(x, c=1.8, backend="torch"))


def test_more_than_two_to_the_31_elements(device):
    # 4.3 GB of rows that repeat 1027, a prime to no power of two.
    base = torch.randn(
        (1027, 4096), generator=torch.Generator(device).manual_seed(0), device=device
    )
    base = base.bfloat16()
    rows = 2**19 + 300
    x = base.repeat(-(-rows // 1027), 1)[:rows]
    assert x.numel() > 2**31
    found = mxnorm(x, c=1.8, backend="triton")
    expected = mxnorm(base, c=1.8, backend="torch")
    index = torch.arange(rows, device=device) % 1027
    for start in range(0, rows, 2**16):
        part = index[start : start + 2**16]
        assert torch.equal(found.codes[start : start + 2**16], expected.codes[part])
    assert torch.equal(found.scales, expected.scales[index])
    assert torch.equal(found.rho, expected.rho[index])


def test_a_row_stride_above_two_to_the_31(device):
    # Two rows, 2^31 + 8 elements apart.
    storage = torch.empty(2**31 + 8 + 4096, dtype=torch.bfloat16, device=device)
    x = storage.as_strided((2, 4096), (2**31 + 8, 1))
    x.copy_(torch.randn((2, 4096), generator=torch.Generator(device).manual_seed(1), device=device))
    same(mxnorm(x, c=1.8, backend="triton"), mxnorm(x.contiguous(), c=1.8, backend="torch"))


def test_what_is_compiled_for_aligned_rows_is_not_used_for_others(device):
    wide = torch.randn((8, 4112), generator=torch.Generator(device).manual_seed(2), device=device)
    for dtype in (torch.bfloat16, torch.float16):
        storage = wide.to(dtype)
        residual = storage.flip(0)
        for start in (0, 1, 8, 3, 0):
            x, r = storage[:, start : start + 4096], residual[:, 16 - start :][:, :4096]
            options = {"c": 1.8, "residual": r}
            same(mxnorm(x, backend="triton", **options), mxnorm(x, backend="torch", **options))


def test_the_current_stream_is_used(device):
    x = torch.randn((512, 8192), generator=torch.Generator(device).manual_seed(3), device=device)
    expected = mxnorm(x, c=1.8, backend="torch")
    mxnorm(x, c=1.8)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = mxnorm(x, c=1.8)
    found.codes.zero_()
    graph.replay()
    torch.cuda.synchronize()
    same(found, expected)
