"""Which rows belong together: rows of one window of text are alike, and are resampled as one.

Windows are those of ``tokens().window``. Where a store has fewer than :data:`FEW_WINDOWS`, they are
cut into stretches of consecutive tokens.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxstats.activations import ActivationStore

FEW_WINDOWS = 8
_STRETCHES = 16


@dataclass(frozen=True, eq=False)
class Sequences:
    """The tokens of a store in groups that are resampled and held out as wholes."""

    position: NDArray[np.int64]
    """Of each token in its window, [tokens]; 0 is the first token."""
    group: NDArray[np.int64]
    """Of each token, [tokens], from 0, in the order of the text."""
    what: str
    """What a group is, in words."""

    @property
    def count(self) -> int:
        """Number of groups."""
        return int(self.group[-1]) + 1 if self.group.size else 0

    def token_of_rows(self, rows: int, layer: str) -> NDArray[np.int64]:
        """Token of each row: in order, as many rows a token as the layer has heads.

        Raises ValueError where the rows are not a multiple of the tokens.
        """
        tokens = self.position.size
        if tokens == 0 or rows % tokens:
            raise ValueError(
                f"layer {layer}: {rows} rows for the {tokens} tokens of the store; a multiple is "
                f"needed to tell which token a row belongs to"
            )
        return np.repeat(np.arange(tokens), rows // tokens)

    def folds(self, folds: int) -> NDArray[np.int64]:
        """Fold of each group, [groups]: consecutive groups, so that held-out text is elsewhere."""
        return np.arange(self.count) * min(folds, self.count) // max(1, self.count)


def sequences(store: ActivationStore) -> Sequences:
    """Return the groups of a store's tokens.

    Raises
    ------
    StoreError
        The store's tokens are missing or damaged.
    """
    tokens = store.tokens()
    return sequences_of(tokens["position"].to_numpy(), tokens["window"].to_numpy())


def sequences_of(position: NDArray[np.int64], window: NDArray[np.int64] | None = None) -> Sequences:
    """Return the groups of tokens that have these positions in their windows.

    Of a sample of tokens, the first of a window may be missing: ``window`` numbers them then.
    """
    at = np.arange(position.size)
    begins = position == 0 if window is None else np.diff(window, prepend=-1) != 0
    begins[:1] = True
    number = np.cumsum(begins) - 1
    windows = int(begins.sum())
    if windows >= FEW_WINDOWS:
        return Sequences(position, number, "windows")
    length = max(1, position.size // _STRETCHES)
    in_window = at - at[begins][number] if at.size else at
    group = np.cumsum(begins | (in_window % length == 0)) - 1
    return Sequences(position, group, f"stretches of {length} tokens")
