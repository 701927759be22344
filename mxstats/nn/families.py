"""Decoder layers whose parts are known: which linears read which norm.

    y = N(x), q, k, v = y·W_qᵀ, y·W_kᵀ, y·W_vᵀ      N: input_layernorm
    y = N(x), gate, up = y·W_gᵀ, y·W_uᵀ             N: the norm in front of the MLP

A layer is recognised by its class, name and module: one of the same name from elsewhere may do
something else with its norms.
"""

import re
from typing import NamedTuple

import torch
from torch import nn

_NUMBER = re.compile(r"(^|[.])[0-9]+(?=[.]|$)")


class Family(NamedTuple):
    """Decoder layers of one kind in transformers."""

    module: str
    """Where its classes are defined: ``transformers.models.<module>.modeling_<module>``."""
    prefix: str
    """Of its classes' names."""
    mlp_norm: str
    """The norm that stands before gate and up."""
    unit_offset: bool = False
    """Whether the gain is 1 + γ, in float32."""
    behind: tuple[str, ...] = ()
    """Norms behind the attention and the MLP."""
    of_heads: tuple[str, ...] = ()
    """Norms of queries and keys."""

    def class_name(self, part: str) -> str:
        """Full name of one of its classes, ``part`` being ``DecoderLayer`` or ``RMSNorm``."""
        return f"transformers.models.{self.module}.modeling_{self.module}.{self.prefix}{part}"


class Group(NamedTuple):
    """A norm and the linears that read it, by qualified name."""

    norm: str
    readers: tuple[str, ...]


class Layer(NamedTuple):
    """What of one decoder layer is converted, by qualified name."""

    family: Family
    groups: tuple[Group, ...]
    linears: tuple[str, ...]
    """Linears that read no norm: the attention's output and the MLP's down projection."""
    behind: tuple[str, ...]
    of_heads: tuple[str, ...]


_AFTER_ATTENTION, _BEFORE_MLP = "post_attention_layernorm", "pre_feedforward_layernorm"
_SANDWICH = (_AFTER_ATTENTION, "post_feedforward_layernorm")
_HEADS = ("self_attn.q_norm", "self_attn.k_norm")
FAMILIES = (
    Family("llama", "Llama", _AFTER_ATTENTION),
    Family("mistral", "Mistral", _AFTER_ATTENTION),
    Family("qwen2", "Qwen2", _AFTER_ATTENTION),
    Family("qwen3", "Qwen3", _AFTER_ATTENTION, of_heads=_HEADS),
    Family("gemma", "Gemma", _AFTER_ATTENTION, unit_offset=True),
    Family("gemma2", "Gemma2", _BEFORE_MLP, unit_offset=True, behind=_SANDWICH),
    Family("gemma3", "Gemma3", _BEFORE_MLP, unit_offset=True, behind=_SANDWICH, of_heads=_HEADS),
)
_BY_LAYER = {family.class_name("DecoderLayer"): family for family in FAMILIES}


def find_layers(model: nn.Module) -> dict[str, Layer]:
    """Return the decoder layers of a model by qualified name, in its order.

    Raises
    ------
    ValueError
        None is of a known family, naming the norms that the model has; one lacks a module that
        its family has, or has another in its place.
    """
    layers = {}
    for name, module in model.named_modules():
        family = _BY_LAYER.get(full_name(module))
        if family is not None:
            layers[name] = _parts(model, name, family)
    if not layers:
        known = ", ".join(family.prefix for family in FAMILIES)
        raise ValueError(
            f"model={type(model).__name__}: no decoder layer of a known family ({known}); its "
            f"norms are {_norms(model)}"
        )
    return layers


def find_final_norms(model: nn.Module, layers: dict[str, Layer]) -> dict[str, Family]:
    """Return the norm behind each stack of layers, ``norm`` beside ``layers``, with its family."""
    found = {}
    for name, layer in layers.items():
        stack = name.rpartition(".")[0]
        beside = stack.rpartition(".")[0]
        last = f"{beside}.norm" if beside else "norm"
        if stack and last not in found and module_at(model, last) is not None:
            check_norm(model, last, layer.family)
            found[last] = layer.family
    return found


def replaced_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Return the norms whose place an MXNorm can take, by qualified name.

    They are those in front of attention and MLP, layer by layer, and the last.

    Raises
    ------
    ValueError
        As :func:`find_layers`.
    """
    layers = find_layers(model)
    names = [group.norm for layer in layers.values() for group in layer.groups]
    return {name: model.get_submodule(name) for name in (*names, *find_final_norms(model, layers))}


def full_name(module: nn.Module) -> str:
    """The class of a module with the Python module that it comes from."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def module_at(model: nn.Module, name: str) -> nn.Module | None:
    """The module of a qualified name, or None."""
    found = model
    for part in name.split("."):
        found = getattr(found, part, None)
        if not isinstance(found, nn.Module):
            return None
    return found


def eps_of(norm: nn.Module) -> float:
    """The ε of an RMSNorm of transformers, which has two names for it."""
    of_either = getattr(norm, "variance_epsilon", None), getattr(norm, "eps", None)
    return float(next(eps for eps in of_either if eps is not None))


def check_linear(model: nn.Module, name: str) -> nn.Linear:
    """Return the linear of a qualified name; ValueError for anything but ``torch.nn.Linear``."""
    found = module_at(model, name)
    if found is None:
        raise ValueError(f"model={type(model).__name__}: there is no {name}")
    # A subclass (quantised, with an adapter) computes something else.
    if type(found) is not nn.Linear:
        raise ValueError(f"{name} is {full_name(found)}; torch.nn.Linear is needed")
    if "weight" not in found._parameters:
        raise ValueError(
            f"{name}: its weight is made of others (pruned, say); a parameter is needed"
        )
    return found


def check_norm(model: nn.Module, name: str, family: Family) -> nn.Module:
    """Return the norm of a qualified name; ValueError unless it is the family's RMSNorm."""
    found = module_at(model, name)
    if found is None:
        raise ValueError(f"model={type(model).__name__}: there is no {name}")
    wanted = family.class_name("RMSNorm")
    if full_name(found) != wanted or not isinstance(found.weight, torch.Tensor):
        raise ValueError(f"{name} is {full_name(found)}; {wanted} is needed")
    return found


def _parts(model: nn.Module, layer: str, family: Family) -> Layer:
    at = f"{layer}." if layer else ""
    attention = tuple(f"{at}self_attn.{each}_proj" for each in "qkv")
    mlp = tuple(f"{at}mlp.{each}_proj" for each in ("gate", "up"))
    groups = (Group(f"{at}input_layernorm", attention), Group(f"{at}{family.mlp_norm}", mlp))
    parts = Layer(
        family,
        groups,
        (f"{at}self_attn.o_proj", f"{at}mlp.down_proj"),
        tuple(at + each for each in family.behind),
        tuple(at + each for each in family.of_heads),
    )
    for group in groups:
        check_norm(model, group.norm, family)
    for norm in (*parts.behind, *parts.of_heads):
        check_norm(model, norm, family)
    for linear in (*attention, *mlp, *parts.linears):
        check_linear(model, linear)
    return parts


def _norms(model: nn.Module) -> str:
    """The norms of a model, those of alike layers as one."""
    found = {
        f"{_alike(name)} ({type(module).__name__})": None
        for name, module in model.named_modules()
        if "norm" in type(module).__name__.lower()
    }
    return ", ".join(found) if found else "none"


def _alike(name: str) -> str:
    return _NUMBER.sub(r"\1*", name)
