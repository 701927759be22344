"""Torchao's MX tensor of the kernels' bytes."""

import builtins

import pytest
import torch

from mxstats.formats import (
    MXFP4_E2M1,
    MXFP6_E2M3,
    MXFP8_E4M3,
    MXFP8_E5M2,
    MXINT8,
    NVFP4,
    ScaleRule,
    quantize,
)
from mxstats.kernels import mx_cast, mxnorm
from mxstats.nn import as_torchao

FORMATS = [MXFP8_E4M3, MXFP8_E5M2, MXFP4_E2M1, MXFP8_E4M3.with_block_size(16)]


@pytest.fixture
def torchao():
    reason = "torchao, a third opinion on the casts, is an extra of the tests alone"
    return pytest.importorskip("torchao.prototype.mx_formats.mx_tensor", reason=reason)


def rows(*shape):
    """Gaussian rows with scales of their own, and a row of zeros."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator)
    x = x * torch.exp2(torch.randint(-20, 20, (*shape[:-1], 1), generator=generator))
    x.view(-1, shape[-1])[0] = 0
    return x


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("shape", [(8, 128), (2, 3, 64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dequantised_by_torchao_as_by_us(torchao, fmt, shape, dtype):
    x = rows(*shape)
    made = mx_cast(x, fmt=fmt, scale_rule=ScaleRule.CEIL)
    tensor = as_torchao(made.codes, made.scales, fmt, dtype)
    assert isinstance(tensor, torchao.MXTensor)
    assert tensor.shape == x.shape
    assert tensor.dtype == dtype
    wanted = quantize(x, fmt, scale_rule=ScaleRule.CEIL).dequantize()
    # An element times a power of two is exact in bfloat16 as well.
    assert torch.equal(tensor.dequantize().float(), torch.as_tensor(wanted).float())


@pytest.mark.parametrize("fmt", [MXFP8_E4M3, MXFP4_E2M1], ids=str)
def test_the_bytes_are_those_that_torchao_makes(torchao, fmt):
    x = rows(16, 64).bfloat16()
    made = mx_cast(x, fmt=fmt, scale_rule=ScaleRule.FLOOR)
    ours = as_torchao(made.codes, made.scales, fmt)
    theirs = torchao.MXTensor.to_mx(x, ours.elem_dtype)
    # The row of zeros has a scale that is free to choose.
    assert torch.equal(ours.qdata.view(torch.uint8), theirs.qdata.view(torch.uint8))
    assert torch.equal(ours.scale.view(torch.uint8)[1:], theirs.scale.view(torch.uint8)[1:])


def test_of_mxnorm_and_in_a_product(torchao):
    x = rows(16, 64).bfloat16()
    made = mxnorm(x, c=2.0)
    weight = mx_cast(rows(32, 64).bfloat16())
    a = as_torchao(made.codes, made.scales, MXFP8_E4M3)
    b = as_torchao(weight.codes, weight.scales, MXFP8_E4M3)
    assert torch.equal(a @ b.t(), a.dequantize() @ b.dequantize().t())


@pytest.mark.parametrize("fmt", [NVFP4, MXINT8, MXFP6_E2M3], ids=str)
def test_formats_that_torchao_has_not(fmt):
    codes, scales = torch.zeros(2, 64, dtype=torch.uint8), torch.zeros(2, 2, dtype=torch.uint8)
    with pytest.raises(ValueError, match=f"fmt={fmt.name}: torchao"):
        as_torchao(codes, scales, fmt)


@pytest.mark.parametrize(
    ("codes", "scales", "error", "said"),
    [
        (torch.zeros(2, 64), torch.zeros(2, 2, dtype=torch.uint8), TypeError, "codes must be"),
        (torch.zeros(2, 64, dtype=torch.uint8), torch.zeros(2, 2), TypeError, "scales must be"),
        ([0], torch.zeros(2, 2, dtype=torch.uint8), TypeError, "codes .* got list"),
        (
            torch.zeros(2, 48, dtype=torch.uint8),
            torch.zeros(2, 2, dtype=torch.uint8),
            ValueError,
            "whole blocks of 32",
        ),
        (
            torch.zeros(2, 64, dtype=torch.uint8),
            torch.zeros(512, dtype=torch.uint8),
            ValueError,
            r"\(2, 2\) is needed",
        ),
    ],
)
def test_arrays_that_do_not_fit(codes, scales, error, said):
    with pytest.raises(error, match=said):
        as_torchao(codes, scales, MXFP8_E4M3)


def test_an_unknown_kernel_preference(torchao):
    codes, scales = torch.zeros(2, 64, dtype=torch.uint8), torch.zeros(2, 2, dtype=torch.uint8)
    with pytest.raises(ValueError, match="kernel_preference='fast' is unknown; known are"):
        as_torchao(codes, scales, MXFP8_E4M3, kernel_preference="fast")


def test_without_torchao(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == "torchao":
            raise ModuleNotFoundError("No module named 'torchao'", name="torchao")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    codes, scales = torch.zeros(2, 64, dtype=torch.uint8), torch.zeros(2, 2, dtype=torch.uint8)
    with pytest.raises(ModuleNotFoundError, match="needs torchao: pip install"):
        as_torchao(codes, scales, MXFP8_E4M3)
