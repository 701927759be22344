"""Captures of models as they are trained and run: counted once, of any dtype, under any call."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mxstats.activations import capture
from mxstats.activations.statistics import tensors_of


class Checkpointed(nn.Module):
    """Two norms, each with a linear map that gives it a gradient, recomputed in the backward."""

    def __init__(self, use_reentrant):
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList(nn.Sequential(nn.RMSNorm(8), nn.Linear(8, 8)) for _ in range(2))
        self.use_reentrant = use_reentrant

    def forward(self, x):
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=self.use_reentrant)
        return x


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_forward_repeated_by_checkpointing_counts_once(use_reentrant):
    model, x = Checkpointed(use_reentrant), torch.randn(5, 8, requires_grad=True)
    forwards = []
    spy = model.parts[0][0].register_forward_pre_hook(lambda *_: forwards.append(None))
    with capture(model, block_size=4) as seen:
        for _ in range(2):
            model(x).sum().backward()
    spy.remove()
    assert len(forwards) == 4
    assert x.grad is not None
    for layer in seen:
        assert (layer.calls, layer.rows_seen) == (2, 10)
        assert int(layer.statistics.rows) == 10
    assert torch.equal(seen["parts.0.0"].rows, torch.cat([x, x]).detach())


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_of_transformers(tiny_llama, ids, use_reentrant):
    with torch.no_grad(), capture(tiny_llama) as plain:
        tiny_llama(ids)
    tiny_llama.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    tiny_llama.train()
    tiny_llama.model.embed_tokens.weight.requires_grad_(True)
    with capture(tiny_llama) as seen:
        tiny_llama(ids, labels=ids).loss.backward()
    assert tiny_llama.model.layers[0].mlp.up_proj.weight.grad is not None
    for layer in seen:
        assert layer.rows_seen == 7
        # The same kernels on the same rows.
        assert torch.equal(layer.rows, plain[layer.name].rows)


def test_bfloat16_weights(tiny_llama, ids):
    model = tiny_llama.to(torch.bfloat16)
    with torch.no_grad(), capture(model) as seen:
        model(ids)
    for layer in seen:
        assert layer.rows.dtype == torch.bfloat16
        assert layer.statistics.channel_sums.dtype == torch.float64
        np.testing.assert_array_equal(
            layer.statistics.channel_absmax, layer.rows.double().abs().amax(0)
        )


@pytest.mark.parametrize("how", ["positional", "keyword", "embedded", "one row"])
def test_token_ids_however_the_model_is_called(tiny_llama, ids, how):
    with torch.no_grad(), capture(tiny_llama) as seen:
        if how == "positional":
            tiny_llama(ids)
        elif how == "keyword":
            tiny_llama(attention_mask=torch.ones_like(ids), input_ids=ids)
        elif how == "embedded":
            tiny_llama(inputs_embeds=tiny_llama.model.embed_tokens(ids))
        else:
            tiny_llama.model(ids)
    tokens = seen.tokens() if how != "one row" else None
    if tokens is None:
        # Only a part was called, whose tokens nobody has told.
        assert len(seen.tokens()) == 0
    else:
        assert tokens["token"].tolist() == list(range(7))
        assert tokens["position"].tolist() == list(range(7))
        expected = [-1] * 7 if how == "embedded" else ids[0].tolist()
        assert tokens["token_id"].tolist() == expected
    assert seen["model.norm"].tokens.tolist() == list(range(7))


def test_several_passes_and_batches_number_tokens_on(tiny_llama, ids):
    batch = torch.cat([ids, ids + 1])
    with torch.no_grad(), capture(tiny_llama) as seen:
        tiny_llama(batch)
        tiny_llama(ids[:, :3])
    tokens = seen.tokens()
    assert tokens["token"].tolist() == list(range(17))
    assert tokens["position"].tolist() == [*range(7), *range(7), *range(3)]
    assert tokens["window"].tolist() == [0] * 7 + [7] * 7 + [14] * 3
    assert tokens["token_id"].tolist() == [*batch.flatten().tolist(), *ids[0, :3].tolist()]
    counts = seen["model.norm"].statistics.position_rows
    assert counts.tolist() == [3, 3, 3, 2, 2, 2, 2, 0]
    assert (seen.passes, seen.tokens_read) == (2, 17)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_positions_go_on_from_a_cache(tiny_llama, ids, name):
    with torch.no_grad(), capture(tiny_llama) as seen:
        cache = tiny_llama(ids, use_cache=True).past_key_values
        tiny_llama(ids[:, :1], **{name: cache})
        tiny_llama(ids[:, :2], position_ids=torch.tensor([[4, 9]]))
    assert seen.tokens()["position"].tolist() == [*range(7), 7, 4, 9]


def test_rows_of_a_token_stand_together_where_heads_come_first(tiny_gemma3, ids):
    # Gemma 3 norms queries as [batch, heads, length, 8].
    with torch.no_grad(), capture(tiny_gemma3) as seen:
        tiny_gemma3(ids)
    layer = tiny_gemma3.model.layers[0]
    normed = layer.input_layernorm(seen["model.layers.0.input_layernorm"].rows)
    query = seen["model.layers.0.self_attn.q_norm"]
    assert query.group == 4
    # The product is of another shape here, so its sums may be ordered otherwise.
    torch.testing.assert_close(
        query.rows, layer.self_attn.q_proj(normed).reshape(-1, 8).detach(), rtol=1e-5, atol=1e-7
    )
    np.testing.assert_array_equal(query.tokens, np.arange(7))
    assert query.statistics.position_rows[:7].tolist() == [4] * 7


def test_nested_captures_do_not_disturb_each_other(tiny_llama, ids):
    with torch.no_grad(), capture(tiny_llama, "*norm", keep_rows=3) as outer:
        tiny_llama(ids)
        with capture(tiny_llama, "*.0.*norm") as inner:
            tiny_llama(ids + 1)
    assert (outer.tokens_read, inner.tokens_read) == (14, 7)
    assert len(inner) == 2
    assert inner.tokens()["token_id"].tolist() == (ids + 1)[0].tolist()


def test_inference_mode_and_gradients_give_the_same(tiny_llama, ids):
    with torch.inference_mode(), capture(tiny_llama) as one:
        tiny_llama(ids)
    with capture(tiny_llama) as two:
        with torch.inference_mode():
            tiny_llama(ids)
        tiny_llama(ids)
    assert not two["model.norm"].rows.requires_grad
    assert torch.equal(two["model.norm"].rows[:7], one["model.norm"].rows)
    assert int(two["model.norm"].statistics.rows) == 14


def test_statistics_are_those_of_all_rows_though_few_are_kept(tiny_llama):
    torch.manual_seed(1)
    many = torch.randint(0, 64, (4, 16))
    with torch.no_grad():
        with capture(tiny_llama, keep_rows=5, block_size=8) as few:
            for part in many:
                tiny_llama(part[None])
        with capture(tiny_llama, block_size=8) as every:
            for part in many:
                tiny_llama(part[None])
        with capture(tiny_llama, keep_rows=0) as none:
            tiny_llama(many[:1])
    for layer in few:
        whole = every[layer.name]
        assert len(layer.rows) == 5
        assert torch.equal(layer.rows, whole.rows[layer.tokens])
        np.testing.assert_array_equal(layer.tokens, few.tokens()["token"])
        for name, tensor in tensors_of(layer.statistics).items():
            assert torch.equal(tensor, tensors_of(whole.statistics)[name])
    assert few.tokens()["token_id"].tolist() == many.flatten()[few["model.norm"].tokens].tolist()
    assert none["model.norm"].statistics is not None
    with capture(tiny_llama, statistics=False) as bare:
        tiny_llama(many[:1])
    assert bare["model.norm"].statistics is None


def test_norms_of_converted_models_are_found():
    from mxstats.activations.pick import pick_modules

    names = ["SharedMXNorm", "SharedRMSNorm", "FinalMXNorm", "MXNorm", "MXNormLinear"]
    kinds = [type(name, (nn.Identity,), {}) for name in names]
    assert len(pick_modules(nn.Sequential(*(kind() for kind in kinds), nn.Identity()))) == 5


def test_a_model_converted_by_mxstats(tiny_llama, ids):
    import copy

    from mxstats.nn import convert

    converted, _ = convert(copy.deepcopy(tiny_llama), norm="mxnorm", p=2.0)
    with torch.no_grad():
        with capture(converted) as seen:
            converted(ids)
        with capture(tiny_llama) as plain:
            tiny_llama(ids)
    assert len(seen) == len(plain)
    first = plain["model.layers.0.input_layernorm"].rows
    assert torch.equal(next(iter(seen)).rows, first)
