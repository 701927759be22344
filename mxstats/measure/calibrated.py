"""What a calibration on rows found, and the file that a model reads it from."""

import json
import os
from collections.abc import Callable
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


def read_calibration(path: str | os.PathLike[str]) -> RowCalibration:
    """Return the calibration that :meth:`RowCalibration.save` wrote to a file.

    Its table has ``layer``, ``p``, ``block_size``, ``per`` and ``rows``; errors, intervals and
    bounds are not in the file.

    Raises
    ------
    ConstantsError
        The file is missing, torn or of another form, or lacks what ``save`` writes.
    """
    from mxstats.nn.constants import ConstantsError, read_file

    file = Path(path)
    content = read_file(file)

    def take(key: str, fits: Callable[[Any], bool], wanted: str) -> Any:
        if key not in content or not fits(content[key]):
            shown = repr(content[key]) if key in content else "not there"
            raise ConstantsError(f"{file}: {key} is {shown}; a calibration has {wanted}")
        return content[key]

    constants, weights = content["constants"], content["weights"]
    names = list(weights or constants)
    if bool(constants) == bool(weights):
        raise ConstantsError(
            f"{file}: {len(constants)} constants and {len(weights)} weights; a calibration has "
            f"either, of at least one layer"
        )
    p = take("p", lambda one: _number(one) and one > 0, "a number above 0")
    block_size = take("block_size", lambda one: _whole(one) and one > 0, "a whole number above 0")
    per = take("per", ("block",).__contains__ if weights else ("model", "layer").__contains__,
               "'block' with weights, 'model' or 'layer' with constants")  # fmt: skip
    rows = take(
        "rows",
        lambda one: (
            isinstance(one, dict) and one.keys() == set(names) and all(map(_whole, one.values()))
        ),
        "the number of rows of each of its layers",
    )
    return RowCalibration(
        p=float(p),
        block_size=block_size,
        per=per,
        model=take("model", lambda one: isinstance(one, str), "a name"),
        revision=take("revision", lambda one: isinstance(one, str | None), "a name or null"),
        text=take("text", lambda one: isinstance(one, str), "a name"),
        constants={name: float(c) for name, c in constants.items()},
        weights={name: np.asarray(w, dtype=np.float64) for name, w in weights.items()},
        intervals={},
        table=pd.DataFrame(
            {
                "layer": names,
                "p": float(p),
                "block_size": block_size,
                "per": per,
                "rows": [rows[name] for name in names],
            }
        ),
    )


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value < float("inf")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


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
