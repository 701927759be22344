"""What an unfinished capture has on disk: complete shards, and the state that goes with them.

    .<name>.partial/lock                      held by the process that writes
    .<name>.partial/settings.json             what is captured, which a resumption has to match
    .<name>.partial/progress-000.json         the last complete shard of process 0, and all before
    .<name>.partial/shards/000-00000.safetensors
    .<name>.partial/state-000-00000.safetensors   statistics, and the tokens kept, up to that shard

Each file is written under a temporary name and renamed, ``progress-*.json`` last: what it names is
complete, and what it does not name is not there.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mxstats.activations.manifest import Shard
from mxstats.activations.shards import check_shard, file_sha256
from mxstats.activations.statistics import Statistics, from_tensors, tensors_of
from mxstats.errors import StoreError

if TYPE_CHECKING:
    from mxstats.activations.captured import Captured

PROGRESS_VERSION = 1
_SETTINGS = "settings.json"


@dataclass(frozen=True)
class Progress:
    """Where one process stands.

    Attributes
    ----------
    tokens_read, passes, next_token, padding_tokens
        As :class:`mxstats.activations.captured.Captured` has them.
    layers
        Rows seen, calls, rows a token and hidden size of each layer by name.
    shards
        Complete shards, with ``first_row`` counted in this process's kept tokens.
    state, state_sha256
        File of the statistics and tokens, and its checksum.
    """

    tokens_read: int
    passes: int
    next_token: int
    layers: Mapping[str, Mapping[str, int]]
    shards: tuple[Shard, ...]
    state: str
    state_sha256: str
    padding_tokens: int = 0


def partial_folder(target: Path, number: int = 0) -> Path:
    """Folder of the unfinished capture of ``target``; others write beside it at the same time."""
    return target.parent / f".{target.name}.partial{f'-{number}' if number else ''}"


def bytes_on_disk(target: Path) -> int:
    """Bytes of the complete shards of the unfinished capture of ``target``, 0 if there is none."""
    found = (partial_folder(target) / "shards").glob("*.safetensors")
    return sum(path.stat().st_size for path in found)


def lock(folder: Path) -> IO[bytes] | None:
    """Hold ``folder`` until the file is closed or the process ends; None if another holds it."""
    import fcntl

    folder.mkdir(exist_ok=True)
    held = (folder / "lock").open("wb")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held.close()
        return None
    return held


def write_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Say what is being captured."""
    _replace(folder / _SETTINGS, json.dumps(dict(settings), indent=1).encode())


def check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raise StoreError unless ``folder`` holds a capture of the same ``settings``."""
    found = _read_json(folder / _SETTINGS)
    wanted = json.loads(json.dumps(dict(settings)))
    for name in wanted:
        if found.get(name) != wanted[name]:
            raise StoreError(
                f"the interrupted capture in {folder} has {name} {_short(found.get(name))}, not "
                f"{_short(wanted[name])}: resume it with the same settings, or discard it "
                "(overwrite=True)"
            )


def write_progress(
    folder: Path, rank: int, seen: "Captured", shards: tuple[Shard, ...], log: NDArray[np.int64]
) -> Progress:
    """Make the state after ``shards`` the one to resume from.

    ``log`` has token, id, position and window of every token kept so far, ``[tokens, 4]``.
    """
    from safetensors.torch import save
    from torch import as_tensor

    tensors = {"tokens": as_tensor(log)}
    for name, state in seen.statistics().items():
        sizes = as_tensor([state.hidden_size, state.block_size])
        parts = {key: one.cpu().contiguous() for key, one in tensors_of(state).items()}
        tensors |= {f"{name}/{key}": one for key, one in parts.items()} | {f"{name}/sizes": sizes}
    state_file = f"state-{rank:03d}-{len(shards):05d}.safetensors"
    _replace(folder / state_file, save(tensors))
    progress = Progress(
        tokens_read=seen.tokens_read,
        passes=seen.passes,
        next_token=seen.next_token,
        layers={
            layer.name: {
                "rows_seen": layer.rows_seen,
                "calls": layer.calls,
                "group": layer.group,
                "hidden_size": layer.hidden_size,
            }
            for layer in seen
        },
        shards=shards,
        state=state_file,
        state_sha256=file_sha256(folder / state_file),
        padding_tokens=seen.padding_tokens,
    )
    record = {"version": PROGRESS_VERSION, **asdict(progress)}
    _replace(folder / f"progress-{rank:03d}.json", json.dumps(record, indent=1).encode())
    for old in folder.glob(f"state-{rank:03d}-*.safetensors"):
        if old.name != state_file:
            old.unlink()
    return progress


def read_progress(folder: Path, rank: int) -> Progress | None:
    """Where process ``rank`` stood, with every file checked; None if it had not written a shard.

    Raises
    ------
    StoreError
        A file is missing or altered, or was written by a newer version.
    """
    path = folder / f"progress-{rank:03d}.json"
    if not path.exists():
        return None
    record = _read_json(path)
    if record.get("version") != PROGRESS_VERSION:
        raise StoreError(
            f"{path} has version {_short(record.get('version'))}; this mxstats reads "
            f"{PROGRESS_VERSION}"
        )
    try:
        del record["version"]
        record["shards"] = tuple(Shard(**shard) for shard in record["shards"])
        progress = Progress(**record)
    except (KeyError, TypeError) as error:
        raise StoreError(f"{path} is not the progress of a capture: {error}") from error
    for shard in progress.shards:
        check_shard(folder, shard)
    state = folder / progress.state
    if not state.exists() or file_sha256(state) != progress.state_sha256:
        what = "altered" if state.exists() else "missing"
        raise StoreError(f"{progress.state} of {folder} is {what}: the capture cannot be resumed")
    return progress


def read_state(folder: Path, progress: Progress) -> tuple[dict[str, Statistics], NDArray[np.int64]]:
    """Statistics by layer, and token, id, position and window of the tokens kept."""
    from safetensors.torch import load_file

    tensors = load_file(folder / progress.state)
    log = tensors.pop("tokens").numpy()
    by_layer: dict[str, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        layer, _, name = key.rpartition("/")
        by_layer.setdefault(layer, {})[name] = tensor
    found = {}
    for layer, parts in by_layer.items():
        hidden_size, block_size = parts.pop("sizes").tolist()
        found[layer] = from_tensors(hidden_size, block_size, parts)
    return found, log


def discard(folder: Path) -> None:
    """Remove an unfinished capture, its lock last."""
    for path in folder.iterdir():
        if path.name == "lock":
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StoreError(f"{path} is missing: there is no capture to resume") from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise StoreError(f"{path} is not the progress of a capture")
    return record


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
