"""What ``validate`` found on an H200: the kernel that trains, on rows of a real model."""

from pathlib import Path

import pytest

from mxstats.measure import recording

FOLDER = Path(__file__).parents[2] / "figures" / "data" / "validate"
RECORDED = {
    "mxfp8_e4m3": ("mxfp8_e4m3", "floor"),
    "mxfp8_e4m3_rceil": ("mxfp8_e4m3", "rceil"),
    "mxfp8_e5m2": ("mxfp8_e5m2", "floor"),
    "mxfp4_e2m1": ("mxfp4_e2m1", "floor"),
    "mxint8": ("mxint8", "floor"),
    "nvfp4": ("nvfp4", None),
}


def test_every_file_is_here():
    assert {path.stem for path in FOLDER.glob("*.parquet")} == set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_the_kernel_has_its_twins_bits_on_every_row(name):
    table, made = recording.read(FOLDER / f"{name}.parquet")
    assert made["device"] == "NVIDIA H200"
    assert {"driver", "torch", "triton", "command", "date"} <= made.keys()
    fmt, rule = RECORDED[name]
    assert {one.lower() for one in table["format"]} == {fmt}
    assert {one if isinstance(one, str) else None for one in table["scale_rule"]} == {rule}
    assert set(table["backend"]) == {"triton"}
    # 61 norms, p = 1 and 2, 600 rows each.
    assert sorted(table.groupby("p").size().items()) == [(1.0, 61), (2.0, 61)]
    assert table["rows"].sum() == 2 * 61 * 600
    assert (table["twin_differences"] == 0).all()
    # ρ̃ is float32: half a unit in its last place, and as much for the sums before it.
    assert table["rho_error"].max() < 2.0**-23
    assert table["inside_bounds"].all()
    assert table["dequantised_inside"].all()
