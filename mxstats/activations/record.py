"""From a model and a text to a store: what ``mxstats capture`` does."""

import math
import sys
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mxstats.activations import ranks
from mxstats.activations.capture import Captured, check_options, listening
from mxstats.activations.models import SMOLLM2, describe_model, load_model
from mxstats.activations.pick import Modules
from mxstats.activations.places import place_of
from mxstats.activations.progress import bytes_on_disk
from mxstats.activations.store import ActivationStore
from mxstats.activations.stream import streaming
from mxstats.activations.targets import beside, check_space, check_target
from mxstats.activations.text import read_text, text_name, tokenize
from mxstats.activations.write import check_plain, store_bytes

if TYPE_CHECKING:
    from torch import nn

Progress = Callable[[int, int], None]
_PROBE_TOKENS = 64


def capture_to_store(
    out: str | Path,
    *,
    model: str | Path = SMOLLM2,
    text: str | Path | None = None,
    tokens: int = 64,
    modules: Modules = None,
    window: int = 512,
    dtype: str = "bfloat16",
    keep_rows: int | None = None,
    statistics: bool = True,
    block_size: int = 32,
    seed: int = 0,
    trust_remote_code: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    announce: Callable[["Estimate"], None] | None = None,
    progress: Progress | None = None,
    created: date | None = None,
) -> ActivationStore:
    """Run a model over a text and store what enters its RMSNorms.

    Rows go to disk a shard of 1,024 tokens at a time, so memory does not grow with the tokens.
    Under ``torchrun`` every process reads its share of the windows, and the store is the one that
    a single process would write.

    Parameters
    ----------
    out
        Folder or URL of the store to make, as :func:`write_store` takes it.
    model, trust_remote_code
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
    keep_rows
        Most tokens whose rows are kept, a uniform sample; None for all, 0 for statistics alone.
    statistics, block_size, seed
        As :func:`capture` takes them.
    resume
        Continue an interrupted capture of the same settings at its last complete shard; for a URL,
        in the same working directory, where what is unfinished is kept.
    overwrite
        Replace a store that is already there, or discard an interrupted capture.
    announce
        Called once with the :class:`Estimate`, before the first pass; that takes two short passes.
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
        have to say. What can be checked before the model is loaded is checked before, and before
        the first pass whether the disk has room for the rows.
    """
    _check_window(window)
    if tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {tokens}")
    check_options(0 if keep_rows is None else keep_rows, "input", block_size)
    check_plain("model", str(model))
    check_plain("text", text_name(text))
    check_target(out, overwrite=overwrite)
    content = read_text(text)
    network, tokenizer = load_model(model, trust_remote_code=trust_remote_code)
    windows = text_windows(tokenizer, content, max_tokens=tokens, window=window)
    name, revision = describe_model(model, network)
    with ranks.from_environment():
        if ranks.rank() == 0:
            values = _values_per_token(network, windows[0][:1], modules)
            total = sum(len(window) for window in windows)
            needed = bytes_while_written(
                values, total, keep_rows, dtype=dtype, processes=ranks.world_size()
            )
            target = place_of(out)
            # What is there of this capture is on the disk already, or is discarded.
            held = bytes_on_disk(beside(target)) if resume or overwrite else 0
            check_space(target, needed, held=held)
        if announce is not None and ranks.rank() == 0:
            announce(estimate(network, windows, modules=modules, dtype=dtype, keep_rows=keep_rows))
        _stream_windows(
            network,
            windows,
            out,
            modules=modules,
            keep_rows=sys.maxsize if keep_rows is None else keep_rows,
            block_size=block_size if statistics else None,
            seed=seed,
            progress=progress,
            about={"model": name, "revision": revision, "text": text_name(text)},
            dtype=dtype,
            resume=resume,
            overwrite=overwrite,
            settings={"window": window, "tokens": tokens, "block_size": block_size},
            tokenizer=tokenizer,
            window=window,
            created=created,
        )
        ranks.barrier()
    return ActivationStore(out)


class Estimate(NamedTuple):
    """What a capture will take: ``bytes`` of rows on disk, ``seconds`` of this machine."""

    bytes: int
    seconds: float


def estimate(
    model: "nn.Module",
    windows: Sequence[Sequence[int]],
    *,
    modules: Modules = None,
    dtype: str = "bfloat16",
    keep_rows: int | None = None,
) -> Estimate:
    """Size and time of capturing ``windows``, from a pass over the first tokens.

    The bytes are those of the rows; the time is that of one pass of at most 64 tokens, scaled, and
    long windows are read somewhat faster than that.
    """
    import torch

    total = sum(len(window) for window in windows)
    head = list(windows[0][:_PROBE_TOKENS])
    ids = torch.tensor([head], device=next(model.parameters()).device)
    # An expert's norm that these tokens do not reach is no fault.
    with torch.no_grad(), listening(model, modules, keep_rows=0, active=lambda _: True) as seen:
        model(ids)
        begin = perf_counter()
        model(ids)
        seconds = perf_counter() - begin
    kept = total if keep_rows is None else min(total, keep_rows)
    values = [layer.hidden_size * layer.group for layer in seen]
    size = store_bytes(values, kept, dtype=dtype)
    return Estimate(size, seconds / len(head) * total / ranks.world_size())


def bytes_while_written(
    values_per_token: Sequence[int],
    tokens: int,
    keep_rows: int | None,
    *,
    dtype: str = "bfloat16",
    processes: int = 1,
) -> int:
    """Most bytes of rows on the disk at any time of a capture of ``tokens`` tokens.

    Where all are kept by one process, those of the store, for its shards are linked. Else the
    sorted store is written beside the shards, which hold every token that has been in the sample:
    of n tokens in random order, keep_rows·(1 + ln(n/keep_rows)), the expected number of records
    (Vitter, 1985, "Random sampling with a reservoir").
    """
    if keep_rows is None or keep_rows >= tokens:
        kept, twice = tokens, processes > 1
        written = float(tokens)
    else:
        kept, twice = keep_rows, True
        each = min(kept, tokens / processes)
        records = each * (1 + math.log(tokens / processes / each)) if each else 0.0
        written = min(float(tokens), processes * records)
    return store_bytes(values_per_token, math.ceil(written) + kept * twice, dtype=dtype)


def _values_per_token(model: "nn.Module", ids: Sequence[int], modules: Modules) -> list[int]:
    import torch

    device = next(model.parameters()).device
    # Listening by choice: an expert's norm that these tokens do not reach is no fault.
    with torch.no_grad(), listening(model, modules, keep_rows=0, active=lambda _: True) as seen:
        model(torch.tensor([list(ids)], device=device))
    return [layer.hidden_size * layer.group for layer in seen]


def _stream_windows(
    model: "nn.Module",
    windows: Sequence[Sequence[int]],
    out: str | Path,
    *,
    modules: Modules,
    keep_rows: int,
    block_size: int | None,
    seed: int,
    progress: Progress | None,
    **options: Any,
) -> None:
    import torch

    total = sum(len(window) for window in windows)
    starts = np.cumsum([0, *(len(window) for window in windows)])
    # Every process reads its share of the windows, under their numbers in the whole reading.
    mine = range(ranks.rank(), len(windows), ranks.world_size())
    device = next(model.parameters()).device
    with (
        torch.no_grad(),
        listening(model, modules, keep_rows=keep_rows, block_size=block_size, seed=seed) as seen,
        streaming(seen, out, **options),
    ):
        done = sum(len(windows[i]) for i in mine[: seen.passes])
        if progress is not None:
            progress(done, total)
        for i in mine[seen.passes :]:
            seen.next_token = int(starts[i])
            model(torch.tensor([list(windows[i])], device=device))
            done += len(windows[i])
            if progress is not None:
                progress(done, total)


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
    with (
        torch.no_grad(),
        listening(model, modules, keep_rows=sys.maxsize, block_size=None) as captured,
    ):
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
