"""A converted model: the same numbers where nothing is changed, the same names, and the report."""

import copy

import pytest
import torch

from mxstats.nn import MXLinear, convert
from mxstats.nn.shared import FinalMXNorm, Projection, SharedMXNorm, SharedRMSNorm
from mxstats.theory import constant
from tests.nn.tiny_models import HIDDEN, TINY_MODELS, tiny_gemma2, tiny_ids, tiny_llama

# Two orders of float32 operations over 2 layers of 64-term sums: a few units of 2⁻²⁴ ≈ 6e-8 of
# logits near 1; what a lost or doubled gain or bias changes is above 1e-2.
SAME = {"rtol": 1e-5, "atol": 2e-6}


def logits(model, ids=None):
    with torch.no_grad():
        return model(tiny_ids() if ids is None else ids).logits


@pytest.mark.parametrize("family", TINY_MODELS)
def test_rmsnorm_without_cast_is_the_model_itself(family):
    model = TINY_MODELS[family]()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    converted, _ = convert(model, norm="rmsnorm", fmt=None)
    torch.testing.assert_close(logits(converted), logits(model), **SAME)
    assert type(converted) is type(model)
    assert type(converted.model.layers[0].input_layernorm) is SharedRMSNorm
    assert type(model.model.layers[0].input_layernorm).__name__.endswith("RMSNorm")
    assert type(model.model.layers[0].self_attn.q_proj) is torch.nn.Linear
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.model
def test_rmsnorm_without_cast_is_smollm2_itself(smollm2, license_windows):
    model, _ = smollm2
    ids = torch.tensor([license_windows[0][:64]])
    converted, _ = convert(model, norm="rmsnorm", fmt=None)
    wanted, found = logits(model, ids), logits(converted, ids)
    # 30 layers, logits up to about 30, hidden states with outliers near 1e4 that round by 5e-4.
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-3)
    assert torch.equal(found.argmax(-1), wanted.argmax(-1))


@pytest.mark.parametrize("family", TINY_MODELS)
@pytest.mark.parametrize("norm", ["mxnorm", "rmsnorm"])
def test_with_rounding_logits_stay_near(family, norm):
    model = TINY_MODELS[family]()
    converted, _ = convert(model, norm=norm, final_norm=True, head=True)
    wanted = logits(model)
    error = (logits(converted) - wanted).norm() / wanted.norm()
    # E4M3 rounds by 2.6 % (rms) and K = 2 blocks leave MXNorm 11 %; a part that is lost or doubled
    # moves them by their own size.
    assert 1e-4 < error < (0.4 if norm == "mxnorm" else 0.15)


@pytest.mark.parametrize("family", TINY_MODELS)
@pytest.mark.parametrize("tied", [False, True])
def test_state_dicts_are_each_others(family, tied):
    model = TINY_MODELS[family](tie_word_embeddings=tied)
    converted, _ = convert(model, final_norm=True, head=True)
    assert list(converted.state_dict()) == list(model.state_dict())
    names = [name for name, _ in model.named_parameters()]
    assert [name for name, _ in converted.named_parameters()] == names
    other = TINY_MODELS[family](seed=1, tie_word_embeddings=tied)
    to_original, to_converted = other, copy.deepcopy(converted)
    to_converted.load_state_dict(other.state_dict(), strict=True)
    for name, value in to_converted.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    to_original.load_state_dict(converted.state_dict(), strict=True)
    assert torch.equal(logits(to_original), logits(model))
    assert (converted.lm_head.weight is converted.model.embed_tokens.weight) == tied


@pytest.mark.parametrize("tied", [False, True])
def test_a_saved_converted_model_loads_as_the_original(tied, tmp_path):
    model = tiny_llama(tie_word_embeddings=tied)
    converted, _ = convert(model, final_norm=True, head=True)
    converted.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert torch.equal(logits(loaded), logits(model))


def test_parameters_are_shared_and_a_deep_copy_has_its_own():
    model = tiny_llama()
    converted, _ = convert(model, final_norm=True, head=True)
    for name, parameter in model.named_parameters():
        assert converted.get_parameter(name) is parameter, name
    apart = copy.deepcopy(converted)
    layer = apart.model.layers[0]
    assert layer.input_layernorm.readers[0] is layer.self_attn.q_proj
    before = logits(converted)
    with torch.no_grad():
        layer.self_attn.q_proj.weight.zero_()
    assert torch.equal(logits(converted), before)
    assert not torch.equal(logits(apart), before)


def test_train_and_eval_are_carried_over():
    model = tiny_llama().train()
    assert all(module.training for module in convert(model)[0].modules())
    assert not any(module.training for module in convert(model.eval())[0].modules())


def test_converted_to_bfloat16_keeps_the_weights_of_blocks():
    model = tiny_llama()
    weights = [0.17001, 0.19003]
    converted, _ = convert(model, constants={"model.layers.0.input_layernorm": weights})
    converted.to(torch.bfloat16)
    norm = converted.model.layers[0].input_layernorm
    assert norm.weight.dtype == torch.bfloat16
    assert torch.equal(norm.block_weights, torch.tensor(weights))
    assert logits(converted).dtype == torch.bfloat16


def test_a_gain_of_one_plus_gamma():
    model = tiny_gemma2()
    converted, _ = convert(model, fmt=None, final_norm=True)
    norm, x = (
        converted.model.norm,
        torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(0)),
    )
    absmax = x.double().abs().unflatten(-1, (2, 32)).amax(-1)
    square = absmax.square().mean(-1, keepdim=True) / constant(p=2, block_size=32) ** 2
    wanted = x.double() / (square + model.model.norm.eps).sqrt()
    wanted = wanted * (1 + model.model.norm.weight.detach().double())
    # ρ̃ and two products, each rounded to float32.
    torch.testing.assert_close(norm(x).double(), wanted, rtol=4 * 2**-24, atol=0)


class TestReport:
    def test_has_every_module_and_what_became_of_it(self):
        model = TINY_MODELS["gemma3"]()
        converted, report = convert(model, final_norm=True, head=True)
        assert list(report.columns) == ["module", "kind", "became", "constant", "blocks", "note"]
        wanted = [
            name
            for name, module in model.named_modules()
            if list(module.parameters(recurse=False)) or not list(module.children())
        ]
        assert list(report.module) == wanted
        assert (report.note != "").all()
        for row in report.itertuples():
            assert type(model.get_submodule(row.module)).__name__ == row.kind
            now = type(converted.get_submodule(row.module)).__name__
            assert now == (row.kind if row.became == "unchanged" else row.became)
        by_name = report.set_index("module")
        first = by_name.loc["model.layers.0.input_layernorm"]
        assert first.became == "SharedMXNorm"
        assert first.constant == pytest.approx(constant(p=2, block_size=32, hidden_size=HIDDEN))
        assert first.blocks == 2
        assert "q_proj, k_proj, v_proj" in first.note
        assert "Gaussian" in first.note
        assert "no linear reads it" in by_name.note["model.layers.0.self_attn.q_norm"]
        assert "behind" in by_name.note["model.layers.1.post_attention_layernorm"]
        assert by_name.became["model.layers.1.mlp.down_proj"] == "MXLinear"
        assert "model.embed_tokens" in by_name.note["lm_head"]

    def test_says_what_stays_and_why(self):
        by_name = convert(tiny_llama())[1].set_index("module")
        assert by_name.note["model.norm"] == "final_norm=False"
        assert by_name.note["lm_head"] == "head=False"
        by_name = convert(tiny_llama(), linears=False)[1].set_index("module")
        assert by_name.note["model.layers.0.mlp.down_proj"] == "linears=False"
        by_name = convert(tiny_llama(), fmt=None, head=True)[1].set_index("module")
        assert by_name.became["model.layers.0.mlp.down_proj"] == "unchanged"
        assert "fmt=None" in by_name.note["lm_head"]
        report = convert(tiny_llama(), norm="rmsnorm", final_norm=True)[1]
        assert "rmsnorm" in report.set_index("module").note["model.norm"]
        assert report.constant.isna().all()


def test_kinds_of_modules():
    converted, _ = convert(tiny_llama(), fmt="MXFP8_E5M2", p=1.0, final_norm=True, head=True)
    layer = converted.model.layers[1]
    assert type(layer.post_attention_layernorm) is SharedMXNorm
    assert type(layer.mlp.up_proj) is Projection
    assert type(layer.mlp.down_proj) is MXLinear
    assert type(converted.lm_head) is MXLinear
    assert type(converted.model.norm) is FinalMXNorm
    assert layer.post_attention_layernorm.norm.p == 1.0
    assert layer.mlp.down_proj.cast.fmt == layer.post_attention_layernorm.cast.fmt
    assert "output 1 of its norm" in repr(layer.mlp.up_proj)
    assert "p=1" in repr(layer.post_attention_layernorm)
