"""``mxstats figures``: the figures, their tables computed only where out of date."""

import time
from pathlib import Path
from typing import Annotated

import typer

from mxstats.cli.output import progress


def run(
    name: Annotated[
        list[str] | None, typer.Argument(help="Figures to make; all when none is named.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Publication size: minutes.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Compute current tables again.")] = False,
    out: Annotated[Path, typer.Option("--out", help="Folder to write to.")] = Path("figures"),
) -> None:
    """Make the figures: <out>/<name>.pdf, .png and .parquet."""
    from mxstats.experiments import FIGURES, make_figure
    from mxstats.experiments.make import experiment

    names = name or list(FIGURES)
    for one in names:
        experiment(one)
    for one in names:
        start = time.perf_counter()
        with progress(one) as report:
            made = make_figure(one, out, full=full, force=force, progress=report)
        state = "computed" if made.computed else "table current, drawn"
        print(
            f"{one:18} {made.pdf}, {made.png.name}   {state}, {time.perf_counter() - start:.1f} s"
        )
