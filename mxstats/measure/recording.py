"""Recorded runs: a table as parquet, with the machine and the software that it was measured on."""

import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from mxstats.errors import MxstatsError

_KEY = b"mxstats"


class NoGPUError(MxstatsError):
    """There is no CUDA device to measure."""


def require_gpu() -> None:
    """Raise NoGPUError unless torch is installed and sees a CUDA device."""
    try:
        import torch
    except ModuleNotFoundError:
        raise NoGPUError("bench needs torch: pip install 'mxstats[torch]'") from None
    if not torch.cuda.is_available():
        raise NoGPUError("bench needs a CUDA device; torch sees none")


def about(mxstats_version: str) -> dict[str, str]:
    """Return device, driver, versions, command and date of a run that starts now.

    The device is the GPU where torch sees one, else ``"cpu"``.
    """
    return {
        **_device(),
        "torch": _version("torch"),
        "triton": _version("triton"),
        "liger_kernel": _version("liger-kernel"),
        "mxstats": mxstats_version,
        "python": platform.python_version(),
        "command": _command(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write(path: Path | str, table: pd.DataFrame, facts: dict[str, str]) -> Path:
    """Write a table and the facts of :func:`about`, the file replaced whole."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = pa.Table.from_pandas(table, preserve_index=False)
    stored = stored.replace_schema_metadata(
        {**(stored.schema.metadata or {}), _KEY: json.dumps(facts).encode()}
    )
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        pq.write_table(stored, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def read(path: Path | str) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return a recorded table and its facts, empty where the file has none.

    Raises OSError for a file that is missing or no parquet.
    """
    stored = pq.read_table(path)
    return stored.to_pandas(), json.loads((stored.schema.metadata or {}).get(_KEY, b"{}"))


def _command() -> str:
    name = Path(sys.argv[0]).name
    # What python -m mxstats runs.
    return shlex.join(["mxstats" if name == "__main__.py" else name, *sys.argv[1:]])


def _device() -> dict[str, str]:
    if find_spec("torch") is None:
        return {"device": "cpu"}
    import torch

    if not torch.cuda.is_available():
        return {"device": "cpu"}
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "device": properties.name,
        "multiprocessors": str(properties.multi_processor_count),
        "l2_cache_bytes": str(properties.L2_cache_size),
        "driver": _driver(),
        "cuda": str(torch.version.cuda),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _driver() -> str:
    program = which("nvidia-smi")
    if program is None:
        return "unknown"
    asked = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[0].strip() or "unknown"
