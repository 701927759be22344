"""The entries of largest magnitude, with the token and the channel they stand at.

Entries are ordered by magnitude, then token, then channel, so that ties, which bfloat16 is full
of, are decided the same way however the rows were split.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

TOP = 16


class TopEntries(NamedTuple):
    """The largest entries, the largest first: ``[k]`` each; token is -1 where there is none."""

    value: "torch.Tensor"
    token: "torch.Tensor"
    channel: "torch.Tensor"


def no_entries(k: int, device: "torch.device | str") -> TopEntries:
    """``k`` places, none of them taken."""
    import torch

    nowhere = torch.full((k,), -1, dtype=torch.int64, device=device)
    return TopEntries(torch.zeros(k, dtype=torch.float64, device=device), nowhere, nowhere)


def top_of_rows(
    rows: "torch.Tensor", row_absmax: "torch.Tensor", tokens: "torch.Tensor", best: TopEntries
) -> TopEntries:
    """Candidates for the largest entries: those of ``rows``, ``[n, D]``, as many as ``best`` has.

    Nothing is looked for where no row reaches the last of ``best``.
    """
    k = len(best.value)
    if int(best.token[-1]) >= 0 and float(row_absmax.amax()) < abs(float(best.value[-1])):
        return no_entries(0, rows.device)
    # An entry among the k largest lies in one of the k rows with the largest maxima: the maximum
    # of every such row comes before the entries of any other row.
    in_order = tokens.argsort(stable=True)
    by_size = row_absmax[in_order].argsort(descending=True, stable=True)[:k]
    chosen = in_order[by_size.sort().values]
    entries = rows[chosen].double().flatten()
    rank = entries.abs().argsort(descending=True, stable=True)[:k]
    width = rows.shape[1]
    return TopEntries(entries[rank], tokens[chosen][rank // width], rank % width)


def larger_entries(a: TopEntries, b: TopEntries) -> TopEntries:
    """The largest entries of two lists, as many as ``a`` has places."""
    import torch

    if len(b.value) == 0:
        return a
    both = TopEntries(*(torch.cat(pair) for pair in zip(a, b, strict=True)))
    size = torch.where(both.token < 0, -1.0, both.value.abs())
    order = both.channel.argsort(stable=True)
    order = order[both.token[order].argsort(stable=True)]
    order = order[size[order].argsort(descending=True, stable=True)][: len(a.value)]
    return TopEntries(*(part[order] for part in both))
