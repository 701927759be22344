"""Recorded runs that figures are drawn from.

They need a GPU, a model or half an hour, which who draws may not have.
"""

from pathlib import Path

import pandas as pd

from mxstats.errors import MxstatsError
from mxstats.measure.recording import read

# Beside the figures: in the folder one stands in, else in the checkout that this file is part of.
_FOLDERS = (Path("figures/data"), Path(__file__).parents[2] / "figures" / "data")


class NoRecordingError(MxstatsError):
    """A recorded run is missing."""


def recorded_path(name: str) -> Path | None:
    """Return the path of ``figures/data/<name>.parquet``, None where there is none."""
    paths = (folder / f"{name}.parquet" for folder in _FOLDERS)
    return next((path for path in paths if path.exists()), None)


def recorded(
    name: str, command: str, *, where: str = "on a machine with a GPU"
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the table recorded in ``figures/data/<name>.parquet``, and the facts of the run.

    Raises NoRecordingError where there is none, naming the file, the command that makes it, and
    ``where`` that runs.
    """
    path = recorded_path(name)
    if path is None:
        raise NoRecordingError(
            f"figures/data/{name}.parquet is missing; {where} make it by: {command}"
        )
    return read(path)
