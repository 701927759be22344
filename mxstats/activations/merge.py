"""Two stores of one model made one: all kept rows of both, and the statistics of all they read."""

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mxstats.activations.manifest import MANIFEST, LayerInfo, Manifest, StatisticsFile
from mxstats.activations.places import place_of
from mxstats.activations.shards import read_rows, write_shard
from mxstats.activations.statistics import merge
from mxstats.activations.statistics_table import write_statistics
from mxstats.activations.store import ActivationStore
from mxstats.activations.targets import building, check_space, check_target
from mxstats.activations.tokens import token_hash, write_tokens
from mxstats.activations.write import library_versions
from mxstats.errors import StoreError

if TYPE_CHECKING:
    import pandas as pd

_TOKENS_PER_SHARD = 1024


def merge_stores(
    a: ActivationStore | str | Path,
    b: ActivationStore | str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    created: date | None = None,
) -> ActivationStore:
    """Write the store of the readings of ``a`` and then of ``b``.

    Any of the three may be a URL, as :class:`ActivationStore` and :func:`write_store` take it.
    Tokens and windows of ``b`` are numbered on from those of ``a``. One shard of rows is in memory
    at a time. The rows are all that either kept: a sample only as far as both are one of the same
    share.

    Raises
    ------
    StoreError
        Stores of different models, layers or dtypes; statistics in one of them alone, or of
        another block size; a damaged store; ``out`` is taken or cannot be written, or its disk has
        no room for it.
    """
    first, second = (
        one if isinstance(one, ActivationStore) else ActivationStore(one) for one in (a, b)
    )
    target = place_of(out)
    groups = _check_alike(first, second)
    check_target(target, overwrite=overwrite)
    check_space(
        target, sum(shard.bytes for one in (first, second) for shard in one.manifest.shards)
    )
    tokens = _tokens(first, second)
    ids = tokens["token_id"].to_numpy()
    about = [one.manifest for one in (first, second)]
    texts = list(dict.fromkeys(one.text for one in about))
    try:
        with building(target, overwrite=overwrite) as folder:
            (folder / "shards").mkdir()
            shards = []
            done = 0
            for store in (first, second):
                for start in range(0, store.manifest.tokens, _TOKENS_PER_SHARD):
                    stop = min(start + _TOKENS_PER_SHARD, store.manifest.tokens)
                    tensors = {
                        name: _row_range(store, store.layer(name), start * group, stop * group)
                        for name, group in groups.items()
                    }
                    file = f"shards/{len(shards):05d}.safetensors"
                    shards.append(write_shard(folder, file, done, tensors, rows=stop - start))
                    done += stop - start
            write_tokens(folder, tokens)
            manifest = Manifest(
                model=about[0].model,
                revision=about[0].revision,
                text=" + ".join(texts),
                dtype=about[0].dtype,
                tokens=len(ids),
                window=max(one.window for one in about),
                token_ids_sha256=token_hash(ids),
                rows=len(ids),
                layers=tuple(
                    replace(layer, rows=len(ids) * groups[layer.name], group=groups[layer.name])
                    for layer in first.layers
                ),
                shards=tuple(shards),
                versions=library_versions(),
                created=(created or date.today()).isoformat(),
                tokens_read=sum(one.tokens_read for one in about),
                statistics=_statistics(folder, first, second),
            )
            (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {target}: {error.strerror or error}") from error
    return ActivationStore(out)


def _check_alike(first: ActivationStore, second: ActivationStore) -> dict[str, int]:
    """Rows a token of each layer, the same in both stores."""
    for name in ("model", "revision", "dtype"):
        ours, theirs = (getattr(one.manifest, name) for one in (first, second))
        if ours != theirs:
            raise StoreError(
                f"{first.path} has {name} {ours!r} and {second.path} has {theirs!r}: "
                "only captures of one model in one dtype merge"
            )
    for one, other in ((first, second), (second, first)):
        names = {layer.name for layer in other.layers}
        missing = [layer.name for layer in one.layers if layer.name not in names]
        if missing:
            raise StoreError(f"{other.path} has no layer {missing[0]}, which {one.path} has")
    if (first.manifest.statistics is None) != (second.manifest.statistics is None):
        without = first if first.manifest.statistics is None else second
        raise StoreError(f"{without.path} has no statistics and the other store has them")
    groups = {}
    for layer in first.layers:
        pair = [(one.layer(layer.name), one.manifest.tokens) for one in (first, second)]
        rates = {info.rows / max(1, tokens) for info, tokens in pair if tokens}
        widths = {info.hidden_size for info, _ in pair}
        if len(rates) > 1 or len(widths) > 1 or any(rate % 1 for rate in rates):
            raise StoreError(
                f"{layer.name} has other rows in {first.path} than in {second.path}: "
                f"{sorted(rates)} a token, of {sorted(widths)} entries"
            )
        groups[layer.name] = int(max(rates, default=1))
    return groups


def _tokens(first: ActivationStore, second: ActivationStore) -> "pd.DataFrame":
    import pandas as pd

    ours, theirs = first.tokens(), second.tokens()
    theirs["token"] += first.manifest.tokens_read
    theirs["window"] += int(ours["window"].max()) + 1 if len(ours) else 0
    both = pd.concat([ours, theirs], ignore_index=True)
    both["row"] = np.arange(len(both))
    return both


def _statistics(
    folder: Path, first: ActivationStore, second: ActivationStore
) -> StatisticsFile | None:
    if first.manifest.statistics is None:
        return None
    merged = {}
    for layer in first.layers:
        ours, theirs = (one.layer_statistics(layer.name) for one in (first, second))
        shift = (theirs.top.token >= 0) * first.manifest.tokens_read
        theirs = replace(theirs, top=theirs.top._replace(token=theirs.top.token + shift))
        try:
            merged[layer.name] = merge(ours, theirs)
        except ValueError as error:
            raise StoreError(f"{second.path} does not merge: {error}") from error
    return write_statistics(folder, merged)


def _row_range(store: ActivationStore, layer: LayerInfo, start: int, stop: int) -> NDArray[Any]:
    parts = []
    for shard in store.manifest.shards:
        first = shard.first_row * layer.group
        last = first + shard.rows_of(layer)
        if first < stop and last > start:
            rows = read_rows(store.place, shard, layer, store.manifest.dtype)
            parts.append(rows[max(0, start - first) : stop - first])
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
