"""Stores of made rows, for the tests of what reads stores."""

from dataclasses import dataclass
from typing import Any

from mxstats.activations import write_store


@dataclass
class Layer:
    """What a store needs of a layer."""

    name: str
    rows: Any
    role: str = "other"
    index: int | None = None


def write(folder, *layers, tokens=1, window=None, texts=None, dtype="float32"):
    """Write layers of made rows as a store in ``folder / "store"``."""
    return write_store(
        folder / "store", layers, model="made", text="none", token_ids=list(range(tokens)),
        token_texts=texts, window=window, dtype=dtype,
    )  # fmt: skip
