"""What importing the kernels needs: nothing, until one is asked for."""

import subprocess
import sys

import pytest

from mxstats import kernels

BLOCK = "import sys\nfor name in {names}: sys.modules[name] = None\n"


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_loads_neither_torch_nor_triton():
    code = "import mxstats.kernels, sys; dir(mxstats.kernels)\n"
    assert (
        run(code + "print([m for m in ('torch', 'triton', 'numpy') if m in sys.modules])") == "[]"
    )


def test_without_torch_the_error_says_what_to_install():
    code = BLOCK.format(names=["torch"]) + (
        "import mxstats.kernels as kernels\n"
        "print(len(dir(kernels)) > 5)\n"
        "try: kernels.mx_cast\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    said = "mxstats.kernels.mx_cast needs torch: pip install 'mxstats[torch]'"
    assert run(code).splitlines() == ["True", said]


def test_without_triton_torch_does_and_triton_says_what_is_missing():
    code = BLOCK.format(names=["triton"]) + (
        "import torch, mxstats.kernels as kernels\n"
        "print(kernels.mx_cast(torch.ones(1, 32)).scales.item())\n"
        "try: kernels.mx_cast(torch.ones(1, 32), backend='triton')\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    lines = run(code, TRITON_INTERPRET="1").splitlines()
    # The largest value, 1, has scale 2^-8.
    assert lines[0] == "119"
    assert lines[1].startswith("backend='triton' needs triton: pip install")


def test_an_operation_is_not_hidden_by_its_own_file():
    code = (
        "import mxstats.kernels.mx_cast, mxstats.kernels as kernels, torch\n"
        "print(kernels.mx_cast(torch.ones(1, 32)).scales.item())"
    )
    assert run(code) == "119"


def test_every_name_is_listed_and_unknown_ones_are_named():
    assert set(kernels.__all__) <= set(dir(kernels))
    for name in kernels.__all__:
        assert getattr(kernels, name).__name__ == name
    with pytest.raises(
        AttributeError, match=r"module 'mxstats\.kernels' has no attribute 'rmsnorm'"
    ):
        kernels.rmsnorm  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
