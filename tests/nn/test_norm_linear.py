"""With rounding on: outputs and gradients are those of the reference quantiser's operands.

Outputs and the weights' gradients bit for bit: the same float32 product of the same numbers. The
kernels of a product are torch's, so that the oracle multiplies by torch.mm as well.
"""

import pytest
import torch

from mxstats import formats
from mxstats.nn import MXNormLinear, RMSNormLinear
from tests.nn.oracle import (
    CASES,
    EPS,
    case_name,
    dequantised,
    gradients_of,
    numpy_rho,
    plain_rho,
    randomise,
    relative,
    rms_rho,
    rows_of,
    same_bits,
    settings_of,
    static_g,
)

# dy is a sum of float32 products in the oracle's order; what is left are the roundings of dx and of
# ρ̃, 6e-8 each, with a factor of √2 or so from the term that is subtracted.
DX = 1e-6
# Of γ the sum over rows features out too, in float32.
DGAMMA = 1e-5


class Expected:
    """The forward and backward of a module of either norm, from dequantised operands."""

    def __init__(self, module, x, fmt, rule):
        self.fmt, self.rule, self.module = fmt, rule, module
        self.x, self.norm = x.float(), settings_of(module)
        self.is_mxnorm = self.norm["kind"] == "mxnorm"
        gamma = module.gamma.detach().float()
        self.gain = 1.0 + gamma if module.norm.unit_offset else gamma
        self.weights = [linear.weight.detach().float() for linear in module.linears]
        self.scaled = [w * self.gain if self.is_mxnorm else w for w in self.weights]
        size, g = module.norm.block_size, None
        if self.is_mxnorm:
            p, c, weights = self.norm["p"], self.norm["c"], self.norm["weights"]
            self.rho = numpy_rho(x, size, p, c, weights)
            g = static_g(fmt, -(-x.shape[1] // size), p, c, weights)
            self.y = self.rho[:, None] * self.x
        else:
            self.rho = rms_rho(x)
            self.y = self.rho[:, None] * self.x * self.gain
            if fmt is not None and fmt.tensor_scale:
                # √D·max|γ| bounds the output; the backward takes the largest value there is.
                bound = self.gain.double().abs().max() * x.shape[1] ** 0.5
                g = float((bound / (fmt.element.largest * fmt.scale.largest)).float())
        self.g = g

    def cast(self, x, axis, g=None):
        return dequantised(x, self.fmt, self.rule, axis, g)

    def outputs(self):
        y = self.cast(self.y, 1, self.g)
        return [torch.mm(y, self.cast(w, 1).t()) for w in self.scaled]

    def gradients(self, gradients):
        y = self.cast(self.y, 0, self.g if self.is_mxnorm else None)
        dv = [torch.mm(self.cast(d, 0).t(), y) for d in gradients]
        dy = sum(
            torch.mm(self.cast(d, 1), self.cast(w, 0))
            for d, w in zip(gradients, self.scaled, strict=True)
        )
        x, gain = self.x.double().requires_grad_(), self.gain.double().requires_grad_()
        y = plain_rho(x, **self.norm)[:, None] * x
        (y if self.is_mxnorm else y * gain).backward(dy.double())
        if self.is_mxnorm:
            dgamma = sum((v.double() * w).sum(0) for v, w in zip(dv, self.weights, strict=True))
            dv = [v * self.gain for v in dv]
        else:
            dgamma = gain.grad
        weights = {f"linears.{i}.weight": v for i, v in enumerate(dv)}
        return {"x": x.grad, "gamma": dgamma} | weights


def check(module, x, fmt, rule=None, seed=50):
    """Outputs, and the gradients that random ones of the outputs give, against the oracle."""
    expected = Expected(module, x, fmt, rule)
    wanted = expected.outputs()
    gradients = [rows_of(*out.shape, seed=seed + i) for i, out in enumerate(wanted)]
    outputs, found = gradients_of(module, x, gradients)
    assert len(outputs) == len(wanted)
    for ours, theirs in zip(outputs, wanted, strict=True):
        assert same_bits(ours, theirs)
    wanted = expected.gradients(gradients)
    assert found.keys() == wanted.keys()
    assert relative(found.pop("x"), wanted["x"]) < DX
    assert relative(found.pop("gamma"), wanted["gamma"]) < DGAMMA
    for name, gradient in found.items():
        assert same_bits(gradient, wanted[name]), name


def with_outliers(*shape, seed=0):
    """Rows of very different sizes, with one large channel: no two blocks have the same scale."""
    x = rows_of(*shape, seed=seed)
    x = x * torch.logspace(-3, 3, shape[0])[:, None]
    x[:, 5] *= 100
    return x


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_mxnorm_of_every_format_and_rule(case):
    # Short last blocks along features in (72), tokens (40) and features out (40 and 25).
    module = randomise(MXNormLinear(72, (40, 25), fmt=case[0], scale_rule=case[1]))
    check(module, with_outliers(40, 72), *case)


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_rmsnorm_of_every_format_and_rule(case):
    module = randomise(RMSNormLinear(72, (40, 25), fmt=case[0], scale_rule=case[1]))
    check(module, with_outliers(40, 72), *case)


MODES = {
    "p=1": {"p": 1.0},
    "p=2, c": {"p": 2.0, "c": 1.37},
    "p=3": {"p": 3.0},
    "p=0.5": {"p": 0.5, "c": 2.5},
    "weights": {},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("name", ["MXFP8_E4M3", "NVFP4"])
def test_powers_weights_and_block_sizes(mode, block_size, name):
    hidden_size = 168
    chosen = dict(MODES[mode])
    if mode == "weights":
        chosen["weights"] = 0.05 + torch.rand(
            -(-hidden_size // block_size), generator=torch.Generator().manual_seed(2)
        )
    module = MXNormLinear(hidden_size, (24, 70), fmt=name, block_size=block_size, **chosen)
    fmt = formats.block_format(name).with_block_size(block_size)
    check(randomise(module), with_outliers(70, hidden_size, seed=3), fmt)


@pytest.mark.parametrize("make", [MXNormLinear, RMSNormLinear])
@pytest.mark.parametrize("name", ["MXFP8_E4M3", "NVFP4"])
def test_a_gain_of_one_plus_gamma(make, name):
    module = make(96, (33, 17), fmt=name, unit_offset=True)
    assert torch.equal(module.gamma, torch.zeros(96)), "a gain of 1 at first"
    check(randomise(module), with_outliers(64, 96, seed=4), formats.block_format(name))


@pytest.mark.parametrize("make", [MXNormLinear, RMSNormLinear])
def test_a_single_linear_gives_a_tensor_and_a_tuple_of_one_a_tuple(make):
    single = randomise(make(64, 32))
    check(single, rows_of(32, 64, seed=5), formats.MXFP8_E4M3)
    assert isinstance(single(rows_of(3, 64)), torch.Tensor)
    assert single.out_features == 32
    one = randomise(make(64, (32,)))
    assert isinstance(one(rows_of(3, 64)), tuple)
    assert one.out_features == (32,)


def test_the_constant_that_is_not_given_is_that_of_gaussian_rows():
    x = rows_of(4096, 256, seed=6)
    for p in (1.0, 2.0, 3.0):
        module = MXNormLinear(256, 32, p=p, fmt=None)
        r = plain_rho(x.double(), **settings_of(module)) * x.double().square().mean(-1).sqrt()
        # √V is 0.15 for K blocks of a row (0.17 for p=3): the mean of ln over 4096 rows of 8 has
        # an error of 0.06/64 = 0.001 and a bias of 1/K times a few hundredths.
        assert abs(float(r.log().mean())) < 0.01


def test_a_gain_is_in_the_weights_before_their_cast():
    # γ = 1.3 after the cast would give 1.3·448 where the weight's own cast saturates nothing.
    module = MXNormLinear(32, 1)
    torch.nn.init.constant_(module.gamma, 1.3)
    weight = module.linears[0].weight
    torch.nn.init.uniform_(weight, 0.9, 1.0)
    x = torch.eye(32) * 7.0
    y = dequantised(numpy_rho(x, 32, c=module.norm.c)[:, None] * x, formats.MXFP8_E4M3, None, 1)
    after = torch.mm(y, dequantised(weight, formats.MXFP8_E4M3, None, 1).t()) * 1.3
    before = torch.mm(y, dequantised(weight.detach() * 1.3, formats.MXFP8_E4M3, None, 1).t())
    assert not torch.equal(before, after)
    assert torch.equal(module(x), before)


@pytest.mark.parametrize("make", [MXNormLinear, RMSNormLinear])
def test_a_bias_is_added_after_the_product(make):
    module = randomise(make(64, (48, 16), bias=True))
    x = rows_of(32, 64, seed=7)
    expected = Expected(module, x, formats.MXFP8_E4M3, None)
    gradients = [rows_of(32, 48, seed=8), rows_of(32, 16, seed=9)]
    outputs, found = gradients_of(module, x, gradients)
    for out, wanted, linear in zip(outputs, expected.outputs(), module.linears, strict=True):
        assert same_bits(out, wanted + linear.bias)
    for i, gradient in enumerate(gradients):
        # A sum of 32 float32.
        assert relative(found[f"linears.{i}.bias"], gradient.double().sum(0)) < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [MXNormLinear, RMSNormLinear])
@pytest.mark.parametrize("name", ["MXFP8_E4M3", "MXINT8", "NVFP4"])
def test_16_bit_modules_round_each_result_once(make, dtype, name):
    module = randomise(make(96, (40, 32), fmt=name, dtype=dtype))
    x = rows_of(64, 96, seed=10, dtype=dtype)
    expected = Expected(module, x, formats.block_format(name), None)
    gradients = [rows_of(64, n, seed=11, dtype=dtype) for n in (40, 32)]
    outputs, found = gradients_of(module, x, gradients)
    # W·γ and ρ̃x are never rounded to 16 bits, nor is a sum: the float32 product, rounded once.
    for out, wanted in zip(outputs, expected.outputs(), strict=True):
        assert same_bits(out, wanted.to(dtype))
    wanted = expected.gradients(gradients)
    for name, gradient in found.items():
        assert gradient.dtype == dtype
        if name.startswith("linears"):
            assert same_bits(gradient, wanted[name].to(dtype)), name
        else:
            # One rounding to 8 or 11 bits; of all the numbers together, a third of the largest.
            assert relative(gradient, wanted[name]) < torch.finfo(dtype).eps / 2


@pytest.mark.parametrize("make", [MXNormLinear, RMSNormLinear])
def test_rows_that_are_not_finite_stay_apart(make):
    module = randomise(make(64, 32))
    x = rows_of(33, 64, seed=12)
    whole = module(x)
    x[3, 7], x[9, 60] = float("nan"), float("inf")
    out = module(x)
    dead = torch.zeros(33, dtype=torch.bool)
    dead[[3, 9]] = True
    assert out[dead].isnan().all()
    assert torch.equal(out[~dead], whole[~dead])


@pytest.mark.parametrize("make", [MXNormLinear, RMSNormLinear])
def test_tiny_and_huge_rows(make):
    module = randomise(make(64, 32, eps=1e-30))
    x = rows_of(32, 64, seed=13)
    plain = module(x)
    for power in (-40, 40):
        # ε is nothing beside either, so that the norm takes the power of two out exactly.
        assert torch.equal(module(x * 2.0**power), plain)
    assert module.norm.eps == 1e-30
    assert module.norm.eps != EPS
