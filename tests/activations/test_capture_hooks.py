"""What a capture leaves behind: no hook, no buffer, no model."""

import gc
import weakref

import pytest
import torch
from torch import nn

from mxstats.activations import capture
from tests.activations.nets import Net


def hook_count(model):
    """Hooks before a forward; the whole model has one that sees which tokens are read."""
    return sum(len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_hooks_are_gone_after_an_exception(tiny_llama, ids, error):
    def fail(*_):
        raise error("half-way")

    broken = tiny_llama.model.layers[1].mlp.register_forward_pre_hook(fail)
    seen = None

    def run():
        nonlocal seen
        with capture(tiny_llama) as seen:
            assert hook_count(tiny_llama) == 1 + 5 + 1
            tiny_llama(ids)

    with pytest.raises(error, match="half-way"):
        run()
    broken.remove()
    assert hook_count(tiny_llama) == 0
    tiny_llama(ids)
    assert seen is not None
    assert seen["model.layers.0.input_layernorm"].rows_seen == 7


def test_hooks_are_gone_after_an_error_while_they_are_placed():
    class Stubborn(nn.RMSNorm):
        def register_forward_pre_hook(self, *args, **kwargs):
            raise RuntimeError("no hooks here")

    model = nn.Sequential(nn.RMSNorm(4), Stubborn(4))
    with pytest.raises(RuntimeError, match="no hooks here"), capture(model):
        pass
    assert hook_count(model) == 0


def test_a_later_forward_adds_nothing_and_leaves_nothing(tiny_llama, ids):
    with torch.no_grad(), capture(tiny_llama) as seen:
        tiny_llama(ids)
    before = {layer.name: layer.rows.clone() for layer in seen}

    later = []
    spies = [
        module.register_forward_pre_hook(lambda _, args: later.append(weakref.ref(args[0])))
        for name, module in tiny_llama.named_modules()
        if name in seen.names
    ]
    tiny_llama(ids + 1)
    for spy in spies:
        spy.remove()
    gc.collect()
    assert len(later) == 5
    assert [ref() for ref in later] == [None] * 5
    for layer in seen:
        assert layer.rows_seen == 7
        assert torch.equal(layer.rows, before[layer.name])


def test_kept_rows_hold_no_buffer_of_the_model():
    net, x = Net(), torch.randn(1000, 4)
    original = x.clone()
    with capture(net, keep_rows=2) as seen:
        net(x)
    x.zero_()
    assert torch.equal(seen["first"].rows, original[seen["first"].tokens])
    assert seen["first"].rows.untyped_storage().nbytes() == 2 * 4 * 4
    assert not seen["second"].rows.requires_grad


def test_the_result_does_not_keep_the_model_alive(ids):
    net = Net()
    alive = weakref.ref(net)
    with capture(net) as seen:
        net(torch.randn(5, 4))
    del net
    gc.collect()
    assert alive() is None
    assert len(seen) == 2


def test_nested_captures_see_the_same():
    net, x = Net(), torch.randn(5, 4)
    with capture(net) as outer:
        with capture(net) as inner:
            net(x)
        net(x)
    assert (outer["first"].rows_seen, inner["first"].rows_seen) == (10, 5)
    assert torch.equal(inner["first"].rows, x)
