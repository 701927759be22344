"""Losses of a model under each norm, against losses computed here."""

import math

import numpy as np
import pytest
import torch

from mxstats.measure.calibrated import RowCalibration
from mxstats.measure.evaluation import GAUSSIAN, NOISE, RMSNORM, evaluate
from mxstats.theory import constant
from tests.nn.tiny_models import tiny_gemma3, tiny_ids, tiny_llama

WINDOWS = [row.tolist() for row in tiny_ids(seed=4, batch=3, length=20)]


def cross_entropy(model):
    """−ln p of every token but each window's first."""
    total = []
    with torch.no_grad():
        for window in WINDOWS:
            logits = model(input_ids=torch.tensor([window])).logits[0].double()
            chosen = logits.log_softmax(-1)[range(len(window) - 1), window[1:]]
            total += (-chosen).tolist()
    return np.array(total)


class PlainMXNorm(torch.nn.Module):
    def __init__(self, norm, w):
        super().__init__()
        self.weight, self.eps, self.w = norm.weight, norm.variance_epsilon, w

    def forward(self, x):
        m = x.double().abs().unflatten(-1, (-1, 32)).amax(-1)
        square = (m.square() * self.w).mean(-1, keepdim=True)
        return (x * (square + self.eps).rsqrt().float()) * self.weight


def plain(weights):
    model = tiny_llama()
    for layer in model.model.layers:
        for name in ("input_layernorm", "post_attention_layernorm"):
            setattr(layer, name, PlainMXNorm(getattr(layer, name), weights))
    model.model.norm = PlainMXNorm(model.model.norm, weights)
    return model


def test_every_loss_is_that_of_the_plain_formula():
    model = tiny_llama()
    names = [n for n, m in model.named_modules() if type(m).__name__ == "LlamaRMSNorm"]
    w = [0.15, 0.3]
    calibrated = RowCalibration(
        2.0, 32, "block", "tiny", None, "text", {}, {name: np.array(w) for name in names}, {}, None
    )
    table = evaluate(model, WINDOWS, {"per block": calibrated, "one": 2.0}, block_size=32)
    found = table.set_index("variant")["loss"]
    assert list(found.index) == [RMSNORM, GAUSSIAN, "per block", "one", NOISE]
    c = float(constant("gaussian", p=2, block_size=32, hidden_size=64))
    expected = {
        RMSNORM: tiny_llama(),
        GAUSSIAN: plain(torch.full((2,), c**-2, dtype=torch.float64)),
        "per block": plain(torch.tensor(w, dtype=torch.float64)),
        "one": plain(torch.full((2,), 0.25, dtype=torch.float64)),
    }
    for name, other in expected.items():
        # Two orders of float32 operations over two layers: 1e-6 of a loss near 5.
        assert found[name] == pytest.approx(cross_entropy(other).mean(), abs=2e-5), name
    more = cross_entropy(expected["one"]) - cross_entropy(expected[RMSNORM])
    of_one = table.set_index("variant").loc["one"]
    # 57 differences near 0.03, each good to 2e-6 as above; of their mean and its error.
    assert of_one["penalty_error"] == pytest.approx(more.std(ddof=1) / 57**0.5, rel=1e-3)
    assert table["penalty_error"].iloc[0] == 0.0
    assert table["penalty"].tolist() == pytest.approx((found - found[RMSNORM]).tolist())
    assert (table["tokens"] == 57).all()


def test_noise_is_seeded_and_leaves_the_model_as_it_was():
    model = tiny_llama()
    losses = [
        evaluate(model, WINDOWS, seed=seed).set_index("variant")["loss"][NOISE]
        for seed in (0, 0, 1)
    ]
    assert losses[0] == losses[1] != losses[2]
    assert not any(module._forward_hooks for module in model.modules())
    assert NOISE not in set(evaluate(model, WINDOWS, noise=False)["variant"])


def test_noise_has_the_standard_deviation_of_the_estimate(monkeypatch):
    model, seen = tiny_llama(), []
    norm = model.model.layers[0].input_layernorm
    monkeypatch.setattr(norm, "forward", lambda x: torch.ones_like(x))
    handle = model.model.layers[0].self_attn.register_forward_pre_hook(
        lambda _, __, kwargs: seen.append(kwargs["hidden_states"][..., 0]), with_kwargs=True
    )
    from mxstats.measure.evaluation import _noisy

    with _noisy(model, 2.0, 32, 0), torch.no_grad():
        for seed in range(40):
            model(input_ids=tiny_ids(seed=seed, batch=4, length=20))
    handle.remove()
    z = torch.cat([one.flatten() for one in seen]).log()
    # √V at B = 32 is 0.152562 (p = 2), K = 2; 3200 draws: one standard error is σ/√6400.
    sigma = 0.152562 / math.sqrt(2)
    assert len(z) == 3200
    assert abs(z.std() - sigma) < 4 * sigma / math.sqrt(2 * len(z))
    assert abs(z.mean()) < 4 * sigma / math.sqrt(len(z))


def test_noise_is_put_where_mxnorms_would_stand():
    from mxstats.measure.evaluation import _noisy

    model = tiny_gemma3()
    with _noisy(model, 2.0, 32, 0):
        noisy = {name for name, module in model.named_modules() if module._forward_hooks}
    layers = [
        f"model.layers.{i}.{name}"
        for i in range(2)
        for name in ("input_layernorm", "pre_feedforward_layernorm")
    ]
    assert noisy == {*layers, "model.norm"}


def test_with_rounding_there_is_a_line_for_the_cast_alone():
    table = evaluate(tiny_llama(), WINDOWS, fmt="mxfp8_e4m3", scale_rule="rceil", noise=False)
    assert list(table["variant"]) == [RMSNORM, f"{RMSNORM}, cast", GAUSSIAN]
    assert table["format"].isna().tolist() == [True, False, False]
    assert set(table["format"][1:]) == {"MXFP8_E4M3"}
    assert table["loss"].is_unique


@pytest.mark.parametrize(
    ("windows", "calibrations", "message"),
    [
        ([], None, "windows: 0 with no token to score"),
        ([[1], []], None, "windows: 2 with no token to score"),
        (WINDOWS, {RMSNORM: 2.0}, "calibrations: 'RMSNorm' is the table's own name"),
        (WINDOWS, {"x": {"model.layers.9.input_layernorm": 2.0}}, "is no norm that is converted"),
    ],
)
def test_bad_input(windows, calibrations, message):
    with pytest.raises(ValueError, match=message) as caught:
        evaluate(tiny_llama(), windows, calibrations)
    assert "\n" not in str(caught.value)
