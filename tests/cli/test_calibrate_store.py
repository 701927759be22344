"""``mxstats calibrate STORE``: the table, the file, and arguments that contradict each other."""

import json

import pytest

from mxstats.activations import sample_store

SAMPLE = str(sample_store().path)


def test_the_file_holds_what_is_printed(run, tmp_path):
    out = tmp_path / "constants.json"
    code, text, err = run("calibrate", SAMPLE, "--per", "layer", "-B", 16, "-p", 1, "--out", out)
    assert (code, err) == (0, "")
    content = json.loads(out.read_text())
    assert (content["p"], content["block_size"], content["per"]) == (1.0, 16, "layer")
    assert len(content["constants"]) == 61
    assert f"{content['constants']['model.norm']:.3f}" in text
    assert "bootstrap over 16 stretches of 4 tokens" in text
    found = json.loads(run("calibrate", SAMPLE, "-B", 16, "-p", 1, "--json")[1])
    assert found[-1]["c"] == pytest.approx(content["constants"]["model.norm"], rel=1e-14)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--per", "block"), "--per block: needs a STORE to fit"),
        (("--out", "x.json"), "--out x.json: needs a STORE to fit"),
        (("--first-token-weight", "2"), "--first-token-weight 2.0: needs a STORE to fit"),
        ((SAMPLE, "--dist", "laplace"), "--dist laplace: is for a format's calibration"),
        ((SAMPLE, "--scale-rule", "ceil"), "--scale-rule ceil: is for a format's calibration"),
        ((SAMPLE, "--per", "head"), "per='head' is unknown; known are model, layer, block"),
        ((SAMPLE, "--per", "block", "-p", "1"), "p=1: weights for blocks are for p=2 alone"),
        ((SAMPLE, "--out", "/nonexistent/c.json"), "the folder /nonexistent does not exist"),
        (("/nonexistent",), "/nonexistent is not an activation store"),
    ],
)
def test_errors_are_one_line(run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("calibrate", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("mxstats: ")
    assert err.count("\n") == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []
