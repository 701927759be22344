"""What a calibration on rows found, and the file that a model reads it from."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class RowCalibration:
    """Constants or weights by layer, how sure they are, and the errors that they leave."""

    p: float
    block_size: int
    per: str
    """``"model"``, ``"layer"`` or ``"block"``."""
    model: str
    revision: str | None
    text: str
    """What the model read."""
    constants: dict[str, float]
    """Layer to c; empty where there is a weight for each block."""
    weights: dict[str, NDArray[np.float64]] = field(repr=False)
    """Layer to w, [K]; empty where there are constants."""
    intervals: dict[str, tuple[Any, Any]] = field(repr=False)
    """Layer to the ends of the 95 % confidence intervals, numbers or [K] each."""
    table: pd.DataFrame = field(repr=False)
    """A line a layer; see :func:`mxstats.calibrate`."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file that ``mxstats.nn.convert(constants=...)`` reads, whole or not at all.

        JSON: ``p``, ``block_size``, ``constants`` or ``weights`` by layer, and, for the reader,
        ``per``, ``model``, ``revision``, ``text`` and ``rows`` by layer. A file that is there is
        replaced.

        Raises
        ------
        OSError
            The file cannot be written; what was there before is still there.
        """
        content = {
            "p": self.p,
            "block_size": self.block_size,
            "per": self.per,
            "model": self.model,
            "revision": self.revision,
            "text": self.text,
            "rows": dict(zip(self.table["layer"], map(int, self.table["rows"]), strict=True)),
        }
        if self.weights:
            content["weights"] = {name: w.tolist() for name, w in self.weights.items()}
        else:
            content["constants"] = self.constants
        return write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def write_atomically(path: str | os.PathLike[str], text: str) -> Path:
    """Write ``text`` as UTF-8 under a temporary name beside ``path``, and rename it.

    Raises OSError where that fails; nothing half-written is left, and ``path`` is as it was.
    """
    target = check_file(path)
    with NamedTemporaryFile(
        "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}-", delete=False
    ) as file:
        scratch = Path(file.name)
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            # A temporary file is for its owner alone; a result has the rights of any new file.
            umask = os.umask(0)
            os.umask(umask)
            scratch.chmod(0o666 & ~umask)
            scratch.replace(target)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
    return target


def check_file(path: str | os.PathLike[str]) -> Path:
    """Return ``path``; raise OSError where no file can be written, before there is one to write."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; the name of a file is needed")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"cannot write {target}: the folder {target.parent} does not exist")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"cannot write {target}: the folder {target.parent} is not writable")
    return target
