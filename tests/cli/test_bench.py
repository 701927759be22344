"""``mxstats bench`` without a GPU: its errors, and what it makes of measured tables."""

import json

import pandas as pd
import pytest
import torch

from mxstats.cli import bench, main
from mxstats.measure import recording
from mxstats.measure.speed.comparison import compare
from tests.measure.speed_cases import kernel_times, layer_parts

FACTS = {"device": "NVIDIA H200", "driver": "580.1", "torch": "2.11", "triton": "3.6"}


@pytest.fixture
def run(capsys):
    def command(*arguments):
        code = main(["bench", *(str(a) for a in arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return command


@pytest.fixture
def measured(monkeypatch):
    """A machine whose measurements are the synthetic tables."""
    from mxstats.measure.speed import layer

    monkeypatch.setattr(recording, "require_gpu", lambda: None)
    monkeypatch.setattr(recording, "about", lambda version: FACTS | {"mxstats": version})
    asked = []

    def kernels(shapes, names):
        asked.append((shapes, names))
        # The longest name that a table has to hold.
        return compare(kernel_times().replace("mxnorm_backward p=2", "mxnorm_backward residual"))

    monkeypatch.setattr(bench, "_kernels", kernels)
    monkeypatch.setattr(layer, "measure_layer", layer_parts)
    return asked


@pytest.mark.parametrize("what", ["kernels", "overhead", "layer"])
def test_without_a_gpu_it_says_so_in_one_line(run, monkeypatch, what):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, out, err = run("--what", what)
    assert (code, out) == (2, "")
    assert err == "mxstats: bench needs a CUDA device; torch sees none\n"


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ("4096", "shapes='4096': must be ROWSxHIDDEN, as 16384x4096"),
        ("16384x4096,", "shapes='': must be ROWSxHIDDEN"),
        ("-1x4096", "shapes='-1x4096': must be ROWSxHIDDEN"),
        ("0x4096", "shapes='0x4096': needs a row, and a hidden size from 32 to 65536"),
        ("16x100", "shapes='16x100': needs a row, and a hidden size from 32 to 65536 that 32 div"),
        ("16x131072", "shapes='16x131072': needs a row"),
    ],
)
def test_bad_shapes_are_refused_before_anything_else(run, shapes, message):
    code, out, err = run("--shapes", shapes)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


def test_shapes_are_rows_by_hidden_size():
    assert bench.parse_shapes("16384x4096, 8x32") == [(16384, 4096), (8, 32)]


def test_the_table_fits_a_terminal_and_shows_the_ratios(run, measured):
    code, out, err = run("--shapes", "16384x4096", "--case", "forward")
    assert (code, err) == (0, "")
    assert measured == [([(16384, 4096)], ["forward"])]
    assert max(map(len, out.splitlines())) <= 80
    assert out.startswith("NVIDIA H200, driver 580.1, torch 2.11, triton 3.6\n")
    of_shape = out[out.index("16384 × 4096") : out.index("16384 × 5120")]
    line = next(one for one in of_shape.splitlines() if "mxnorm p=2" in one)
    # 3 · 2^26 bytes at 4 TB/s in 1.02 times that; the span 0.99 to 1.02 of it halved.
    assert line.split()[2:] == ["51.3", "0.8", "201", "3.92", "98.0%", "1.96", "2.94", "1.04"]
    # 25 and 50 MB fit into 60 MiB.
    assert "2048 × 4096, fits the cache*" in out
    assert out.count("cache*") == 1
    assert "×Liger" not in out


def test_the_file_holds_the_table_and_where_it_was_measured(run, measured, tmp_path):
    path = tmp_path / "run.parquet"
    code, out, _ = run("--json", "--out", path)
    assert code == 0
    table, facts = recording.read(path)
    wanted = kernel_times()["time_us"]
    pd.testing.assert_series_equal(table["time_us"], wanted)
    assert {"share_of_copy", "vs_compiled", "device"} <= set(table.columns)
    assert facts["device"] == "NVIDIA H200"
    lines = json.loads(out)
    assert len(lines) == len(table)
    assert lines[0]["vs_liger"] is None
    assert lines[0]["share_of_copy"] == pytest.approx(1 / 1.02)


def test_a_layer_is_shown(run, measured):
    code, out, _ = run("--what", "layer")
    assert code == 0
    assert "SwiGLU + cast" in out
    assert max(map(len, out.splitlines())) <= 80


def test_help_names_it(capsys):
    assert main(["--help"]) == 0
    assert "bench" in capsys.readouterr().out
