"""Constants fitted to stores: known answers, intervals, held-out errors, the file."""

import json

import numpy as np
import pandas as pd
import pytest

import mxstats as mxs
from mxstats.activations import sample_store
from mxstats.measure.sequences import sequences_of
from tests.measure.stores import Layer, write

B, K = 8, 4


def gaussian(n, seed=0, scales=None, hidden_size=B * K):
    rows = np.random.default_rng(seed).standard_normal((n, hidden_size))
    if scales is not None:
        rows = rows * np.repeat(scales, B)
    return rows.astype(np.float32)


@pytest.fixture
def store(tmp_path):
    """Two layers of 400 tokens in 20 windows; the second has heads of one block, 3 a token."""
    return write(
        tmp_path,
        Layer("wide", gaussian(400, 1)),
        Layer("heads", gaussian(1200, 2, hidden_size=B)),
        tokens=400, window=20,
    )  # fmt: skip


def log_constants(rows, p, block_size=B):
    """ln(M_p(m)/RMS) a row, by plain NumPy in float64."""
    x = np.abs(rows.astype(np.float64))
    m = x.reshape(len(x), -1, block_size).max(2)
    return np.log((m**p).mean(1) ** (1 / p) / np.sqrt((x**2).mean(1)))


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0])
def test_the_constant_of_a_layer_is_the_mean_logarithm(store, p):
    found = mxs.calibrate(store, p=p, block_size=B)
    for name in ("wide", "heads"):
        y = log_constants(store.rows(name), p)
        # Sums of a few thousand doubles below 2 in two orders.
        assert found.constants[name] == pytest.approx(np.exp(y.mean()), rel=1e-13)
        line = found.table.set_index("layer").loc[name]
        e = y - y.mean()
        assert line["in_sample_rms"] == pytest.approx(np.sqrt(np.mean(e**2)), rel=1e-12)
        assert line["in_sample_q05"] == pytest.approx(np.quantile(e, 0.05), rel=1e-12)
        blocks = 4 if name == "wide" else 1
        assert line["bound_max_abs"] == pytest.approx(np.exp(y.mean()) * blocks ** (1 / p))
    assert found.weights == {}


def test_layers_count_alike_in_a_models_constant(store):
    found = mxs.calibrate(store, block_size=B, per="model")
    means = [log_constants(store.rows(name), 2.0).mean() for name in ("wide", "heads")]
    assert found.constants["wide"] == pytest.approx(np.exp(np.mean(means)), rel=1e-13)
    assert found.constants["heads"] == found.constants["wide"]
    errors = found.table.set_index("layer")["in_sample_rms"]
    assert errors["heads"] > mxs.calibrate(store, block_size=B).table["in_sample_rms"][1]


def test_held_out_errors_are_of_fits_without_the_fold(store):
    line = mxs.calibrate(store, block_size=B, folds=4, layers=["heads"]).table.iloc[0]
    y = log_constants(store.rows("heads"), 2.0).reshape(4, 300)  # 5 windows of 20 tokens of 3
    e = np.concatenate([y[f] - np.delete(y, f, axis=0).mean() for f in range(4)])
    assert line["held_out_rms"] == pytest.approx(np.sqrt(np.mean(e**2)), rel=1e-12)
    assert line["held_out_q95"] == pytest.approx(np.quantile(e, 0.95), rel=1e-12)
    first = e.reshape(20, 20, 3)[:, 0]
    assert line["held_out_rms_first"] == pytest.approx(np.sqrt(np.mean(first**2)), rel=1e-12)
    assert (line["groups"], line["group"]) == (20, "windows")


def test_weights_beat_the_scalar_where_blocks_are_unequal(tmp_path):
    # Uniform in half of the blocks, whose maxima are 1.6 of the RMS; spikes in the others, 2.8.
    rng = np.random.default_rng(3)
    rows = rng.uniform(-1.0, 1.0, (3000, 16, B)) * rng.lognormal(0.0, 1.0, (3000, 16, 1))
    rows[:, ::2, 1:] *= 0.01
    store = write(tmp_path, Layer("a", rows.reshape(3000, 128).astype(np.float32)),
                  tokens=3000, window=100)  # fmt: skip
    found = mxs.calibrate(store, block_size=B, per="block")
    line, scalar = found.table.iloc[0], mxs.calibrate(store, block_size=B).table.iloc[0]
    # A spike alone in its block has m²/q = B: the lower limit, which noise may raise a little.
    np.testing.assert_allclose(found.weights["a"][::2], 1 / B, rtol=0.05)
    assert line["at_low"] >= 1
    low, high = found.intervals["a"]
    assert (low <= found.weights["a"]).all()
    assert (found.weights["a"] <= high).all()
    assert line["held_out_rms"] < 0.6 * scalar["held_out_rms"]
    assert line["c"] == scalar["c"]
    # 16 weights of 2,250 rows cost 16/2250 of the variance out of sample: 0.4 % of the RMS.
    assert line["in_sample_rms"] < line["held_out_rms"] < 1.02 * line["in_sample_rms"]
    assert line["bound_max_abs"] <= line["bound_rmsnorm"] == np.sqrt(128)
    assert line["converged"]


def test_few_rows_are_pulled_towards_the_scalar(tmp_path):
    rows = gaussian(3, 4, hidden_size=128)
    store = write(tmp_path, Layer("a", rows), tokens=3)
    found = mxs.calibrate(store, block_size=B, per="block")
    scalar = found.table["c"][0] ** -2
    assert np.isfinite(found.weights["a"]).all()
    # Sixteen unknowns, three rows: the prior has the weights within its deviation of 1.
    assert np.abs(found.weights["a"] / scalar - 1).max() < 1


def test_intervals_cover_at_their_rate(tmp_path):
    covered = 0
    exact = np.exp(log_constants(gaussian(200_000, 99), 2.0).mean())
    for seed in range(40):
        folder = tmp_path / str(seed)
        folder.mkdir()
        store = write(folder, Layer("a", gaussian(320, seed)), tokens=320, window=16)
        line = mxs.calibrate(store, block_size=B, resamples=400).table.iloc[0]
        covered += line["c_low"] <= exact <= line["c_high"]
    # 20 groups give a true coverage near 0.93; below 32 of 40 comes once in 200 times at that.
    assert covered >= 32


def test_alike_rows_have_an_interval_of_no_width(tmp_path):
    rows = np.repeat(gaussian(1, 5), 40, axis=0)
    store = write(tmp_path, Layer("a", rows), tokens=40)
    for per in ("layer", "block"):
        line = mxs.calibrate(store, block_size=B, per=per).table.iloc[0]
        # All equal but for rounding of the sums.
        assert line["c_high"] - line["c_low"] < 1e-12
        assert line["group"] == "stretches of 2 tokens"


def test_one_group_has_no_interval_and_no_held_out_error(tmp_path):
    store = write(tmp_path, Layer("a", gaussian(30, 6)), tokens=1)
    for per in ("model", "layer", "block"):
        found = mxs.calibrate(store, block_size=B, per=per)
        line = found.table.iloc[0]
        assert line[["c_low", "c_high", "held_out_rms", "held_out_q05"]].isna().all()
        assert np.isfinite(line["in_sample_rms"])
        assert np.isnan(found.intervals["a"][0]).all()


def test_first_tokens_can_weigh_more(tmp_path):
    rows = gaussian(200, 7)
    rows[::20, 0] = 1000.0  # the first token of each of 10 windows has a massive channel
    store = write(tmp_path, Layer("a", rows), tokens=200, window=20)
    y = log_constants(rows, 2.0)
    omega = np.where(np.arange(200) % 20 == 0, 30.0, 1.0)
    found = mxs.calibrate(store, block_size=B, first_token_weight=30)
    assert found.constants["a"] == pytest.approx(np.exp(np.average(y, weights=omega)), rel=1e-13)
    plain = mxs.calibrate(store, block_size=B)
    assert (found.table["held_out_rms_first"] < plain.table["held_out_rms_first"]).all()


def test_odd_rows_are_counted_and_left_out(tmp_path):
    rows = gaussian(100, 8)
    rows[3, 0], rows[5, 1], rows[7] = np.nan, np.inf, 0.0
    store = write(tmp_path, Layer("a", rows), tokens=100)
    for per in ("layer", "block"):
        line = mxs.calibrate(store, block_size=B, per=per).table.iloc[0]
        assert (line["rows"], line["nonfinite_rows"], line["zero_rows"]) == (97, 2, 1)
    y = log_constants(np.delete(rows, [3, 5, 7], axis=0), 2.0)
    assert mxs.calibrate(store, block_size=B).constants["a"] == pytest.approx(np.exp(y.mean()))


def test_order_of_windows_changes_no_fit(tmp_path):
    rows = gaussian(400, 9, scales=[1, 2, 4, 8])
    turned = rows.reshape(20, 20, -1)[::-1].reshape(400, -1)
    weights = []
    for name, of in (("a", rows), ("b", turned)):
        folder = tmp_path / name
        folder.mkdir()
        store = write(folder, Layer("a", of), tokens=400, window=20)
        weights.append(mxs.calibrate(store, block_size=B, per="block").weights["a"])
    # Sums of 400 terms in two orders; the last step was below 1e-9 of the scalar weight.
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-8)


def test_pieces_change_no_fit(store, monkeypatch):
    whole = mxs.calibrate(store, block_size=B, per="block")
    monkeypatch.setattr("mxstats.measure.blocks._PIECE", 7 * B * K)
    pieces = mxs.calibrate(store, block_size=B, per="block")
    for name, w in whole.weights.items():
        np.testing.assert_allclose(pieces.weights[name], w, rtol=1e-12)


def test_seeds(store):
    def interval(seed):
        return mxs.calibrate(store, block_size=B, seed=seed, per="block").table["c_low"].tolist()

    assert interval(0) == interval(0) != interval(1)


@pytest.mark.parametrize("per", ["model", "layer", "block"])
def test_the_file_is_read_back_by_nn(store, tmp_path, per):
    pytest.importorskip("torch")
    from mxstats.nn.constants import ConstantsError, read_constants

    found = mxs.calibrate(store, block_size=B, per=per)
    path = found.save(tmp_path / "constants.json")
    back = read_constants(path, ["wide", "heads"], 2.0, B)
    for name in ("wide", "heads"):
        if per == "block":
            # The kernel's weights are float32: one rounding.
            np.testing.assert_allclose(back[name].numpy(), found.weights[name], rtol=2**-24)
        else:
            assert back[name] == found.constants[name]
    with pytest.raises(ConstantsError, match="made for block_size=8, not 32"):
        read_constants(path, ["wide", "heads"], 2.0, 32)
    about = json.loads(path.read_text())
    assert (about["per"], about["model"], about["rows"]["heads"]) == (per, "made", 1200)


def test_saving_replaces_whole_files_alone(store, tmp_path, monkeypatch):
    path = tmp_path / "constants.json"
    path.write_text("before")
    found = mxs.calibrate(store, block_size=B)
    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(OSError, match="No space left"):
            found.save(path)
    assert path.read_text() == "before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["constants.json", "store"]
    with pytest.raises(FileNotFoundError, match=r"the folder .*nope does not exist"):
        found.save(tmp_path / "nope" / "constants.json")
    with pytest.raises(IsADirectoryError, match="the name of a file is needed"):
        found.save(tmp_path)
    found.save(path)
    assert json.loads(path.read_text())["constants"] == found.constants


def test_paths_name_stores_and_names_name_distributions(store):
    by_path = mxs.calibrate(store.path, block_size=B)
    by_string = mxs.calibrate(str(store.path), block_size=B, per="layer")
    pd.testing.assert_frame_equal(by_path.table, by_string.table)
    assert mxs.calibrate("gaussian").distribution == "gaussian"


def test_a_format_gives_its_block_size(store):
    assert mxs.calibrate(store, fmt="nvfp4").block_size == 16
    assert mxs.calibrate(store).block_size == 32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"per": "head"}, "per='head' is unknown; known are model, layer, block"),
        ({"per": "block", "p": 1}, "p=1: weights for blocks are for p=2 alone"),
        ({"p": 0}, "p=0: p must be a finite real number above 0"),
        ({"p": [1, 2]}, "p=.*: one exponent at a time"),
        ({"block_size": 0}, "block_size=0: must be from 1"),
        ({"first_token_weight": 0}, "first_token_weight=0: must be above 0"),
        ({"folds": 1}, "folds=1: must be at least 2"),
        ({"resamples": 0}, "resamples=0: must be at least 1"),
        ({"scale_rule": "floor"}, "scale_rule='floor': is for a distribution"),
        ({"layers": ["nope"]}, "layers: nope not in the store"),
        ({"layers": []}, "layers is empty"),
    ],
)
def test_bad_arguments(store, arguments, message):
    with pytest.raises(ValueError, match=message):
        mxs.calibrate(store, **arguments)


def test_arguments_for_stores_are_refused_with_a_distribution():
    with pytest.raises(ValueError, match=r"layers=.*: is for a store; a distribution came"):
        mxs.calibrate("laplace", layers=["a"])
    with pytest.raises(ValueError, match="first_token_weight=2: is for a store"):
        mxs.calibrate("laplace", first_token_weight=2)
    with pytest.raises(mxs.StoreError, match="gaussian is not an activation store"):
        mxs.calibrate("gaussian", per="layer")


def test_layers_that_cannot_be_fitted_are_named(tmp_path):
    dead = Layer("dead", np.zeros((4, 32), np.float32))
    with pytest.raises(ValueError, match=r"layer dead: no row to fit .* 4 are zero"):
        mxs.calibrate(write(tmp_path, dead, tokens=4), block_size=B)
    torn = tmp_path / "torn"
    torn.mkdir()
    store = write(torn, Layer("a", gaussian(7)), tokens=4)
    with pytest.raises(ValueError, match="layer a: 7 rows for the 4 tokens of the store"):
        mxs.calibrate(store, block_size=B)


def test_groups_of_tokens():
    windows = sequences_of(np.tile(np.arange(5), 8))
    assert (windows.count, windows.what) == (8, "windows")
    assert windows.folds(4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    cut = sequences_of(np.tile(np.arange(32), 2))
    assert (cut.count, cut.what) == (16, "stretches of 4 tokens")
    assert cut.group[:8].tolist() == [0] * 4 + [1] * 4
    # 3 tokens: a stretch each; more folds than groups are as many as groups.
    few = sequences_of(np.arange(3))
    assert few.group.tolist() == few.folds(4).tolist() == [0, 1, 2]


def test_the_bundled_sample_reaches_the_limit_with_weights():
    scalar = mxs.calibrate(sample_store(), per="layer").table
    weighted = mxs.calibrate(sample_store(), per="block").table
    # 64 rows of 61 layers: medians were 0.122 and 0.055, of which 0.036 is sampling.
    assert weighted["held_out_rms"].median() < 0.6 * scalar["held_out_rms"].median()
    assert (weighted["bound_max_abs"] <= 24 * (1 + 1e-15)).all()


def test_windows_of_a_sample_are_told_by_their_numbers():
    # Of ten windows of 50 tokens, some tokens of each; the first one seldom among them.
    own = np.random.default_rng(5)
    token = np.sort(own.choice(500, size=120, replace=False))
    found = sequences_of(token % 50, token // 50)
    assert found.what == "windows"
    assert found.group.tolist() == (token // 50).tolist()
    few = sequences_of(token[:60] % 50, token[:60] // 50)
    # 60 tokens in stretches of 3, which a window's end cuts.
    before = -1
    for window in np.unique(token[:60] // 50):
        inside = few.group[token[:60] // 50 == window]
        assert np.bincount(inside - inside[0]).max() == 3
        assert inside[0] == before + 1
        before = inside[-1]
