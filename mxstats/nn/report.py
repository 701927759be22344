"""What became of every module of a converted model, as a table."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd
from torch import nn

from mxstats.nn.settings import Norm
from mxstats.theory import rms_error

COLUMNS = ("module", "kind", "became", "constant", "blocks", "note")
UNCHANGED = "unchanged"
# Below it the estimate's own noise is said beside the constant.
_FEW_BLOCKS = 16


class Entry(NamedTuple):
    """One module's line."""

    note: str
    became: str = UNCHANGED
    constant: float = math.nan
    """c; NaN where there is none."""
    blocks: int | None = None
    """K, blocks a row of its input."""


def report_of(model: nn.Module, entries: Mapping[str, Entry]) -> pd.DataFrame:
    """Return one row for every module that has parameters of its own or no submodules.

    Parameters
    ----------
    model
        As it was before.
    entries
        By qualified name; modules without one are unchanged.

    Returns
    -------
    DataFrame
        ``module``, ``kind`` (its class), ``became`` (the class in its place, or ``unchanged``),
        ``constant`` (c, else NaN), ``blocks`` (K, else NA) and ``note``, why.
    """
    owners: dict[int, str] = {}
    rows = []
    for name, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if not own and next(module.children(), None) is not None:
            continue
        entry = entries.get(name, _other(module))
        tied = [owners[id(each)] for each in own if id(each) in owners]
        note = entry.note + "".join(f"; shares its weight with {owner}" for owner in tied)
        for each in own:
            owners.setdefault(id(each), name)
        kind = type(module).__name__
        rows.append((name, kind, entry.became, entry.constant, entry.blocks, note))
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.astype({"constant": "float64", "blocks": "Int64"})


def about_constant(norm: Norm, n_blocks: int, given: bool) -> str:
    """Where a norm's constant comes from, and the noise that few blocks leave."""
    if norm.c is None:
        said = f"given weights of {n_blocks} blocks"
    else:
        said = "given constant" if given else "Gaussian constant"
    return said + about_noise(norm.p, norm.block_size, n_blocks)


def about_noise(p: float, block_size: int, n_blocks: int) -> str:
    """The noise √(V/K) of the estimate, Gaussian, where there are few blocks; else nothing."""
    if n_blocks >= _FEW_BLOCKS:
        return ""
    noise = rms_error("gaussian", p=p, block_size=block_size).std(n_blocks)
    return f"; K={n_blocks}: the estimate's noise is {float(noise):.1%}"


def _other(module: nn.Module) -> Entry:
    if isinstance(module, nn.Linear):
        return Entry("a linear outside the decoder layers of a known family")
    if "norm" in type(module).__name__.lower():
        return Entry("a norm outside the decoder layers of a known family")
    return Entry("neither a norm nor a linear")
