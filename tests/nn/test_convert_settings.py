"""What a caller asks of ``convert`` reaches every module; what cannot be converted is refused."""

import copy
import types

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from mxstats import formats
from mxstats.nn import MXLinear, convert
from mxstats.nn.settings import Cast
from mxstats.nn.shared import FinalMXNorm, SharedMXNorm, SharedRMSNorm
from tests.nn.tiny_models import tiny_llama


@pytest.mark.parametrize("norm", ["mxnorm", "rmsnorm"])
def test_every_setting_reaches_every_module(norm):
    fmt = formats.MXFP6_E2M3.with_block_size(16)
    converted, _ = convert(
        tiny_llama(),
        norm=norm,
        p=2.0 if norm == "rmsnorm" else 1.0,
        fmt="mxfp6_e2m3",
        scale_rule="rceil",
        block_size=16,
        operands="float32",
        backend="torch",
        final_norm=True,
        head=True,
    )
    cast = Cast(fmt.key, "rceil", "torch", "float32")
    kinds = (MXLinear, SharedMXNorm, SharedRMSNorm, FinalMXNorm)
    made = {name: m for name, m in converted.named_modules() if isinstance(m, kinds)}
    # Two norms and two linears a layer, the head, and with MXNorm the last norm.
    assert len(made) == 2 * 4 + 1 + (norm == "mxnorm")
    for name, module in made.items():
        assert module.cast == cast, name
        if not isinstance(module, MXLinear):
            of = module.norm
            assert (of.kind, of.block_size, of.fmt, of.backend) == (norm, 16, fmt.key, "torch"), (
                name
            )
            assert of.p == (1.0 if norm == "mxnorm" else 2.0)


def test_buffers_are_shared():
    model = tiny_llama()
    converted, _ = convert(model)
    theirs = dict(model.named_buffers())
    assert theirs
    for name, buffer in theirs.items():
        assert converted.get_buffer(name) is buffer


def refused(model, message, **options):
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message) as caught:
        convert(model, **options)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    "name",
    ["model.layers.0.input_layernorm", "model.layers.1.self_attn", "model.layers.0", "model"],
)
def test_a_forward_of_its_own_is_refused(name):
    model = tiny_llama()
    module = model.get_submodule(name)
    module.forward = types.MethodType(type(module).forward, module)
    refused(model, f"{name} has a forward of its own in place of ")


def test_a_layer_compiled_by_its_forward_is_refused():
    model = tiny_llama()
    layer = model.model.layers[1]
    layer.forward = torch.compile(layer.forward, backend="eager")
    refused(model, "model.layers.1 has a forward of its own in place of LlamaDecoderLayer's")


def test_a_model_compiled_in_place_is_converted_uncompiled():
    model = tiny_llama()
    model.compile(backend="eager")
    converted, _ = convert(model)
    assert converted._compiled_call_impl is None


def test_a_pruned_linear_is_refused():
    model = tiny_llama()
    prune.random_unstructured(model.model.layers[0].mlp.up_proj, "weight", amount=0.5)
    with pytest.raises(ValueError, match=r"mlp\.up_proj: its weight is made of others") as caught:
        convert(model)
    assert "\n" not in str(caught.value)


def test_a_sharded_model_is_refused():
    class FSDPThing(nn.Module):
        pass

    model = tiny_llama()
    model.add_module("sharded", FSDPThing())
    refused(model, r"sharded is sharded \(FSDPThing\): convert before fully_shard")


def test_the_hidden_size_is_named():
    refused(tiny_llama(), "hidden_size=64: below block_size=128", block_size=128)


def test_constants_of_no_file_and_of_no_axis():
    refused(tiny_llama(), "constants='': the path of a JSON file is needed", constants="")
    name = "model.layers.1.input_layernorm"
    converted, _ = convert(tiny_llama(), constants={name: torch.tensor(2.5)})
    assert converted.get_submodule(name).norm.c == 2.5
