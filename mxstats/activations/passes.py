"""Which tokens a forward pass reads: read off the arguments with which the model is called.

A pass reads batch × length tokens, numbered on from those read before, in the order of the
flattened ``input_ids``. Padding, which an ``attention_mask`` masks, is no token: it has no number.
Rows of a layer belong to tokens one each, or several each where a norm works on heads.
"""

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import nn


# What transformers calls keys and values of earlier tokens: now, and formerly.
_CACHES = ("cache", "past_key_values")


class Pass(NamedTuple):
    """One forward pass of the whole model.

    Attributes
    ----------
    number
        How many passes came before.
    first
        Number of its first token in the whole reading.
    batch, length
        Sequences, and places in each of them.
    ids
        Token ids, ``[tokens]``, None where the model was called with something else.
    positions
        Position of each token in its sequence, ``[tokens]``.
    real
        Which of the ``batch * length`` places hold a token and no padding, as indices ``[tokens]``
        on the CPU; None where all do.
    """

    number: int
    first: int
    batch: int
    length: int
    ids: "torch.Tensor | None"
    positions: "torch.Tensor"
    real: "torch.Tensor | None" = None

    @property
    def places(self) -> int:
        """Tokens and padding together."""
        return self.batch * self.length

    @property
    def tokens(self) -> int:
        """Tokens read."""
        return self.places if self.real is None else len(self.real)


def read_arguments(
    model: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any], number: int, first: int
) -> Pass | None:
    """The pass that a call of ``model`` begins, or None if it reads nothing like tokens.

    Tokens are ``input_ids``, or else the first argument if it holds integers, or else
    ``inputs_embeds``. Positions are ``position_ids`` where given, and otherwise go on from what a
    cache of keys and values (``cache``, or ``past_key_values``) holds, or count what an
    ``attention_mask`` with padding leaves. Padding is where ``attention_mask``, integers or
    booleans ``[batch, cached + length]``, is 0; masks of another shape say which pairs attend, not
    what is padding.
    """
    import torch

    given = {**dict(zip(_parameters(model), args, strict=False)), **kwargs}
    leading = args[0] if args else next(iter(kwargs.values()), None)
    ids, embedded = given.get("input_ids"), given.get("inputs_embeds")
    if ids is None and embedded is None and _is_integers(leading):
        ids = leading
    if isinstance(ids, torch.Tensor) and _is_integers(ids):
        ids = ids.detach().reshape(1, -1) if ids.ndim == 1 else ids.detach()
        (batch, length), device = ids.shape, ids.device
    elif isinstance(embedded, torch.Tensor) and embedded.ndim == 3:
        ids = None
        (batch, length), device = embedded.shape[:2], embedded.device
    else:
        return None
    mask = _padding_mask(given.get("attention_mask"), batch, length)
    positions = given.get("position_ids")
    if isinstance(positions, torch.Tensor) and positions.ndim == 2 and positions.shape[1] == length:
        positions = positions.to(device).expand(batch, length)
    elif mask is not None:
        positions = (mask.cumsum(1) - 1)[:, -length:].to(device)
    else:
        start = max(_cached_tokens(given.get(name)) for name in _CACHES)
        positions = torch.arange(start, start + length, device=device).expand(batch, length)
    flat = None if ids is None else ids.reshape(-1)
    positions, real = positions.reshape(-1), None
    if mask is not None:
        real = mask[:, -length:].reshape(-1).nonzero()[:, 0]
        positions = positions[real.to(device)]
        flat = None if flat is None else flat[real.to(device)]
    return Pass(number, first, batch, length, flat, positions, real)


def rows_by_token(hidden: "torch.Tensor", reading: Pass | None) -> "torch.Tensor":
    """``hidden`` as ``[tokens, rows a token, hidden_size]``, without the rows of padding.

    Norms on heads see ``[batch, length, heads, d]`` or ``[batch, heads, length, d]``; either way
    the rows of a token stand together here. Where the rows are no multiple of the places (an
    expert that sees some tokens, another sequence), or no pass is known, every row is a token,
    for nothing says which are padding. A model that removes the padding itself has rows of tokens
    alone.
    """
    width = hidden.shape[-1]
    if reading is None or reading.places == 0:
        return hidden.reshape(-1, 1, width)
    batch, length = reading.batch, reading.length
    heads_first = (
        hidden.ndim == 4
        and hidden.shape[0] == batch
        and hidden.shape[2] == length
        # Of a square one, the memory says whether two axes were swapped.
        and (hidden.shape[1] != length or hidden.stride(1) < hidden.stride(2))
    )
    if heads_first:
        hidden = hidden.transpose(1, 2)
    count = hidden.numel() // width
    if count == 0 or count % reading.places:
        return hidden.reshape(-1, 1, width)
    by_place = hidden.reshape(reading.places, -1, width)
    return by_place if reading.real is None else by_place[reading.real.to(hidden.device)]


def row_positions(hidden: "torch.Tensor", by_token: "torch.Tensor", reading: Pass | None) -> Any:
    """Position of every row of ``by_token``, ``[tokens * rows a token]``, on its device."""
    import torch

    tokens, group = by_token.shape[:2]
    if reading is not None and tokens == reading.tokens:
        return reading.positions.to(by_token.device).repeat_interleave(group)
    length = hidden.shape[-2] if hidden.ndim > 2 else tokens
    return torch.arange(tokens, device=by_token.device) % max(1, length)


def ids_and_places(reading: Pass) -> tuple[NDArray[np.int64], "torch.Tensor"]:
    """Numbers of the pass's tokens; id (-1 unknown), position and window, ``[tokens, 1, 3]``.

    A sequence of a batch is a window of its own, called by the number of its first token.
    """
    import torch

    numbers = np.arange(reading.first, reading.first + reading.tokens)
    places = reading.positions.cpu()
    ids = torch.full_like(places, -1) if reading.ids is None else reading.ids.cpu()
    lengths = torch.full((reading.batch,), reading.length)
    if reading.real is not None:
        lengths = (reading.real // reading.length).bincount(minlength=reading.batch)
    starts = reading.first + lengths.cumsum(0) - lengths
    window = starts.repeat_interleave(lengths)
    return numbers, torch.stack([ids.to(torch.int64), places.to(torch.int64), window], 1)[:, None]


def is_recomputation() -> bool:
    """Whether a backward pass is running: then a forward is activation checkpointing's repeat."""
    import torch

    # What torch.utils.checkpoint itself asks to tell one backward from another.
    return torch._C._current_graph_task_id() != -1


def _parameters(model: "nn.Module") -> list[str]:
    # The class's forward, for libraries that place a model on several devices replace the
    # instance's by one that takes anything.
    inner = getattr(model, "_orig_mod", model)
    found = list(inspect.signature(type(inner).forward).parameters.values())[1:]
    return [one.name for one in found if one.kind is one.POSITIONAL_OR_KEYWORD]


def _is_integers(value: Any) -> bool:
    import torch

    return (
        isinstance(value, torch.Tensor)
        and value.ndim in (1, 2)
        and value.dtype in (torch.int64, torch.int32)
    )


def _padding_mask(mask: Any, batch: int, length: int) -> "torch.Tensor | None":
    """Mask of tokens, boolean on the CPU, where it is one and masks some of these places."""
    import torch

    if (
        not isinstance(mask, torch.Tensor)
        or mask.ndim != 2
        or mask.shape[0] != batch
        or mask.shape[1] < length
        # A floating-point mask is added to scores: its zeros are what is seen.
        or mask.is_floating_point()
    ):
        return None
    real = mask.detach().cpu() != 0
    return None if bool(real[:, -length:].all()) else real


def _cached_tokens(cache: Any) -> int:
    length: Any = getattr(cache, "get_seq_length", None)
    return 0 if length is None else int(length())
