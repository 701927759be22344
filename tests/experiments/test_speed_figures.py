"""The figures drawn from recorded runs, on synthetic ones."""

import numpy as np
import pytest

from mxstats.experiments import kernel_speed, layer_speed, recorded
from mxstats.experiments.style import style
from mxstats.measure import recording
from mxstats.measure.speed.projection import project
from tests.measure.speed_cases import kernel_times, layer_parts


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "_FOLDERS", (tmp_path / "none", tmp_path))
    return tmp_path


def test_kernel_speed_shows_the_recorded_run(data):
    recording.write(data / "kernel_speed.parquet", kernel_times(), {})
    table = kernel_speed.compute()
    with style():
        figure = kernel_speed.draw(table)
    panels = np.array(figure.axes).reshape(2, 2)
    drawn = {line.get_label(): line.get_xydata() for line in panels[0, 0].lines}
    # 2048 rows are too few for a line over hidden sizes: five points are left.
    xy = drawn["compiled RMSNorm + cast"]
    np.testing.assert_array_equal(xy[:, 0], [2048, 4096, 5120, 8192, 16384])
    np.testing.assert_allclose(xy[:, 1], 2.0 / 1.02, rtol=1e-12)
    assert not any("Liger" in str(name) for name in drawn)
    backward = {line.get_label(): line.get_xydata() for line in panels[0, 1].lines}
    np.testing.assert_allclose(backward["our RMSNorm"][:, 1], 1.2 / 1.1, rtol=1e-12)
    shares = {str(c.get_label()): c.lines[0].get_ydata(orig=False) for c in panels[1, 0].containers}
    np.testing.assert_allclose(shares["MXNorm"], 1 / 1.02, rtol=1e-12)
    assert figure.get_suptitle().startswith("NVIDIA H200")
    assert "16384 rows; 8192 rows at 16384" in figure.get_suptitle()


def test_layer_speed_says_what_is_measured_and_what_scaled(data):
    recording.write(data / "layer_speed.parquet", layer_parts(), {})
    table = layer_speed.compute()
    assert table.equals(project(layer_parts()))
    with style():
        figure = layer_speed.draw(table)
    titles = [panel.get_title() for panel in figure.axes]
    assert titles == ["H200: measured", "B200, MXFP8: scaled", "B200, NVFP4: scaled"]
    said = [text.get_text() for text in figure.axes[0].texts]
    # 3250, 3200 and 3162 µs against 3160.
    assert said == ["+2.8%", "+1.3%", "+0.1%"]
    # Bars end at the layer's time, in milliseconds.
    ends = {}
    for bar in figure.axes[0].patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        ends[row] = max(ends.get(row, 0.0), bar.get_x() + bar.get_width())
    assert ends == pytest.approx({0: 3.25, 1: 3.2, 2: 3.162, 3: 3.16})


@pytest.mark.parametrize("module", [kernel_speed, layer_speed])
def test_a_missing_run_is_an_error_that_names_file_and_command(module, data):
    name = module.__name__.rpartition(".")[2]
    with pytest.raises(recorded.NoRecordingError) as caught:
        module.compute()
    assert f"figures/data/{name}.parquet is missing" in str(caught.value)
    assert "mxstats bench" in str(caught.value)
    assert f"--out figures/data/{name}.parquet" in str(caught.value)


def test_the_command_in_the_error_is_one_that_bench_takes():
    from mxstats.cli.bench import parse_shapes

    words = kernel_speed.COMMAND.split()
    shapes = parse_shapes(words[words.index("--shapes") + 1])
    assert (16384, 4096) in shapes
    assert (8192, 16384) in shapes
