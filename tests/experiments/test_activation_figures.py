"""The figures of real activations: their numbers against numpy on the sample's rows, their look."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mxstats.activations import sample_store
from mxstats.experiments import calibration, crest_spread, make, outliers, recorded
from mxstats.experiments.style import style
from mxstats.measure import calibrate, recording
from mxstats.theory import constant as exact_constant
from tests.experiments.calibration_case import ERRORS, PENALTIES, calibration_run
from tests.experiments.texts import check_texts


@pytest.fixture(scope="module")
def crest():
    return crest_spread.compute()


@pytest.fixture(scope="module")
def large():
    return outliers.compute()


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "_FOLDERS", (tmp_path,))
    return tmp_path


def record(data, run, facts=None):
    recording.write(data / "calibration.parquet", run, facts or {})
    return calibration.compute()


def drawn(module, table):
    with style():
        figure = module.draw(table)
        check_texts(figure)
    return figure


def power_mean(values, p):
    return np.mean(values**p, axis=1) ** (1 / p)


def parts(rows, p):
    """ln crest, ln spread and ln R of each row, from their definitions, 18 blocks of 32."""
    blocks = rows.astype(np.float64).reshape(len(rows), 18, 32)
    maxima, rms = np.abs(blocks).max(axis=2), np.sqrt(np.mean(blocks**2, axis=2))
    whole = np.sqrt(np.mean(rows.astype(np.float64) ** 2, axis=1))
    estimate = power_mean(maxima, p) / exact_constant(p=p, block_size=32)
    return (
        np.log(power_mean(maxima, p) / power_mean(rms, p)),
        np.log(power_mean(rms, p) / whole),
        np.log(whole / estimate),
    )


def test_crest_and_spread_are_those_of_the_rows(crest):
    store = sample_store()
    assert list(crest["layer"]) == [layer.name for layer in store.layers for _ in range(2)]
    for line in crest.to_dict("records"):
        c, s, r = parts(store.rows(line["layer"]), line["p"])
        shown = [
            line[name]
            for part in ("ln_crest", "ln_spread")
            for name in (part, f"{part}_q05", f"{part}_q95")
        ]
        found = [f(x) for x in (c, s) for f in (np.mean, lambda x: np.quantile(x, 0.05),
                 lambda x: np.quantile(x, 0.95))]  # fmt: skip
        # Logarithms of order 1 of sums of 576 terms in double precision, and means over 64 rows.
        np.testing.assert_allclose(shown, found, atol=1e-13)
        assert line["ln_r"] == pytest.approx(r.mean(), abs=1e-13)
        assert line["rows"] == 64


def test_the_parts_add_up_to_r(crest):
    total = crest["ln_c"] - crest["ln_crest"] - crest["ln_spread"]
    np.testing.assert_allclose(total, crest["ln_r"], atol=1e-13)
    # For p = 2 and equal blocks the mean of the blocks' squares is the row's: nothing is left.
    at_2 = crest[crest["p"] == 2.0]
    assert at_2[["ln_spread", "ln_spread_q05", "ln_spread_q95"]].abs().max().max() < 1e-14
    # For p = 1 a mean of block RMS is below the root of the mean of their squares.
    assert (crest.loc[crest["p"] == 1.0, "ln_spread_q95"] < 0).all()


def test_crest_and_spread_are_drawn_and_their_bars_end_at_r(crest):
    figure = drawn(crest_spread, crest)
    assert len(figure.axes) == 4
    for column, p in enumerate((1.0, 2.0)):
        here = crest[crest["p"] == p].reset_index(drop=True)
        above, below = figure.axes[column], figure.axes[2 + column]
        ranges = [np.array(lines.get_segments()) for lines in above.collections]
        for lines, part in zip(ranges, ("ln_crest", "ln_spread"), strict=True):
            np.testing.assert_array_equal(lines[:, :, 1], here[[f"{part}_q05", f"{part}_q95"]])
            # Nothing is cut off.
            assert above.get_ylim()[0] < lines[:, :, 1].min()
            assert lines[:, :, 1].max() < above.get_ylim()[1]
        bars = [[bar.get_height() for bar in group] for group in below.containers]
        np.testing.assert_allclose(np.sum(bars, axis=0), here["ln_r"], atol=1e-13)
        marks = np.concatenate([line.get_xydata() for line in below.lines[1:4]])
        np.testing.assert_array_equal(
            marks[np.argsort(marks[:, 0])], np.column_stack([np.arange(61), here["ln_r"]])
        )


def test_outliers_are_those_of_the_rows(large):
    store = sample_store()
    values = {kind: of.set_index("layer")["value"] for kind, of in large.groupby("kind")}
    ratios = {}
    for layer in store.layers:
        rows = store.rows(layer.name).astype(np.float64)
        ranked = sorted(np.abs(rows).ravel().tolist(), reverse=True)
        middle = (ranked[len(ranked) // 2] + ranked[len(ranked) // 2 - 1]) / 2
        assert values["top_1"][layer.name] == ranked[0]
        assert values["top_10"][layer.name] == ranked[9]
        # Rows are bfloat16: the mean of two is exact.
        assert values["median"][layer.name] == middle
        assert values["top_1_rest"][layer.name] == np.abs(rows[1:]).max()
        ratios[layer.name] = ranked[0] / middle
        for end, x in (("", rows), ("_rest", rows[1:])):
            # scipy's kurtosis is about the mean, so of x and −x it is about zero.
            pooled = stats.kurtosis(np.concatenate([x.ravel(), -x.ravel()]), fisher=False)
            channel = np.median(stats.kurtosis(np.hstack([x, -x]), axis=1, fisher=False))
            squares = np.mean(x**2, axis=0)
            feature = 1 + np.var(squares) / np.mean(squares) ** 2
            for kind, found in (
                ("kurtosis_pooled", pooled),
                ("channel_kurtosis", channel),
                ("kurtosis_feature_rms", feature),
            ):
                # Sums of 36,864 terms in double precision.
                assert values[kind + end][layer.name] == pytest.approx(found, rel=1e-11)
    heat = large[large["kind"] == "magnitude"]
    name = max(ratios, key=ratios.get)
    assert set(heat["layer"]) == {name}
    rows = np.abs(store.rows(name))
    np.testing.assert_array_equal(heat["value"], rows.ravel())
    np.testing.assert_array_equal(heat["token"], np.repeat(np.arange(64), 576))
    np.testing.assert_array_equal(heat["channel"], np.tile(np.arange(576), 64))
    assert heat["text"].iloc[0] == "<|im_start|>"


def test_outliers_are_drawn_with_the_largest_channels_numbered(large):
    figure = drawn(outliers, large)
    heat, magnitudes, kurtoses = (
        next(panel for panel in figure.axes if panel.get_ylabel().startswith(start))
        for start in ("token", "|x| of all", "kurtosis")
    )
    layer = large.loc[large["kind"] == "magnitude", "layer"].iloc[0]
    rows = np.abs(sample_store().rows(layer))
    top = np.sort(np.argsort(-rows.max(axis=0), kind="stable")[:5])
    assert [int(text.get_text()) for text in heat.texts] == top.tolist()
    assert [text.xy[0] for text in heat.texts] == top.tolist()
    image = heat.images[0]
    assert image.get_array().shape == (64, 576)
    # The first token is the first row, at the top.
    assert heat.get_ylim()[0] > heat.get_ylim()[1]
    np.testing.assert_array_equal(image.get_array()[0], rows[0].clip(image.norm.vmin))
    assert image.norm.vmax == rows.max()
    for panel, kinds in (
        (magnitudes, ["top_1", "top_1_rest", "top_10", "median"]),
        (kurtoses, [name + end for name in ("kurtosis_pooled", "kurtosis_feature_rms",
                    "channel_kurtosis") for end in ("", "_rest")]),
    ):  # fmt: skip
        assert panel.get_yscale() == "log"
        for line, kind in zip(panel.lines[:-1], kinds, strict=True):
            shown = large.loc[large["kind"] == kind, "value"]
            np.testing.assert_array_equal(line.get_ydata(), shown)
    names = [text.get_text() for text in kurtoses.get_legend().get_texts()]
    assert names[:3] == ["kurtosis_pooled", "kurtosis_feature_rms", "channel_kurtosis"]


def test_labels_of_neighbours_are_set_apart():
    assert outliers.apart([100, 200, 300], 30, 576) == [100, 200, 300]
    assert outliers.apart([100, 101, 110], 30, 576) == [100, 130, 160]
    assert outliers.apart([100, 570, 575], 30, 576) == [100, 546, 576]


def test_calibration_shows_errors_at_32_and_all_losses(data):
    table = record(data, calibration_run(), {"first_token_weight": "1"})
    at = np.arange(61)
    errors = table[table["kind"] == "error"]
    assert list(dict.fromkeys(errors["variant"])) == [
        "Gaussian constant", "per model", "per layer", "per block",
    ]  # fmt: skip
    for per, (error, step) in ERRORS.items():
        shown = errors.loc[errors["variant"] == f"per {per}", "value"]
        np.testing.assert_allclose(shown, error + step * at, rtol=1e-14)
    # c = 4 + at/100 fits the layer, with an error of 0.09 around it; c̃ = e^0.8710663.
    before = np.sqrt(0.09**2 + (np.log(4 + at / 100) - 0.8710663) ** 2)
    shown = errors.loc[errors["variant"] == "Gaussian constant", "value"]
    # c̃ is given to 1e-7 here, of errors of half a unit.
    np.testing.assert_allclose(shown, before, rtol=1e-6)
    limit = table.loc[table["kind"] == "limit", "value"]
    np.testing.assert_allclose(limit, [0.15 / np.sqrt(18)] * 61, rtol=1e-14)
    losses = table[table["kind"] == "penalty"]
    assert len(losses) == 2 * 4 * (len(PENALTIES) - 1)
    figure = drawn(calibration, table)
    above, *below = figure.axes
    assert [panel.get_title() for panel in below] == [
        "GPL-3: 2,044 tokens", "argparse.py: 2,044 tokens",
    ]  # fmt: skip
    # Four variants and the limit.
    assert len(above.lines) == 5
    np.testing.assert_array_equal(above.lines[-1].get_ydata(), limit)
    for panel, factor in zip(below, (2, 1), strict=True):
        assert panel.get_yscale() == "log"
        lines = {line.get_label(): line.get_xydata() for line in panel.lines}
        assert list(lines) == [name for name in PENALTIES if name != "RMSNorm"]
        for name, xy in lines.items():
            np.testing.assert_array_equal(xy[:, 0], [8, 16, 32, 64])
            np.testing.assert_allclose(xy[:, 1], factor * PENALTIES[name] * xy[:, 0] / 8)
        # Each point with its standard error, an eighth of it here.
        bars = np.concatenate([bar.get_segments() for bar in panel.collections])[..., 1]
        points = np.concatenate([xy[:, 1] for xy in lines.values()])
        np.testing.assert_allclose(bars, points[:, None] * [0.875, 1.125])
    # No two variants look alike.
    looks = {(line.get_color(), line.get_marker()) for line in below[0].lines}
    assert len(looks) == len(PENALTIES) - 1


def test_errors_of_a_fitted_model_are_those_of_its_rows(data):
    store = sample_store()
    fits = pd.concat(
        calibrate(store, per=per, block_size=32, resamples=1).table
        for per in ("model", "layer", "block")
    )
    run = calibration_run()
    losses = run[run["kind"] == "loss"]
    table = record(data, pd.concat([fits.assign(kind="error"), losses], ignore_index=True))
    gaussian = table[table["variant"] == "Gaussian constant"]
    errors = gaussian.loc[gaussian["kind"] == "error"].set_index("layer")["value"]
    assert list(errors.index) == [layer.name for layer in store.layers]
    for layer in store.layers:
        log_ratio = parts(store.rows(layer.name), 2.0)[2]
        # Sums of 64 rows' squares in double precision, out of two parts instead of one.
        found = np.sqrt(np.mean(log_ratio**2))
        assert errors[layer.name] == pytest.approx(found, rel=1e-11)
    variants = table.loc[table["kind"] == "error", "variant"]
    assert variants.value_counts().to_dict() == dict.fromkeys(
        ("Gaussian constant", "per model", "per layer", "per block"), 61
    )
    drawn(calibration, table)


def test_weighted_first_tokens_leave_the_gaussian_error_out(data):
    table = record(data, calibration_run(), {"first_token_weight": "4"})
    errors = table[table["kind"] == "error"]
    assert "Gaussian constant" not in set(errors["variant"])
    drawn(calibration, table)


def test_a_penalty_that_is_none_is_marked_at_the_edge(data):
    run = calibration_run()
    gained = (run["variant"] == "per block") & (run["block_size"] == 8)
    run.loc[gained, "penalty"] = -0.002
    figure = drawn(calibration, record(data, run))
    for panel in figure.axes[1:]:
        assert [text.get_text() for text in panel.texts] == ["▾ at the edge: zero or less"]
        marks = [line for line in panel.lines if len(line.get_xdata()) == 1]
        assert [(mark.get_xdata()[0], mark.get_ydata()[0]) for mark in marks] == [(8, 0.03)]
        assert len(marks) == 1


def test_variants_unknown_today_are_told_apart(data):
    run = calibration_run()
    more = [
        run[run["variant"] == "per block"].assign(variant=f"per block, way {i}") for i in range(4)
    ]
    figure = drawn(calibration, record(data, pd.concat([run, *more], ignore_index=True)))
    lines = figure.axes[1].lines
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == len(lines) == 10


def test_a_missing_calibration_says_what_makes_it_and_asks_for_no_gpu(data):
    with pytest.raises(recorded.NoRecordingError) as caught:
        calibration.compute()
    said = str(caught.value)
    assert said.startswith("figures/data/calibration.parquet is missing; ")
    assert said.endswith("make it by: python benchmarks/calibration.py --out figures/data")
    assert "CPU" in said
    assert "GPU" not in said


def test_a_new_recording_makes_the_table_old(data, tmp_path):
    recording.write(data / "calibration.parquet", calibration_run(), {})
    out = tmp_path / "out"
    assert make.make_figure("calibration", out).computed
    assert not make.make_figure("calibration", out).computed
    run = calibration_run()
    run["penalty"] *= 2
    recording.write(data / "calibration.parquet", run, {})
    assert make.make_figure("calibration", out).computed
