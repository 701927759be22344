"""``mxstats validate``: the kernel, constants and the report from a command line."""

import json

import numpy as np
import pandas as pd
import pytest

from mxstats.activations import write_store
from mxstats.measure import calibrate, recording, validate
from tests.measure.stores import Layer


@pytest.fixture
def store(tmp_path):
    rows = np.random.default_rng(0).standard_normal((40, 512)).astype(np.float32)
    return write_store(
        tmp_path / "store", [Layer("norm", rows)], model="made", text="none",
        token_ids=list(range(40)), dtype="float32",
    )  # fmt: skip


def test_the_kernel_runs_where_torch_is(run, store):
    pytest.importorskip("torch")
    code, out, err = run("validate", store.path, "--fmt", "mxfp4_e2m1", "--scale-rule", "even")
    assert (code, err) == (0, "")
    assert "MXFP4_E2M1 even" in out
    assert "p = 2, holds: 1 layers." in out
    (line,) = json.loads(run("validate", store.path, "-p", 2, "--json")[1])
    assert (line["format"], line["twin_differences"]) == ("MXFP8_E4M3", None)
    (line,) = json.loads(run("validate", store.path, "-p", 2, "--json", "--no-kernel")[1])
    assert "format" not in line
    assert line["verdict"] == "holds"


def test_constants_of_a_file(run, store, tmp_path):
    pytest.importorskip("torch")
    calibrate(store, per="block").save(tmp_path / "c.json")
    (line,) = json.loads(
        run("validate", store.path, "--constants", tmp_path / "c.json", "--json")[1]
    )
    assert (line["constant_from"], line["p"]) == ("weights", 2.0)


def test_the_report_is_written(run, store, tmp_path):
    code, out, _ = run("validate", store.path, "--no-kernel", "--report", tmp_path / "r.html")
    assert code == 0
    assert "Report written to" in out
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_the_table_is_recorded_with_what_made_it(run, store, tmp_path):
    path = tmp_path / "v.parquet"
    code, out, _ = run("validate", store.path, "--no-kernel", "--out", path)
    assert code == 0
    assert f"Table written to {path}." in out
    table, facts = recording.read(path)
    pd.testing.assert_frame_equal(table, validate(store))
    assert (facts["model"], facts["text"]) == ("made, None", "none")
    assert {"device", "torch", "triton", "mxstats", "command", "date"} <= set(facts)
    code, _, err = run("validate", store.path, "--out", tmp_path / "no" / "v.parquet")
    assert code == 2
    assert err.startswith(f"mxstats: cannot write {tmp_path / 'no' / 'v.parquet'}: the folder")


def test_without_torch_the_kernel_is_left_out(run, store, monkeypatch):
    for module in ("mxstats.cli.validate", "mxstats.measure.expectations"):
        monkeypatch.setattr(f"{module}.find_spec", lambda _: None)
    code, out, err = run("validate", store.path)
    assert (code, err) == (0, "")
    assert "Kernel" not in out
    code, out, err = run("validate", store.path, "--fmt", "nvfp4")
    assert (code, out) == (2, "")
    assert err == "mxstats: the kernel: needs torch: pip install 'mxstats[torch]'\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--fmt", "fp7"), "fmt='fp7' is unknown"),
        (("--backend", "cuda"), "backend='cuda' is unknown"),
        (("--no-kernel", "--fmt", "nvfp4"), "kernel=False: fmt=nvfp4"),
        (("--report", "/nonexistent/r.html"), "the folder /nonexistent does not exist"),
        (("--constants", "/nonexistent/c.json"), "/nonexistent/c.json: No such file"),
    ],
)
def test_errors_are_one_line(run, store, arguments, message):
    code, out, err = run("validate", store.path, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("mxstats: ")
    assert err.count("\n") == 1
    assert message in err
