"""``mxstats bench``: the kernels' speed on the GPU at hand."""

from collections.abc import Hashable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxstats.cli import options
from mxstats.cli.output import print_json, print_table, progress, records

if TYPE_CHECKING:
    import pandas as pd


class What(StrEnum):
    """What is measured."""

    KERNELS = "kernels"
    OVERHEAD = "overhead"
    LAYER = "layer"


# Columns of ratios are shown where the baseline was measured.
_RATIOS = {"×one": "vs_compiled", "×two": "vs_compiled_in_two", "×fused": "vs_rmsnorm_mx",
           "×Liger": "vs_liger"}  # fmt: skip
_KERNELS = {"case": "", "µs": ".1f", "±": ".1f", "MB": ".0f", "TB/s": ".2f", "copy": ".1%"}
_OVERHEAD = {"operation": "", "way": "", "CPU µs": ".1f", "±": ".1f", "allocations": "d",
             "outputs": "d"}  # fmt: skip
_LAYER = {"part": "", "how": "", "a layer": "d", "µs": ".1f", "±": ".1f"}


def run(
    shapes: Annotated[
        str, typer.Option("--shapes", help="Rows × hidden size, as 16384x4096,2048x4096.")
    ] = "16384x4096",
    case: Annotated[
        list[str],
        typer.Option("--case", help="A case, or usual, forward, backward, all; repeat for more."),
    ] = ["usual"],
    what: Annotated[
        What, typer.Option("--what", help="Kernels, launch overhead, or a Llama 3 8B layer.")
    ] = What.KERNELS,
    json: options.Json = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the table as parquet.", show_default=False)
    ] = None,
) -> None:
    """Time the kernels against a copy of the same bytes and against torch.compile (needs a GPU)."""
    sizes = parse_shapes(shapes)
    from mxstats import __version__
    from mxstats.measure import recording

    recording.require_gpu()
    facts = recording.about(__version__)
    if what is What.KERNELS:
        found = _kernels(sizes, case)
    elif what is What.OVERHEAD:
        from mxstats.measure.speed.overhead import measure_overhead

        found = measure_overhead()
    else:
        from mxstats.measure.speed.layer import measure_layer

        found = measure_layer()
    if out is not None:
        recording.write(out, found, facts)
    if json:
        print_json(records(found))
        return
    versions = f"driver {facts['driver']}, torch {facts['torch']}, triton {facts['triton']}"
    title = f"{facts['device']}, {versions}"
    if what is What.KERNELS:
        show_kernels(found, title)
    elif what is What.OVERHEAD:
        show_overhead(found, title)
    else:
        show_layer(found, title)


def parse_shapes(text: str) -> list[tuple[int, int]]:
    """Return (rows, hidden size) pairs of ``16384x4096,2048x4096``; ValueError for other text.

    The baselines cut rows into whole blocks: hidden sizes are multiples of 32.
    """
    found = []
    for one in text.split(","):
        rows, cross, hidden_size = one.strip().partition("x")
        if not (cross and rows.isdecimal() and hidden_size.isdecimal()):
            raise ValueError(f"shapes={one.strip()!r}: must be ROWSxHIDDEN, as 16384x4096")
        if int(rows) < 1 or not 32 <= int(hidden_size) <= 65536 or int(hidden_size) % 32:
            raise ValueError(
                f"shapes={one.strip()!r}: needs a row, and a hidden size from 32 to 65536 that 32 "
                f"divides"
            )
        found.append((int(rows), int(hidden_size)))
    return found


def show_kernels(found: "pd.DataFrame", title: str) -> None:
    """Print a table of kernel times for each shape."""
    print(title)
    ratios = {name: column for name, column in _RATIOS.items() if found[column].notna().any()}
    for (rows, hidden_size), of_shape in found.groupby(["rows", "hidden_size"], sort=False):
        lines = [
            {
                "case": line["case"],
                "µs": line["time_us"],
                "±": _spread(line),
                "MB": line["bytes"] / 1e6,
                "TB/s": line["tb_per_s"],
                "copy": line["share_of_copy"],
                **{name: line[column] for name, column in ratios.items()},
            }
            for line in of_shape.to_dict("records")
        ]
        fits = ", fits the cache*" if of_shape["fits_cache"].all() else ""
        how = _KERNELS | dict.fromkeys(ratios, ".2f")
        print_table(lines, how, title=f"{rows} × {hidden_size}{fits}")
    print("µs, ±: the GPU's time a call, median, and half of what 5 to 95 % of passes span")
    print("copy: the time of the fastest copy of the same bytes over this one")
    print("×: over this one the time of RMSNorm·γ + MX cast by torch.compile, as one")
    print("function or two, of rmsnorm_mx (fused), of Liger's RMSNorm and mx_cast (Liger)")
    if found["fits_cache"].any():
        print("*: one call's data would; inputs take turns, so that nothing is found there")


def show_overhead(found: "pd.DataFrame", title: str) -> None:
    """Print a table of launch costs."""
    lines = [
        {
            "operation": line["operation"],
            "way": line["way"],
            "CPU µs": line["cpu_us"],
            "±": _spread(line),
            "allocations": line["allocations"],
            "outputs": line["outputs"],
        }
        for line in found.to_dict("records")
    ]
    print_table(lines, _OVERHEAD, title=title)


def show_layer(found: "pd.DataFrame", title: str) -> None:
    """Print a table of a layer's parts."""
    lines = [
        {
            "part": line["part"],
            "how": line["variant"],
            "a layer": line["count"],
            "µs": line["time_us"],
            "±": _spread(line),
        }
        for line in found.to_dict("records")
    ]
    print_table(lines, _LAYER, title=title)


def _kernels(shapes: list[tuple[int, int]], names: list[str]) -> "pd.DataFrame":
    from mxstats.measure.speed.cases import chosen
    from mxstats.measure.speed.comparison import compare
    from mxstats.measure.speed.kernel_times import measure_kernels

    with progress("bench") as report:
        return compare(measure_kernels(shapes, chosen(names), progress=report))


def _spread(line: dict[Hashable, Any]) -> float:
    return (line["high_us"] - line["low_us"]) / 2
