"""torch.compile: one graph, eager's bits, one compilation for all numbers of rows, no NaN."""

import shutil

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from mxstats.nn import MXLinear, MXNorm, MXNormLinear, RMSNormLinear
from tests.nn.nets import Attention, run, with_small_weights
from tests.nn.oracle import EPS, gradients_of, randomise, relative, rows_of, same_bits

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="Inductor needs a C++ compiler on a CPU"
)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, backend="aot_eager"):
    """The compiled function, and a counter of its graphs."""
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, fullgraph=True, backend=counter), counter


def test_a_layer_has_eagers_bits_and_one_graph_for_all_numbers_of_tokens():
    layer = Attention(p=1.0)
    function, counter = compiled(layer)
    # One block of tokens alone has a graph of its own, as a size of 1 has with any operation.
    for n_rows in (64, 96, 160):
        x, d = rows_of(n_rows, 64, seed=2), rows_of(n_rows, 64, seed=3)
        wanted = run(layer, x, d)

        def call(model, x):
            torch._dynamo.mark_dynamic(x, 0)
            return function(x)

        for ours, theirs in zip(run(layer, x, d, call), wanted, strict=True):
            assert same_bits(ours, theirs)
    assert counter.frame_count == 1


def test_numbers_of_rows_that_are_no_multiple_of_the_block():
    module = randomise(MXNormLinear(64, 32))
    function, counter = compiled(module)
    for n_rows in (50, 77, 45):
        x, d = rows_of(n_rows, 64, seed=4), rows_of(n_rows, 32, seed=5)

        def call(_, x):
            torch._dynamo.maybe_mark_dynamic(x, 0)
            return function(x)

        for ours, theirs in zip(run(module, x, d, call), run(module, x, d), strict=True):
            assert same_bits(ours, theirs)
    assert counter.frame_count == 1


def test_modules_that_differ_in_a_number_share_no_constants():
    def call(module, x):
        return module(x)

    function, _ = compiled(call)
    # Most without a cast, whose graphs are small.
    plain = {"fmt": None}
    modules = [
        randomise(MXNormLinear(64, 32, **settings))
        for settings in (
            {"c": 1.0, **plain},
            {"c": 2.0, **plain},
            {"c": 2.0},
            {"c": 2.0, "p": 1.0, "eps": 0.3, **plain},
            {"weights": torch.tensor([0.3, 0.8]), **plain},
            {"weights": torch.tensor([0.8, 0.3]), **plain},
        )
    ]
    x, d = rows_of(64, 64, seed=6), rows_of(64, 32, seed=7)
    # Twice, so that a graph made for one is met again by another.
    for module in modules * 2:
        outputs, wanted = gradients_of(module, x, [d])
        leaf = x.clone().requires_grad_()
        module.zero_grad()
        out = function(module, leaf)
        out.backward(d)
        assert same_bits(out.detach(), outputs[0].detach())
        assert same_bits(leaf.grad, wanted["x"])


@pytest.mark.parametrize("make", [RMSNormLinear, MXNorm, MXLinear])
def test_the_other_modules_have_eagers_bits(make):
    module = randomise(make(64, unit_offset=True) if make is MXNorm else make(64, 64, bias=True))
    function, _ = compiled(module)
    x = rows_of(64, 64, seed=8, dtype=torch.bfloat16)

    def call(model, x):
        return function(x)

    with torch.autocast("cpu", torch.bfloat16):
        for ours, theirs in zip(run(module, x, x, call), run(module, x, x), strict=True):
            assert same_bits(ours, theirs)


@pytest.mark.parametrize("n_linears", [1, 2, 3])
@pytest.mark.parametrize("make", [MXNormLinear, RMSNormLinear])
def test_without_gradients(make, n_linears):
    # Another path through torch's tracing, on which a function is not taken for one with a context.
    module = randomise(make(64, (32,) * n_linears, fmt=None))
    function, counter = compiled(module)
    x = rows_of(64, 64, seed=17)
    with torch.no_grad():
        for ours, theirs in zip(function(x), module(x), strict=True):
            assert same_bits(ours, theirs)
    assert counter.frame_count == 1


@pytest.mark.parametrize("make", [MXNorm, MXLinear])
def test_a_norm_and_a_linear_without_gradients(make):
    module = randomise(make(64, fmt="NVFP4") if make is MXNorm else make(64, 32, fmt="NVFP4"))
    x = rows_of(64, 64, seed=18)
    with torch.no_grad():
        assert same_bits(compiled(module)[0](x), module(x))


def test_a_second_derivative_is_refused_in_a_graph_too():
    module = MXNormLinear(64, 32)
    function, _ = compiled(module)
    x = rows_of(64, 64, seed=9).requires_grad_()
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(function(x).sum(), x, create_graph=True)[0].sum().backward()


# --- Inductor --------------------------------------------------------------------------------

STEPS = 50


class Net(nn.Module):
    """A gated MLP whose product is normed and read by a linear: what makes plain MXNorm NaN."""

    def __init__(self, plain=False):
        super().__init__()
        self.gate, self.up = nn.Linear(64, 64), nn.Linear(64, 64)
        self.read = MXNormLinear(64, 64)
        self.out = nn.Linear(64, 16)
        self.plain = plain
        with_small_weights(self, seed=10)
        for linear in (self.gate, self.up):
            linear.weight.data.mul_(3.0)

    def forward(self, x):
        h = nn.functional.silu(self.gate(x)) * self.up(x)
        if self.plain:
            absmax = h.abs().unflatten(-1, (-1, 32)).amax(-1)
            square = absmax.float().square().mean(-1, keepdim=True) / self.read.norm.c**2
            y = h * (square + EPS).rsqrt() * self.read.gamma
            return self.out(self.read.linears[0](y))
        return self.out(self.read(h))


def losses(model, function, steps=STEPS):
    """The loss at each step of Adam under bfloat16 autocast, and whether all gradients were finite.

    Without vector code, C++ compiles in half the time and to the same numbers.
    """
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    found, finite = [], True
    x, target = rows_of(64, 64, seed=11), rows_of(64, 16, seed=12)
    for _ in range(steps):
        optimiser.zero_grad()
        with (
            torch._inductor.config.patch({"cpp.vec_isa_ok": False}),
            torch.autocast("cpu", torch.bfloat16),
        ):
            loss = (function(x).float() - target).square().mean()
            loss.backward()
        finite = finite and all(p.grad.isfinite().all() for p in model.parameters())
        optimiser.step()
        found.append(loss.item())
    return torch.tensor(found), finite


@needs_compiler
def test_fifty_compiled_steps_have_finite_gradients_and_eagers_loss():
    model = Net()
    compiled_losses, finite = losses(model, torch.compile(model, fullgraph=True))
    assert finite
    eager = Net()
    wanted, finite = losses(eager, eager)
    assert finite
    assert wanted[-1] < 0.7 * wanted[0], "something has been learnt"
    # How far apart runs are that bfloat16 does not tell apart: weights off by half of its last
    # place, at random. Compiled code keeps some float32 where eager rounds to bfloat16.
    spread = torch.zeros(STEPS)
    for seed in (13, 14, 15):
        other = Net()
        generator = torch.Generator().manual_seed(seed)
        for parameter in other.parameters():
            noise = torch.rand(parameter.shape, generator=generator) - 0.5
            parameter.data.mul_(1.0 + 2.0**-8 * noise)
        spread = torch.maximum(spread, (losses(other, other)[0] - wanted).abs())
    # The largest of three at any step so far, and twice that.
    spread = spread.cummax(0).values + 2.0**-9 * wanted
    assert ((compiled_losses - wanted).abs() < 2.0 * spread).all()


@needs_compiler
def test_the_plain_norm_compiled_has_nan_gradients():
    model = Net(plain=True)
    assert losses(model, model, steps=1)[1], "eager has none"
    model = Net(plain=True)
    if losses(model, torch.compile(model), steps=1)[1]:
        pytest.skip("this torch does not recompute the input of the maximum at another precision")
    assert any(p.grad.isnan().any() for p in model.parameters())


@needs_compiler
def test_inductor_in_float32_is_eager_but_for_the_order_of_sums():
    module = randomise(MXNormLinear(64, (32, 64), p=1.0, bias=True))
    d = [rows_of(64, n, seed=n) for n in (32, 64)]
    x = rows_of(64, 64, seed=16)
    outputs, wanted = gradients_of(module, x, d)
    leaf = x.clone().requires_grad_()
    module.zero_grad()
    with torch._inductor.config.patch({"cpp.vec_isa_ok": False}):
        found = torch.compile(module, fullgraph=True)(leaf)
        torch.autograd.backward(found, d)
    for ours, theirs in zip(found, outputs, strict=True):
        assert relative(ours, theirs) < 1e-6
    gradients = {"x": leaf.grad} | {name: p.grad for name, p in module.named_parameters()}
    for name, gradient in wanted.items():
        assert relative(gradients[name], gradient) < 1e-6, name
