"""Small networks of the modules, as one trains them."""

from torch import nn

from mxstats import formats
from mxstats.nn import MXLinear, MXNormLinear
from tests.nn.oracle import randomise


def with_small_weights(model, seed=1):
    """Random parameters under which outputs keep the size of the inputs."""
    randomise(model, seed)
    for name, parameter in model.named_parameters():
        if name.endswith("weight"):
            parameter.data.mul_(0.1)
    return model


class Gated(nn.Module):
    """A gated MLP behind a norm, with its residual."""

    def __init__(self, make=MXNormLinear, hidden_size=64, **settings):
        super().__init__()
        fmt = settings.get("fmt", formats.MXFP8_E4M3)
        self.up = make(hidden_size, (96, 96), bias=True, **settings)
        self.down = MXLinear(96, hidden_size, bias=True, fmt=fmt)
        with_small_weights(self)

    def forward(self, x):
        gate, up = self.up(x)
        return x + self.down(nn.functional.silu(gate) * up)


class Attention(nn.Module):
    """Two heads over a sequence [tokens, hidden_size], behind a norm, with its residual."""

    def __init__(self, make=MXNormLinear, hidden_size=64, **settings):
        super().__init__()
        fmt = settings.get("fmt", formats.MXFP8_E4M3)
        self.qkv = make(hidden_size, (hidden_size,) * 3, **settings)
        self.out = MXLinear(hidden_size, hidden_size, fmt=fmt)
        with_small_weights(self, seed=2)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (2, -1)).transpose(0, 1) for each in self.qkv(x))
        scores = (q @ k.mT * 0.1).softmax(-1)
        return x + self.out((scores @ v).transpose(0, 1).flatten(1))


def run(model, x, d, call=None):
    """The output, and the gradients of x and of every parameter."""
    x = x.detach().clone().requires_grad_()
    model.zero_grad(set_to_none=True)
    out = model(x) if call is None else call(model, x)
    out.backward(d.to(out.dtype))
    return [out.detach(), x.grad, *(p.grad for p in model.parameters())]
