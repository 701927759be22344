"""``mxstats evaluate``: the table of a real model, and errors before it is loaded."""

import json

import pytest


@pytest.mark.model
def test_smollm2_on_a_few_tokens(run, tmp_path):
    file = tmp_path / "mine.json"
    name = "model.layers.0.input_layernorm"
    file.write_text(json.dumps({"p": 2.0, "block_size": 32, "constants": {name: 2.0}}))
    code, out, err = run("evaluate", "--tokens", 96, "--constants", file, "--json")
    assert code == 0, err
    found = {line["variant"]: line for line in json.loads(out)}
    assert list(found) == ["RMSNorm", "Gaussian constant", "mine.json", "noise √(V/K)"]
    assert found["RMSNorm"]["tokens"] == 95
    assert found["RMSNorm"]["penalty"] == 0.0
    # Real blocks hold outliers: the Gaussian constant is off by a factor of about two.
    assert found["Gaussian constant"]["penalty"] > 1.0 > found["noise √(V/K)"]["penalty"] > -0.5
    assert found["mine.json"]["loss"] != found["Gaussian constant"]["loss"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("/nonexistent",), "no model '/nonexistent'"),
        (("--text", "/nonexistent.txt"), "/nonexistent.txt"),
    ],
)
def test_errors_are_one_line(run, arguments, message):
    code, out, err = run("evaluate", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
