"""One shard of a store: a safetensors file holding a range of rows of every layer.

Written and read through NumPy, so that reading needs no torch; bfloat16 is that of ml_dtypes.
"""

import hashlib
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from mxstats.activations.manifest import LayerInfo, Shard
from mxstats.activations.places import Place, local_file
from mxstats.errors import StoreError

NUMPY_DTYPES: Mapping[str, np.dtype[Any]] = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
}
_CODES = {"bfloat16": "BF16", "float32": "F32"}
_CHUNK_BYTES = 1 << 20

# Files whose checksum was right when this process first opened them. Size and time of change are
# part of the key, so that a file altered afterwards is checked again.
_checked: set[tuple[str, int, int, str]] = set()


def write_shard(
    folder: Path,
    file: str,
    first_row: int,
    tensors: Mapping[str, NDArray[Any]],
    *,
    rows: int | None = None,
) -> Shard:
    """Write ``tensors``, ``[rows, hidden_size]`` by layer name, and say what was written.

    ``rows`` counts groups where layers have several rows a token; the longest layer by default.
    """
    data = save(dict(tensors))
    path = folder / file
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        # Half a shard on a full disk is in the way of whoever makes room.
        temporary.unlink(missing_ok=True)
        raise
    return Shard(
        file=file,
        first_row=first_row,
        rows=max(len(one) for one in tensors.values()) if rows is None else rows,
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
    )


def check_shard(folder: Place, shard: Shard, *, again: bool = False) -> None:
    """Compare a shard's size and SHA-256 with the manifest, once a process unless ``again``.

    Raises
    ------
    StoreError
        Missing, no file, truncated or altered; the message names the shard.
    """
    try:
        with local_file(folder, shard.file) as path:
            _check_file(path, folder, shard, again)
    except FileNotFoundError as error:
        raise StoreError(f"shard {shard.file} of {folder} is missing") from error
    except OSError as error:
        raise StoreError(f"shard {shard.file} of {folder} cannot be read: {error}") from error


def _check_file(path: Path, folder: Place, shard: Shard, again: bool) -> None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        what = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise StoreError(f"shard {shard.file} of {folder} is {what}")
    if status.st_size != shard.bytes:
        raise StoreError(
            f"shard {shard.file} of {folder} has {status.st_size} bytes instead of "
            f"{shard.bytes}: it is {'truncated' if status.st_size < shard.bytes else 'altered'}"
        )
    key = (str(path.resolve()), status.st_size, status.st_mtime_ns, shard.sha256)
    if key in _checked and not again:
        return
    found = file_sha256(path)
    if found != shard.sha256:
        _checked.discard(key)
        raise StoreError(
            f"shard {shard.file} of {folder} is altered: its SHA-256 begins with {found[:12]} "
            f"instead of {shard.sha256[:12]}"
        )
    _checked.add(key)


def read_rows(folder: Place, shard: Shard, layer: LayerInfo, dtype: str) -> NDArray[Any]:
    """The rows of ``layer`` in ``shard``, ``[rows, hidden_size]``, in the stored dtype.

    Raises
    ------
    StoreError
        The shard is damaged, or does not hold what the manifest says.
    """
    check_shard(folder, shard)
    expected = [shard.rows_of(layer), layer.hidden_size]
    try:
        with (
            local_file(folder, shard.file) as path,
            safe_open(path, framework="numpy") as opened,
        ):
            entry = opened.get_slice(layer.name)
            if entry.get_dtype() != _CODES[dtype] or entry.get_shape() != expected:
                raise StoreError(
                    f"shard {shard.file} of {folder} holds {layer.name} as {entry.get_dtype()} "
                    f"{entry.get_shape()} instead of {_CODES[dtype]} {expected}"
                )
            return opened.get_tensor(layer.name)
    except (SafetensorError, OSError) as error:
        raise StoreError(f"shard {shard.file} of {folder} cannot be read: {error}") from error


def load_tensor(folder: Path, shard: Shard, name: str) -> NDArray[Any]:
    """All rows of layer ``name`` in a shard whose checksum is right, in the stored dtype."""
    check_shard(folder, shard)
    try:
        with safe_open(folder / shard.file, framework="numpy") as opened:
            return opened.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise StoreError(f"shard {shard.file} of {folder} cannot be read: {error}") from error


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()
