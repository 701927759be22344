"""``mxstats table``: c̃, √V and bias over a grid, as Markdown, CSV or JSON."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from mxstats.cli import options
from mxstats.cli.output import print_json, records

if TYPE_CHECKING:
    import pandas as pd


class Format(StrEnum):
    """How the table is printed."""

    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


def run(
    dist: options.Dists = ["gaussian", "laplace", "student-t:5"],
    p: options.Ps = [1.0, 2.0],
    block_size: options.BlockSizes = [16, 32, 64, 128],
    format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.MARKDOWN,
    json: options.Json = False,
) -> None:
    """Constants and their errors over a grid of distributions, exponents and block sizes."""
    found = grid(dist, p, block_size)
    if json or format is Format.JSON:
        print_json(records(found))
    elif format is Format.CSV:
        print(found.to_csv(index=False, float_format="%.15g"), end="")
    else:
        print(_markdown(found))


def grid(dist: list[str], p: list[float], block_size: list[int]) -> "pd.DataFrame":
    """Table: distribution, p, block_size, constant, sqrt_v, bias, note."""
    import numpy as np
    import pandas as pd

    from mxstats.theory import constant, rms_error

    frames = []
    for name in dist:
        for exponent in p:
            error = rms_error(name, p=exponent, block_size=block_size)
            infinite = np.isinf(error.variance)
            frames.append(
                pd.DataFrame(
                    {
                        "distribution": name,
                        "p": exponent,
                        "block_size": block_size,
                        "constant": constant(name, p=exponent, block_size=block_size),
                        "sqrt_v": np.sqrt(error.variance),
                        "bias": error.bias,
                        "note": np.where(infinite, "V is infinite: so is E|X|^max(4, 2p)", ""),
                    }
                )
            )
    return pd.concat(frames, ignore_index=True)


def _markdown(table: "pd.DataFrame") -> str:
    head = ["distribution", "p", "B", "c̃ (rms = 1)", "√V", "bias (K·E ln R)", "note"]
    lines = [head, ["---"] + ["---:"] * 5 + ["---"]]
    lines += [
        [
            str(line.distribution), f"{line.p:g}", f"{line.block_size}",
            f"{line.constant:.12f}", f"{line.sqrt_v:.6f}", f"{line.bias:.6f}", str(line.note),
        ]
        for line in table.itertuples()
    ]  # fmt: skip
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
