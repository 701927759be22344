"""From a model and a text to a store: what ``mxstats capture`` does."""

import sys
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxstats.activations.capture import Captured, capture
from mxstats.activations.models import SMOLLM2, describe_model, load_model
from mxstats.activations.pick import Modules
from mxstats.activations.store import ActivationStore
from mxstats.activations.text import read_text, text_name, tokenize
from mxstats.activations.write import check_plain, check_target, write_store

if TYPE_CHECKING:
    from torch import nn

Progress = Callable[[int, int], None]


def capture_to_store(
    out: str | Path,
    *,
    model: str | Path = SMOLLM2,
    text: str | Path | None = None,
    tokens: int = 64,
    modules: Modules = None,
    window: int = 512,
    dtype: str = "bfloat16",
    overwrite: bool = False,
    progress: Progress | None = None,
    created: date | None = None,
) -> ActivationStore:
    """Run a model over a text and store what enters its RMSNorms.

    All rows are held in memory, in float32, until the store is written:
    twice :func:`mxstats.activations.write.store_bytes` for a bfloat16 store.

    Parameters
    ----------
    out
        Folder to make.
    model
        What :func:`load_model` takes.
    text
        What :func:`read_text` takes: None for the bundled licence text, a file or a folder.
    tokens
        Most tokens read, the BOS of every window included; fewer if the text ends before.
    modules
        What :func:`capture` takes: None for every RMSNorm.
    window
        Tokens of one forward pass: a BOS and ``window - 1`` tokens of the text.
    dtype
        Dtype of the store, ``"bfloat16"`` or ``"float32"``.
    overwrite
        Replace a store that is already there.
    progress
        Called with the tokens done and the tokens to do, once before the first pass and once
        after each.
    created
        Date in the manifest, today by default.

    Raises
    ------
    ValueError
        ``tokens`` below 1, or ``window`` below 2; a control character in ``model`` or ``text``.
    MxstatsError
        Whatever :func:`load_model`, :func:`read_text`, :func:`capture` and :func:`write_store`
        have to say. What can be checked before the model is loaded is checked before.
    """
    _check_window(window)
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    check_plain("model", str(model))
    check_plain("text", text_name(text))
    check_target(out, overwrite=overwrite)
    content = read_text(text)
    network, tokenizer = load_model(model)
    windows = text_windows(tokenizer, content, max_tokens=tokens, window=window)
    captured = run_windows(network, windows, modules=modules, progress=progress)
    ids = [token for part in windows for token in part]
    name, revision = describe_model(model, network)
    return write_store(
        out,
        captured,
        model=name,
        revision=revision,
        text=text_name(text),
        token_ids=ids,
        token_texts=[tokenizer.decode([token]) for token in ids],
        window=window,
        dtype=dtype,
        overwrite=overwrite,
        created=created,
    )


def run_windows(
    model: "nn.Module",
    windows: Sequence[Sequence[int]],
    *,
    modules: Modules = None,
    progress: Progress | None = None,
) -> Captured:
    """Run each window of token ids through ``model`` under :func:`capture`, keeping every row.

    The model runs as it is (:func:`load_model` gives it in eval mode), without gradients, on the
    device of its first parameter, one window a pass, so that no window is padded.
    """
    import torch

    total, done = sum(len(window) for window in windows), 0
    device = next(model.parameters()).device
    if progress is not None:
        progress(done, total)
    with torch.no_grad(), capture(model, modules, keep_rows=sys.maxsize) as captured:
        for window in windows:
            model(torch.tensor([list(window)], device=device))
            done += len(window)
            if progress is not None:
                progress(done, total)
    return captured


def text_windows(
    tokenizer: Any, text: str, *, max_tokens: int | None = None, window: int = 512
) -> list[list[int]]:
    """Cut the tokens of a text into windows, each beginning with the BOS.

    Parameters
    ----------
    tokenizer
        What :func:`tokenize` takes.
    text
        What to read.
    max_tokens
        Most ids in all windows together, every BOS included. A BOS that no token of the text
        would follow is left out.
    window
        Ids a window, its BOS included; the last window may be shorter.
    """
    _check_window(window)
    if max_tokens is not None:
        # Every window but the first spends one of the ids on a BOS that tokenize does not add.
        max_tokens -= max(0, -(-max_tokens // window) - 1)
    bos, *body = tokenize(tokenizer, text, max_tokens)
    step = window - 1
    return [[bos, *body[i : i + step]] for i in range(0, max(1, len(body)), step)]


def _check_window(window: int) -> None:
    if window < 2:
        raise ValueError(f"window must be at least 2, a BOS and one token, got {window}")
