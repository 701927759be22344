import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from mxstats.activations import capture
from mxstats.errors import CaptureError


class Net(nn.Module):
    """Two plain norms: the first gets its input by keyword, the second by position."""

    def __init__(self):
        super().__init__()
        self.first = nn.RMSNorm(4)
        self.second = nn.RMSNorm(4)
        self.embedding = nn.Embedding(3, 4)

    def forward(self, x):
        return self.second(self.first(x=x) + 1)


def llama_norm_inputs(model, ids):
    """The residual stream of a Llama, written out by hand in float64, from its weights alone."""
    weights = {name: value.double() for name, value in model.state_dict().items()}
    config = model.config
    heads, groups, dim = (
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
    )
    length = ids.shape[1]
    inverse = config.rope_parameters["rope_theta"] ** (-torch.arange(0, dim, 2).double() / dim)
    angles = torch.outer(torch.arange(length).double(), inverse)
    cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()

    def norm(x, name):
        return x / (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * weights[name]

    def rotate(x):
        return x * cos + torch.cat([-x[..., dim // 2 :], x[..., : dim // 2]], -1) * sin

    def split(x, count):
        return x.reshape(length, count, dim).transpose(0, 1)

    x, seen = weights["model.embed_tokens.weight"][ids[0]], {}
    future = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
    for i in range(config.num_hidden_layers):
        prefix = f"model.layers.{i}."
        seen[prefix + "input_layernorm"] = x
        y = norm(x, prefix + "input_layernorm.weight")
        q, k, v = (y @ weights[f"{prefix}self_attn.{name}_proj.weight"].T for name in "qkv")
        q, k, v = rotate(split(q, heads)), rotate(split(k, groups)), split(v, groups)
        k, v = (part.repeat_interleave(heads // groups, 0) for part in (k, v))
        scores = (q @ k.transpose(1, 2) / dim**0.5).masked_fill(future, -torch.inf).softmax(-1)
        mixed = (scores @ v).transpose(0, 1).reshape(length, heads * dim)
        x = x + mixed @ weights[prefix + "self_attn.o_proj.weight"].T
        seen[prefix + "post_attention_layernorm"] = x
        y = norm(x, prefix + "post_attention_layernorm.weight")
        gate = nn.functional.silu(y @ weights[prefix + "mlp.gate_proj.weight"].T)
        up = y @ weights[prefix + "mlp.up_proj.weight"].T
        x = x + (gate * up) @ weights[prefix + "mlp.down_proj.weight"].T
    seen["model.norm"] = x
    return seen


def hook_count(model):
    return sum(len(module._forward_pre_hooks) for module in model.modules())


def test_rows_are_the_residual_stream_written_out_by_hand(tiny_llama, ids):
    with torch.no_grad(), capture(tiny_llama) as seen:
        tiny_llama(ids)
    expected = llama_norm_inputs(tiny_llama, ids)
    assert seen.names == list(expected)
    for layer in seen:
        assert layer.rows.dtype == torch.float32
        assert layer.rows_seen == 7
        # float32 carries 6e-8 a step through some twenty sums of 32 to 48 terms; the stream of
        # this model is about 0.02 in size.
        np.testing.assert_allclose(layer.rows, expected[layer.name], rtol=1e-5, atol=1e-7)


def test_rows_equal_the_hidden_states_that_the_model_reports(tiny_gemma3, ids):
    with torch.no_grad(), capture(tiny_gemma3, "*.input_layernorm") as seen:
        reported = tiny_gemma3(ids, output_hidden_states=True).hidden_states
    for layer, hidden in zip(seen, reported, strict=False):
        assert torch.equal(layer.rows, hidden[0])


def test_norms_on_heads_have_one_row_a_token_and_head(tiny_qwen3, ids):
    with torch.no_grad(), capture(tiny_qwen3) as seen:
        tiny_qwen3(ids)
    assert seen["model.layers.0.self_attn.q_norm"].rows.shape == (7 * 4, 8)
    assert seen["model.layers.0.self_attn.k_norm"].rows.shape == (7 * 2, 8)
    projection = tiny_qwen3.model.layers[0].self_attn.q_proj
    normed = tiny_qwen3.model.layers[0].input_layernorm(seen["model.layers.0.input_layernorm"].rows)
    # Rows of one token are consecutive: [tokens, heads * 8] reshaped, nothing transposed. The
    # product is of another shape here, so its sums may be ordered otherwise.
    torch.testing.assert_close(
        seen["model.layers.0.self_attn.q_norm"].rows,
        projection(normed).reshape(-1, 8).detach(),
        rtol=1e-5,
        atol=1e-7,
    )


def test_keyword_and_positional_inputs():
    net, x = Net(), torch.randn(2, 3, 4)
    with capture(net) as seen:
        net(x)
    flat = x.reshape(6, 4)
    rms = (flat.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt()
    assert torch.equal(seen["first"].rows, flat)
    # One division and one root in float32, against the fused norm.
    torch.testing.assert_close(seen["second"].rows, flat / rms + 1, rtol=1e-6, atol=1e-6)


def test_batches_are_flattened_and_dtype_is_kept():
    net, x = Net().to(torch.bfloat16), torch.randn(2, 3, 4, dtype=torch.bfloat16)
    with capture(net) as seen:
        net(x)
        net(x + 1)
    assert seen["first"].rows.dtype == torch.bfloat16
    assert torch.equal(seen["first"].rows, torch.cat([x.reshape(6, 4), (x + 1).reshape(6, 4)]))
    assert seen["first"].calls == 2


def test_the_first_rows_are_kept_and_all_are_counted():
    net, x = Net(), torch.randn(5, 4)
    with capture(net, keep_rows=8) as seen:
        for _ in range(3):
            net(x)
    assert seen["first"].rows_seen == 15
    assert torch.equal(seen["first"].rows, torch.cat([x, x])[:8])


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_hooks_are_gone_after_an_exception(tiny_llama, ids, error):
    def fail(*_):
        raise error("half-way")

    broken = tiny_llama.model.layers[1].mlp.register_forward_pre_hook(fail)
    seen = None

    def run():
        nonlocal seen
        with capture(tiny_llama) as seen:
            assert hook_count(tiny_llama) == 1 + 5
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
    assert torch.equal(seen["first"].rows, original[:2])
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


def test_a_module_that_was_never_called_is_named():
    net = Net()
    with (
        pytest.raises(CaptureError, match=r"never called while capturing: second;"),
        capture(net),
    ):
        net.first(torch.randn(5, 4))


def test_many_modules_never_called_are_counted():
    model = nn.Sequential(*(nn.RMSNorm(4) for _ in range(9)))
    with pytest.raises(CaptureError, match=r"9 modules: 0, 1, 2, 3, 4, …"), capture(model):
        pass


def test_an_exception_is_not_replaced_by_the_complaint_about_silent_modules():
    with pytest.raises(ZeroDivisionError), capture(Net()):
        raise ZeroDivisionError


def test_nested_captures_see_the_same():
    net, x = Net(), torch.randn(5, 4)
    with capture(net) as outer:
        with capture(net) as inner:
            net(x)
        net(x)
    assert (outer["first"].rows_seen, inner["first"].rows_seen) == (10, 5)
    assert torch.equal(inner["first"].rows, x)


@pytest.mark.parametrize(
    ("modules", "picked"),
    [
        (None, ["first", "second"]),
        (nn.RMSNorm, ["first", "second"]),
        ("sec*", ["second"]),
        (lambda name, module: isinstance(module, nn.RMSNorm) and name == "first", ["first"]),
    ],
)
def test_what_modules_picks(modules, picked):
    net = Net()
    with capture(net, modules) as seen:
        net(torch.randn(5, 4))
    assert seen.names == picked


def test_nothing_picked_says_what_there_is():
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))
    with pytest.raises(CaptureError, match="is an RMSNorm; its norm classes are LayerNorm"):
        capture(model).__enter__()
    with pytest.raises(CaptureError, match=r"named like 'x\.\*'; it has no norm class at all"):
        capture(nn.Sequential(nn.Linear(4, 4)), "x.*").__enter__()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"modules": 3}, TypeError, "modules must be None, .* got int"),
        ({"modules": int}, TypeError, "modules must be a torch.nn.Module class, got .* int"),
        ({"keep_rows": 0}, ValueError, "keep_rows must be at least 1, got 0"),
        ({"keep_rows": 1.5}, TypeError, "keep_rows must be an integer, got 1.5"),
        ({"where": "output"}, ValueError, "where must be 'input', got 'output'"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        capture(Net(), **options).__enter__()


def test_a_model_of_another_kind():
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got str"):
        capture("smollm2").__enter__()  # pyright: ignore[reportArgumentType]


def test_inputs_that_are_no_rows_name_the_module():
    net, same = Net(), nn.Sequential(nn.Identity())
    with (
        pytest.raises(CaptureError, match=r"the input of embedding is torch.int64"),
        capture(net, nn.Embedding),
    ):
        net.embedding(torch.tensor([1]))
    with capture(same, nn.Identity):
        same(torch.ones(2, 4))
        with pytest.raises(CaptureError, match=r"the input of 0 was 4 wide and is now 6"):
            same(torch.ones(2, 6))
        with pytest.raises(CaptureError, match=r"the input of 0 is a single number"):
            same(torch.tensor(1.0))
        with pytest.raises(CaptureError, match=r"the input of 0 is tuple"):
            same((1, 2))


def test_a_call_without_the_first_argument_names_the_module():
    class Pair(nn.Module):
        def forward(self, x=None, y=None, z=None):
            return y

    model = nn.Sequential(Pair())
    with capture(model, Pair):
        model[0](torch.ones(2, 4))
        with pytest.raises(CaptureError, match=r"0 was called without 'x': .*\['y', 'z'\]"):
            model[0](y=torch.ones(2, 4), z=1)


def test_an_unknown_layer():
    net = Net()
    with capture(net) as seen:
        net(torch.randn(5, 4))
    with pytest.raises(CaptureError, match="no layer 'third' was captured, only first, second"):
        seen["third"]
