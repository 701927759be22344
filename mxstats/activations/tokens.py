"""The tokens that a store's rows belong to, as a parquet table."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from mxstats.activations.places import Place, local_file
from mxstats.errors import StoreError

if TYPE_CHECKING:
    import pandas as pd

TOKENS = "tokens.parquet"
COLUMNS = ("row", "token_id", "text", "position")


def token_hash(token_ids: ArrayLike) -> str:
    """SHA-256 of token ids, written as little-endian 64-bit integers."""
    return hashlib.sha256(np.asarray(token_ids, dtype="<i8").tobytes()).hexdigest()


def token_table(token_ids: Sequence[int], texts: Sequence[str], window: int) -> "pd.DataFrame":
    """The tokens of a whole reading; windows begin at every multiple of ``window``."""
    import pandas as pd

    rows = np.arange(len(token_ids), dtype=np.int64)
    return pd.DataFrame(
        {
            "row": rows,
            "token_id": np.asarray(token_ids, dtype=np.int64),
            "text": list(texts),
            "position": rows % window,
            "window": rows // window,
            "token": rows,
        }
    )


def write_tokens(folder: Path, table: "pd.DataFrame") -> None:
    """Write ``tokens.parquet``."""
    table.to_parquet(folder / TOKENS, engine="pyarrow", index=False)


def read_tokens(folder: Place, expected_hash: str) -> "pd.DataFrame":
    """The table in ``tokens.parquet``, after its ids were compared with their hash.

    Raises
    ------
    StoreError
        Missing, not parquet, without one of its columns, or with other ids.
    """
    import pandas as pd
    from pyarrow import ArrowException

    try:
        with local_file(folder, TOKENS) as path:
            return _checked(pd.read_parquet(path, engine="pyarrow"), folder, expected_hash)
    except FileNotFoundError as error:
        raise StoreError(f"{TOKENS} of {folder} is missing") from error
    except (ArrowException, OSError, ValueError) as error:
        raise StoreError(f"{TOKENS} of {folder} cannot be read: {error}") from error


def _checked(table: "pd.DataFrame", folder: Place, expected_hash: str) -> "pd.DataFrame":
    missing = [column for column in COLUMNS if column not in table]
    if missing:
        raise StoreError(f"{TOKENS} of {folder} lacks the column(s) {', '.join(missing)}")
    if token_hash(table["token_id"].to_numpy()) != expected_hash:
        raise StoreError(
            f"{TOKENS} of {folder} is altered: its ids do not have the manifest's hash"
        )
    if "token" not in table:
        # Version 1: all tokens of a reading, and every window begins at position 0.
        table["window"] = (table["position"] == 0).cumsum() - 1
        table["token"] = table["row"]
    return table
