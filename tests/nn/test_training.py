"""What a training loop does with a module: autocast, checkpoints, accumulation, frozen weights."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mxstats import formats
from mxstats.nn import MXLinear, MXNorm, MXNormLinear, RMSNormLinear, convert
from tests.nn.nets import Gated, run
from tests.nn.oracle import (
    dequantised,
    gradients_of,
    numpy_rho,
    randomise,
    relative,
    rows_of,
    same_bits,
)
from tests.nn.tiny_models import tiny_llama

E4M3 = formats.MXFP8_E4M3
NORMS = [MXNormLinear, RMSNormLinear]
both_norms = pytest.mark.parametrize("make", NORMS)


# --- checkpoints, accumulation, frozen weights -----------------------------------------------


@pytest.mark.parametrize("use_reentrant", [True, False])
@both_norms
@pytest.mark.parametrize("fmt", [E4M3, None])
def test_checkpointing_changes_no_bit(use_reentrant, make, fmt):
    model = Gated(make, fmt=fmt)
    x, d = rows_of(64, 64, seed=2), rows_of(64, 64, seed=3)

    def call(model, x):
        return checkpoint(model, x, use_reentrant=use_reentrant)

    for ours, theirs in zip(run(model, x, d, call), run(model, x, d), strict=True):
        assert same_bits(ours, theirs)


def test_checkpointing_under_autocast():
    model = Gated()
    x, d = rows_of(64, 64, seed=2, dtype=torch.bfloat16), rows_of(64, 64, seed=3)

    def call(model, x):
        return checkpoint(model, x, use_reentrant=False)

    with torch.autocast("cpu", torch.bfloat16):
        for ours, theirs in zip(run(model, x, d, call), run(model, x, d), strict=True):
            assert same_bits(ours, theirs)


@both_norms
@pytest.mark.parametrize("fmt", [E4M3, None])
def test_two_half_batches_add_up_to_the_whole(make, fmt):
    # 32 tokens a half, whole blocks: each half's cast along tokens is its part of the whole's.
    model = Gated(make, fmt=fmt)
    x, d = rows_of(64, 64, seed=4), rows_of(64, 64, seed=5)
    whole = run(model, x, d)
    model.zero_grad()
    halves = []
    for part in (slice(0, 32), slice(32, 64)):
        leaf = x[part].clone().requires_grad_()
        model(leaf).backward(d[part])
        halves.append(leaf.grad)
    # The sums over tokens are made in two parts: float32 roundings.
    assert relative(torch.cat(halves), whole[1]) < 1e-6
    for parameter, gradient in zip(model.parameters(), whole[2:], strict=True):
        assert relative(parameter.grad, gradient) < 1e-6


@both_norms
@pytest.mark.parametrize(
    "frozen", ["gamma", "linears.0.weight", "weights", "all but gamma", "all but x", "x"]
)
def test_frozen_tensors_have_no_gradient_and_change_no_other(make, frozen):
    module = randomise(make(64, (32, 48), bias=True))
    x, d = rows_of(32, 64, seed=6), [rows_of(32, 32, seed=7), rows_of(32, 48, seed=8)]
    _, whole = gradients_of(module, x, d)
    names = {
        "weights": {"linears.0.weight", "linears.1.weight"},
        "all but gamma": whole.keys() - {"gamma"},
        "all but x": whole.keys() - {"x"},
    }.get(frozen, {frozen})
    module.zero_grad()
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in names)
    leaf = x.clone().requires_grad_("x" not in names)
    torch.autograd.backward(module(leaf), d)
    found = {"x": leaf.grad} | {name: p.grad for name, p in module.named_parameters()}
    for name, gradient in found.items():
        if name in names:
            assert gradient is None, name
        else:
            assert same_bits(gradient, whole[name]), name


def test_a_frozen_weight_or_input_of_a_linear_and_a_norm():
    linear = randomise(MXLinear(64, 32, bias=True))
    x, d = rows_of(32, 64, seed=9), rows_of(32, 32, seed=10)
    leaf = x.clone().requires_grad_()
    linear(leaf).backward(d)
    weight, bias = linear.weight.grad.clone(), linear.bias.grad.clone()
    linear.zero_grad()
    linear(x).backward(d)
    assert same_bits(linear.weight.grad, weight)
    linear.zero_grad()
    linear.weight.requires_grad_(False)
    again = x.clone().requires_grad_()
    linear(again).backward(d)
    assert linear.weight.grad is None
    assert same_bits(again.grad, leaf.grad)
    assert same_bits(linear.bias.grad, bias)
    norm = randomise(MXNorm(64))
    norm(x).sum().backward()
    assert norm.gamma.grad is not None


@both_norms
def test_an_output_that_nothing_reads(make):
    module = randomise(make(64, (32, 48)))
    x, d = rows_of(32, 64, seed=11), rows_of(32, 48, seed=12)
    leaf = x.clone().requires_grad_()
    module(leaf)[1].backward(d)
    _, wanted = gradients_of(module, x, [torch.zeros(32, 32), d])
    module.zero_grad()
    again = x.clone().requires_grad_()
    module(again)[1].backward(d)
    assert same_bits(again.grad, wanted["x"])
    assert same_bits(leaf.grad, again.grad)
    weights = [linear.weight.grad for linear in module.linears]
    assert not weights[0].any()
    assert same_bits(weights[1], wanted["linears.1.weight"])
    alone = make(64, 48)
    alone.gamma, alone.linears[0].weight = module.gamma, module.linears[1].weight
    assert same_bits(gradients_of(alone, x, [d])[1]["x"], leaf.grad)


# --- autocast and types ----------------------------------------------------------------------


@both_norms
def test_autocast_gives_its_type_and_lowers_nothing_else(make):
    module = randomise(make(64, (48, 32), bias=True))
    x = rows_of(64, 64, seed=13)
    plain = [linear.bias.detach() for linear in module.linears]
    for linear in module.linears:
        linear.bias.data.zero_()
    wide = [out.detach() for out in module(x)]
    for linear, bias in zip(module.linears, plain, strict=True):
        linear.bias.data.copy_(bias)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = module(x)
        lone = MXLinear(64, 32)(x)
        assert MXNorm(64)(x).dtype == torch.float32, "a norm keeps the type of x"
    assert lone.dtype == torch.bfloat16
    for out, wanted, bias in zip(outputs, wide, plain, strict=True):
        # The float32 product of the same operands, rounded once, and a bias of that type.
        assert same_bits(out.detach(), wanted.bfloat16() + bias.bfloat16())
    # The gradient comes in bfloat16, and everything from it on is in float32.
    d = [rows_of(64, n, seed=n, dtype=torch.bfloat16) for n in (48, 32)]
    module.zero_grad()
    leaf = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        outputs = module(leaf)
    torch.autograd.backward(outputs, d)
    lowered = {"x": leaf.grad} | {n: p.grad for n, p in module.named_parameters()}
    _, wanted = gradients_of(module, x, [each.float() for each in d])
    for name, gradient in wanted.items():
        assert lowered[name].dtype == torch.float32
        if not name.endswith("bias"):
            assert same_bits(lowered[name], gradient), name


def test_autocast_against_the_reference_quantiser():
    module = randomise(MXNormLinear(96, 40, dtype=torch.float32))
    x = rows_of(64, 96, seed=14)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(x)
    y = numpy_rho(x, 32, c=module.norm.c)[:, None] * x
    weight = module.linears[0].weight.detach() * module.gamma.detach()
    wanted = torch.mm(dequantised(y, E4M3, None, 1), dequantised(weight, E4M3, None, 1).t())
    assert same_bits(out.detach(), wanted.bfloat16())


@both_norms
def test_autocast_without_a_format_is_a_linear_under_autocast(make):
    module = randomise(make(64, 32, fmt=None))
    x, d = rows_of(64, 64, seed=15), rows_of(64, 32, seed=16)
    wide = gradients_of(module, x, [d])
    with torch.autocast("cpu", torch.bfloat16):
        outputs, found = gradients_of(module, x, [d.bfloat16()])
    assert outputs[0].dtype == torch.bfloat16
    # Operands of 8 bits each: 2^−9 and less, of sums whose terms' roundings average out.
    assert relative(outputs[0], wide[0][0]) < 2.0**-7
    for name, gradient in found.items():
        assert relative(gradient, wide[1][name]) < 2.0**-6, name


def test_the_weights_of_blocks_are_float32_in_a_module_of_any_type():
    # Calibrated to more than bfloat16's 8 bits: rounding them would be another norm.
    weights = torch.tensor([0.3001, 0.7003])
    for make in (MXNormLinear, MXNorm):
        sizes = (64, 32) if make is MXNormLinear else (64,)
        for change in (lambda m: m.bfloat16(), lambda m: m.half(), lambda m: m.to(torch.bfloat16)):
            module = change(make(*sizes, weights=weights))
            assert module.block_weights.dtype == torch.float32
            assert torch.equal(module.block_weights, weights)
        assert make(*sizes, weights=weights, dtype=torch.bfloat16).block_weights.dtype == (
            torch.float32
        )
        assert make(*sizes, weights=weights).to("meta").block_weights.is_meta


@pytest.mark.parametrize("make", [lambda w: MXNormLinear(64, 32, weights=w, device="meta"),
                                  lambda w: MXNorm(64, weights=w, device="meta")])  # fmt: skip
def test_the_weights_of_blocks_outlive_the_meta_device(make):
    # As FSDP2 starts: made without memory, given some, filled from a state dict without them.
    weights = torch.tensor([0.3, 0.6])
    module = make(weights)
    assert module.block_weights.is_meta
    module.to_empty(device="cpu")
    assert torch.equal(module.block_weights, weights)


def test_the_weights_of_blocks_of_a_converted_model_outlive_the_meta_device():
    name, weights = "model.layers.0.input_layernorm", [0.17, 0.19]
    model = tiny_llama().to("meta")
    converted, _ = convert(model, constants={name: weights})
    converted.to_empty(device="cpu")
    assert converted.get_submodule(name).block_weights.tolist() == pytest.approx(weights)


# --- shapes and strides ----------------------------------------------------------------------


@pytest.mark.parametrize("make", [*NORMS, MXLinear])
def test_any_number_of_axes(make):
    module = randomise(make(64, 32))
    x, d = rows_of(2, 3, 5, 64, seed=17), rows_of(2, 3, 5, 32, seed=18)
    outputs, found = gradients_of(module, x, [d])
    flat, wanted = gradients_of(module, x.view(30, 64), [d.view(30, 32)])
    assert same_bits(outputs[0].view(30, 32), flat[0])
    assert same_bits(found.pop("x").view(30, 64), wanted.pop("x"))
    for name, gradient in found.items():
        assert same_bits(gradient, wanted[name])
    one, found = gradients_of(module, x[0, 0, 0], [d[0, 0, 0]])
    assert one[0].shape == (32,)
    assert found["x"].shape == (64,)
    # A product of one row may be summed in another order: a few roundings of float32.
    torch.testing.assert_close(one[0], flat[0][0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [*NORMS, MXLinear])
def test_no_rows(make):
    module = randomise(make(64, 32, bias=True))
    for shape in ((0, 64), (2, 0, 64)):
        outputs, found = gradients_of(module, torch.zeros(shape), [torch.zeros(*shape[:-1], 32)])
        assert outputs[0].shape == (*shape[:-1], 32)
        assert found.pop("x").shape == shape
        assert all(not gradient.any() for gradient in found.values())
    assert MXNorm(64)(torch.zeros(0, 64)).shape == (0, 64)


@pytest.mark.parametrize("make", [*NORMS, MXLinear])
def test_inputs_and_gradients_of_any_stride(make):
    module = randomise(make(64, 48))
    x, d = rows_of(6, 5, 64, seed=19), rows_of(6, 5, 48, seed=20)
    outputs, wanted = gradients_of(module, x, [d])
    # Transposed axes, a part of something wider, and a last axis that is not the dense one.
    wide = torch.full((6, 5, 100), torch.nan)
    wide[..., :64] = x
    views = [
        x.transpose(0, 1).contiguous().transpose(0, 1),
        wide[..., :64],
        x.movedim(-1, 0).contiguous().movedim(0, -1),
    ]
    for view in views:
        assert not view.is_contiguous()
        leaf = view.detach().requires_grad_()
        module.zero_grad()
        out = module(leaf)
        assert same_bits(out.detach(), outputs[0].detach())
        out.backward(d.movedim(-1, 0).contiguous().movedim(0, -1))
        assert same_bits(leaf.grad, wanted["x"])
        for name, parameter in module.named_parameters():
            assert same_bits(parameter.grad, wanted[name])
    expanded = d[:1, :1].expand(6, 5, 48)
    found = gradients_of(module, x, [expanded])[1]
    assert same_bits(found["x"], gradients_of(module, x, [expanded.contiguous()])[1]["x"])


@pytest.mark.parametrize("make", [*NORMS, MXLinear])
def test_a_weight_stored_the_other_way_round(make):
    module = randomise(make(64, 48))
    owner = module if make is MXLinear else module.linears[0]
    x, d = rows_of(32, 64, seed=21), rows_of(32, 48, seed=22)
    outputs, wanted = gradients_of(module, x, [d])
    owner.weight = nn.Parameter(owner.weight.detach().t().contiguous().t())
    again, found = gradients_of(module, x, [d])
    assert same_bits(again[0], outputs[0])
    for name, gradient in found.items():
        assert same_bits(gradient, wanted[name]), name


def test_x_that_is_changed_before_the_backward_is_noticed():
    module = MXNormLinear(64, 32)
    x = rows_of(4, 64, seed=23)
    out = module(x)
    x.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# --- copies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [*NORMS, MXLinear, MXNorm])
def test_copies_and_state_dicts(make):
    sizes = (64,) if make is MXNorm else (64, 32)
    module = randomise(make(*sizes, fmt="NVFP4"))
    x = rows_of(8, 64, seed=24)
    other = make(*sizes, fmt="NVFP4")
    other.load_state_dict(module.state_dict())
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), other):
        assert torch.equal(copied(x), module(x))
        assert repr(copied) == repr(module)
    with torch.inference_mode():
        assert torch.equal(module(x), other(x))


def test_settings_are_no_part_of_the_state_dict():
    module = MXNormLinear(64, (32, 16), weights=torch.ones(2), bias=True)
    assert set(module.state_dict()) == {
        "gamma",
        *(f"linears.{i}.{kind}" for i in (0, 1) for kind in ("weight", "bias")),
    }
