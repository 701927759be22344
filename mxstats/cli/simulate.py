"""``mxstats simulate``: Monte Carlo beside theory, with standard errors."""

from typing import Annotated

import typer

from mxstats.cli import options
from mxstats.cli.output import print_json, print_table, progress, records


def run(
    dist: options.Dist = "gaussian",
    p: options.Ps = [1.0, 2.0],
    block_size: options.BlockSize = 32,
    hidden_size: options.HiddenSize = 4096,
    rows: Annotated[int, typer.Option("--rows", help="Rows to draw.")] = 10_000,
    seed: Annotated[int, typer.Option("--seed", help="Fixes every bit of the result.")] = 0,
    json: options.Json = False,
) -> None:
    """Simulate the estimate and set theory beside it: z counts standard errors between them."""
    from mxstats.simulation import compare

    with progress("simulate") as report:
        found = compare(
            dist,
            p=p,
            block_size=block_size,
            hidden_size=hidden_size,
            rows=rows,
            seed=seed,
            progress=lambda done, total: report(f"{done:,} of {total:,} rows", done / total),
        )
    if json:
        print_json(records(found))
        return
    formats = {"quantity": "", "p": "g", "simulated": ".5g", "stderr": ".1e", "theory": ".5g",
               "z": "+.2f", "note": ""}  # fmt: skip
    title = f"{dist}, B = {block_size}, D = {hidden_size}, {rows:,} rows, seed {seed}; rms = 1"
    print_table(found.to_dict("records"), formats, title=title)
