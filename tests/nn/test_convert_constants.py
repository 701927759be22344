"""Constants of a converted model: where they come from and what is refused; other bad input."""

import copy
import json

import numpy as np
import pytest
import torch
from torch import nn

from mxstats import MxstatsError
from mxstats.nn import convert
from mxstats.nn.constants import ConstantsError
from mxstats.theory import constant
from tests.nn.tiny_models import HIDDEN, TINY_MODELS, tiny_ids, tiny_llama

FIRST, SECOND = "model.layers.0.input_layernorm", "model.layers.1.post_attention_layernorm"


def norm_at(model, name):
    return model.get_submodule(name)


class TestConstants:
    def test_one_number_is_for_all(self):
        converted, report = convert(tiny_llama(), constants=2, final_norm=True)
        norms = report[report.became.isin(["SharedMXNorm", "FinalMXNorm"])]
        assert len(norms) == 5
        assert (norms.constant == 2.0).all()
        assert norms.note.str.contains("given constant").all()
        assert all(norm_at(converted, name).norm.c == 2.0 for name in norms.module)

    def test_names_have_their_own_and_the_rest_the_gaussian(self):
        given = {FIRST: 1.5, SECOND: np.array([0.2, 0.25]), "model.norm": np.float64(1.75)}
        converted, report = convert(tiny_llama(), constants=given, final_norm=True)
        by_name = report.set_index("module")
        assert by_name.constant[FIRST] == norm_at(converted, FIRST).norm.c == 1.5
        assert by_name.constant["model.norm"] == norm_at(converted, "model.norm").norm.c == 1.75
        assert np.isnan(by_name.constant[SECOND])
        assert "weights of 2 blocks" in by_name.note[SECOND]
        weighted = norm_at(converted, SECOND)
        assert weighted.norm.c is None
        assert torch.equal(weighted.block_weights, torch.tensor([0.2, 0.25]))
        gaussian = constant(p=2, block_size=32, hidden_size=HIDDEN)
        other = "model.layers.1.input_layernorm"
        assert norm_at(converted, other).norm.c == pytest.approx(gaussian, rel=1e-12)
        assert "Gaussian" in by_name.note[other]

    def test_weights_of_one_constant_give_its_numbers(self):
        model, c = tiny_llama(), 2.0
        _, report = convert(model)
        weight = torch.full((2,), c**-2)
        weights = dict.fromkeys(report.module[report.became == "SharedMXNorm"], weight)
        with torch.no_grad():
            found = convert(model, constants=weights)[0](tiny_ids()).logits
            wanted = convert(model, constants=c)[0](tiny_ids()).logits
        # 1/c² is a power of two here: the same numbers, summed in float64 in either way.
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)

    def test_given_tensors_are_copied(self):
        weights = torch.tensor([0.2, 0.25])
        converted, _ = convert(tiny_llama(), constants={FIRST: weights})
        weights.zero_()
        assert norm_at(converted, FIRST).block_weights.min() > 0.1
        assert not any("block_weights" in name for name in converted.state_dict())

    @pytest.mark.parametrize("family", ["gemma3", "qwen3"])
    def test_norms_that_stay_may_be_named_too(self, family):
        """As a calibration of every norm of a model names them."""
        model = TINY_MODELS[family]()
        names = [name for name, module in model.named_modules() if "RMSNorm" in repr(type(module))]
        report = convert(model, constants=dict.fromkeys(names, 2.0), final_norm=True)[1]
        became = report.set_index("module").loc[names, "became"]
        behind = ("post_attention_layernorm", "post_feedforward_layernorm")
        ends = ("q_norm", "k_norm", *(behind if family == "gemma3" else ()))
        stay = [name for name in names if name.endswith(ends)]
        assert len(stay) == {"gemma3": 8, "qwen3": 4}[family]
        assert sorted(became.index[became == "unchanged"]) == sorted(stay)
        with pytest.raises(ValueError, match="no norm that is converted"):
            convert(model, constants={names[0] + "x": 2.0})

    def test_a_file(self, tmp_path):
        path = tmp_path / "constants.json"
        content = {"p": 2, "block_size": 32, "model": "llama", "constants": {FIRST: 1.5}}
        path.write_text(json.dumps({**content, "weights": {SECOND: [0.2, 0.25]}}))
        for given in (path, str(path)):
            converted, _ = convert(tiny_llama(), constants=given)
            assert norm_at(converted, FIRST).norm.c == 1.5
            assert norm_at(converted, SECOND).block_weights.tolist() == pytest.approx([0.2, 0.25])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"constants": {"model.la', "not a whole JSON file"),
        ("[1, 2]", "'constants' or 'weights'"),
        ("{}", "'constants' or 'weights'"),
        ('{"constants": [1]}', "'constants' must be an object"),
        (f'{{"constants": {{"{FIRST}": "1.5"}}}}', f"constants['{FIRST}'] must be a number"),
        (f'{{"constants": {{"{FIRST}": true}}}}', f"constants['{FIRST}'] must be a number"),
        (f'{{"weights": {{"{FIRST}": 0.2}}}}', f"weights['{FIRST}'] must be a list of numbers"),
        (f'{{"weights": {{"{FIRST}": []}}}}', f"weights['{FIRST}'] must be a list of numbers"),
        (
            f'{{"constants": {{"{FIRST}": 1.5}}, "weights": {{"{FIRST}": [0.2, 0.2]}}}}',
            f"'{FIRST}' has both a constant and weights",
        ),
        ('{"p": 1.0, "constants": {}}', "made for p=1.0, not 2.0"),
        ('{"block_size": 16, "constants": {}}', "made for block_size=16, not 32"),
    ],
)
def test_a_file_that_is_wrong(tmp_path, content, said):
    path = tmp_path / "constants.json"
    path.write_text(content)
    with pytest.raises(ConstantsError) as caught:
        convert(tiny_llama(), constants=path)
    assert isinstance(caught.value, MxstatsError)
    assert isinstance(caught.value, ValueError)
    one_line(caught, str(path), said)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConstantsError) as caught:
        convert(tiny_llama(), constants=tmp_path / "none.json")
    one_line(caught, "none.json: No such file")


def one_line(caught, *parts):
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"constants": {"model.layers.0.input_norm": 2.0}}, ValueError, [repr(FIRST)]),
        ({"constants": {"model.norm": 2.0}}, ValueError, ["'model.norm'", "closest"]),
        ({"constants": {FIRST: [0.2]}}, ValueError, [FIRST, "(2,) is needed"]),
        ({"constants": {FIRST: [0.2, 0.2]}, "p": 1.0}, ValueError, [FIRST, "p=1"]),
        ({"constants": {FIRST: [0.2, -0.2]}}, ValueError, [FIRST, "above 0"]),
        ({"constants": {FIRST: float("nan")}}, ValueError, [FIRST, "nan"]),
        ({"constants": {FIRST: "2.0"}}, TypeError, [FIRST, "must be a number, or an array"]),
        ({"constants": {FIRST: [[0.2, 0.2]]}}, TypeError, [FIRST, "one weight for each block"]),
        ({"constants": {FIRST: None}}, TypeError, [FIRST]),
        ({"constants": [2.0]}, TypeError, ["list"]),
        ({"constants": True}, TypeError, ["bool"]),
        ({"constants": 0.0}, ValueError, ["c=0"]),
        ({"constants": 2.0, "norm": "rmsnorm"}, ValueError, ["norm='rmsnorm' has none"]),
        ({"norm": "layernorm"}, ValueError, ["norm='layernorm'", "mxnorm, rmsnorm"]),
        ({"p": 0.0}, ValueError, ["p=0"]),
        ({"block_size": 128}, ValueError, [FIRST, "=64: below block_size=128"]),
        ({"fmt": None, "scale_rule": "ceil"}, ValueError, ["scale_rule"]),
        ({"fmt": "MXFP9"}, ValueError, ["MXFP9"]),
        ({"operands": "float64"}, ValueError, ["operands='float64'"]),
        ({"backend": "cuda"}, ValueError, ["backend='cuda'"]),
    ],
)
def test_options_that_do_not_fit(options, error, said):
    with pytest.raises(error) as caught:
        convert(tiny_llama(), **options)
    one_line(caught, *said)


class TestModelsThatDoNotFit:
    def test_no_module(self):
        with pytest.raises(TypeError, match="dict"):
            convert({})

    def test_an_unknown_family_is_named_with_its_norms(self):
        from transformers import Olmo2Config, Olmo2ForCausalLM

        config = Olmo2Config(
            vocab_size=32,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            pad_token_id=0,
        )
        with pytest.raises(ValueError) as caught:
            convert(Olmo2ForCausalLM(config))
        one_line(
            caught,
            "Olmo2ForCausalLM",
            "model.layers.*.post_attention_layernorm (Olmo2RMSNorm)",
            "model.norm (Olmo2RMSNorm)",
            "Llama, Mistral",
        )

    def test_a_class_of_the_same_name_from_elsewhere_is_unknown(self):
        class LlamaDecoderLayer(nn.Module):
            pass

        with pytest.raises(ValueError, match="norms are none"):
            convert(nn.Sequential(LlamaDecoderLayer()))

    @pytest.mark.parametrize(
        "name",
        ["self_attn.k_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm"],
    )
    def test_a_layer_that_lacks_a_module(self, name):
        model = tiny_llama()
        parent, _, leaf = f"model.layers.1.{name}".rpartition(".")
        delattr(model.get_submodule(parent), leaf)
        with pytest.raises(ValueError) as caught:
            convert(model)
        one_line(caught, f"there is no model.layers.1.{name}")

    def test_another_kind_of_linear(self):
        class Adapted(nn.Linear):
            pass

        model = tiny_llama()
        model.model.layers[0].mlp.gate_proj = Adapted(HIDDEN, 96, bias=False)
        with pytest.raises(ValueError) as caught:
            convert(model)
        one_line(caught, "model.layers.0.mlp.gate_proj", "Adapted", "torch.nn.Linear is needed")

    def test_a_converted_model(self):
        converted, _ = convert(tiny_llama())
        with pytest.raises(ValueError) as caught:
            convert(converted)
        one_line(caught, FIRST, "SharedMXNorm", "LlamaRMSNorm is needed")

    def test_a_compiled_model(self):
        with pytest.raises(ValueError) as caught:
            convert(torch.compile(tiny_llama()))
        one_line(caught, "OptimizedModule", "before compiling")

    def test_a_head_that_is_not_there(self):
        with pytest.raises(ValueError) as caught:
            convert(tiny_llama().model, head=True)
        one_line(caught, "head=True: LlamaModel has no lm_head")

    def test_the_model_is_untouched_by_a_failure(self):
        model = tiny_llama()
        before = copy.deepcopy(model)
        with pytest.raises(ValueError):
            convert(model, constants={SECOND: [0.1]})
        assert str(model) == str(before)

    def test_a_linear_given_a_tensor(self):
        converted, _ = convert(tiny_llama())
        with pytest.raises(TypeError) as caught:
            converted.model.layers[0].self_attn.q_proj(torch.zeros(1, HIDDEN))
        one_line(caught, "takes what its norm returns, got Tensor")


def test_a_model_without_a_head_and_one_inside_another():
    model = tiny_llama()
    converted, report = convert(model.model, norm="rmsnorm", fmt=None)
    with torch.no_grad():
        found = converted(tiny_ids()).last_hidden_state
        # As for logits: float32 operations in another order.
        torch.testing.assert_close(found, model.model(tiny_ids())[0], rtol=1e-5, atol=1e-5)
    assert "layers.0.input_layernorm" in set(report.module)
    outer = nn.ModuleDict({"net": TINY_MODELS["gemma3"]()})
    _, report = convert(outer, constants={"net.model.layers.0.input_layernorm": 2.0})
    assert (report.constant == 2.0).sum() == 1
