"""``mxstats validate``: real activations against the theory."""

from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any

import typer

from mxstats.cli import options
from mxstats.cli.output import print_json, print_table, progress, records, warn_few_blocks


def run(
    store: Annotated[
        Path | None, typer.Argument(help="A store made by capture; the bundled sample when none.")
    ] = None,
    p: options.Ps = [1.0, 2.0],
    block_size: options.BlockSize = 32,
    dist: options.Dist = "gaussian",
    json: options.Json = False,
) -> None:
    """R = RMS/estimate at every norm of a captured model, what explains it, and the bounds."""
    from mxstats.activations import ActivationStore, sample_store
    from mxstats.measure import validate

    source = sample_store() if store is None else ActivationStore(store)
    with progress("validate") as report:
        found = validate(source, p=p, block_size=block_size, distribution=dist, progress=report)
    for line in found.drop_duplicates(["hidden_size", "p"]).to_dict("records"):
        warn_few_blocks(-(-line["hidden_size"] // block_size), line["r_std_theory"])
    if json:
        print_json(records(found))
        return
    lines = [
        {
            "input of": _place(line),
            "p": line["p"],
            "R": line["r_median"],
            "low": line["r_low"],
            "high": line["r_high"],
            "ln R": line["ln_r"],
            "− crest": -line["ln_crest"],
            "− spread": -line["ln_spread"],
            "absmax": line["absmax"],
        }
        for line in found.to_dict("records")
    ]
    formats = {"input of": "", "p": "g", "R": ".3f", "low": ".3f", "high": ".3f",
               "ln R": "+.3f", "− crest": "+.3f", "− spread": "+.3f",
               "absmax": ".3g"}  # fmt: skip
    about = source.manifest
    title = f"{about.model}: {about.rows} rows a norm, B = {block_size}, {dist} constant"
    print_table(lines, formats, title=title)
    outside = int((~found["inside_bounds"]).sum())
    excluded = int((found["nonfinite_rows"] + found["zero_rows"]).sum())
    print(
        "R = RMS/estimate: median, smallest, largest. ln R and what it is made of: means of rows,"
    )
    for line in found.drop_duplicates(["hidden_size", "p"]).to_dict("records"):
        print(f"ln R = {line['ln_c']:.3f} (ln c̃) − ln crest − ln spread at p = {line['p']:g}.")
    print(f"{len(found)} lines, {outside} outside the bounds, {excluded} rows excluded.")


def _place(line: dict[Hashable, Any]) -> str:
    """Layer and role, or the module's name where it has no role."""
    if line["role"] == "other":
        return line["layer"]
    index = line["index"]
    return line["role"] if index is None or index != index else f"{int(index)} {line['role']}"
