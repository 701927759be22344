"""Byte formulas, and the arithmetic on tables of times, by examples worked by hand."""

import numpy as np
import pandas as pd
import pytest

from mxstats.measure import recording
from mxstats.measure.speed import traffic
from mxstats.measure.speed.comparison import compare
from mxstats.measure.speed.projection import B200, H200, gains, project, scales
from tests.measure.speed_cases import kernel_times, layer_parts


def test_bytes_of_mxnorm():
    # 2 rows of 70 in bfloat16: 280 read; codes 140, 3 blocks a row, 4 bytes of ρ̃ a row.
    assert traffic.mxnorm(2, 70) == traffic.Traffic(280, 140 + 6 + 8)
    # The residual is read, and the sum written; 3 weights of 4 bytes.
    assert traffic.mxnorm(2, 70, residual=True) == traffic.Traffic(560, 154 + 280)
    assert traffic.mxnorm(2, 70, weights=True) == traffic.Traffic(292, 154)
    # float32, blocks of 16: 5 a row.
    assert traffic.mxnorm(2, 70, itemsize=4, block_size=16) == traffic.Traffic(560, 140 + 10 + 8)
    # The ceiling table's 16384 × 4096: 128 MiB, 64 MiB, 2 MiB and 64 KiB.
    assert traffic.mxnorm(16384, 4096).total == (128 + 64 + 2) * 2**20 + 2**16


def test_bytes_of_the_others():
    assert traffic.rmsnorm_mx(2, 70) == traffic.Traffic(280 + 140, 154)
    assert traffic.mx_cast(64, 70) == traffic.Traffic(8960, 64 * 70 + 64 * 3)
    # Down the columns: 2 blocks of 32 in each of 70 columns.
    columns = traffic.mx_cast(64, 70, along_rows=False, along_columns=True)
    assert columns == traffic.Traffic(8960, 64 * 70 + 2 * 70)
    both = traffic.mx_cast(64, 70, along_columns=True)
    assert both == traffic.Traffic(8960, 4672 + 4620)
    assert traffic.mxnorm_backward(2, 70) == traffic.Traffic(560 + 8, 280)
    assert traffic.mxnorm_backward(2, 70, residual=True) == traffic.Traffic(840 + 8, 280)
    assert traffic.rmsnorm_backward(2, 70) == traffic.Traffic(560 + 8 + 140, 280 + 280)


def test_compare_takes_each_baseline_of_its_own_shape_and_direction():
    found = compare(kernel_times()).set_index(["rows", "hidden_size", "case"])
    for shape in ((16384, 4096), (2048, 4096)):
        ours = found.loc[(*shape, "mxnorm p=2")]
        # 3 bytes an element in 1.02 times what 4 TB/s takes.
        assert ours["tb_per_s"] == pytest.approx(4 / 1.02, rel=1e-12)
        assert ours["share_of_copy"] == pytest.approx(1 / 1.02, rel=1e-12)
        assert ours["vs_compiled"] == pytest.approx(2.0 / 1.02, rel=1e-12)
        assert ours["vs_compiled_in_two"] == pytest.approx(3.0 / 1.02, rel=1e-12)
        assert ours["vs_rmsnorm_mx"] == pytest.approx(1.06 / 1.02, rel=1e-12)
        assert np.isnan(ours["vs_liger"])
        back = found.loc[(*shape, "mxnorm_backward p=2")]
        assert back["vs_compiled"] == pytest.approx(1.6 / 1.1, rel=1e-12)
        assert np.isnan(back["vs_compiled_in_two"])
    assert (found.loc[(slice(None), slice(None), "compiled"), "vs_compiled"] == 1.0).all()


def test_launched_ratios_are_of_the_launched_times():
    table = kernel_times()
    slow = table["case"] == "compiled"
    table.loc[slow, "launched_us"] *= 5
    found = compare(table)
    ours = found[found["case"] == "mxnorm p=2"]
    np.testing.assert_allclose(ours["launched_vs_compiled"], 5 * ours["vs_compiled"], rtol=1e-12)
    # What was compared already can be compared again.
    pd.testing.assert_frame_equal(compare(found), found)


def test_a_layer_adds_up():
    found = project(layer_parts())
    measured = found[found["target"] == "measured"]
    by_norm = measured.pivot(index="norm", columns="group", values="time_us")
    assert by_norm.loc["MXNorm"].to_dict() == {
        "attention": 900.0, "elementwise": 200.0, "matmul": 2000.0, "norm": 60.0,
    }  # fmt: skip
    # 900 + 200 + 2000 + 100 against the same with 60.
    gain = gains(found)
    assert gain.loc["measured", "compiled RMSNorm + cast"] == pytest.approx(3200 / 3160 - 1)
    assert "MXNorm" not in gain.columns
    assert list(gain.index) == ["measured", "B200, MXFP8", "B200, NVFP4"]


def test_each_group_is_scaled_by_its_own_rate():
    found = project(layer_parts()).set_index(["target", "norm", "group"])["time_us"].sort_index()
    mxfp8, nvfp4 = found["B200, MXFP8", "MXNorm"], found["B200, NVFP4", "MXNorm"]
    # 1979/4500, 989.5/2250 (as much), 4.8/8.
    assert mxfp8["matmul"] == pytest.approx(2000 * 0.4397777777777778)
    assert nvfp4["matmul"] == pytest.approx(1000 * 0.4397777777777778)
    assert mxfp8["attention"] == nvfp4["attention"] == pytest.approx(900 * 0.4397777777777778)
    assert mxfp8["norm"] == nvfp4["norm"] == pytest.approx(60 * 0.6)
    assert mxfp8["elementwise"] == pytest.approx(200 * 0.6)


def test_a_b200_projects_onto_itself():
    assert set(scales("NVIDIA B200")["B200, MXFP8"].values()) == {1.0}
    # Half as precise, twice as fast: fp8 and bf16 rates of one unit.
    for unit in (H200, B200):
        assert unit.fp8 == 2 * unit.bf16
    with pytest.raises(ValueError, match="device='NVIDIA T4' is unknown; known are NVIDIA H200"):
        scales("NVIDIA T4")


def test_a_recording_comes_back_with_its_facts(tmp_path):
    table, facts = kernel_times(), {"device": "NVIDIA H200", "date": "2026-01-01"}
    path = recording.write(tmp_path / "new" / "run.parquet", table, facts)
    found, said = recording.read(path)
    pd.testing.assert_frame_equal(found, table)
    assert said == facts
    assert [one.name for one in path.parent.iterdir()] == ["run.parquet"]
