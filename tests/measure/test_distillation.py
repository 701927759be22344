"""Weights trained on a model's own predictions, judged through the converted model."""

import numpy as np
import pandas as pd
import pytest
import torch

import mxstats as mxs
from mxstats.measure import read_calibration
from mxstats.measure.calibrated import RowCalibration
from mxstats.measure.distillation import distil
from tests.nn.tiny_models import tiny_gemma3, tiny_ids, tiny_llama

BLOCK_SIZE, HIDDEN_SIZE = 16, 64
WINDOWS = [row.tolist() for row in tiny_ids(seed=4, batch=3, length=20)]


def start(model, w=0.15):
    """Weights all alike, and too small for these models: outputs come out large."""
    names = [
        name
        for name, module in model.named_modules()
        if type(module).__name__.endswith("RMSNorm") and "q_norm" not in name
        if "k_norm" not in name
    ]
    table = pd.DataFrame(
        {
            "layer": name,
            "role": "other",
            "index": 0,
            "hidden_size": HIDDEN_SIZE,
            "p": 2.0,
            "block_size": BLOCK_SIZE,
            "per": "block",
            "rows": 60,
        }
        for name in names
    )
    weights = {name: np.full(HIDDEN_SIZE // BLOCK_SIZE, w) for name in names}
    return RowCalibration(2.0, BLOCK_SIZE, "block", "tiny", None, "text", {}, weights, {}, table)


def divergence(model, calibration):
    """Mean KL(model ‖ converted model) over all tokens, by the kernels' torch twin, in float64."""
    other, _ = mxs.nn.convert(
        model, norm="mxnorm", p=2, fmt=None, block_size=BLOCK_SIZE, final_norm=True,
        constants=calibration.weights,
    )  # fmt: skip
    total = []
    with torch.no_grad():
        for window in WINDOWS:
            ids = torch.tensor([window])
            aim, said = (
                one(input_ids=ids).logits[0].double().log_softmax(-1) for one in (model, other)
            )
            total += (aim.exp() * (aim - said)).sum(-1).tolist()
    return np.mean(total)


@pytest.mark.parametrize("make", [tiny_llama, tiny_gemma3])
def test_training_lowers_the_divergence_of_the_converted_model(make):
    model, before = make(), start(make())
    trained = distil(model, WINDOWS, before, passes=10)
    # 30 steps of at most 0.03 can move ln w by some 0.5 of the ln(0.4/0.15) that is wanted.
    assert divergence(model, trained.calibration) < 0.7 * divergence(model, before)
    assert len(trained.steps) == 30
    assert sorted(trained.steps["window"].value_counts()) == [10, 10, 10]


def test_the_first_divergence_is_that_of_the_converted_model():
    model, before = tiny_llama(), start(tiny_llama())
    trained = distil(model, WINDOWS, before, passes=1, learning_rate=1e-12)
    # float32 logits near 1 through two layers, by two orders of operations.
    assert trained.steps["kl"].mean() == pytest.approx(divergence(model, before), rel=1e-3)
    for name, w in trained.calibration.weights.items():
        np.testing.assert_allclose(w, before.weights[name], rtol=1e-6)  # float32


def test_the_weights_are_those_that_did_best_on_windows_held_out():
    model = tiny_llama()
    before = distil(model, WINDOWS[:2], start(model, 0.4), passes=10).calibration
    # Steps to the other end of what weights may be lead away from such as are about right.
    kwargs = {"held_out": WINDOWS[2:], "passes": 3, "learning_rate": 100.0}
    away = distil(model, WINDOWS[:2], before, **kwargs)
    assert away.held_out["passes"].tolist() == [0, 1, 2, 3]
    assert away.held_out["kl"].idxmin() == 0
    for name, w in away.calibration.weights.items():
        np.testing.assert_allclose(w, before.weights[name], rtol=1e-6)  # float32
    assert (away.calibration.table["moved"] < 1e-6).all()
    # Of the smallest weights every pass makes better ones, and the last is taken.
    better = distil(model, WINDOWS[:2], start(model, 0.0625), held_out=WINDOWS[2:], passes=3)
    assert better.held_out["kl"].is_monotonic_decreasing
    with torch.no_grad():
        ids = torch.tensor(WINDOWS[2:])
        other, _ = mxs.nn.convert(
            model, norm="mxnorm", p=2, fmt=None, block_size=BLOCK_SIZE, final_norm=True,
            constants=better.calibration.weights,
        )  # fmt: skip
        aim, said = (one(ids).logits[0].double().log_softmax(-1) for one in (model, other))
    # float32 logits near 1 through two layers, by two orders of operations.
    assert better.held_out["kl"].iloc[-1] == pytest.approx(
        float((aim.exp() * (aim - said)).sum(-1).mean()), rel=1e-3
    )


def test_weights_keep_to_their_limits_and_the_table_to_the_weights():
    model = tiny_llama()
    trained = distil(model, WINDOWS, start(model, 0.0625), passes=3, learning_rate=3.0).calibration
    every = np.concatenate(list(trained.weights.values()))
    assert every.min() >= 1.0 / BLOCK_SIZE
    assert every.max() <= 1.0
    assert (every == 1.0 / BLOCK_SIZE).any() or (every == 1.0).any()
    for line in trained.table.to_dict("records"):
        w = trained.weights[line["layer"]]
        assert line["w_low"] == w.min()
        assert line["at_high"] == (w == 1.0).sum()
        assert line["bound_max_abs"] == pytest.approx(np.sqrt(4 / w.min()))
        assert line["bound_max_abs"] <= 8.0  # √64, RMSNorm's
        assert line["bound_rmsnorm"] == 8.0
        assert line["moved"] == pytest.approx(np.sqrt(np.mean(np.log(w / 0.0625) ** 2)))
    assert trained.intervals == {}


def test_saved_weights_convert_the_model(tmp_path):
    model = tiny_llama()
    trained = distil(model, WINDOWS, start(model), passes=1).calibration
    path = trained.save(tmp_path / "trained.json")
    _, report = mxs.nn.convert(
        model, block_size=BLOCK_SIZE, fmt=None, final_norm=True, constants=path
    )
    assert "SharedMXNorm" in set(report["became"])


def test_the_model_stays_as_it_was_and_the_seed_decides():
    model = tiny_llama().train()
    model.model.norm.weight.requires_grad_(False)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    wanted = [one.requires_grad for one in model.parameters()]
    runs = [distil(model, WINDOWS, start(model), seed=seed).steps for seed in (0, 0, 1)]
    pd.testing.assert_frame_equal(runs[0], runs[1])
    assert runs[0]["window"].tolist() != runs[2]["window"].tolist()
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert [one.requires_grad for one in model.parameters()] == wanted
    assert all(one.grad is None for one in model.parameters())
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"windows": []}, "windows: none"),
        ({"held_out": [[]]}, "held_out: 1, and none may be empty"),
        ({"windows": [[1, 2], []]}, "none may be empty"),
        ({"passes": 0}, "passes=0"),
        ({"learning_rate": 0.0}, "learning_rate=0"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
    ],
)
def test_bad_arguments_are_named(change, message):
    model = tiny_llama()
    given = {"windows": WINDOWS, "calibration": start(model)} | change
    with pytest.raises(ValueError, match=message):
        distil(model, **given)


def test_constants_and_weights_of_another_model_are_refused():
    model, found = tiny_llama(), start(tiny_llama())
    constants = RowCalibration(
        2.0, BLOCK_SIZE, "layer", "tiny", None, "text", {"model.norm": 2.0}, {}, {}, found.table
    )
    with pytest.raises(ValueError, match="per layer"):
        distil(model, WINDOWS, constants)
    del found.weights["model.norm"]
    with pytest.raises(ValueError, match=r"no weights of model\.norm"):
        distil(model, WINDOWS, found)


def test_a_file_of_weights_trains_as_what_it_was_saved_from(tmp_path):
    model, before = tiny_llama(), start(tiny_llama())
    from_file = read_calibration(before.save(tmp_path / "start.json"))
    runs = [distil(model, WINDOWS, one, passes=1) for one in (before, from_file)]
    pd.testing.assert_frame_equal(runs[0].steps, runs[1].steps)
    for name, w in runs[0].calibration.weights.items():
        np.testing.assert_array_equal(w, runs[1].calibration.weights[name])
    # What a file does not say of the layers is not made up.
    assert "hidden_size" not in runs[1].calibration.table
    # And the result can itself be saved and read.
    again = read_calibration(runs[1].calibration.save(tmp_path / "trained.json"))
    np.testing.assert_array_equal(
        again.weights["model.norm"], runs[1].calibration.weights["model.norm"]
    )


@pytest.mark.parametrize(
    ("w", "message"),
    [
        (np.full(3, 0.2), "3 weights of model.norm, which has 4 blocks of 16 at hidden size 64"),
        # 1/16 and 1 are the ends: m²/B <= q <= m².
        (np.array([0.2, 0.06, 0.2, 0.2]), "from 0.06 to 0.2; from 0.0625 to 1"),
        (np.array([0.2, 1.01, 0.2, 0.2]), "from 0.2 to 1.01"),
        (np.array([0.2, np.nan, 0.2, 0.2]), "from nan to nan"),
    ],
)
def test_weights_that_no_bound_holds_for_are_refused(w, message):
    model, before = tiny_llama(), start(tiny_llama())
    before.weights["model.norm"] = w
    with pytest.raises(ValueError, match=message):
        distil(model, WINDOWS, before)
