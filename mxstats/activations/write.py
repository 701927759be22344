"""Writing an activation store: whole, or not at all.

A reader never sees half a store and an interrupted write leaves nothing
(:mod:`mxstats.activations.targets`).
"""

import platform
from collections.abc import Iterable, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from mxstats.activations.manifest import (
    DTYPES,
    MANIFEST,
    LayerInfo,
    Manifest,
    Shard,
    StatisticsFile,
    is_plain,
)
from mxstats.activations.places import place_of
from mxstats.activations.shards import NUMPY_DTYPES, write_shard
from mxstats.activations.statistics import Statistics
from mxstats.activations.statistics_table import write_statistics
from mxstats.activations.store import ActivationStore
from mxstats.activations.targets import building, check_target
from mxstats.activations.tokens import token_hash, token_table, write_tokens
from mxstats.errors import StoreError

if TYPE_CHECKING:
    import torch

_LIBRARIES = ("mxstats", "torch", "transformers")


class LayerRows(Protocol):
    """What a store needs of a captured layer; :class:`CapturedLayer` has it."""

    name: str
    role: Any
    index: int | None

    @property
    def rows(self) -> "torch.Tensor | NDArray[Any]":
        """Rows, ``[rows, hidden_size]``, of any float dtype."""
        ...


def write_store(
    path: str | Path,
    captured: Iterable[LayerRows],
    *,
    model: str,
    text: str,
    token_ids: Sequence[int],
    token_texts: Sequence[str] | None = None,
    window: int | None = None,
    revision: str | None = None,
    dtype: str = "bfloat16",
    rows_per_shard: int = 4096,
    overwrite: bool = False,
    created: date | None = None,
) -> ActivationStore:
    """Write captured layers as a store and open it.

    Parameters
    ----------
    path
        Folder to make, whose parent has to exist; or a URL as fsspec takes it
        (``"s3://bucket/store"``, a string), for which the store is built in the working directory,
        uploaded, and kept there where the upload fails.
    captured
        What :func:`mxstats.activations.capture` gave, or any layers with ``name``, ``role``,
        ``index`` and ``rows`` (torch or NumPy, ``[rows, hidden_size]``).
    model, revision, text
        What ran, which revision of it, and what it read, as the manifest is to say.
    token_ids
        Ids in the order in which the model read them, every BOS included.
    token_texts
        The tokens decoded one by one; None leaves that column empty.
    window
        Tokens of a forward pass, the last one may be shorter; None if there was only one pass.
    dtype
        ``"bfloat16"`` (rounded to nearest, ties to even) or ``"float32"``.
    rows_per_shard
        Rows of every layer in one file.
    overwrite
        Replace a store that is already there, once the new one is complete.
    created
        Date in the manifest, today by default.

    Raises
    ------
    ValueError
        ``dtype`` float16 or another; a row that is finite and would overflow the dtype; two
        layers of one name, or none; ids and texts of different length; a control character in a
        string for the manifest.
    StoreError
        Something is at ``path`` already, and it is no store or ``overwrite`` is off; the folder
        cannot be written, or the upload failed.
    """
    for name, value in (("model", model), ("revision", revision), ("text", text)):
        check_plain(name, value)
    _check_arguments(dtype, rows_per_shard, window, token_ids, token_texts)
    layers = list(captured)
    _check_names([layer.name for layer in layers])
    target = place_of(path)
    check_target(target, overwrite=overwrite)
    texts = [""] * len(token_ids) if token_texts is None else token_texts
    length = window or max(1, len(token_ids))
    try:
        with building(target, overwrite=overwrite) as folder:
            infos, shards = _write_shards(folder, layers, dtype, rows_per_shard)
            write_tokens(folder, token_table(token_ids, texts, length))
            manifest = Manifest(
                model=model,
                revision=revision,
                text=text,
                dtype=dtype,
                tokens=len(token_ids),
                window=length,
                token_ids_sha256=token_hash(token_ids),
                rows=max(info.rows for info in infos),
                layers=tuple(infos),
                shards=tuple(shards),
                versions=library_versions(),
                created=(created or date.today()).isoformat(),
                tokens_read=len(token_ids),
                statistics=_write_layer_statistics(folder, layers),
            )
            (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {target}: {error.strerror or error}") from error
    return ActivationStore(path)


def store_bytes(values_per_token: Iterable[int], tokens: int, *, dtype: str = "bfloat16") -> int:
    """Size of a store's rows before there are any, in bytes; the other files are negligible.

    Parameters
    ----------
    values_per_token
        For each layer, its hidden_size times its rows a token.
    tokens
        Tokens to be read.
    dtype
        Dtype of the store.
    """
    return sum(values_per_token) * tokens * NUMPY_DTYPES[dtype].itemsize


def _write_layer_statistics(folder: Path, layers: list[LayerRows]) -> StatisticsFile | None:
    found = {layer.name: getattr(layer, "statistics", None) for layer in layers}
    known = {name: state for name, state in found.items() if isinstance(state, Statistics)}
    return write_statistics(folder, known) if known else None


def _write_shards(
    folder: Path, layers: list[LayerRows], dtype: str, rows_per_shard: int
) -> tuple[list[LayerInfo], list[Shard]]:
    rows = {layer.name: layer.rows for layer in layers}
    infos = [
        LayerInfo(
            name=layer.name,
            role=str(layer.role),
            index=layer.index,
            hidden_size=int(rows[layer.name].shape[1]),
            rows=len(rows[layer.name]),
        )
        for layer in layers
    ]
    shards = []
    for number, first in enumerate(range(0, max(info.rows for info in infos), rows_per_shard)):
        tensors = {
            info.name: stored_rows(
                info.name, rows[info.name][first : first + rows_per_shard], dtype
            )
            for info in infos
            if info.rows > first
        }
        shards.append(write_shard(folder, f"shards/{number:05d}.safetensors", first, tensors))
    return infos, shards


def stored_rows(name: str, rows: "torch.Tensor | NDArray[Any]", dtype: str) -> NDArray[Any]:
    """``rows`` in the dtype of a store; ValueError where a finite value would overflow it."""
    wide = _as_numpy(rows)
    with np.errstate(over="ignore"):
        narrow = wide.astype(NUMPY_DTYPES[dtype])
        lost = np.isfinite(wide) & ~np.isfinite(narrow.astype(np.float32))
    if lost.any():
        worst = wide[lost].flat[0]
        raise ValueError(
            f"{name} has the value {worst:g}, which overflows {dtype} (largest {_largest(dtype):g})"
        )
    return np.ascontiguousarray(narrow)


def _as_numpy(rows: "torch.Tensor | NDArray[Any]") -> NDArray[Any]:
    if isinstance(rows, np.ndarray):
        return rows
    on_cpu = rows.detach().cpu()
    # NumPy knows no bfloat16; float32 holds every narrower float exactly.
    return on_cpu.numpy() if on_cpu.element_size() == 8 else on_cpu.float().numpy()


def _largest(dtype: str) -> float:
    return float(ml_dtypes.finfo(NUMPY_DTYPES[dtype]).max)


def check_plain(name: str, value: str | None) -> None:
    """Raise ValueError for control characters, which :func:`read_manifest` would refuse."""
    if value is not None and not is_plain(value):
        raise ValueError(f"{name} must have no control characters, got {value!r}")


def _check_names(names: list[str]) -> None:
    for name in names:
        check_plain("the name of a layer", name)
    if not names:
        raise ValueError("captured has no layers, so there is nothing to store")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"captured has more than one layer called {', '.join(twice)}")


def check_dtype(dtype: str) -> None:
    """Raise ValueError for a dtype that no store has."""
    if dtype == "float16":
        raise ValueError(
            "dtype must not be float16: real norm inputs reach 104,061 and float16 ends at 65,504; "
            "use bfloat16 or float32"
        )
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")


def _check_arguments(
    dtype: str,
    rows_per_shard: int,
    window: int | None,
    token_ids: Sequence[int],
    texts: Sequence[str] | None,
) -> None:
    check_dtype(dtype)
    if rows_per_shard < 1:
        raise ValueError(f"rows_per_shard must be at least 1, got {rows_per_shard}")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    if texts is not None and len(texts) != len(token_ids):
        raise ValueError(
            f"token_texts has {len(texts)} entries for {len(token_ids)} token_ids; "
            "they have to be as many"
        )


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that make a store."""
    found = {"python": platform.python_version()}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "not installed"
    return found
