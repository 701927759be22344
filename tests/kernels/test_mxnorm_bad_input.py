"""MXNorm refuses what it cannot do in one line, before anything is launched."""

from importlib import import_module

import numpy as np
import pytest
import torch

from mxstats.formats import NVFP4, ScaleRule
from mxstats.kernels import backend as backends
from mxstats.kernels.mxnorm import mxnorm
from mxstats.kernels.mxnorm_arguments import least_weight, static_tensor_scale

X = torch.ones((4, 96), dtype=torch.bfloat16)


@pytest.fixture
def no_launch(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("launched")

    # The package's attribute of this name is the function.
    monkeypatch.setattr(import_module("mxstats.kernels.mxnorm"), "mxnorm_torch", refuse)
    monkeypatch.setattr(import_module("mxstats.kernels.mxnorm_triton"), "launch", refuse)


CASES = {
    "dtype": ({"x": X.double(), "c": 1.5}, TypeError, "x has dtype torch.float64"),
    "integers": ({"x": X.int(), "c": 1.5}, TypeError, "x has dtype torch.int32"),
    "array": ({"x": np.ones((4, 96)), "c": 1.5}, TypeError, "x must be a torch tensor"),
    "last stride": ({"x": X.T, "c": 1.5}, ValueError, "x has stride 96 along its last axis"),
    "no view": (
        {"x": torch.ones(2, 6, 32)[:, ::2].transpose(0, 1), "c": 1.5},
        ValueError,
        "x has strides",
    ),
    "scalar": ({"x": X[0, 0], "c": 1.5}, ValueError, "x is a single number"),
    "no columns": ({"x": X[:, :0], "c": 1.5}, ValueError, "must be from 1 to 65536"),
    "too wide": ({"x": X.new_ones(1, 65_537), "c": 1.5}, ValueError, "must be from 1 to 65536"),
    "p = 0": ({"c": 1.5, "p": 0}, ValueError, "p=0: must be from"),
    "p < 0": ({"c": 1.5, "p": -1.0}, ValueError, "p=-1: must be from"),
    "p infinite": ({"c": 1.5, "p": float("inf")}, ValueError, "p=inf: must be from"),
    "p NaN": ({"c": 1.5, "p": float("nan")}, ValueError, "p=nan: must be from"),
    "neither": ({}, ValueError, "c=None, weights=None"),
    "both": ({"c": 1.5, "weights": torch.ones(3)}, ValueError, "c=1.5: weights came as well"),
    "c = 0": ({"c": 0.0}, ValueError, "c=0.0: must be a finite float32 above 0"),
    "c < 0": ({"c": -2.0}, ValueError, "c=-2.0: must be a finite"),
    "c NaN": ({"c": float("nan")}, ValueError, "c=nan: must be a finite"),
    "c too large": ({"c": 1e39}, ValueError, "c=1e.39: must be a finite"),
    "eps = 0": ({"c": 1.5, "eps": 0.0}, ValueError, "eps=0.0: must be a finite"),
    "eps 0 in float32": ({"c": 1.5, "eps": 1e-50}, ValueError, "eps=1e-50: must be a finite"),
    "weights and p": ({"weights": torch.ones(3), "p": 1}, ValueError, "weights are for p=2"),
    "weights' length": ({"weights": torch.ones(4)}, ValueError, r"shape \(4,\); \(3,\) is needed"),
    "weights' dtype": (
        {"weights": torch.ones(3).double()},
        TypeError,
        "weights has dtype torch.float64",
    ),
    "weights' type": ({"weights": [1.0, 1.0, 1.0]}, TypeError, "weights must be a torch tensor"),
    "weight < 0": (
        {"weights": torch.tensor([1.0, -0.5, 1.0])},
        ValueError,
        r"weights\[1\]=-0.5: every weight must be above 0",
    ),
    "weight 0": ({"weights": torch.tensor([1.0, 1.0, 0.0])}, ValueError, r"weights\[2\]=0:"),
    "weight NaN": (
        {"weights": torch.tensor([float("nan"), 1.0, 1.0])},
        ValueError,
        r"weights\[0\]=nan:",
    ),
    "weight infinite": (
        {"weights": torch.tensor([1.0, float("inf"), 1.0])},
        ValueError,
        r"weights\[1\]=inf:",
    ),
    "residual's shape": (
        {"c": 1.5, "residual": X[:2]},
        ValueError,
        r"residual has shape \(2, 96\); that of x is \(4, 96\)",
    ),
    "residual's dtype": (
        {"c": 1.5, "residual": X.float()},
        TypeError,
        "residual has dtype torch.float32; that of x is torch.bfloat16",
    ),
    "residual's type": ({"c": 1.5, "residual": 1.0}, TypeError, "residual must be a torch tensor"),
    "residual's stride": (
        {"c": 1.5, "residual": torch.ones(96, 4, dtype=torch.bfloat16).T},
        ValueError,
        "residual has stride 4",
    ),
    "estimate_from": (
        {"c": 1.5, "estimate_from": "scale"},
        ValueError,
        "estimate_from='scale' is unknown; known are absmax, scales",
    ),
    "scale_layout": (
        {"c": 1.5, "scale_layout": "tiled"},
        ValueError,
        "scale_layout='tiled' is unknown; known are rows, blocked",
    ),
    "backend": (
        {"c": 1.5, "backend": "cuda"},
        ValueError,
        "backend='cuda' is unknown; known are auto, triton, torch",
    ),
    "format": ({"c": 1.5, "fmt": "fp7"}, ValueError, "fmt='fp7' is unknown"),
    "rule": ({"c": 1.5, "scale_rule": "nearest"}, ValueError, "scale_rule='nearest' is unknown"),
    "NVFP4's rule": (
        {"c": 1.5, "fmt": NVFP4, "scale_rule": ScaleRule.FLOOR},
        ValueError,
        "scale_rule='floor': NVFP4",
    ),
    "tensor scale of none": ({"c": 1.5, "tensor_scale": 1.0}, ValueError, "the format has none"),
    "tensor scale 0": (
        {"c": 1.5, "fmt": NVFP4, "tensor_scale": 0.0},
        ValueError,
        "tensor_scale=0.0: must be a finite",
    ),
    "tensor scale's shape": (
        {"c": 1.5, "fmt": NVFP4, "tensor_scale": torch.ones(2)},
        ValueError,
        r"tensor_scale has shape \(2,\)",
    ),
    "scales of NVFP4": (
        {"c": 1.5, "fmt": NVFP4, "estimate_from": "scales"},
        ValueError,
        "tensor_scale=None: needed",
    ),
    "bound beyond float32": (
        {"c": 1.5, "p": 0.005, "fmt": NVFP4},
        ValueError,
        "tensor_scale=None: needed",
    ),
}


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize(("options", "error", "message"), CASES.values(), ids=CASES)
def test_refused(options, error, message):
    options = {"x": X, **options}
    with pytest.raises(error, match=message) as caught:
        mxnorm(options.pop("x"), **options)
    assert "\n" not in str(caught.value)


def test_triton_needs_a_gpu_or_the_interpreter(monkeypatch):
    monkeypatch.setattr(backends, "INTERPRETED", False)
    with pytest.raises(ValueError, match="backend='triton': x is on cpu"):
        mxnorm(X, c=1.5, backend="triton")


def test_weights_are_looked_at_again_when_changed_in_place():
    weights = torch.ones(3)
    mxnorm(X, weights=weights, backend="torch")
    weights[1] = -1
    with pytest.raises(ValueError, match=r"weights\[1\]=-1"):
        mxnorm(X, weights=weights, backend="torch")
    weights[1] = 0.25
    assert least_weight(weights) == 0.25


def test_weights_of_any_stride_are_looked_at_once(monkeypatch):
    """Reading them waits for the GPU, at every call if what was read were known by a copy."""
    weights = torch.tensor([1.0, 9.0, 2.0, 9.0, 4.0, 9.0])[::2]
    first = mxnorm(X, weights=weights, backend="torch")
    monkeypatch.setattr(torch, "aminmax", None)
    second = mxnorm(X, weights=weights, backend="torch")
    plain = torch.tensor([1.0, 2.0, 4.0])
    monkeypatch.undo()
    for value in (first, second):
        assert torch.equal(value.rho, mxnorm(X, weights=plain, backend="torch").rho)


def test_weights_of_inference_mode_are_looked_at_each_time():
    with torch.inference_mode():
        weights = torch.ones(3)
        assert least_weight(weights) == 1.0
        weights[0] = 0.5
        assert least_weight(weights) == 0.5


def test_static_tensor_scale_refuses():
    with pytest.raises(ValueError, match="has no tensor scale"):
        static_tensor_scale("MXFP8_E4M3", 64, c=1.5)
    with pytest.raises(ValueError, match="hidden_size=0: must be at least 1"):
        static_tensor_scale("NVFP4", 0, c=1.5)
    with pytest.raises(ValueError, match="c=None, weights=None"):
        static_tensor_scale("NVFP4", 64)


def test_small_p_has_no_static_tensor_scale_beyond_float32():
    with pytest.raises(ValueError, match="bound is beyond float32"):
        static_tensor_scale("NVFP4", 4096, p=1 / 16, c=1.5)
    # 4096/16 = 256 blocks: 1.5·256^15 = 1.5·2^120.
    assert static_tensor_scale("NVFP4", 4096, p=1 / 15, c=1.5) == np.float32(1.5 * 2.0**120 / 2688)
