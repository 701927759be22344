import warnings

import numpy as np
import pytest
import torch
from torch import nn

import mxstats as mxs
from mxstats.activations import MonitorWarning, capture, monitor
from mxstats.errors import CaptureError
from tests.activations.nets import Net


class Wide(nn.Module):
    """A norm on 64 entries, 16 blocks of four."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(64)

    def forward(self, x):
        return self.norm(x)


def test_every_so_many_passes_are_seen():
    torch.manual_seed(0)
    model, logged = Wide(), []
    batches = [torch.randn(5, 64) for _ in range(7)]
    with monitor(
        model, every=3, block_size=4, log=lambda number, table: logged.append((number, table))
    ) as watch:
        for x in batches:
            model(x)
    assert [number for number, _ in logged] == [0, 3, 6]
    assert int(watch.total["norm"].rows) == 15
    assert int(watch.latest["norm"].rows) == 5
    last = batches[6].double().numpy()
    line = watch.summary().iloc[0]
    m = np.abs(last).reshape(5, 16, 4).max(2)
    log_ratio = np.log((m**2).mean(1) / (last**2).mean(1)) / 2
    assert (line["layer"], line["rows"], line["n_blocks"]) == ("norm", 5, 16)
    # float64 sums of 320 terms.
    expected = {
        "rms": np.sqrt((last**2).mean()),
        "absmax": np.abs(last).max(),
        "kurtosis": (last**4).mean() / (last**2).mean() ** 2,
        "constant": np.exp(log_ratio.mean()),
        "log_std": log_ratio.std(),
    }
    for name, value in expected.items():
        assert line[name] == pytest.approx(value, rel=1e-12)
    assert not watch.warnings
    assert not model._forward_pre_hooks
    assert not model.norm._forward_pre_hooks


def test_the_total_is_that_of_a_capture():
    torch.manual_seed(0)
    model, x = Wide(), torch.randn(5, 64)
    watch = mxs.monitor(model, every=1, block_size=4)
    with capture(model, block_size=4) as seen:
        model(x)
        model(x + 1)
    watch.close()
    torch.testing.assert_close(
        watch.total["norm"].channel_sums, seen["norm"].statistics.channel_sums, rtol=1e-13, atol=0
    )


def test_few_blocks_are_warned_of_once():
    net = Net()
    watch = monitor(net, "first", every=1, block_size=2)
    with pytest.warns(MonitorWarning, match="first has K = 2 blocks a row, below 16"):
        net(torch.randn(5, 4))
    net(torch.randn(5, 4))
    watch.close()
    assert len(watch.warnings) == 1


def test_massive_channels_are_warned_of():
    model, x = Wide(), torch.randn(50, 64)
    x[3, 17] = 5000
    with (
        pytest.warns(MonitorWarning, match=r"1 massive channel\(s\): channel 17 reaches 5000"),
        monitor(model, every=1, block_size=4),
    ):
        model(x)


def test_drift_of_a_calibrated_constant_is_warned_of():
    torch.manual_seed(0)
    model = Wide()
    # Blocks of one value each: m² = q, so c = 1.
    x = torch.randn(5, 16).repeat_interleave(4, 1)
    with (
        pytest.warns(MonitorWarning, match=r"calls for c = 1\.0000 where 1\.2 was .*: -16\.7 %"),
        monitor(model, every=1, block_size=4, constants={"norm": 1.2}),
    ):
        model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with monitor(model, every=1, block_size=4, constants={"norm": 1.01}):
            model(x)


def test_a_training_loop_with_checkpointing(tiny_llama, ids):
    tiny_llama.gradient_checkpointing_enable({"use_reentrant": False})
    tiny_llama.train()
    optimiser = torch.optim.SGD(tiny_llama.parameters(), lr=0.1)
    with monitor(tiny_llama, every=2, block_size=2) as watch:
        for _ in range(4):
            tiny_llama(ids, labels=ids).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
    assert {int(state.rows) for state in watch.total.values()} == {14}
    assert len(watch.summary()) == 5


def test_a_model_that_is_never_called_or_compiled_before():
    watch = monitor(Wide())
    with pytest.raises(CaptureError, match="never called while it was monitored"):
        watch.close()
    model = Wide()
    compiled = torch.compile(model, backend="eager")
    compiled(torch.randn(5, 64))
    with (
        pytest.raises(CaptureError, match="never called in a pass of the model: norm"),
        monitor(compiled, every=1),
    ):
        compiled(torch.randn(5, 64))
    torch.compiler.reset()


def test_an_exception_goes_through():
    model = Wide()
    with pytest.raises(ZeroDivisionError), monitor(model):
        raise ZeroDivisionError
    assert not model.norm._forward_pre_hooks


def test_bad_arguments():
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        monitor(Wide(), every=0)
    with pytest.raises(ValueError, match="block_size must be at least 1, got 0"):
        monitor(Wide(), block_size=0)
    model = Wide()
    with pytest.raises(ValueError, match="constants has layers that are not listened to: x"):
        monitor(model, constants={"x": 1.0})
    assert not model.norm._forward_pre_hooks
