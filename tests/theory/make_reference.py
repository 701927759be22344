"""Write tests/data/block_maximum.json: ``python tests/theory/make_reference.py`` (a few minutes).

Every value is computed twice, at DPS and at CHECK_DPS digits (mpmath's quadrature then also takes a
higher degree, hence other nodes), and must agree to AGREE before 25 digits of it are written.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mpmath
from mpmath import mp, mpf

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.theory import reference

DPS, CHECK_DPS = 40, 55
AGREE = mpf(10) ** -30
DIGITS = 25
OUT = Path(__file__).parents[1] / "data" / "block_maximum.json"

STUDENT = [f"student-t:{df}" for df in (2.5, 3, 5, 10, 30)]
EXPONENTS = (0, 0.5, 1, 1.5, 2, 3, 8)  # 0 is the limit exp(E ln m)
BLOCK_SIZES = (1, 2, 24, 32, 100, 4096, 2**20)
GENERIC = [
    "logistic", "gennorm:0.7", "gennorm:1", "gennorm:1.5", "gennorm:8",
    "expon", "norm-shifted", "uniform-shifted",
]  # fmt: skip
GENERIC_EXPONENTS = (0.5, 1, 2, 8)
GENERIC_BLOCK_SIZES = (1, 2, 32, 4096, 2**20)
# The short last blocks of the hidden-size tests.
SHORT = (4, 16, 31)
MOMENT_CELLS = [
    *((p, b) for b in (1, 4, 16, 64) for p in (1, 2)),
    (0.5, 1), (0.5, 32), (1, 32), (1.5, 32), (2, 32), (3, 32), (0.5, 4096), (1, 4096), (2, 4096),
]  # fmt: skip


def constant_cells() -> Iterator[tuple[str, float, int]]:
    for name in ("gaussian", "laplace", *STUDENT):
        tail = reference.magnitude(name).tail
        sizes = BLOCK_SIZES if name in STUDENT else (*BLOCK_SIZES, *SHORT)
        yield from ((name, p, b) for b in sizes for p in EXPONENTS if p < tail)
    for name in GENERIC:
        yield from ((name, p, b) for b in GENERIC_BLOCK_SIZES for p in GENERIC_EXPONENTS)


def moment_cells() -> Iterator[tuple[str, float, int]]:
    for name in ("gaussian", "laplace", "student-t:5", "student-t:10"):
        tail = reference.magnitude(name).tail
        yield from ((name, p, b) for p, b in MOMENT_CELLS if 2 * p < tail and p + 2 < tail)


def evaluate(function: Callable, cells: list, digits: int) -> list:
    """``function`` of every cell at ``digits`` digits, sharing what a block size shares."""
    mp.dps = digits
    values, known, maximum = [], None, None
    for name, p, block_size in cells:
        if known != (name, block_size):
            known = name, block_size
            maximum = reference.BlockMaximum(reference.magnitude(name), block_size)
        values.append(function(name, p, block_size, maximum))
    return values


def text(value: Any, check: Any, cell: tuple) -> str:
    """Return the digits to store, or fail where the two precisions differ."""
    # Absolute below 1: V of one value at p = 2 is exactly zero.
    error = abs(value - check) / max(abs(check), 1)
    assert error < AGREE, f"{cell}: the two precisions differ by {mp.nstr(error, 3)}"
    if abs(check) < AGREE:
        return "0.0"
    return str(mp.nstr(check, DIGITS, strip_zeros=False))


def main() -> None:
    cells = list(constant_cells())
    both = [evaluate(reference.constant, cells, digits) for digits in (DPS, CHECK_DPS)]
    constants = [
        {"distribution": c[0], "p": c[1], "block_size": c[2], "value": text(a, b, c)}
        for c, a, b in zip(cells, *both, strict=True)
    ]
    cells = list(moment_cells())
    both = [evaluate(reference.moments, cells, digits) for digits in (DPS, CHECK_DPS)]
    moments = [
        {"distribution": c[0], "p": c[1], "block_size": c[2]} | {k: text(a[k], b[k], c) for k in a}
        for c, a, b in zip(cells, *both, strict=True)
    ]
    lines = [
        "{",
        f'"made_by": "tests/theory/make_reference.py, mpmath {mpmath.__version__}",',
        f'"decimal_digits": [{DPS}, {CHECK_DPS}],',
        '"constant": [',
        ",\n".join(json.dumps(row) for row in constants),
        "],",
        '"moments": [',
        ",\n".join(json.dumps(row) for row in moments),
        "]",
        "}",
    ]
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("\n".join(lines) + "\n")
    print(f"{OUT}: {len(constants)} constants, {len(moments)} sets of moments")


if __name__ == "__main__":
    main()
