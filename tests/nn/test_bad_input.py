"""Each mistake is one line that names the argument, its value and what would be right."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import mxstats.nn
from mxstats import formats
from mxstats.nn import MXLinear, MXNorm, MXNormLinear, RMSNormLinear
from mxstats.nn.group import norm_linear

W2 = torch.ones(2)


def raises(error, message, call):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


MXNORM = [
    ({"c": 1.7, "weights": W2}, ValueError, "c=1.7: weights came as well; give one of the two"),
    ({"weights": torch.ones(3)}, ValueError, "weights has shape (3,); (2,) is needed"),
    ({"weights": torch.ones(2, 1)}, ValueError, "weights has shape (2, 1); (2,) is needed"),
    ({"weights": W2, "p": 1.0}, ValueError, "p=1: weights are for p=2 alone"),
    ({"weights": np.ones(2)}, TypeError, "weights must be a torch tensor, got ndarray"),
    ({"weights": [1.0, 1.0]}, TypeError, "weights must be a torch tensor, got list"),
    ({"block_size": 128}, ValueError, "in_features=64: below block_size=128"),
    ({"fmt": None, "block_size": 65}, ValueError, "in_features=64: below block_size=65"),
    ({"c": 0.0}, ValueError, "c=0.0: must be a finite float32 above 0"),
    ({"c": float("nan")}, ValueError, "c=nan: must be"),
    ({"p": 0.0}, ValueError, "p=0"),
    ({"p": -1.0}, ValueError, "p=-1"),
    ({"p": 5000.0, "c": 1.0}, ValueError, "p=5000: must be from 1/1024 to 1024"),
]
COMMON = [
    ({"eps": 0.0}, ValueError, "eps=0.0: must be"),
    ({"eps": -1e-5}, ValueError, "eps=-1e-05: must be"),
]
EVERY = [
    ({"fmt": "MXFP7"}, ValueError, "fmt='MXFP7' is unknown; known are MXFP8_E4M3"),
    ({"fmt": 8}, TypeError, "fmt must be a BlockFormat or its name, got 8"),
    ({"scale_rule": "up"}, ValueError, "scale_rule='up' is unknown; known are floor"),
    ({"fmt": None, "scale_rule": "ceil"}, ValueError, "scale_rule='ceil': there is no cast"),
    ({"fmt": "NVFP4", "scale_rule": "ceil"}, ValueError, "scale_rule='ceil': NVFP4 has floating"),
    ({"block_size": 0}, ValueError, "block_size=0: must be at least 1"),
    ({"block_size": 32.0}, TypeError, "block_size must be an integer, got 32.0"),
    ({"fmt": None, "block_size": 0}, ValueError, "block_size=0: must be at least 1"),
    ({"fmt": None, "block_size": True}, TypeError, "block_size must be an integer, got True"),
    ({"backend": "cuda"}, ValueError, "backend='cuda' is unknown; known are auto, triton, torch"),
]
OPERANDS = [
    ({"operands": "fp8"}, ValueError, "operands='fp8' is unknown; known are auto, bfloat16"),
    (
        {
            "operands": "bfloat16",
            "fmt": formats.BlockFormat(
                formats.ElementFormat(1, 6), 16, formats.ScaleFormat(3, 4), name="wide"
            ),
        },
        ValueError,
        "operands='bfloat16': wide has more significant bits than its 8; use float32",
    ),
]


@pytest.mark.parametrize(("change", "error", "message"), [*MXNORM, *COMMON, *EVERY, *OPERANDS])
def test_settings_of_mxnorm_linear(change, error, message):
    raises(error, message, lambda: MXNormLinear(64, (32, 16), **change))


@pytest.mark.parametrize(("change", "error", "message"), [*MXNORM, *COMMON, *EVERY])
def test_settings_of_mxnorm(change, error, message):
    # The one name that differs.
    message = message.replace("in_features=", "hidden_size=")
    raises(error, message, lambda: MXNorm(64, **change))


@pytest.mark.parametrize(("change", "error", "message"), [*COMMON, *EVERY, *OPERANDS])
def test_settings_of_rmsnorm_linear(change, error, message):
    raises(error, message, lambda: RMSNormLinear(64, (32, 16), **change))


@pytest.mark.parametrize(("change", "error", "message"), [*EVERY, *OPERANDS])
def test_settings_of_linear(change, error, message):
    raises(error, message, lambda: MXLinear(64, 32, **change))


@pytest.mark.parametrize("make", [MXNormLinear, RMSNormLinear])
def test_no_linear_at_all(make):
    raises(ValueError, "out_features=(): at least one linear is needed", lambda: make(64, ()))


def test_a_weight_that_is_not_above_zero():
    for value in (0.0, -1.0, float("nan"), float("inf")):
        module = MXNormLinear(64, 32, weights=torch.ones(2))
        module.block_weights[1] = value
        raises(ValueError, "weights[1]=", lambda m=module: m(torch.ones(2, 64)))


@pytest.mark.parametrize("make", [MXNormLinear, RMSNormLinear])
def test_weights_that_do_not_match(make):
    module = make(64, (32, 16))
    shapes = "linears[1] has shape {}; (features, 64) is needed for an input of shape (2, 64)"
    for weight in (torch.ones(16, 65), torch.ones(64), torch.ones(64, 16)):
        module.linears[1].weight = torch.nn.Parameter(weight)
        message = shapes.format(tuple(weight.shape))
        raises(ValueError, message, lambda: module(torch.ones(2, 64)))
        raises(
            ValueError,
            message,
            lambda w=weight: norm_linear(
                torch.ones(2, 64),
                module.gamma,
                [module.linears[0].weight, w],
                module.norm,
                module.cast,
            ),
        )


@pytest.mark.parametrize("fmt", ["MXFP8_E4M3", None])
@pytest.mark.parametrize("make", [MXNormLinear, RMSNormLinear])
def test_inputs(make, fmt):
    module = make(64, 32, fmt=fmt)
    shape = "needed for an input of shape (2, 32)"
    raises(ValueError, shape, lambda: module(torch.ones(2, 32)))
    raises(TypeError, "x has dtype torch.float64", lambda: module(torch.ones(2, 64).double()))
    raises(TypeError, "x has dtype torch.int64", lambda: module(torch.ones(2, 64).long()))
    raises(ValueError, "x is a single number", lambda: module(torch.tensor(1.0)))
    raises(TypeError, "x must be a torch tensor, got ndarray", lambda: module(np.ones((2, 64))))
    module.gamma = torch.nn.Parameter(torch.ones(32))
    raises(ValueError, "gamma has shape (32,); (64,) is needed", lambda: module(torch.ones(2, 64)))


def test_inputs_of_a_linear_and_a_norm():
    linear, norm = MXLinear(64, 32), MXNorm(64)
    raises(ValueError, "weight has shape (32, 64); (features, 32)", lambda: linear(torch.ones(32)))
    raises(TypeError, "x has dtype torch.float64", lambda: linear(torch.ones(2, 64).double()))
    raises(ValueError, "x is a single number", lambda: linear(torch.tensor(1.0)))
    raises(
        ValueError,
        "x has shape (2, 32); its last axis must be 64",
        lambda: norm(W2.expand(2, 2).repeat(1, 16)),
    )
    raises(TypeError, "x has dtype torch.float64", lambda: norm(torch.ones(2, 64).double()))
    raises(ValueError, "x is a single number", lambda: norm(torch.tensor(1.0)))


@pytest.mark.parametrize("fmt", ["MXFP8_E4M3", None])
@pytest.mark.parametrize("make", [MXNormLinear, RMSNormLinear, MXNorm, MXLinear])
def test_double_backward(make, fmt):
    module = make(64, fmt=fmt) if make is MXNorm else make(64, 32, fmt=fmt)
    if make is MXLinear and fmt is None:
        return  # torch's own linear, which has a second derivative
    x = torch.ones(2, 64).requires_grad_()
    out = module(x).sum()
    raises(
        RuntimeError,
        "create_graph=True: double backward is not supported",
        lambda: torch.autograd.grad(out, x, create_graph=True),
    )


def test_names_of_the_package():
    with pytest.raises(AttributeError, match="has no attribute 'MXNormLinears'"):
        _ = mxstats.nn.MXNormLinears
    assert set(mxstats.nn.__all__) <= set(dir(mxstats.nn))


def test_without_torch_the_package_says_what_it_needs():
    code = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Blocked())
import mxstats.nn
try:
    mxstats.nn.MXNormLinear
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.fullmatch(
        r"mxstats.nn.MXNormLinear needs torch: pip install 'mxstats\[torch\]'\n", done.stdout
    )


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ((64, None), TypeError, "out_features must be an integer or several, got None"),
        ((64, "32"), TypeError, "out_features must be an integer or several, got '32'"),
        ((64, (3.0,)), TypeError, "out_features must be integers, got 3.0"),
        ((64, True), TypeError, "out_features must be integers, got True"),
        ((64, -3), ValueError, "out_features=-3: must be at least 1"),
        (("64", 3), TypeError, "in_features must be an integer, got '64'"),
        ((64.0, 3), TypeError, "in_features must be an integer, got 64.0"),
    ],
)
def test_sizes_that_are_none(sizes, error, message):
    raises(error, message, lambda: MXNormLinear(*sizes))


def test_numpy_integers_are_sizes():
    assert MXNormLinear(64, np.int64(32)).out_features == 32


@pytest.mark.parametrize("name", ["p", "c", "eps"])
def test_a_string_is_no_number(name):
    message = f"{name} must be a number, got '2'"
    raises(TypeError, message, lambda: MXNormLinear(64, 3, **{name: "2"}))


def test_weights_of_the_blocks_are_above_zero():
    raises(
        ValueError,
        "weights[1]=-1: every weight must be above 0",
        lambda: MXNormLinear(64, 3, weights=torch.tensor([1.0, -1.0])),
    )
