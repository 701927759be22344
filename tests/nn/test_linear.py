"""MXLinear and MXNorm alone: bit for bit what the reference quantiser's operands give."""

import pytest
import torch
from torch import nn

from mxstats import formats
from mxstats.nn import MXLinear, MXNorm
from tests.nn.oracle import (
    CASES,
    E3M4_24,
    case_name,
    dequantised,
    numpy_rho,
    plain_rho,
    randomise,
    relative,
    rows_of,
    same_bits,
    settings_of,
    static_g,
)

# Roundings of float32, 6e-8 each, and some more in a sum.
FLOAT32 = 1e-6


def run(module, x, gradient):
    x = x.detach().requires_grad_()
    out = module(x)
    out.backward(gradient)
    return out.detach(), x.grad


# --- MXLinear --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_linear_of_every_format_and_rule(case):
    def cast(x, axis):
        return dequantised(x, *case, axis)

    # Short last blocks along every axis that a product contracts.
    module = randomise(MXLinear(72, 40, fmt=case[0], scale_rule=case[1], bias=True))
    x, d = rows_of(50, 72, seed=2), rows_of(50, 40, seed=3)
    out, dx = run(module, x, d)
    weight = module.weight.detach()
    wanted = torch.mm(cast(x, 1), cast(weight, 1).t()) + module.bias.detach()
    assert same_bits(out, wanted)
    assert same_bits(dx, torch.mm(cast(d, 1), cast(weight, 0)))
    assert same_bits(module.weight.grad, torch.mm(cast(d, 0).t(), cast(x, 0)))
    assert relative(module.bias.grad, d.double().sum(0)) < FLOAT32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_16_bit_linear_rounds_each_result_once(dtype):
    module = randomise(MXLinear(64, 48, dtype=dtype))
    x, d = rows_of(32, 64, seed=4, dtype=dtype), rows_of(32, 48, seed=5, dtype=dtype)
    out, dx = run(module, x, d)

    def cast(x, axis):
        return dequantised(x, formats.MXFP8_E4M3, None, axis)

    weight = module.weight.detach()
    assert same_bits(out, torch.mm(cast(x, 1), cast(weight, 1).t()).to(dtype))
    assert same_bits(dx, torch.mm(cast(d, 1), cast(weight, 0)).to(dtype))
    assert same_bits(module.weight.grad, torch.mm(cast(d, 0).t(), cast(x, 0)).to(dtype))


def test_without_a_format_it_is_a_linear():
    module = randomise(MXLinear(64, 48, fmt=None, bias=True))
    plain = nn.Linear(64, 48)
    plain.load_state_dict(module.state_dict())
    x, d = rows_of(7, 64, seed=6), rows_of(7, 48, seed=7)
    for ours, theirs in zip(run(module, x, d), run(plain, x, d), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(module.weight.grad, plain.weight.grad)


# --- MXNorm ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_norm_of_every_format_and_rule(case):
    module = randomise(MXNorm(72, fmt=case[0], scale_rule=case[1]))
    size = case[0].block_size
    x, d = rows_of(6, 72, seed=8), rows_of(6, 72, seed=9)
    out, dx = run(module, x, d)
    c = module.norm.c
    y = numpy_rho(x, size, c=c)[:, None] * x
    y = dequantised(y, *case, 1, static_g(case[0], -(-72 // size), c=c))
    assert same_bits(out, y * module.gamma.detach())
    assert relative(module.gamma.grad, (d.double() * y).sum(0)) < FLOAT32
    # Straight through the cast.
    wide = x.double().requires_grad_()
    normal = plain_rho(wide, **settings_of(module))[:, None] * wide
    normal.backward(d.double() * module.gamma.detach())
    assert relative(dx, wide.grad) < FLOAT32


MODES = {
    "p=1": {"p": 1.0},
    "p=2": {},
    "p=3": {"p": 3.0, "c": 2.6},
    "p=0.5": {"p": 0.5},
    "weights": {"weights": torch.tensor([0.3, 0.9, 0.1, 0.5])},
    "1 + γ": {"unit_offset": True},
}


@pytest.mark.parametrize("mode", MODES)
def test_norm_without_rounding_is_the_plain_formula(mode):
    module = randomise(MXNorm(100, fmt=None, **MODES[mode]))
    x, d = rows_of(2, 3, 100, seed=10), rows_of(2, 3, 100, seed=11)
    out, dx = run(module, x, d)
    wide = x.double().requires_grad_()
    gamma = module.gamma.detach().double().requires_grad_()
    gain = 1.0 + gamma if "unit_offset" in MODES[mode] else gamma
    wanted = plain_rho(wide, **settings_of(module))[..., None] * wide * gain
    wanted.backward(d.double())
    assert out.shape == x.shape
    assert relative(out, wanted.detach()) < FLOAT32
    assert relative(dx, wide.grad) < FLOAT32
    assert relative(module.gamma.grad, gamma.grad) < FLOAT32


def test_norm_without_a_gain_and_in_bfloat16():
    module = MXNorm(64, gain=False)
    assert module.gamma is None
    assert not list(module.parameters())
    x, d = rows_of(8, 64, seed=12, dtype=torch.bfloat16), rows_of(8, 64, seed=13)
    out, dx = run(module, x, d.bfloat16())
    y = numpy_rho(x, 32, c=module.norm.c)[:, None] * x.float()
    # E4M3 times a power of two: bfloat16 holds it.
    wanted = dequantised(y, formats.MXFP8_E4M3, None, 1)
    assert same_bits(out, wanted.bfloat16())
    assert torch.equal(out.float(), wanted)
    assert dx.dtype == torch.bfloat16


def test_norm_of_a_users_format_and_a_block_size_of_ones_own():
    for fmt, size in ((E3M4_24, None), ("MXFP8_E5M2", 16), ("NVFP4", 32)):
        module = MXNorm(80, fmt=fmt, block_size=size, p=1.0)
        chosen = formats.block_format(fmt).with_block_size(size or 24)
        x = rows_of(5, 80, seed=14)
        c, n_blocks = module.norm.c, -(-80 // chosen.block_size)
        y = numpy_rho(x, chosen.block_size, p=1.0, c=c)[:, None] * x
        wanted = dequantised(y, chosen, None, 1, static_g(chosen, n_blocks, 1.0, c))
        assert same_bits(module(x).detach(), wanted)
