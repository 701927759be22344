"""With rounding off, gradients are float64 autograd's; with it on, none is rounded to fp8."""

import pytest
import torch

from mxstats import formats
from mxstats.nn import MXLinear, MXNorm, MXNormLinear, RMSNormLinear
from tests.nn.oracle import (
    dequantised,
    double_gradients,
    gradients_of,
    plain_outputs,
    randomise,
    relative,
    rows_of,
    settings_of,
)

# The goal is 1e-5; float32 products of some hundred terms stay within 1e-6.
RELATIVE = 1e-5

MODES = {
    "p=1": {"p": 1.0},
    "p=2": {},
    "p=3": {"p": 3.0},
    "p=1.5, c": {"p": 1.5, "c": 0.7},
    "weights": {"weights": torch.tensor([0.3, 0.9, 0.05, 0.5])},
    "1 + γ": {"unit_offset": True},
    "eps": {"eps": 0.5},
    "block 16": {"block_size": 16, "p": 1.0},
}


def check(module, x, seed=20):
    gradients = [rows_of(len(x), n, seed=seed + n) for n in module.out_features]
    outputs, found = gradients_of(module, x, gradients)
    numbers = range(len(module.linears))
    plain = plain_outputs(
        x.double(),
        module.gamma.double(),
        [linear.weight.double() for linear in module.linears],
        [None if linear.bias is None else linear.bias.double() for linear in module.linears],
        unit_offset=module.norm.unit_offset,
        **settings_of(module),
    )
    for ours, theirs in zip(outputs, plain, strict=True):
        assert relative(ours, theirs) < RELATIVE
    wanted = double_gradients(module, x, gradients)
    assert found.keys() == wanted.keys()
    assert {f"linears.{i}.weight" for i in numbers} < found.keys()
    for name, gradient in found.items():
        assert gradient.dtype == torch.float32
        assert relative(gradient, wanted[name]) < RELATIVE, name
    return found, wanted


@pytest.mark.parametrize("mode", MODES)
def test_mxnorm_against_float64_autograd(mode):
    # A short last block: 100 = 3·32 + 4.
    module = randomise(MXNormLinear(100, (30, 17, 8), fmt=None, bias=True, **MODES[mode]))
    check(module, rows_of(24, 100, seed=2))


@pytest.mark.parametrize("settings", [{}, {"unit_offset": True}, {"eps": 0.5}])
def test_rmsnorm_against_float64_autograd(settings):
    module = randomise(RMSNormLinear(100, (30, 17), fmt=None, bias=True, **settings))
    check(module, rows_of(24, 100, seed=3))


@pytest.mark.parametrize("mode", MODES)
def test_ties_share_evenly_as_amax_does(mode):
    generator = torch.Generator().manual_seed(4)
    x = torch.randint(-6, 7, (24, 100), generator=generator) / 2
    blocks = x[:, :96].view(24, 3, 32).abs()
    assert ((blocks == blocks.amax(-1, keepdim=True)).sum(-1) > 1).float().mean() > 0.9
    check(randomise(MXNormLinear(100, (30, 17), fmt=None, **MODES[mode])), x)


@pytest.mark.parametrize("mode", MODES)
def test_one_massive_channel(mode):
    x = rows_of(24, 100, seed=5)
    x[:, 40] = 3e4
    module = randomise(MXNormLinear(100, (30, 17), fmt=None, **MODES[mode]))
    check(module, x)


def dy_of(module, gradients, fmt):
    """The gradient of y: the linears' input gradients of the operands that there are, float64."""
    gain = module.gamma.detach()
    return sum(
        dequantised(d, fmt, None, 1).double() @ dequantised(w, fmt, None, 0).double()
        for d, w in zip(gradients, [m.weight.detach() * gain for m in module.linears], strict=True)
    )


@pytest.mark.parametrize("fmt", [None, "MXFP8_E4M3"])
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_zero_rows_and_zero_blocks(fmt, p):
    module = randomise(MXNormLinear(96, (32, 64), p=p, fmt=fmt))
    x = rows_of(32, 96, seed=6)
    x[0] = 0.0
    x[1, 32:64] = 0.0
    gradients = [rows_of(32, n, seed=n) for n in (32, 64)]
    _, found = gradients_of(module, x, gradients)
    assert all(gradient.isfinite().all() for gradient in found.values())
    # A zero row: dx = ρ̃dy with ρ̃ = ε^(−1/2). A zero block has no share in the estimate's gradient.
    dy = dy_of(module, gradients, fmt)
    rho = float(torch.tensor(1e-5, dtype=torch.float32)) ** -0.5
    m = x[1].double().view(3, 32).abs().amax(-1)
    own = ((m**p).mean() ** (2 / p) / module.norm.c**2 + 1e-5) ** -0.5
    assert relative(found["x"][0], rho * dy[0]) < RELATIVE
    assert relative(found["x"][1, 32:64], own * dy[1, 32:64]) < RELATIVE
    norm = MXNorm(96, p=p, fmt=fmt, gain=False)
    leaf = x.clone().requires_grad_()
    d = rows_of(32, 96, seed=7)
    norm(leaf).backward(d)
    # Here nothing is cast before the norm's own gradient: one product in float32.
    assert relative(leaf.grad[0], rho * d[0].double()) < 1e-6
    assert relative(leaf.grad[1, 32:64], own * d[1, 32:64].double()) < 1e-6
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("mode", ["p=1", "p=2", "p=3", "weights"])
def test_central_differences_away_from_ties(mode):
    module = randomise(MXNormLinear(100, 9, fmt=None, **MODES[mode]))
    # Cubed, so that no two elements come near a tie.
    x = (rows_of(1, 100, seed=8).double() ** 3).float()
    d = rows_of(1, 9, seed=9)
    _, found = gradients_of(module, x, [d])
    at = {"x": x.double(), "gamma": module.gamma.detach().double()}
    at["weight"] = module.linears[0].weight.detach().double()

    def loss(x, gamma, weight):
        (out,) = plain_outputs(x, gamma, [weight], [None], **settings_of(module))
        return float((out * d).sum())

    for name, gradient in {**found, "weight": found["linears.0.weight"][:2]}.items():
        if name not in at:
            continue
        wanted = torch.zeros(gradient.numel(), dtype=torch.float64)
        for i in range(gradient.numel()):
            low, high = ({k: v.clone() for k, v in at.items()} for _ in range(2))
            low[name].view(-1)[i] -= 1e-6
            high[name].view(-1)[i] += 1e-6
            wanted[i] = (loss(**high) - loss(**low)) / 2e-6
        # The difference's own error is the step squared and 1e-16/step, near 1e-9.
        assert relative(gradient.reshape(-1), wanted) < RELATIVE, name


# --- no gradient is rounded to fp8 -----------------------------------------------------------

# What E4M3 makes of these are 0, 0.5 and 448.
TELLING = torch.tensor([1e-4, 0.53, 1000.0])


def telling_rows(n_rows, features):
    return TELLING.repeat(n_rows * features)[: n_rows * features].view(n_rows, features).clone()


@pytest.mark.parametrize("make", [MXNormLinear, RMSNormLinear, MXLinear])
def test_gradients_arrive_unrounded_where_there_is_no_cast(make):
    # One row into an identity: the gradient of the weights is d times the row, that of x is d by
    # a chain of the norm alone.
    module = make(32, 32, fmt=None)
    weight = module.weight if make is MXLinear else module.linears[0].weight
    torch.nn.init.eye_(weight)
    x, d = torch.ones(1, 32).requires_grad_(), telling_rows(1, 32)
    module(x).backward(d)
    scale = (weight.grad[0, 0] / d[0, 0]).item()
    # One rounding of a float32 product.
    torch.testing.assert_close(weight.grad[:, 0], d[0] * scale, rtol=2e-7, atol=0.0)
    if make is MXLinear:
        assert torch.equal(x.grad, d)


def is_fp8(x):
    """Whether every number is one of E4M3's or of E5M2's."""
    return torch.equal(x.to(torch.float8_e4m3fn).to(x.dtype), x) or torch.equal(
        x.to(torch.float8_e5m2).to(x.dtype), x
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [MXNormLinear, RMSNormLinear, MXLinear])
@pytest.mark.parametrize("name", ["MXFP8_E4M3", "MXFP8_E5M2"])
def test_no_gradient_is_an_fp8_number(make, dtype, name):
    module = randomise(make(64, 32, fmt=name, dtype=dtype))
    x = rows_of(32, 64, seed=10, dtype=dtype).requires_grad_()
    module(x).backward(telling_rows(32, 32).to(dtype))
    for gradient in (x.grad, *(p.grad for p in module.parameters())):
        assert gradient.dtype == dtype
        assert not is_fp8(gradient)


@pytest.mark.parametrize("name", ["MXFP8_E4M3", "MXFP8_E5M2"])
def test_the_gradient_of_the_norm_is_straight_through(name):
    # A norm whose ρ̃ does not change: ε is all of it, so that dx = ρ̃d, and ρ̃ = 1.
    norm = MXNorm(32, fmt=name, gain=False, eps=1.0)
    x = (rows_of(4, 32, seed=11) * 1e-12).requires_grad_()
    d = telling_rows(4, 32)
    norm(x).backward(d)
    assert torch.equal(x.grad, d)


def test_the_size_of_a_gradient_does_not_matter_to_its_cast():
    # As large and as small as loss scaling makes them: an fp8 boundary would give 448 or 0.
    module = randomise(MXNormLinear(64, (32, 64)))
    x, d = rows_of(32, 64, seed=12), [rows_of(32, n, seed=n) for n in (32, 64)]
    _, once = gradients_of(module, x, d)
    for power in (-30, 30):
        _, found = gradients_of(module, x, [2.0**power * each for each in d])
        for name, gradient in found.items():
            # A power of two goes through every step of it exactly.
            assert torch.equal(gradient, 2.0**power * once[name]), name


def test_gradients_keep_to_the_types_of_their_tensors():
    module = MXNormLinear(64, (32, 16), bias=True, dtype=torch.bfloat16)
    module.linears[1].float()
    module.gamma.data = module.gamma.data.half()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = rows_of(32, 64, seed=13, dtype=dtype).requires_grad_()
        module.zero_grad()
        one, other = module(x)
        assert one.dtype == other.dtype == dtype
        (one.float().sum() + other.float().sum()).backward()
        for tensor in (x, *module.parameters()):
            assert tensor.grad.dtype == tensor.dtype
            assert tensor.grad.abs().sum() > 0


def test_formats_of_all_kinds_give_gradients_near_the_plain_ones():
    # Casts lose some per cent: a wrong axis, scale or factor loses far more.
    x = rows_of(96, 128, seed=14)
    d = [rows_of(96, 64, seed=15), rows_of(96, 32, seed=16)]
    # Of uniform errors within a step: 2^−m/√12, over the binade; for a product of two, √2 of it.
    known = {"MXFP8_E4M3": 0.06, "MXFP8_E5M2": 0.12, "MXFP6_E3M2": 0.12, "MXFP6_E2M3": 0.06}
    known |= {"MXFP4_E2M1": 0.35, "MXINT8": 0.02, "NVFP4": 0.25}
    for name, most in known.items():
        module = randomise(MXNormLinear(128, (64, 32), fmt=formats.FORMATS[name]))
        _, found = gradients_of(module, x, d)
        for parameter, wanted in double_gradients(module, x, d).items():
            assert relative(found[parameter], wanted) < most, (name, parameter)
