"""What a capture has seen: each layer's statistics of all rows, and the rows that were sampled."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mxstats.activations.passes import Pass, ids_and_places, row_positions, rows_by_token
from mxstats.activations.pick import listed
from mxstats.activations.roles import Role, layer_index
from mxstats.activations.statistics import Statistics, empty, to_device, update
from mxstats.activations.token_sample import RowSample
from mxstats.errors import CaptureError

if TYPE_CHECKING:
    import pandas as pd
    import torch


class CapturedLayer:
    """What was seen at one module.

    Attributes
    ----------
    name : str
        Qualified name of the module.
    role : str
        Its part in the decoder, one of :data:`mxstats.activations.roles.ROLES`.
    index : int or None
        Number of the decoder layer it lies in.
    calls : int
        How often the module was called.
    rows_seen : int
        Rows that went through, kept or not.
    group : int
        Rows a token: 1, or the heads where the norm works on heads.
    """

    def __init__(
        self,
        name: str,
        role: Role,
        keep_rows: int,
        *,
        seed: int = 0,
        block_size: int | None = None,
        first_token: int = 0,
    ):
        self.name = name
        self.role: Role = role
        self.index = layer_index(name)
        self.calls = 0
        self.rows_seen = 0
        self.group = 1
        self.sample = RowSample(keep_rows, seed)
        self._block_size = block_size
        self._next_token = first_token
        self._last_pass = -1
        self._width: int | None = None
        self._statistics: Statistics | None = None

    @property
    def rows(self) -> "torch.Tensor":
        """The rows kept: ``[rows, hidden_size]``, in the input's dtype, on the CPU, detached.

        They are those of a uniform sample of the tokens, the same in every layer, in the order in
        which the model read them: all rows in order where there were no more than ``keep_rows``.

        Raises
        ------
        CaptureError
            The module has seen no row yet, or none was to be kept.
        """
        rows = self.sample.kept()[1]
        if rows is None:
            what = "has kept no row" if self.rows_seen else "has not seen a row yet"
            raise CaptureError(f"{self.name} {what}")
        return rows.flatten(0, 1)

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Numbers of the tokens whose rows are kept, ``group`` rows each, ascending."""
        return self.sample.kept()[0]

    @property
    def statistics(self) -> Statistics | None:
        """Streaming statistics of all rows; None without statistics, or before the first row."""
        return self._statistics

    @property
    def hidden_size(self) -> int:
        """Entries of a row; 0 before the first."""
        return self._width or 0

    def restore(
        self, statistics: Statistics | None, rows_seen: int, calls: int, group: int, next_token: int
    ) -> None:
        """Continue from what was seen before."""
        self._statistics, self.rows_seen, self.calls = statistics, rows_seen, calls
        self.group, self._next_token = group, next_token
        if statistics is not None:
            self._width = statistics.hidden_size

    def forget(self) -> None:
        """Begin the statistics anew."""
        self._statistics = None

    def add(self, hidden: Any, reading: Pass | None = None) -> None:
        """Count the rows of ``hidden``, ``[..., hidden_size]``, and keep those that are sampled.

        Raises
        ------
        CaptureError
            Not a floating-point tensor, or not as wide as the rows before it.
        """
        import torch

        self._check(hidden)
        with torch.no_grad():
            hidden = hidden.detach()
            by_token = rows_by_token(hidden, reading)
            tokens, group, width = by_token.shape
            known = reading is not None and tokens == reading.tokens
            if reading is not None and known and reading.number != self._last_pass:
                first, self._last_pass = reading.first, reading.number
            else:
                first = self._next_token
            if self.rows_seen and group != self.group and tokens:
                # Rows a token that change: from here on nothing can be said but row by row.
                by_token, tokens, group = by_token.reshape(-1, 1, width), tokens * group, 1
                if self.group != 1:
                    raise CaptureError(
                        f"the input of {self.name} had {self.group} rows a token and now has "
                        "another number"
                    )
            self.group = group
            self._next_token = max(self._next_token, first + tokens)
            if self._block_size is not None:
                self._update(hidden, by_token, first, reading)
            self.sample.add(np.arange(first, first + tokens), by_token)
        self.calls += 1
        self.rows_seen += tokens * group
        self._width = width

    def _update(
        self, hidden: "torch.Tensor", by_token: "torch.Tensor", first: int, reading: Pass | None
    ) -> None:
        import torch

        tokens, group, width = by_token.shape
        device = by_token.device
        state = self._statistics
        if state is None:
            state = empty(width, block_size=self._block_size or 1, device=device)
        elif state.exponent.device != device:
            state = to_device(state, device)
        numbers = torch.arange(first, first + tokens, device=device).repeat_interleave(group)
        positions = row_positions(hidden, by_token, reading)
        self._statistics = update(state, by_token.flatten(0, 1), positions, numbers)

    def _check(self, hidden: Any) -> None:
        import torch

        if not isinstance(hidden, torch.Tensor) or not hidden.is_floating_point():
            kind = hidden.dtype if isinstance(hidden, torch.Tensor) else type(hidden).__name__
            raise CaptureError(f"the input of {self.name} is {kind}, not a floating-point tensor")
        if hidden.ndim == 0:
            raise CaptureError(f"the input of {self.name} is a single number, not rows")
        width = hidden.shape[-1]
        if self._width is not None and width != self._width:
            raise CaptureError(
                f"the input of {self.name} was {self._width} wide and is now {width}"
            )

    def __repr__(self) -> str:
        kept = self.sample.pending * self.group
        return f"CapturedLayer({self.name!r}, {self.role}, {kept} of {self.rows_seen} rows kept)"


class Captured:
    """The layers of one capture, in the model's order.

    Iterating gives :class:`CapturedLayer` objects; ``captured[name]`` gives one of them.

    Attributes
    ----------
    next_token : int
        Number that the next token to be read will have. Set it before a pass to say where its
        tokens stand in the whole reading, where several processes share one.
    passes : int
        Forward passes of the whole model, those before a resumption included.
    tokens_read : int
        Tokens of those passes, padding aside.
    padding_tokens : int
        Places of those passes that an ``attention_mask`` masks. Their rows are neither in the
        statistics nor in the sample, save where a module sees some tokens only (an expert).
    """

    def __init__(
        self,
        layers: Mapping[str, CapturedLayer],
        *,
        keep_rows: int = 0,
        seed: int = 0,
        first_token: int = 0,
    ):
        self._layers = dict(layers)
        self.next_token = first_token
        self.passes = 0
        self.tokens_read = 0
        self.padding_tokens = 0
        self.keep_rows, self.seed = keep_rows, seed
        self.log = RowSample(keep_rows, seed)
        # Called after every pass of the whole model.
        self.after_pass: Callable[[], None] | None = None

    @property
    def names(self) -> list[str]:
        """Qualified names of the layers."""
        return list(self._layers)

    def statistics(self) -> dict[str, Statistics]:
        """The statistics of each layer that has seen a row, by name."""
        return {layer.name: layer.statistics for layer in self if layer.statistics is not None}

    def table(self) -> "pd.DataFrame":
        """The statistics as :func:`mxstats.activations.statistics_table.to_table` has them."""
        from mxstats.activations.statistics_table import to_table

        return to_table(self.statistics())

    def tokens(self) -> "pd.DataFrame":
        """The tokens whose rows are kept, in the rows' order.

        Columns ``token`` (place in the reading), ``token_id`` (-1 where the model was not called
        with ids), ``position`` and ``window``. Empty where only parts of a model were called.
        """
        import pandas as pd

        numbers, facts = self.log.kept()
        columns = np.empty((0, 3), np.int64) if facts is None else facts[:, 0].numpy()
        named = dict(zip(("token_id", "position", "window"), columns.T, strict=True))
        return pd.DataFrame({"token": numbers, **named})

    def begin(self, reading: Pass) -> None:
        """Note the tokens of a pass that begins."""
        self.next_token += reading.tokens
        self.tokens_read += reading.tokens
        self.padding_tokens += reading.places - reading.tokens
        if self.keep_rows:
            self.log.add(*ids_and_places(reading))

    def __getitem__(self, name: str) -> CapturedLayer:
        if name not in self._layers:
            raise CaptureError(f"no layer {name!r} was captured, only {listed(self.names)}")
        return self._layers[name]

    def __iter__(self) -> Iterator[CapturedLayer]:
        return iter(self._layers.values())

    def __len__(self) -> int:
        return len(self._layers)

    def __repr__(self) -> str:
        return f"Captured({len(self)} layers, {self.tokens_read} tokens)"
