"""``mxstats distil``: weights of SmolLM2 trained a little, and errors before it is loaded."""

import json
from pathlib import Path

import numpy as np
import pytest

from mxstats.measure import read_calibration

RECORDED = Path(__file__).parents[2] / "figures" / "data" / "smollm2_135m"


@pytest.fixture
def fit(tmp_path):
    """Weights that are all alike, for the norms that the recorded fit is of."""
    content = json.loads((RECORDED / "smollm2_135m_b32.json").read_text())
    content["weights"] = {name: [0.175] * len(w) for name, w in content["weights"].items()}
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.model
def test_a_pass_lowers_the_divergence_on_windows_held_out(run, tmp_path, fit):
    out = tmp_path / "trained.json"
    arguments = ("--constants", fit, "--out", out, "--tokens", 120, "--window", 24, "--passes", 2)
    code, text, err = run("distil", *arguments)
    assert code == 0, err
    assert "KL of MXNorm's predictions from RMSNorm's on windows held out" in text
    assert f"Written to {out}" in text
    trained = read_calibration(out)
    assert trained.text == "gpl-3"
    assert trained.weights.keys() == read_calibration(fit).weights.keys()
    moved = [np.abs(np.log(w / 0.175)).max() for w in trained.weights.values()]
    # Eight steps of Adam, of at most 0.03 each.
    assert min(moved) > 0.0
    assert max(moved) < 0.3
    code, text, err = run("distil", *arguments, "--own-windows", 1, "--json")
    assert code == 0, err
    found = json.loads(text)
    assert [line["passes"] for line in found["held_out"]] == [0, 1, 2]
    kl = [line["kl"] for line in found["held_out"]]
    # A constant for all blocks is far off on this model (the README's table); any step helps.
    assert kl[2] < 0.9 * kl[0]
    assert len(found["layers"]) == 61
    assert read_calibration(out).text == "gpl-3, and text that the model wrote"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--constants": "none.json"}, "none.json: No such file"),
        ({"--out": "none/trained.json"}, "the folder none does not exist"),
        ({"--own-windows": -1}, "--own-windows -1: must be at least 0"),
        ({"--text": "none.txt"}, "none.txt"),
        ({"model": "none"}, "no model 'none'"),
    ],
)
def test_errors_are_one_line_and_nothing_is_written(
    run, tmp_path, monkeypatch, fit, change, message
):
    monkeypatch.chdir(tmp_path)
    given = {"model": "smollm2", "--constants": fit, "--out": "trained.json"} | change
    model = given.pop("model")
    code, out, err = run("distil", model, *(one for pair in given.items() for one in pair))
    assert (code, out) == (2, "")
    assert err.startswith("mxstats: ")
    assert err.count("\n") == 1
    assert message in err
    assert list(tmp_path.iterdir()) == [fit]
