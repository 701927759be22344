"""Rows written to a store shard by shard while the model runs, and the store made of them.

After a pass that fills a shard, the rows in memory are written and the state is made the one to
resume from (:mod:`mxstats.activations.progress`). At the end the complete shards become the store,
as they are where all tokens were kept by one process, and otherwise sorted by token, without those
that the sample has dropped since.
"""

import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import date
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mxstats.activations import ranks
from mxstats.activations.finish import finish_store
from mxstats.activations.manifest import Shard
from mxstats.activations.places import Place, place_of
from mxstats.activations.progress import (
    Progress,
    check_settings,
    discard,
    lock,
    partial_folder,
    read_progress,
    read_state,
    write_progress,
    write_settings,
)
from mxstats.activations.shards import write_shard
from mxstats.activations.targets import beside, check_target, gigabytes, is_full
from mxstats.activations.write import check_dtype, check_plain, store_bytes, stored_rows
from mxstats.errors import CaptureError, StoreError

if TYPE_CHECKING:
    from mxstats.activations.captured import Captured

TOKENS_PER_SHARD = 1024


class Streaming:
    """Writes what ``seen`` keeps into a partial folder; :func:`streaming` makes and ends it."""

    def __init__(
        self,
        seen: "Captured",
        folder: Path,
        rank: int,
        dtype: str,
        per_shard: int,
        most_tokens: int | None = None,
    ):
        self._most_tokens = most_tokens
        self.folder, self.rank = folder, rank
        self._seen, self._dtype, self._per_shard = seen, dtype, per_shard
        self._shards: tuple[Shard, ...] = ()
        self._log = np.empty((0, 4), np.int64)
        self._saved = 0

    def restore(self, progress: Progress) -> None:
        """Continue behind the last complete shard."""
        seen = self._seen
        statistics, self._log = read_state(self.folder, progress)
        self._shards = progress.shards
        if set(progress.layers) != set(seen.names):
            raise StoreError(f"the interrupted capture in {self.folder} has other layers")
        for layer in seen:
            known = progress.layers[layer.name]
            layer.restore(
                statistics.get(layer.name),
                known["rows_seen"],
                known["calls"],
                known["group"],
                progress.next_token,
            )
            layer.sample.restore(self._log[:, 0])
        seen.log.restore(self._log[:, 0])
        seen.next_token, seen.passes = progress.next_token, progress.passes
        seen.tokens_read = self._saved = progress.tokens_read
        seen.padding_tokens = progress.padding_tokens

    def after_pass(self) -> None:
        """Write a shard if one is full."""
        if self._most_tokens is not None:
            self._warn_of_space(self._most_tokens)
            self._most_tokens = None
        pending = max([self._seen.log.pending, *(one.sample.pending for one in self._seen)])
        unsaved = self._seen.tokens_read - self._saved
        if pending >= self._per_shard or (self._seen.keep_rows == 0 and unsaved >= self._per_shard):
            self.checkpoint()

    def checkpoint(self) -> Progress:
        """Write the rows in memory and the state; nothing of it is in memory afterwards."""
        new = self._drain_log()
        tensors = {}
        for layer in self._seen:
            tokens, rows = layer.sample.drain()
            if not len(new) and len(tokens):
                new = np.column_stack([tokens, np.full((len(tokens), 3), -1)])
            if not np.array_equal(tokens, new[:, 0]):
                raise CaptureError(
                    f"{layer.name} saw other tokens than the model reads, so its rows cannot be "
                    "stored beside those of other layers: pick modules that see every token"
                )
            if rows is not None:
                tensors[layer.name] = stored_rows(layer.name, rows.flatten(0, 1), self._dtype)
        if tensors:
            file = f"shards/{self.rank:03d}-{len(self._shards):05d}.safetensors"
            first = sum(shard.rows for shard in self._shards)
            shard = write_shard(self.folder, file, first, tensors, rows=len(new))
            self._shards = (*self._shards, shard)
            self._log = np.concatenate([self._log, new])
        self._saved = self._seen.tokens_read
        return write_progress(self.folder, self.rank, self._seen, self._shards, self._log)

    def _warn_of_space(self, tokens: int) -> None:
        # How many tokens will be read nobody has said, so there is nothing to refuse.
        most = store_bytes(
            [one.hidden_size * one.group for one in self._seen], tokens, dtype=self._dtype
        )
        free = shutil.disk_usage(self.folder).free
        if most > free:
            warnings.warn(
                f"the rows of keep_rows = {tokens} tokens take {gigabytes(most)}, and the disk of "
                f"{self.folder} has {gigabytes(free)} free: keep the rows of fewer, or write to "
                "another disk",
                stacklevel=2,
            )

    def _drain_log(self) -> NDArray[np.int64]:
        tokens, facts = self._seen.log.drain()
        if facts is None:
            return np.empty((0, 4), np.int64)
        return np.column_stack([tokens, facts[:, 0].numpy()])


@contextmanager
def streaming(
    seen: "Captured",
    out: str | Path,
    *,
    about: Mapping[str, Any],
    dtype: str = "bfloat16",
    resume: bool = False,
    overwrite: bool = False,
    per_shard: int = TOKENS_PER_SHARD,
    most_tokens: int | None = None,
    settings: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    window: int | None = None,
    created: date | None = None,
) -> Iterator[Streaming]:
    """Write what ``seen`` keeps to the store ``out`` during the block, and finish it at its end.

    Where the block ends with an exception, or the process is killed, complete shards stay in
    ``.<name>.partial`` beside ``out`` and ``resume`` continues behind them. Of a URL they are in
    ``.<name>-<hash of the URL>.partial`` in the working directory, from which alone the capture
    can be resumed. The URL has nothing of it until the end, when the complete store is uploaded;
    where that fails, ``resume`` only sends what is missing.

    Parameters
    ----------
    seen
        What listens to the model.
    out
        Folder or URL of the store.
    about
        ``model``, ``revision`` and ``text`` for the manifest.
    dtype
        Dtype of the store.
    resume
        Continue an interrupted capture, if there is one.
    overwrite
        Replace a store, or discard an interrupted capture.
    per_shard
        Tokens after which a shard is written, at the end of the pass.
    most_tokens
        Tokens whose rows may have to be kept, to warn after the first pass of a disk that is too
        small for them; None where that was checked before.
    settings
        What else a resumption has to match.
    tokenizer
        Decodes token ids, one by one, for ``tokens.parquet``; None leaves the texts empty.
    window
        Tokens of a pass for the manifest; the longest sequence seen by default.
    created
        Date in the manifest, today by default.

    Raises
    ------
    StoreError
        ``out`` is taken, an interrupted capture is there and neither ``resume`` nor ``overwrite``
        is set, nothing can be written, or another writer finished ``out`` first: then the
        capture stays, complete, under the name that the message says. So it does where an upload
        failed, and up to its last complete shard where the disk is full.
    """
    check_dtype(dtype)
    for name, value in about.items():
        check_plain(name, value)
    target = place_of(out)
    rank, world = ranks.rank(), ranks.world_size()
    facts = {
        "about": dict(about),
        "layers": seen.names,
        "keep_rows": seen.keep_rows,
        "seed": seen.seed,
        "dtype": dtype,
        "processes": world,
        **(settings or {}),
    }
    folder, held = None, None
    try:
        with ExitStack() as stack:
            if rank == 0:
                check_target(target, overwrite=overwrite)
                folder, held = _claim(target, facts, resume=resume, overwrite=overwrite)
                stack.callback(held.close)
            folder = Path(ranks.broadcast_text(None if folder is None else str(folder)))
            writer = Streaming(seen, folder, rank, dtype, per_shard, most_tokens)
            progress = read_progress(folder, rank) if resume else None
            if progress is not None:
                writer.restore(progress)
            seen.after_pass = writer.after_pass
            try:
                yield writer
            finally:
                seen.after_pass = None
            writer.checkpoint()
            ranks.barrier()
            if rank == 0:
                finish_store(
                    folder,
                    target,
                    seen,
                    about=about,
                    dtype=dtype,
                    processes=world,
                    per_shard=per_shard,
                    overwrite=overwrite,
                    tokenizer=tokenizer,
                    window=window,
                    created=created,
                )
            ranks.barrier()
    except OSError as error:
        message = f"cannot write {target}: {error.strerror or error}"
        if is_full(error):
            message += (
                f"; what was captured up to the last complete shard is in {folder}: make room, "
                "then resume=True continues it (--resume on the command line)"
            )
        raise StoreError(message) from error


def _claim(
    target: Place, settings: Mapping[str, Any], *, resume: bool, overwrite: bool
) -> tuple[Path, IO[bytes]]:
    """A partial folder that no other process writes to, and its lock."""
    number = 0
    while True:
        folder = partial_folder(beside(target), number)
        held = lock(folder)
        if held is not None:
            break
        # Another process captures to the same place: it has its shards and this one its own.
        number += 1
    begun = (folder / "settings.json").exists()
    try:
        if begun and resume:
            check_settings(folder, settings)
        elif begun and not overwrite:
            raise StoreError(
                f"an interrupted capture of {target} is in {folder}: resume=True continues it "
                "(--resume on the command line), overwrite=True discards it (--overwrite)"
            )
        else:
            discard(folder)
            write_settings(folder, settings)
    except BaseException:
        held.close()
        raise
    return folder, held
