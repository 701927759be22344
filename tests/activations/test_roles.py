import pytest

from mxstats.activations import capture
from mxstats.activations.roles import layer_index, role_of


def roles(model, ids):
    with capture(model) as seen:
        model(ids)
    return {layer.name: (layer.role, layer.index) for layer in seen}


def test_llama(tiny_llama, ids):
    assert roles(tiny_llama, ids) == {
        "model.layers.0.input_layernorm": ("pre-attention", 0),
        "model.layers.0.post_attention_layernorm": ("pre-mlp", 0),
        "model.layers.1.input_layernorm": ("pre-attention", 1),
        "model.layers.1.post_attention_layernorm": ("pre-mlp", 1),
        "model.norm": ("final", None),
    }


def test_qwen3(tiny_qwen3, ids):
    found = roles(tiny_qwen3, ids)
    assert len(found) == 9
    assert found["model.layers.1.self_attn.q_norm"] == ("query", 1)
    assert found["model.layers.1.self_attn.k_norm"] == ("key", 1)
    assert found["model.layers.1.post_attention_layernorm"] == ("pre-mlp", 1)
    assert found["model.norm"] == ("final", None)


def test_gemma3_has_sandwich_norms(tiny_gemma3, ids):
    found = roles(tiny_gemma3, ids)
    assert len(found) == 13
    assert {name.rpartition(".")[2]: role for name, (role, i) in found.items() if i == 1} == {
        "q_norm": "query",
        "k_norm": "key",
        "input_layernorm": "pre-attention",
        "post_attention_layernorm": "post-attention",
        "pre_feedforward_layernorm": "pre-mlp",
        "post_feedforward_layernorm": "post-mlp",
    }


@pytest.mark.parametrize(
    ("name", "beside", "role"),
    [
        # OLMo 2: norms behind both parts, none before.
        ("l.layers.3.post_attention_layernorm", "post_feedforward_layernorm", "post-attention"),
        # GLM 4: post_attention_layernorm feeds the MLP, the sandwich norms have other names.
        ("l.layers.3.post_attention_layernorm", "post_mlp_layernorm", "pre-mlp"),
        ("l.layers.3.post_self_attn_layernorm", "post_attention_layernorm", "post-attention"),
        # DeepSeek V3: norms on the compressed query and key.
        ("l.layers.3.self_attn.q_a_layernorm", "o_proj", "query"),
        ("l.layers.3.self_attn.kv_a_layernorm", "o_proj", "key"),
        # A norm of a vision tower's projector, and one called norm inside a layer.
        ("model.multi_modal_projector.mm_soft_emb_norm", "linear", "other"),
        ("l.layers.3.norm", "mlp", "other"),
        ("norm", "layers", "final"),
    ],
)
def test_names_of_other_families(name, beside, role):
    parent = name.rpartition(".")[0]
    assert role_of(name, {name, f"{parent}.{beside}"}) == role


def test_layer_index():
    assert layer_index("model.layers.17.self_attn.q_norm") == 17
    assert layer_index("layers.0") == 0
    assert layer_index("model.my_layers.3.norm") is None
    assert layer_index("model.norm") is None
