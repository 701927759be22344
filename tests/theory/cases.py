"""The stored reference values, and the package's distribution for each of their names."""

import json
from pathlib import Path
from typing import Any

from mpmath import mpf
from scipy import stats

TABLE = json.loads(
    (Path(__file__).parents[1] / "data" / "block_maximum.json").read_text(encoding="utf-8")
)

# What the documentation promises: exact special functions behind Gaussian and Laplace, an
# incomplete beta function (a few 1e-14 of its own) behind Student-t, scipy's tails behind the rest.
PROMISED = {"gaussian": 1e-12, "laplace": 1e-12, "student-t": 1e-10}
PROMISED_GENERIC = 1e-9

GENERIC = {
    "logistic": stats.logistic(),
    "gennorm:0.7": stats.gennorm(0.7),
    "gennorm:1": stats.gennorm(1),
    "gennorm:1.5": stats.gennorm(1.5),
    "gennorm:8": stats.gennorm(8),
    "expon": stats.expon(),
    "norm-shifted": stats.norm(loc=1),
    "uniform-shifted": stats.uniform(-1, 3),
}


def promised(name: str) -> float:
    return PROMISED.get(name.partition(":")[0], PROMISED_GENERIC)


def subject(name: str) -> Any:
    """What is handed to mxstats for the reference distribution ``name``."""
    return GENERIC.get(name, name)


def rows(table: str, name: str) -> list[dict[str, Any]]:
    return [row for row in TABLE[table] if row["distribution"] == name]


def names(table: str) -> list[str]:
    return list(dict.fromkeys(row["distribution"] for row in TABLE[table]))


def stored(table: str, name: str, p: float, block_size: int, key: str = "value") -> Any:
    for row in rows(table, name):
        if row["p"] == p and row["block_size"] == block_size:
            return mpf(row[key])
    raise KeyError(f"{table}: no row for {name}, p={p}, block_size={block_size}")


def relative_error(got: float, wanted: Any | float) -> float:
    return float(abs(mpf(float(got)) - wanted) / abs(wanted))
