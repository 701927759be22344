"""Captures that see nothing, or something else than rows, and options that are wrong."""

import pytest
import torch
from torch import nn

from mxstats.activations import capture
from mxstats.errors import CaptureError
from tests.activations.nets import Net


def test_a_module_that_was_never_called_is_named():
    net = Net()
    with (
        pytest.raises(CaptureError, match=r"never called while capturing: second;"),
        capture(net),
    ):
        net.first(torch.randn(5, 4))


def test_many_modules_never_called_are_counted():
    model = nn.Sequential(*(nn.RMSNorm(4) for _ in range(9)))
    with pytest.raises(CaptureError, match=r"9 modules: 0, 1, 2, 3, 4, …"), capture(model):
        pass


def test_an_exception_is_not_replaced_by_the_complaint_about_silent_modules():
    with pytest.raises(ZeroDivisionError), capture(Net()):
        raise ZeroDivisionError


def test_nothing_picked_says_what_there_is():
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))
    with pytest.raises(CaptureError, match="is an RMSNorm; its norm classes are LayerNorm"):
        capture(model).__enter__()
    with pytest.raises(CaptureError, match=r"named like 'x\.\*'; it has no norm class at all"):
        capture(nn.Sequential(nn.Linear(4, 4)), "x.*").__enter__()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"modules": 3}, TypeError, "modules must be None, .* got int"),
        ({"modules": int}, TypeError, "modules must be a torch.nn.Module class, got .* int"),
        ({"keep_rows": -1}, ValueError, "keep_rows must be at least 0, got -1"),
        ({"block_size": 0}, ValueError, "block_size must be at least 1, got 0"),
        ({"keep_rows": 1.5}, TypeError, "keep_rows must be an integer, got 1.5"),
        ({"where": "output"}, ValueError, "where must be 'input', got 'output'"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        capture(Net(), **options).__enter__()


def test_a_model_of_another_kind():
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got str"):
        capture("smollm2").__enter__()  # pyright: ignore[reportArgumentType]


def test_inputs_that_are_no_rows_name_the_module():
    net, same = Net(), nn.Sequential(nn.Identity())
    with (
        pytest.raises(CaptureError, match=r"the input of embedding is torch.int64"),
        capture(net, nn.Embedding),
    ):
        net.embedding(torch.tensor([1]))
    with capture(same, nn.Identity):
        same(torch.ones(2, 4))
        with pytest.raises(CaptureError, match=r"the input of 0 was 4 wide and is now 6"):
            same(torch.ones(2, 6))
        with pytest.raises(CaptureError, match=r"the input of 0 is a single number"):
            same(torch.tensor(1.0))
        with pytest.raises(CaptureError, match=r"the input of 0 is tuple"):
            same((1, 2))


def test_a_call_without_the_first_argument_names_the_module():
    class Pair(nn.Module):
        def forward(self, x=None, y=None, z=None):
            return y

    model = nn.Sequential(Pair())
    with capture(model, Pair):
        model[0](torch.ones(2, 4))
        with pytest.raises(CaptureError, match=r"0 was called without 'x': .*\['y', 'z'\]"):
            model[0](y=torch.ones(2, 4), z=1)


def test_an_unknown_layer():
    net = Net()
    with capture(net) as seen:
        net(torch.randn(5, 4))
    with pytest.raises(CaptureError, match="no layer 'third' was captured, only first, second"):
        seen["third"]
