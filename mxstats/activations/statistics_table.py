"""Streaming statistics as a tidy table, and its file ``statistics.parquet``.

Columns ``layer``, ``kind``, ``index``, ``quantity``, ``value`` (float64):

| kind | index | quantity |
|---|---|---|
| layer | 0 | hidden_size, block_size, rows, zero_rows, nonfinite_rows, scale_exponent, log_sum, \
log_square_sum; and what follows from the channels: mean, rms, kurtosis, absmax |
| channel | channel | scaled_sum_1 to scaled_sum_4, absmax |
| position | position in the window | rows, scaled_sum_1 to scaled_sum_4, absmax |
| block | block k | ratio_sum; and what follows from the channels: rms, absmax |
| block-pair | k·K + j | ratio_product |
| exponent | biased exponent of float32 | entries |
| top | rank | value, token, channel |

A scaled_sum_n times 2^(n·scale_exponent) is Σ x^n. Kurtosis is that of all entries about zero,
mean x⁴/(mean x²)², 3 for a Gaussian. :mod:`mxstats.activations.statistics` has the formulas.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mxstats.activations.manifest import StatisticsFile
from mxstats.activations.places import Place, local_file
from mxstats.activations.row_sums import POWERS
from mxstats.activations.shards import file_sha256
from mxstats.activations.statistics import (
    Statistics,
    empty,
    from_tensors,
    tensors_of,
    to_device,
    with_positions,
)
from mxstats.errors import StoreError

if TYPE_CHECKING:
    import pandas as pd

STATISTICS = "statistics.parquet"
COLUMNS = ("layer", "kind", "index", "quantity", "value")
_SPARSE = ("position", "exponent", "top")
_SUMS = tuple(f"scaled_sum_{n}" for n in range(1, POWERS + 1))


def to_table(statistics: Mapping[str, Statistics]) -> "pd.DataFrame":
    """Table of the statistics of each layer by name; the module's docstring lists its lines."""
    import pandas as pd

    if not statistics:
        return pd.DataFrame({name: [] for name in COLUMNS})
    parts = [_lines(name, state) for name, state in statistics.items()]
    return pd.concat(parts, ignore_index=True)


def from_table(table: "pd.DataFrame", layer: str) -> Statistics:
    """The state of one layer, on the CPU, ready to be updated or merged.

    Raises
    ------
    StoreError
        The table has no such layer, or lacks some of its lines.
    """
    import torch

    mine = table[table["layer"] == layer]
    if len(mine) == 0:
        raise StoreError(f"the statistics have no layer {layer!r}")
    columns = {
        key: (lines["index"].to_numpy(np.int64), lines["value"].to_numpy(np.float64))
        for key, lines in mine.groupby(["kind", "quantity"], observed=True)
    }

    def column(kind: str, quantity: str, size: int, fill: float = 0.0) -> NDArray[np.float64]:
        out = np.full(size, fill)
        if (kind, quantity) not in columns:
            # Of no rows there are no lines of what they would have counted.
            if kind in _SPARSE and number("rows") == 0:
                return out
            raise StoreError(f"the statistics of {layer} lack {kind} {quantity}")
        index, value = columns[kind, quantity]
        if not 0 <= index.min() <= index.max() < size:
            raise StoreError(f"the statistics of {layer} have {kind} {index.max()} of {size}")
        out[index] = value
        return out

    def number(quantity: str) -> int:
        return int(column("layer", quantity, 1)[0])

    state = empty(number("hidden_size"), block_size=number("block_size"))
    last = int(max(columns.get(("position", "rows"), ([0],))[0], default=0))
    state = with_positions(state, 1 << last.bit_length())
    width, places, k = state.hidden_size, len(state.position_rows), state.n_blocks
    arrays: dict[str, Any] = {
        "exponent": number("scale_exponent"),
        "rows": number("rows"),
        "zero_rows": number("zero_rows"),
        "nonfinite_rows": number("nonfinite_rows"),
        "channel_sums": np.stack([column("channel", name, width) for name in _SUMS]),
        "channel_absmax": column("channel", "absmax", width),
        "position_rows": column("position", "rows", places),
        "position_sums": np.stack([column("position", name, places) for name in _SUMS]),
        "position_absmax": column("position", "absmax", places),
        "ratio_sums": column("block", "ratio_sum", k),
        "ratio_products": column("block-pair", "ratio_product", k * k).reshape(k, k),
        "log_sums": [column("layer", name, 1)[0] for name in ("log_sum", "log_square_sum")],
        "exponents": column("exponent", "entries", len(state.exponents)),
    }
    arrays |= {
        f"top.{name}": column("top", name, len(state.top.value), fill)
        for name, fill in (("value", 0.0), ("token", -1.0), ("channel", -1.0))
    }
    like = tensors_of(state)
    return from_tensors(
        width,
        state.block_size,
        {name: torch.as_tensor(arrays[name]).to(like[name].dtype) for name in like},
    )


def write_statistics(folder: Path, statistics: Mapping[str, Statistics]) -> StatisticsFile:
    """Write ``statistics.parquet``, one row group a layer, and say what was written."""
    import pyarrow as pa
    from pyarrow import parquet

    path = folder / STATISTICS
    schema = pa.schema(
        [
            ("layer", pa.string()),
            ("kind", pa.string()),
            ("index", pa.int64()),
            ("quantity", pa.string()),
            ("value", pa.float64()),
        ]
    )
    with parquet.ParquetWriter(path, schema) as writer:
        for name, state in statistics.items():
            lines = pa.Table.from_pandas(_lines(name, state), schema, preserve_index=False)
            writer.write_table(lines)
    return StatisticsFile(STATISTICS, file_sha256(path), path.stat().st_size)


def read_statistics(
    folder: Place, file: StatisticsFile, layers: Iterable[str] | None = None
) -> "pd.DataFrame":
    """The table, after its size and checksum were compared; only ``layers`` if given.

    Raises
    ------
    StoreError
        Missing, truncated, altered, not parquet, or without one of its columns.
    """
    import pandas as pd
    from pyarrow import ArrowException

    chosen = None if layers is None else [("layer", "in", list(layers))]
    try:
        with local_file(folder, file.file) as path:
            _check_file(path, folder, file)
            table = pd.read_parquet(path, engine="pyarrow", filters=chosen)
    except FileNotFoundError as error:
        raise StoreError(f"{file.file} of {folder} is missing") from error
    except (ArrowException, OSError, ValueError) as error:
        raise StoreError(f"{file.file} of {folder} cannot be read: {error}") from error
    missing = [column for column in COLUMNS if column not in table]
    if missing:
        raise StoreError(f"{file.file} of {folder} lacks the column(s) {', '.join(missing)}")
    return table


def _check_file(path: Path, folder: Place, file: StatisticsFile) -> None:
    size = path.stat().st_size
    if size != file.bytes:
        what = "truncated" if size < file.bytes else "altered"
        raise StoreError(
            f"{file.file} of {folder} has {size} bytes instead of {file.bytes}: it is {what}"
        )
    if file_sha256(path) != file.sha256:
        raise StoreError(f"{file.file} of {folder} is altered: its SHA-256 is another")


def _lines(name: str, state: Statistics) -> "pd.DataFrame":
    import pandas as pd

    state = to_device(state, "cpu")
    found = {key: tensor.numpy() for key, tensor in tensors_of(state).items()}
    used = np.flatnonzero(found["position_rows"])
    taken = np.flatnonzero(found["top.token"] >= 0)
    parts = [_layer_lines(state, found)]
    parts += [_column("channel", _SUMS[n], found["channel_sums"][n]) for n in range(POWERS)]
    parts.append(_column("channel", "absmax", found["channel_absmax"]))
    parts.append(_column("position", "rows", found["position_rows"][used], used))
    sums = found["position_sums"][:, used]
    parts += [_column("position", _SUMS[n], sums[n], used) for n in range(POWERS)]
    parts.append(_column("position", "absmax", found["position_absmax"][used], used))
    parts += _block_lines(state, found)
    counted = np.flatnonzero(found["exponents"])
    parts.append(_column("exponent", "entries", found["exponents"][counted], counted))
    top = {part: found[f"top.{part}"][taken] for part in ("value", "token", "channel")}
    parts += [_column("top", part, values, taken) for part, values in top.items()]
    table = pd.concat(parts, ignore_index=True)
    table.insert(0, "layer", name)
    return table


def _layer_lines(state: Statistics, found: Mapping[str, NDArray[Any]]) -> "pd.DataFrame":
    import pandas as pd

    rows = int(found["rows"])
    values = rows * state.hidden_size
    exponent = float(found["exponent"])
    sums = found["channel_sums"].sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale = np.ldexp(1.0, int(exponent))
        facts = {
            "hidden_size": state.hidden_size,
            "block_size": state.block_size,
            "rows": rows,
            "zero_rows": int(found["zero_rows"]),
            "nonfinite_rows": int(found["nonfinite_rows"]),
            "scale_exponent": exponent,
            "log_sum": found["log_sums"][0],
            "log_square_sum": found["log_sums"][1],
            "mean": sums[0] / np.float64(values) * scale,
            "rms": np.sqrt(sums[1] / np.float64(values)) * scale,
            "kurtosis": sums[3] * values / np.square(sums[1]),
            "absmax": found["channel_absmax"].max(),
        }
    return pd.DataFrame(
        {
            "kind": "layer",
            "index": np.zeros(len(facts), np.int64),
            "quantity": list(facts),
            "value": np.array(list(facts.values()), np.float64),
        }
    )


def _block_lines(state: Statistics, found: Mapping[str, NDArray[Any]]) -> "list[pd.DataFrame]":
    starts = np.arange(0, state.hidden_size, state.block_size)
    lengths = np.diff(np.append(starts, state.hidden_size))
    squares = np.add.reduceat(found["channel_sums"][1], starts)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        rms = np.sqrt(squares / (lengths * float(found["rows"])))
        rms = rms * np.ldexp(1.0, int(found["exponent"]))
    absmax = np.maximum.reduceat(found["channel_absmax"], starts)
    return [
        _column("block", "ratio_sum", found["ratio_sums"]),
        _column("block", "rms", rms),
        _column("block", "absmax", absmax),
        _column("block-pair", "ratio_product", found["ratio_products"].ravel()),
    ]


def _column(
    kind: str, quantity: str, values: NDArray[Any], index: NDArray[Any] | None = None
) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(
        {
            "kind": kind,
            "index": np.arange(len(values)) if index is None else index,
            "quantity": quantity,
            "value": values.astype(np.float64),
        }
    )
