"""The store that the shards of an unfinished capture make."""

import os
import shutil
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mxstats.activations.manifest import MANIFEST, LayerInfo, Manifest, Shard
from mxstats.activations.places import Place
from mxstats.activations.progress import discard, read_progress, read_state
from mxstats.activations.shards import load_tensor, write_shard
from mxstats.activations.statistics import Statistics, merge
from mxstats.activations.statistics_table import write_statistics
from mxstats.activations.targets import UploadError, put_into_place
from mxstats.activations.token_sample import sampled
from mxstats.activations.tokens import token_hash, write_tokens
from mxstats.activations.write import library_versions
from mxstats.errors import StoreError

if TYPE_CHECKING:
    import pandas as pd

    from mxstats.activations.captured import Captured


class Source(NamedTuple):
    """Shards to take rows from: their folder, and token, id, position, window of their rows."""

    folder: Path
    shards: tuple[Shard, ...]
    log: NDArray[np.int64]


def finish_store(
    folder: Path,
    target: Place,
    seen: "Captured",
    *,
    about: Mapping[str, Any],
    dtype: str,
    processes: int,
    per_shard: int,
    overwrite: bool,
    tokenizer: Any,
    window: int | None,
    created: date | None,
) -> None:
    """Make the partial ``folder`` the store ``target``.

    Shards are linked, or copied, not moved: until the store stands in its place, the unfinished
    capture stays whole.
    """
    progress = [read_progress(folder, number) for number in range(processes)]
    if any(one is None for one in progress):
        raise StoreError(f"{folder} lacks the progress of one of {processes} processes")
    known = [one for one in progress if one is not None]
    states = [read_state(folder, one) for one in known]
    sources = [Source(folder, one.shards, log) for one, (_, log) in zip(known, states, strict=True)]
    statistics: dict[str, Statistics] = {}
    groups: dict[str, int] = {}
    widths: dict[str, int] = {}
    for one, (parts, _) in zip(known, states, strict=True):
        for name, state in parts.items():
            statistics[name] = merge(statistics[name], state) if name in statistics else state
        for name, facts in one.layers.items():
            if facts["rows_seen"]:
                groups[name], widths[name] = facts["group"], facts["hidden_size"]
    store = folder / "store"
    if store.exists():
        shutil.rmtree(store)
    (store / "shards").mkdir(parents=True)
    names = [name for name in seen.names if name in groups]
    statistics = {name: statistics[name] for name in names if name in statistics}
    shards, log = collect_shards(
        sources, store, names, groups, keep=seen.keep_rows, seed=seen.seed, per_shard=per_shard
    )
    layers = tuple(
        LayerInfo(
            name=name,
            role=seen[name].role,
            index=seen[name].index,
            hidden_size=widths[name],
            rows=len(log) * groups[name],
            group=groups[name],
        )
        for name in names
    )
    tokens = tokens_of_log(log, tokenizer)
    write_tokens(store, tokens)
    longest = int(log[:, 2].max()) + 1 if len(log) else 1
    manifest = Manifest(
        model=about["model"],
        revision=about["revision"],
        text=about["text"],
        dtype=dtype,
        tokens=len(log),
        window=window or max(1, longest),
        token_ids_sha256=token_hash(tokens["token_id"].to_numpy()),
        rows=len(log),
        layers=layers,
        shards=tuple(shards),
        versions=library_versions(),
        created=(created or date.today()).isoformat(),
        tokens_read=max(len(log), sum(one.tokens_read for one in known)),
        statistics=write_statistics(store, statistics) if statistics else None,
    )
    (store / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    try:
        put_into_place(store, target, folder / "replaced", overwrite)
    except UploadError as error:
        raise UploadError(f"{error}, as resume=True does (--resume on the command line)") from error
    except OSError as error:
        raise StoreError(
            f"{target} was written by another process in the meantime ({error.strerror or error}); "
            f"this capture is complete in {store}: rename it, or merge the two with merge_stores"
        ) from error
    discard(folder)
    (folder / "lock").unlink(missing_ok=True)
    folder.rmdir()


def collect_shards(
    sources: list[Source],
    store: Path,
    names: list[str],
    groups: Mapping[str, int],
    *,
    keep: int,
    seed: int,
    per_shard: int,
) -> tuple[list[Shard], NDArray[np.int64]]:
    """Shards of the sampled rows of all sources, in the order of their tokens, and their log."""
    log = np.concatenate([source.log for source in sources])
    wanted = sampled(log[:, 0], keep, seed)
    if len(sources) == 1 and wanted.all() and (np.diff(log[:, 0]) > 0).all():
        folder, complete = sources[0].folder, sources[0].shards
        return [_link(folder, shard, n, store) for n, shard in enumerate(complete)], log
    order = np.flatnonzero(wanted)
    order = order[np.argsort(log[order, 0], kind="stable")]
    # For every row of the concatenated log: its source, the source's shard, and its place there.
    places = np.concatenate(
        [
            np.column_stack([np.full(s.rows, i), np.full(s.rows, n), np.arange(s.rows)])
            for i, source in enumerate(sources)
            for n, s in enumerate(source.shards)
        ]
        or [np.empty((0, 3), np.int64)]
    )
    shards = []
    for number, first in enumerate(range(0, len(order), per_shard)):
        chosen = places[order[first : first + per_shard]]
        tensors = {name: _gather(sources, chosen, name, groups[name]) for name in names}
        file = f"shards/{number:05d}.safetensors"
        shards.append(write_shard(store, file, first, tensors, rows=len(chosen)))
    return shards, log[order]


def tokens_of_log(log: NDArray[np.int64], tokenizer: Any = None) -> "pd.DataFrame":
    """The table of ``tokens.parquet``; windows are numbered in the order of the reading."""
    import pandas as pd

    ids = log[:, 1]
    texts = [""] * len(ids) if tokenizer is None else [tokenizer.decode([one]) for one in ids]
    return pd.DataFrame(
        {
            "row": np.arange(len(ids), dtype=np.int64),
            "token_id": ids,
            "text": texts,
            "position": log[:, 2],
            "window": np.unique(log[:, 3], return_inverse=True)[1],
            "token": log[:, 0],
        }
    )


def _gather(
    sources: list[Source], chosen: NDArray[np.int64], name: str, group: int
) -> NDArray[Any]:
    out: NDArray[Any] | None = None
    for source, shard, here in _by_shard(chosen):
        origin = sources[source]
        rows = load_tensor(origin.folder, origin.shards[shard], name)
        rows = rows.reshape(-1, group, rows.shape[1])[chosen[here, 2]]
        if out is None:
            out = np.empty((len(chosen), *rows.shape[1:]), rows.dtype)
        out[here] = rows
    if out is None:
        raise StoreError(f"no shard holds rows of {name}")
    return out.reshape(-1, out.shape[2])


def _by_shard(chosen: NDArray[np.int64]) -> Iterator[tuple[int, int, NDArray[np.intp]]]:
    for source, shard in np.unique(chosen[:, :2], axis=0):
        here = np.flatnonzero((chosen[:, 0] == source) & (chosen[:, 1] == shard))
        yield int(source), int(shard), here


def _link(folder: Path, shard: Shard, number: int, store: Path) -> Shard:
    file = f"shards/{number:05d}.safetensors"
    try:
        os.link(folder / shard.file, store / file)
    except OSError:
        # Not every file system has links.
        shutil.copy2(folder / shard.file, store / file)
    return Shard(file, shard.first_row, shard.rows, shard.sha256, shard.bytes)
