"""The modules' numbers by other means: the reference quantiser, and autograd in float64."""

import numpy as np
import torch

from mxstats import formats
from tests.kernels.mxnorm_reference import block_maxima, reference_rho

EPS = 1e-5
E3M4_24 = formats.BlockFormat(formats.ElementFormat(3, 4), block_size=24)
E4M3_E5M3 = formats.BlockFormat(formats.E4M3, scale=formats.E5M3_SCALE)
CASES = [
    (fmt, rule)
    for fmt in (*formats.FORMATS.values(), E3M4_24, E4M3_E5M3)
    for rule in (formats.ScaleRule if fmt.scale.is_power_of_two else [None])
]


def case_name(case):
    fmt, rule = case
    return fmt.name if rule is None else f"{fmt.name}-{rule}"


def rows_of(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


def randomise(module, seed=1):
    """Give every parameter values that none has by default: gains far from 1, biases far from 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        if name.endswith("gamma"):
            values = 0.5 + values.abs()
        parameter.data.copy_(values)
    return module


def dequantised(x, fmt, rule, axis, g=None):
    """x as the reference quantiser leaves it, float32; as it is where fmt is None."""
    if fmt is None:
        return x.float()
    made = formats.quantize(
        x.detach().float().contiguous(), fmt, scale_rule=rule, axis=axis, tensor_scale=g
    )
    return made.dequantize()


def static_g(fmt, n_blocks, p=2.0, c=None, weights=None):
    """The tensor scale of MXNorm's output: the bound of |y| over the format's largest number."""
    if fmt is None or not formats.block_format(fmt).tensor_scale:
        return None
    fmt = formats.block_format(fmt)
    if weights is None:
        bound = float(np.float32(c)) * n_blocks ** (1 / p)
    else:
        bound = (n_blocks / float(weights.min())) ** 0.5
    return float(np.float32(bound / (fmt.element.largest * fmt.scale.largest)))


def numpy_rho(x, block_size, p=2.0, c=None, weights=None, eps=EPS):
    """ρ̃, float32: the definition in float64, rounded once."""
    values = x.detach().float().numpy()
    weights = None if weights is None else weights.numpy()
    rho = reference_rho(block_maxima(values, block_size), p, c, weights, eps)
    return torch.from_numpy(rho)


def rms_rho(x, eps=EPS):
    """1/rms, float32: the definition in float64, rounded once."""
    square = np.mean(x.detach().float().numpy().astype(np.float64) ** 2, axis=1)
    return torch.from_numpy((1 / np.sqrt(square + np.float64(np.float32(eps)))).astype(np.float32))


def plain_rho(x, *, kind="mxnorm", p=2.0, c=None, weights=None, block_size=32, eps=EPS):
    """(r̂² + ε)^(−1/2) in the dtype of x, block by block, as one would write it down."""
    eps = torch.tensor(eps, dtype=torch.float32).to(x.dtype)
    if kind == "rmsnorm":
        return (x.square().mean(-1) + eps) ** -0.5
    blocks = [block.abs().amax(-1) for block in x.split(block_size, dim=-1)]
    absmax = torch.stack(blocks, dim=-1)
    if weights is not None:
        square = (weights.to(x.dtype) * absmax**2).mean(-1)
    else:
        c = torch.tensor(c, dtype=torch.float32).to(x.dtype)
        square = ((absmax**p).mean(-1) ** (1.0 / p) / c) ** 2
    return (square + eps) ** -0.5


def settings_of(module):
    """What the plain formula needs to know of a module, from its printed settings."""
    norm = module.norm
    return {
        "kind": norm.kind,
        "p": norm.p,
        "c": norm.c,
        "weights": module.block_weights,
        "block_size": norm.block_size,
        "eps": norm.eps,
    }


def plain_outputs(x, gamma, linears, biases, unit_offset=False, **norm):
    """Outputs of the linears behind the norm, in the dtype of x."""
    gain = 1.0 + gamma if unit_offset else gamma
    y = plain_rho(x, **norm)[..., None] * x * gain
    outputs = []
    for weight, bias in zip(linears, biases, strict=True):
        out = y @ weight.mT
        outputs.append(out if bias is None else out + bias)
    return outputs


def double_gradients(module, x, gradients):
    """Gradients in float64, by torch's autograd of the plain formula: x first, then by name."""
    x = x.detach().double().requires_grad_()
    named = {
        name: parameter.detach().double().requires_grad_()
        for name, parameter in module.named_parameters()
    }
    numbers = range(len(module.linears))
    outputs = plain_outputs(
        x,
        named["gamma"],
        [named[f"linears.{i}.weight"] for i in numbers],
        [named.get(f"linears.{i}.bias") for i in numbers],
        unit_offset=module.norm.unit_offset,
        **settings_of(module),
    )
    torch.autograd.backward(outputs, [d.double() for d in gradients])
    return {"x": x.grad} | {name: value.grad for name, value in named.items()}


def gradients_of(module, x, gradients):
    """Outputs and gradients of the module itself, x first."""
    x = x.detach().requires_grad_()
    module.zero_grad(set_to_none=True)
    outputs = module(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    torch.autograd.backward(outputs, gradients)
    found = {"x": x.grad} | {name: value.grad for name, value in module.named_parameters()}
    return outputs, found


def relative(got, want):
    got, want = got.detach().double(), want.detach().double()
    return float((got - want).norm() / want.norm())


def same_bits(a, b):
    """Equal in type, shape and bits, zeros of either sign and all NaN being alike."""
    return (
        a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a != a) & (b != b)).all())
    )
