"""Make a figure: its table once, its PDF and PNG from the table, each file replaced whole."""

import hashlib
import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, metadata, resources
from pathlib import Path
from types import ModuleType

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from mxstats import __version__
from mxstats.experiments.recorded import recorded_path
from mxstats.experiments.style import style

FIGURES = (
    "constant",
    "convergence",
    "efficiency",
    "bounds",
    "scale_only",
    "format_error",
    "activations_ratio",
    "crest_spread",
    "outliers",
    "calibration",
    "kernel_speed",
    "layer_speed",
)

# A table is as current as the code and data it came from: these packages, its own module, and what
# was recorded for it.
_SOURCES = ("formats", "theory", "simulation", "measure", "activations")
_KEY = b"mxstats"


@dataclass(frozen=True)
class Made:
    """The files of one figure, and whether its table had to be computed."""

    name: str
    table: Path
    pdf: Path
    png: Path
    computed: bool


def make_figure(
    name: str,
    out: Path | str = "figures",
    *,
    full: bool = False,
    force: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> Made:
    """Make ``<out>/<name>.parquet``, ``.pdf`` and ``.png``.

    Parameters
    ----------
    name
        One of ``FIGURES``.
    out
        The folder, made where it does not exist.
    full
        Publication size: more rows and more hidden sizes.
    force
        Compute the table even where the one on disk is current, that is, made by the same code
        and data at the same size.
    progress
        Called with a description and the share done, 0 to 1, while the table is computed.

    Raises
    ------
    ValueError
        Unknown name; the message lists the known ones.
    """
    module = experiment(name)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    to = {end: folder / f"{name}.{end}" for end in ("parquet", "pdf", "png")}
    key = _fingerprint(name, full)
    table = None if force else _read_current(to["parquet"], key)
    computed = table is None
    if table is None:
        table = module.compute(full=full, progress=progress)
        _write_table(to["parquet"], table, key)
    with style():
        figure = module.draw(table)
        # No date inside, so that the same table gives the same bytes.
        _replace(
            to["pdf"],
            lambda path: figure.savefig(path, format="pdf", metadata={"CreationDate": None}),
        )
        _replace(to["png"], lambda path: figure.savefig(path, format="png"))
    return Made(name, to["parquet"], to["pdf"], to["png"], computed)


def experiment(name: str) -> ModuleType:
    """Return the module of a figure: ``compute(*, full, progress)`` and ``draw(table)``."""
    if name not in FIGURES:
        raise ValueError(f"figure {name!r} is unknown; known are {', '.join(FIGURES)}")
    return import_module(f"mxstats.experiments.{name}")


def _fingerprint(name: str, full: bool) -> dict[str, str]:
    root = resources.files("mxstats")
    digest = hashlib.sha256()
    paths = [Path(str(root / "experiments" / f"{name}.py"))]
    for package in _SOURCES:
        folder = Path(str(root / package))
        paths += sorted(folder.rglob("*.py")) + sorted(folder.rglob("manifest.json"))
    for path in paths:
        digest.update(path.relative_to(str(root)).as_posix().encode())
        digest.update(path.read_bytes())
    data = recorded_path(name)
    if data is not None:
        digest.update(data.read_bytes())
    versions = {package: metadata.version(package) for package in ("numpy", "scipy", "pandas")}
    return {"source": digest.hexdigest(), "size": "full" if full else "quick"} | versions


def _read_current(path: Path, key: dict[str, str]) -> pd.DataFrame | None:
    """The table on disk, or None where there is none, it is damaged, or it is of other code."""
    try:
        stored = pq.read_table(path)
        found = json.loads((stored.schema.metadata or {}).get(_KEY, b"{}"))
    except PermissionError:
        raise
    except (OSError, ValueError):  # pyarrow's errors for damaged files are of these kinds
        return None
    return stored.to_pandas() if key.items() <= found.items() else None


def _write_table(path: Path, table: pd.DataFrame, key: dict[str, str]) -> None:
    about = key | {"mxstats": __version__, "python": platform.python_version()}
    stored = pa.Table.from_pandas(table, preserve_index=False)
    stored = stored.replace_schema_metadata(
        {**(stored.schema.metadata or {}), _KEY: json.dumps(about).encode()}
    )
    _replace(path, lambda temporary: pq.write_table(stored, temporary))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside ``path`` and rename, so that no reader meets half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
