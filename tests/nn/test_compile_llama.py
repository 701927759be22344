"""A compiled, converted Llama that trains under bfloat16 autocast.

What a plain PyTorch MXNorm makes of that is in :mod:`tests.nn.test_compile`: gradients of NaN.
"""

import copy

import torch

from mxstats.nn import convert
from tests.nn.test_compile import needs_compiler
from tests.nn.tiny_models import tiny_ids, tiny_llama

STEPS = 50


def llama():
    return convert(tiny_llama(num_hidden_layers=1), norm="mxnorm", p=2, fmt="mxfp8_e4m3")[0].train()


def losses(model, function, steps=STEPS):
    """Loss of each step of Adam under bfloat16 autocast; the first step with a bad gradient."""
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    ids, found = tiny_ids(), []
    for step in range(steps):
        optimiser.zero_grad()
        # Without vector code, C++ compiles in half the time and to the same numbers.
        with (
            torch._inductor.config.patch({"cpp.vec_isa_ok": False}),
            torch.autocast("cpu", torch.bfloat16),
        ):
            loss = function(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
        if not all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None):
            return torch.tensor(found), step
        optimiser.step()
        found.append(loss.item())
    return torch.tensor(found), None


@needs_compiler
def test_fifty_compiled_steps_of_a_llama_have_finite_gradients_and_eagers_loss():
    torch._dynamo.reset()
    model = llama()
    compiled, bad = losses(model, torch.compile(model, fullgraph=True))
    assert bad is None
    start = llama()
    eager = copy.deepcopy(start)
    wanted, bad = losses(eager, eager)
    assert bad is None
    assert wanted[-1] < 0.7 * wanted[0], "something has been learnt"
    # How far apart runs are that bfloat16 does not tell apart: weights off by half of its last
    # place, at random. Compiled code keeps some float32 where eager rounds to bfloat16.
    spread = torch.zeros(STEPS)
    for seed in (13, 14, 15):
        other, generator = copy.deepcopy(start), torch.Generator().manual_seed(seed)
        for parameter in other.parameters():
            noise = torch.rand(parameter.shape, generator=generator) - 0.5
            parameter.data.mul_(1.0 + 2.0**-8 * noise)
        spread = torch.maximum(spread, (losses(other, other)[0] - wanted).abs())
    # The largest of three at any step so far, and twice that.
    spread = spread.cummax(0).values + 2.0**-9 * wanted
    assert ((compiled - wanted).abs() < 2.0 * spread).all()
