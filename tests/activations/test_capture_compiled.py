from typing import cast

import pytest
import torch
from torch import nn

from mxstats.activations import capture
from mxstats.activations.pick import pick_modules
from mxstats.errors import CaptureError


@pytest.fixture(autouse=True)
def no_compiled_code():
    # Compiled code is kept by the function's source, across models.
    yield
    torch.compiler.reset()


def run_all(model, inputs):
    """Capture ``model`` while it runs each of the inputs."""
    with torch.no_grad(), capture(model) as seen:
        for x in inputs:
            model(x)
    return seen


def compiled(model) -> nn.Module:
    return cast("nn.Module", torch.compile(model, backend="eager"))


def test_a_compiled_model_is_caught(tiny_llama, ids):
    model = compiled(tiny_llama)
    with torch.no_grad():
        model(ids)
    with pytest.raises(CaptureError, match=r"never called .*the model is compiled.*_orig_mod"):
        run_all(model, [ids])
    assert not any(module._forward_pre_hooks for module in tiny_llama.modules())


def test_a_compiled_model_that_is_compiled_again_half_way_is_caught(tiny_llama, ids):
    model = compiled(tiny_llama)
    with torch.no_grad():
        model(ids)
    with pytest.raises(CaptureError, match=r"missing from some of the 2 passes: .*compiled"):
        run_all(model, [ids, ids[:, :3]])


def test_a_model_compiled_inside_the_block_gives_the_same_rows(tiny_llama, ids):
    with torch.no_grad():
        with capture(tiny_llama) as plain:
            tiny_llama(ids)
        with capture(tiny_llama) as seen:
            compiled(tiny_llama)(ids)
    for layer in seen:
        # The eager backend runs the very same kernels.
        assert torch.equal(layer.rows, plain[layer.name].rows)


def test_names_do_not_depend_on_compilation(tiny_llama):
    assert list(pick_modules(compiled(tiny_llama))) == list(pick_modules(tiny_llama))
