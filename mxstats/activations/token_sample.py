"""A uniform sample of tokens that does not depend on batches, and the rows that go with them.

Token t has the priority splitmix64(seed, t), a fixed pseudo-random number, and the tokens with the
smallest priorities are kept. So every layer keeps the same tokens, and so does every split of the
reading into batches and processes. splitmix64 is a bijection: no two tokens of one seed tie.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
# Rows above the cap are dropped in one go once they are so many: a quarter of the cap.
_SLACK = 4


def priorities(tokens: NDArray[np.int64], seed: int = 0) -> NDArray[np.uint64]:
    """splitmix64 (Steele, Lea and Flood, 2014) of the numbers of tokens, uint64 ``[n]``."""
    start = np.uint64(seed * int(_FIRST) % 2**64)
    with np.errstate(over="ignore"):
        z = start + (tokens.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _FIRST
        z = (z ^ (z >> np.uint64(27))) * _SECOND
        return z ^ (z >> np.uint64(31))


def sampled(tokens: NDArray[np.int64], keep: int, seed: int = 0) -> NDArray[np.bool_]:
    """Which of ``tokens`` are among the ``keep`` with the smallest priorities."""
    if len(tokens) <= keep:
        return np.ones(len(tokens), bool)
    if keep == 0:
        return np.zeros(len(tokens), bool)
    ranks = priorities(tokens, seed)
    return ranks <= np.partition(ranks, keep - 1)[keep - 1]


class RowSample:
    """The rows of the sampled tokens of one layer, on the CPU.

    Parameters
    ----------
    keep
        Most tokens kept.
    seed
        Which sample.
    """

    def __init__(self, keep: int, seed: int = 0):
        self._keep, self._seed = keep, seed
        # Numbers of all tokens kept, of which the last are those of the chunks.
        self._drained = np.empty(0, np.int64)
        self._tokens: list[NDArray[np.int64]] = []
        self._chunks: list[torch.Tensor] = []
        self._count = 0
        self._largest: np.uint64 | None = None

    def add(self, tokens: NDArray[np.int64], rows: "torch.Tensor") -> None:
        """Add ``rows``, ``[tokens, rows a token, hidden_size]``, as far as they are sampled."""
        import torch

        if self._largest is not None:
            chosen = np.flatnonzero(priorities(tokens, self._seed) <= self._largest)
            if len(chosen) == 0:
                return
            if len(chosen) < len(tokens):
                tokens, rows = tokens[chosen], rows[torch.as_tensor(chosen, device=rows.device)]
        if self._count + len(tokens) > self._keep:
            mask = sampled(tokens, self._keep, self._seed)
            if not mask.all():
                tokens, rows = tokens[mask], rows[torch.as_tensor(mask, device=rows.device)]
        if len(tokens) == 0:
            return
        # A copy of its own: a view would keep the model's whole buffer alive.
        self._chunks.append(rows.to("cpu", copy=True, memory_format=torch.contiguous_format))
        self._tokens.append(tokens)
        self._count += len(tokens)
        if self._count > self._keep + self._keep // _SLACK:
            self._prune()

    @property
    def pending(self) -> int:
        """Tokens whose rows are in memory."""
        return sum(len(tokens) for tokens in self._tokens)

    def kept(self) -> "tuple[NDArray[np.int64], torch.Tensor | None]":
        """Numbers of the tokens in memory, ascending, and their rows; None where there are none."""
        self._prune()
        if not self._chunks:
            return np.empty(0, np.int64), None
        return self._tokens[0], self._chunks[0]

    def drain(self) -> "tuple[NDArray[np.int64], torch.Tensor | None]":
        """:meth:`kept`, after which the rows are no longer held; their tokens still count."""
        tokens, rows = self.kept()
        self.restore(np.concatenate([self._drained, tokens]))
        return tokens, rows

    def restore(self, drained: NDArray[np.int64]) -> None:
        """Begin with tokens kept before whose rows are elsewhere."""
        self._tokens, self._chunks, self._drained = [], [], drained
        self._count = len(drained)
        self._prune()

    def _prune(self) -> None:
        import torch

        if self._chunks:
            tokens = np.concatenate(self._tokens)
            rows = self._chunks[0] if len(self._chunks) == 1 else torch.cat(self._chunks)
            if (np.diff(tokens) < 0).any():
                order = np.argsort(tokens, kind="stable")
                tokens, rows = tokens[order], rows[torch.as_tensor(order)]
            self._tokens, self._chunks = [tokens], [rows]
        if self._count <= self._keep:
            return
        new = np.concatenate(self._tokens) if self._tokens else np.empty(0, np.int64)
        everything = np.concatenate([self._drained, new])
        mask = sampled(everything, self._keep, self._seed)
        before = len(self._drained)
        self._drained = self._drained[mask[:before]]
        if self._chunks:
            chosen = mask[before:]
            self._tokens = [new[chosen]]
            self._chunks = [self._chunks[0][torch.as_tensor(chosen)]]
            if not chosen.any():
                self._tokens, self._chunks = [], []
        self._count = int(mask.sum())
        held = everything[mask]
        self._largest = priorities(held, self._seed).max() if len(held) else np.uint64(0)
