"""A model of transformers with its norms and linears computing as one, on quantised operands.

    before:  y = RMSNorm(x)·γ;  q = y·W_qᵀ + b_q, …
    after:   y = cast(ρ̃·x);     q = y·cast(W_q·γ)ᵀ + b_q, …       (:mod:`mxstats.nn.group`)

The code of transformers is not rewritten: between a norm and its linears it reads nothing but the
shape of what the norm returns.
"""

import copy
from collections.abc import Iterable
from itertools import chain
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import nn

from mxstats.formats import MXFP8_E4M3, BlockFormat, ScaleRule
from mxstats.nn.constants import Constants, read_constants
from mxstats.nn.families import (
    Family,
    Layer,
    check_linear,
    check_norm,
    eps_of,
    find_final_norms,
    find_layers,
)
from mxstats.nn.linear import MXLinear
from mxstats.nn.report import Entry, about_constant, about_noise, report_of
from mxstats.nn.settings import (
    MXNORM,
    NORMS,
    Backend,
    Cast,
    Norm,
    cast_settings,
    mxnorm_settings,
    rmsnorm_settings,
)
from mxstats.nn.shared import FinalMXNorm, Projection, SharedMXNorm, SharedRMSNorm


class _Settings(NamedTuple):
    """What the caller asked for, checked."""

    kind: str
    p: float
    cast: Cast | None
    block_size: int
    linear: dict[str, Any]
    """Arguments of :class:`MXLinear`."""
    backend: Backend
    constants: dict[str, float | torch.Tensor]


def convert(
    model: nn.Module,
    *,
    norm: str = MXNORM,
    p: float = 2.0,
    fmt: BlockFormat | str | None = MXFP8_E4M3,
    scale_rule: ScaleRule | str | None = None,
    block_size: int | None = None,
    constants: Constants = None,
    final_norm: bool = False,
    head: bool = False,
    linears: bool = True,
    operands: str = "auto",
    backend: Backend = "auto",
) -> tuple[Any, pd.DataFrame]:
    """Return a converted copy of a model, and a table of what became of every module.

    The model stays as it is. The copy has modules of its own but SHARES the parameters and buffers
    of the model: training one trains both, tied weights stay tied, and ``.to()`` on one changes the
    parameters of both (``copy.deepcopy`` it first where that is not meant). Parameters keep their
    names: the state dicts of the two are each other's. Forward hooks on modules that are replaced
    stay behind with the model.

    Known are the decoder layers of Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma2 and Gemma3 of
    transformers, wherever in a model they are. Norms in front of attention and MLP become one
    operation with the linears that read them; norms behind linears and those of queries and keys
    stay.

    For FSDP2, convert first, then ``fully_shard`` whole decoder layers, not their parts: a norm
    reads the weights of its linears, so they must be gathered together. Convert before
    ``torch.compile`` and DDP as well. A constant c is a constant of the compiled graph: compiled
    layer by layer, calibrated ones make a graph each, for which torch's ``recompile_limit`` (8)
    has to be above their number; weights of blocks are tensors and share one.

    Parameters
    ----------
    model
        A model of transformers, or any module that holds one.
    norm
        ``"mxnorm"``, or ``"rmsnorm"`` for the norm as it is, on the fused kernel of norm and cast.
    p
        Power of MXNorm's mean of block maxima; not used by ``"rmsnorm"``.
    fmt, scale_rule, block_size, operands, backend
        As for :class:`mxstats.nn.MXNormLinear`; ``fmt=None`` rounds nothing.
    constants
        MXNorm's: None for the constant of Gaussian rows of the hidden size; a number for all norms;
        a mapping of qualified names (``"model.layers.0.input_layernorm"``) to numbers c or, with
        p = 2, arrays with one weight for each block, [K]; or a path to a JSON file of them
        (:mod:`mxstats.nn.constants`). Norms that it does not name take the Gaussian constant; what
        it says of norms that stay is not used.
    final_norm
        Whether the norm behind the last layer becomes an MXNorm of its own (no linear of ours need
        read it), its output cast and the gain multiplied after; with ``"rmsnorm"`` it stays.
    head
        Whether ``lm_head`` takes quantised operands; ``resize_token_embeddings`` of transformers
        refuses such a head.
    linears
        Whether the attention's output and the MLP's down projection do.

    Returns
    -------
    model, report
        The copy, of the same class, and a DataFrame with the columns ``module, kind, became,
        constant, blocks, note``, a row for every module with parameters of its own or without
        submodules.

    Raises
    ------
    TypeError, ValueError
        Not a module, or one that is compiled or wrapped; no decoder layer of a known family, naming
        the norms; a layer without a module that it should have, or with another in its place (an
        adapter, an earlier conversion); settings out of range, a hidden size below the block size
        among them; constants for a norm that is not there, or for the last one without
        ``final_norm``; ``head=True`` without
        ``lm_head``.
    mxstats.nn.constants.ConstantsError
        A file of constants is missing, torn or of another form.
    """
    _check(model, norm)
    cast, size = cast_settings(fmt, scale_rule, block_size, backend, operands)
    layers = find_layers(model)
    last = find_final_norms(model, layers)
    wants_last = final_norm and norm == MXNORM
    names = [group.norm for layer in layers.values() for group in layer.groups]
    if constants is not None and norm != MXNORM:
        raise ValueError(f"constants={constants!r}: norm={norm!r} has none")
    given = read_constants(
        constants,
        [*names, *(last if wants_last else ())],
        p,
        size,
        staying=[name for layer in layers.values() for name in (*layer.behind, *layer.of_heads)],
    )
    as_linear = {
        "fmt": fmt,
        "scale_rule": scale_rule,
        "block_size": block_size,
        "operands": operands,
        "backend": backend,
    }
    settings = _Settings(norm, p, cast, size, as_linear, backend, given)
    made = _share(model)
    entries: dict[str, Entry] = {}
    for layer in layers.values():
        entries |= _convert_groups(made, layer, settings)
        entries |= _convert_linears(made, layer.linears, settings, linears, "linears")
        entries |= _kept_norms(made, layer, settings)
    for name, family in last.items():
        entries[name] = _convert_last(made, name, family, settings, final_norm)
    entries |= _convert_linears(made, _heads(model, head), settings, head, "head")
    return made, report_of(model, entries)


def _check(model: nn.Module, norm: str) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if norm not in NORMS:
        raise ValueError(f"norm={norm!r} is unknown; known are {', '.join(NORMS)}")
    for name, module in model.named_modules():
        kind = type(module).__name__
        if hasattr(module, "_orig_mod") or isinstance(module, nn.parallel.DistributedDataParallel):
            raise ValueError(f"model holds a {kind}: convert before compiling or wrapping it")
        if kind.startswith("FSDP"):
            raise ValueError(f"{name or 'model'} is sharded ({kind}): convert before fully_shard")
        # A copy of it would run the original's function, on the original's modules.
        if "forward" in vars(module):
            raise ValueError(
                f"{name or 'model'} has a forward of its own in place of {kind}'s: convert before "
                f"patching or compiling it"
            )


def _share(model: nn.Module) -> Any:
    """A copy with modules of its own and the very parameters and buffers of the model."""
    shared = chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in shared})


def _convert_groups(model: nn.Module, layer: Layer, settings: _Settings) -> dict[str, Entry]:
    entries = {}
    for name, linears in layer.groups:
        old = check_norm(model, name, layer.family)
        norm, weights, entry = _norm_settings(old, name, layer.family, settings)
        readers = tuple(
            Projection(check_linear(model, linear), index) for index, linear in enumerate(linears)
        )
        kind = SharedMXNorm if settings.kind == MXNORM else SharedRMSNorm
        new = kind(old.weight, readers, norm, settings.cast, weights)  # pyright: ignore[reportArgumentType]
        _replace(model, name, new)
        joined = f"one operation with {', '.join(_leaf(linear) for linear in linears)}"
        note = joined if settings.kind != MXNORM else f"{joined}; {entry.note}"
        entries[name] = entry._replace(note=note, became=kind.__name__)
        for linear, reader in zip(linears, readers, strict=True):
            _replace(model, linear, reader)
            entries[linear] = Entry(f"computed by {name}", "Projection", blocks=entry.blocks)
    return entries


def _convert_last(
    model: nn.Module, name: str, family: Family, settings: _Settings, wanted: bool
) -> Entry:
    if settings.kind != MXNORM:
        return Entry(f"norm={settings.kind!r}: stays as it is")
    if not wanted:
        return Entry("final_norm=False")
    old = check_norm(model, name, family)
    norm, weights, entry = _norm_settings(old, name, family, settings)
    new = FinalMXNorm(old.weight, norm, settings.cast, weights)  # pyright: ignore[reportArgumentType]
    _replace(model, name, new)
    return entry._replace(note=f"alone; {entry.note}", became="FinalMXNorm")


def _norm_settings(
    old: nn.Module, name: str, family: Family, settings: _Settings
) -> tuple[Norm, torch.Tensor | None, Entry]:
    """Settings of the norm that is to stand in the place of ``old``, and its block weights."""
    gamma: torch.Tensor = old.weight  # pyright: ignore[reportAssignmentType]
    hidden_size, size = gamma.shape[0], settings.block_size
    n_blocks = -(-hidden_size // size)
    if settings.kind != MXNORM:
        norm = rmsnorm_settings(
            settings.cast,
            block_size=size,
            eps=eps_of(old),
            unit_offset=family.unit_offset,
            backend=settings.backend,
        )
        return norm, None, Entry("", blocks=n_blocks)
    given = settings.constants.get(name)
    weights = given if isinstance(given, torch.Tensor) else None
    try:
        norm = mxnorm_settings(
            hidden_size,
            settings.cast,
            p=settings.p,
            c=None if isinstance(given, torch.Tensor) else given,
            weights=weights,
            block_size=size,
            eps=eps_of(old),
            unit_offset=family.unit_offset,
            backend=settings.backend,
            name="hidden_size",
        )
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    note = about_constant(norm, n_blocks, given is not None)
    entry = Entry(note, constant=float("nan") if norm.c is None else norm.c, blocks=n_blocks)
    return norm, weights, entry


def _convert_linears(
    model: nn.Module, names: Iterable[str], settings: _Settings, wanted: bool, option: str
) -> dict[str, Entry]:
    entries = {}
    for name in names:
        if not wanted:
            entries[name] = Entry(f"{option}=False")
            continue
        if settings.cast is None:
            entries[name] = Entry("fmt=None: nothing to cast")
            continue
        old = check_linear(model, name)
        sizes = old.in_features, old.out_features
        # On "meta" a linear makes no numbers of its own.
        new = MXLinear(*sizes, bias=old.bias is not None, device="meta", **settings.linear)
        new.weight, new.bias = old.weight, old.bias
        _replace(model, name, new)
        n_blocks = -(-old.in_features // settings.block_size)
        entries[name] = Entry("quantised operands", "MXLinear", blocks=n_blocks)
    return entries


def _kept_norms(model: nn.Module, layer: Layer, settings: _Settings) -> dict[str, Entry]:
    entries = {
        name: Entry("stands behind its linears: no linear reads it") for name in layer.behind
    }
    for name in layer.of_heads:
        gamma: torch.Tensor = check_norm(model, name, layer.family).weight  # pyright: ignore[reportAssignmentType]
        # A head may be shorter than a block.
        size = min(settings.block_size, gamma.shape[0])
        noise = ""
        if settings.kind == MXNORM:
            noise = about_noise(settings.p, size, -(-gamma.shape[0] // size))
        entries[name] = Entry(f"norm of a head: no linear reads it{noise}")
    return entries


def _heads(model: nn.Module, wanted: bool) -> list[str]:
    found = [name for name, _ in model.named_modules() if _leaf(name) == "lm_head"]
    if wanted and not found:
        raise ValueError(f"head=True: {type(model).__name__} has no lm_head")
    return found


def _replace(model: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    holder = model.get_submodule(parent)
    new.train(getattr(holder, leaf).training)
    setattr(holder, leaf, new)


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


__all__ = ["convert"]
