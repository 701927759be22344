"""Arguments and files at the edge of what can be computed or shown."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from mxstats.activations import sample_store


def test_blocks_of_one_have_no_error(run):
    code, out, _ = run("constant", "-p", 2, "-B", 1, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["sqrt_v"], found["bias"]) == (0.0, 0.0)
    assert run("error", "-p", 2, "-B", 1)[0] == 0
    assert "nan" not in run("table", "-p", 2, "-B", 1)[1]


def test_a_finite_error_is_never_called_infinite(run):
    code, _, err = run("constant", "-p", 1e5)
    assert code == 2
    assert "beyond double precision; use a smaller p" in err


def test_the_smallest_p_is_said(run):
    code, _, err = run("table", "-p", 1e-14)
    assert code == 2
    assert "lose their digits below p = 1e-06" in err


def test_small_p_and_many_blocks_in_a_simulation(run):
    # K^(1/p) = 128^200 is beyond double precision: the bound is inf, and JSON says null.
    code, out, _ = run("simulate", "-p", 0.005, "--rows", 10, "--json")
    bound = next(one for one in json.loads(out) if one["quantity"] == "max_abs")
    assert code == 0
    assert bound["theory"] is None


def test_huge_rows_need_no_memory(run):
    code, out, _ = run("bounds", "-D", 10**18, "-B", 1, "-p", 2, "--json")
    assert code == 0
    assert json.loads(out)[1]["max_abs"] == pytest.approx(1e9)
    code, _, err = run("bounds", "-D", "1" + "0" * 400)
    assert code == 2
    assert "hidden_size must be an integer, got one beyond 64 bits" in err


def test_names_from_files_are_text_and_not_markup(run, tmp_path):
    folder = tmp_path / "store"
    shutil.copytree(sample_store().path, folder)
    manifest = folder / "manifest.json"
    about = json.loads(manifest.read_text())
    about["model"] = "[bold]x[/red]"
    manifest.write_text(json.dumps(about))
    code, out, _ = run("validate", folder, "-p", 2)
    assert code == 0
    assert "[bold]x[/red]" in out


def test_without_arguments_there_is_help_and_no_empty_error(run):
    code, out, err = run()
    assert code == 2
    assert "constant" in out
    assert err == ""


def test_a_terminal_of_ascii_gets_an_answer():
    found = subprocess.run(
        [sys.executable, "-m", "mxstats", "constant"],
        capture_output=True, check=False, env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert found.returncode == 0
    assert b"2.38945711475708" in found.stdout
    found = subprocess.run(
        [sys.executable, "-m", "mxstats", "constant", "--json"],
        capture_output=True, check=True, env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert json.loads(found.stdout)["p"] == 2.0


def test_calibrate_prints_and_serialises_a_format(run):
    code, out, _ = run("calibrate", "--fmt", "mxfp8_e4m3")
    assert code == 0
    # The checked values of the scale-only constant.
    for shown in ("2.38945711475708", "1.75546623", "1.67098588", "1.84118207", "8.25"):
        assert shown in out
    found = json.loads(run("calibrate", "--fmt", "nvfp4", "-p", 1, "--json")[1])
    assert found["scale_rule"] is None
    assert found["bits_per_element"] == 4.5
    assert found["sqnr_db"]["low"] <= found["sqnr_db"]["mean"] <= found["sqnr_db"]["high"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--fmt", "fp7"), "fmt='fp7' is unknown; known are MXFP8_E4M3"),
        (("--fmt", "nvfp4", "--scale-rule", "floor"), "NVFP4 has floating E4M3 scales"),
        (("--scale-rule", "up"), "scale_rule='up' is unknown; known are floor"),
        (("-B", "0"), "block_size=0: must be at least 1"),
    ],
)
def test_calibrate_refuses(run, arguments, message):
    code, out, err = run("calibrate", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
