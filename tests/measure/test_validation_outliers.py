"""First tokens, kurtosis, massive activations and verdicts on rows made to show them."""

import numpy as np
import pytest
from scipy import stats

import mxstats as mxs
from mxstats.measure import measure_rows
from mxstats.measure.verdicts import BIASED, DEPENDS, HOLDS
from mxstats.measure.weighted_bounds import WeightedBounds
from tests.measure.stores import Layer, write

TOKENS, WINDOW, D = 60, 20, 256


def gaussian(seed=0, n=TOKENS):
    return np.random.default_rng(seed).standard_normal((n, D)).astype(np.float32)


def line_of(folder, rows, **arguments):
    texts = [f"t{i}" for i in range(TOKENS)]
    store = write(folder, Layer("a", rows), tokens=TOKENS, window=WINDOW, texts=texts)
    return mxs.validate(store, p=2, **arguments).iloc[0]


def test_rest_is_what_is_left_without_first_tokens(tmp_path):
    rows = gaussian()
    rows[::WINDOW, 7] = 5000.0
    line = line_of(tmp_path, rows)
    folder = tmp_path / "rest"
    folder.mkdir()
    kept = np.delete(rows, np.arange(0, TOKENS, WINDOW), axis=0)
    rest = mxs.validate(write(folder, Layer("a", kept), tokens=57), p=2).iloc[0]
    assert (line["rows"], line["rows_rest"]) == (60, 57)
    for name in ("r_median", "r_low", "r_high", "ln_r", "ln_r_std", "ln_crest", "absmax",
                 "channel_kurtosis", "kurtosis_pooled", "kurtosis_feature_rms", "massive_ratio",
                 "top_channel", "top_channel_share"):  # fmt: skip
        # Means of the same numbers, relative to another largest magnitude.
        assert line[f"{name}_rest"] == pytest.approx(rest[name], rel=1e-12), name
    assert (line["massive"], line["massive_rest"]) == (True, False)
    assert (line["massive_channel"], line["massive_position"], line["massive_text"]) == (7, 0, "t0")


def test_heads_belong_to_their_tokens(tmp_path):
    rows = gaussian(n=2 * TOKENS)
    rows[2 * 33 + 1, 5] = 9000.0  # second head of token 33
    line = line_of(tmp_path, rows)
    assert (line["massive_token"], line["massive_position"], line["massive_text"]) == (
        33,
        13,
        "t33",
    )
    assert line["rows_rest"] == 2 * 57


def test_kurtosis_by_its_three_definitions(tmp_path):
    rows = np.random.default_rng(1).laplace(size=(TOKENS, D)).astype(np.float32)
    rows *= np.random.default_rng(2).lognormal(size=(TOKENS, 1)).astype(np.float32)
    line = line_of(tmp_path, rows)
    x = rows.astype(np.float64)

    def about_zero(values):
        return stats.moment(values, 4, center=0) / stats.moment(values, 2, center=0) ** 2

    # Sums of 15,360 terms in two orders.
    assert line["kurtosis_pooled"] == pytest.approx(about_zero(x.ravel()), rel=1e-12)
    assert line["channel_kurtosis"] == pytest.approx(
        np.median([about_zero(row) for row in x]), rel=1e-12
    )
    channel_rms = np.sqrt([stats.moment(column, 2, center=0) for column in x.T])
    assert line["kurtosis_feature_rms"] == pytest.approx(about_zero(channel_rms), rel=1e-12)
    assert line["massive_ratio"] == pytest.approx(np.abs(x).max() / np.median(np.abs(x)), rel=1e-6)


def test_the_largest_share_of_a_channel(tmp_path):
    rows = gaussian()
    rows[:, 9] *= 6
    line = line_of(tmp_path, rows)
    x = rows.astype(np.float64) ** 2
    assert line["top_channel"] == 9
    assert line["top_channel_share"] == pytest.approx((x[:, 9] / x.sum(1)).mean(), rel=1e-12)


def test_a_layer_that_holds(tmp_path):
    line = line_of(tmp_path, gaussian(3))
    assert line["verdict"] == HOLDS
    assert line["constant_from"] == "distribution"


def test_a_layer_that_is_biased_but_steady(tmp_path):
    rows = np.random.default_rng(4).uniform(-1, 1, (TOKENS, D)).astype(np.float32)
    line = line_of(tmp_path, rows)
    assert line["verdict"] == BIASED
    # c̃ of a Gaussian over that of a uniform, √3·√(32/34) (closed form).
    factor = mxs.constant() / (np.sqrt(3) * np.sqrt(32 / 34))
    assert f"about a factor {factor:.1f}" in line["why"]
    calibrated = line_of_calibrated(tmp_path, rows)
    assert calibrated["verdict"] == HOLDS


def line_of_calibrated(folder, rows):
    inner = folder / "calibrated"
    inner.mkdir()
    store = write(inner, Layer("a", rows), tokens=TOKENS, window=WINDOW)
    return mxs.validate(store, constants=mxs.calibrate(store)).iloc[0]


def test_a_layer_whose_first_tokens_stand_apart(tmp_path):
    rows = gaussian(5)
    rows[::WINDOW, 3] = 1000.0
    line = line_of(tmp_path, rows)
    assert line["verdict"] == DEPENDS
    assert "the first token of each window stands apart" in line["why"]


def test_a_layer_whose_crest_changes(tmp_path):
    rows = gaussian(6)
    for at in range(0, TOKENS, 2):
        rows[at, at] = 80.0
    line = line_of(tmp_path, rows)
    assert line["verdict"] == DEPENDS
    assert line["why"].startswith("crest (the shape inside the blocks) changes from token to token")
    assert line["share_crest"] == pytest.approx(1.0, abs=1e-12)  # p = 2 has no spread


def test_a_layer_whose_spread_changes(tmp_path):
    rows = gaussian(7)
    rows[::2, 64:] *= 1e-3  # at p = 1, blocks of unequal size, each Gaussian inside
    store = write(tmp_path, Layer("a", rows), tokens=TOKENS, window=WINDOW)
    line = mxs.validate(store, p=1).iloc[0]
    assert line["verdict"] == DEPENDS
    assert line["why"].startswith("spread (how unequal the blocks are) changes")
    # Var ℓ = Cov(ℓ, −ln crest) + Cov(ℓ, −ln spread), as ln c is one number.
    assert line["share_crest"] + line["share_spread"] == pytest.approx(1.0, abs=1e-10)


def test_weights_bound_what_witnesses_attain():
    rng = np.random.default_rng(8)
    weights = rng.uniform(0.05, 0.9, 4)
    bounds = WeightedBounds(32, 100, weights)  # a last block of 4
    spike, flat, spikes = np.zeros((3, 100))
    spike[32 * weights.argmin()] = 1.0
    # K n_k/(D w_k), spelled out a block.
    widest = max(range(4), key=lambda k: (4 if k == 3 else 32) / weights[k])
    flat[32 * widest : 32 * widest + 32] = 1.0
    spikes[32 * weights.argmax()] = 1.0
    table = measure_rows(np.stack([spike, flat, spikes]), bounds).table
    assert table["output_absmax"][0] == pytest.approx(bounds.max_abs, rel=1e-14)
    assert table["ratio"][1] == pytest.approx(bounds.rms_high, rel=1e-14)
    assert table["ratio"][2] == pytest.approx(bounds.rms_low, rel=1e-14)
    random = measure_rows(rng.standard_t(2, (2000, 100)) ** 3, bounds).table
    assert random["inside_bounds"].all()


def test_weights_alike_are_a_constant():
    rows = np.random.default_rng(9).laplace(size=(20, 128))
    constant = measure_rows(rows, mxs.output_bounds(hidden_size=128)).table
    weights = np.full(4, mxs.constant() ** -2)
    weighted = measure_rows(rows, WeightedBounds(32, 128, weights)).table
    for name in ("ratio", "ln_c", "ln_crest", "ln_spread", "output_absmax"):
        np.testing.assert_allclose(weighted[name], constant[name], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.1, 0.2], r"weights have shape \(2,\); \[4\] is needed"),
        ([0.1, 0.0, 0.1, 0.1], r"weights\[1\]=0: every weight must be above 0"),
        ([0.1, 0.1, np.nan, 0.1], r"weights\[2\]=nan: every weight"),
    ],
)
def test_weights_that_are_none(weights, message):
    with pytest.raises(ValueError, match=message):
        WeightedBounds(32, 100, np.array(weights))
