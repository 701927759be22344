"""``mxstats validate``: real activations against the theory, and through the kernel."""

from collections.abc import Hashable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxstats.cli import options
from mxstats.cli.output import print_json, print_table, progress, records, warn_few_blocks

if TYPE_CHECKING:
    import pandas as pd


def run(
    store: Annotated[
        # Not a Path, which would drop a slash of s3://bucket/store.
        str | None,
        typer.Argument(help="A store made by capture, folder or URL; the bundled sample if none."),
    ] = None,
    p: Annotated[
        list[float] | None,
        typer.Option("--p", "-p", help="Exponent; repeat for more. 1 and 2, with constants 2."),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option("--block-size", "-B", help="Instead of the format's.", show_default=False),
    ] = None,
    dist: options.Dist = "gaussian",
    constants: Annotated[
        Path | None, typer.Option("--constants", help="File that calibrate wrote, in place of c̃.")
    ] = None,
    fmt: Annotated[
        str | None, typer.Option("--fmt", help="Format of the kernel; MXFP8_E4M3 if none.")
    ] = None,
    scale_rule: Annotated[
        str | None, typer.Option("--scale-rule", help="floor, ceil, even or rceil; E8M0 only.")
    ] = None,
    backend: Annotated[
        str, typer.Option("--backend", help="auto, triton or torch: what runs the kernel.")
    ] = "auto",
    kernel: Annotated[
        bool | None,
        typer.Option(
            "--kernel/--no-kernel",
            help="Run the rows through the kernel too; by default where torch is installed.",
            show_default=False,
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write one HTML file with figures and reasons.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Write the table as parquet, with device, versions and command."
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """R = RMS/estimate at every norm of a captured model, what explains it, and the bounds."""
    from mxstats import __version__
    from mxstats.activations import ActivationStore, sample_store
    from mxstats.measure import recording, validate
    from mxstats.measure.calibrated import check_file
    from mxstats.measure.report import write_report

    source = sample_store() if store is None else ActivationStore(store)
    for path in (report, out):
        if path is not None:
            check_file(path)
    facts = {} if out is None else recording.about(__version__)
    if kernel is None and find_spec("torch") is not None:
        kernel = True
    try:
        with progress("validate") as show:
            found = validate(
                source,
                p=p or None,
                block_size=block_size,
                distribution=dist,
                constants=constants,
                kernel=kernel,
                fmt=fmt,
                scale_rule=scale_rule,
                backend=backend,
                progress=show,
            )
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from error
    about = source.manifest
    if out is not None:
        of_store = {
            "model": f"{about.model}, {about.revision}",
            "text": about.text,
            "store_tokens": str(about.tokens),
        }
        recording.write(out, found, facts | of_store)
    size = int(found["block_size"].iloc[0])
    if report is not None:
        with progress("report") as show:
            write_report(
                found,
                report,
                source,
                block_size=size,
                distribution=dist,
                constants=constants,
                progress=show,
            )
    for line in found.drop_duplicates(["hidden_size", "p"]).to_dict("records"):
        warn_few_blocks(-(-line["hidden_size"] // size), line["r_std_theory"])
    if json:
        print_json(records(found))
        return
    of = f"{dist} constant" if constants is None else f"constants of {constants}"
    _print_lines(found, f"{about.model}: {about.rows} rows a norm, B = {size}, {of}")
    _print_summary(found)
    if report is not None:
        print(f"Report written to {report}.")
    if out is not None:
        print(f"Table written to {out}.")


def _print_lines(found: "pd.DataFrame", title: str) -> None:
    short = {"holds": "holds", "biased but steady (calibrate)": "biased"}
    lines = [
        {
            "input of": place(line),
            "p": line["p"],
            "R": line["r_median"],
            "low": line["r_low"],
            "high": line["r_high"],
            "ln R": line["ln_r"],
            "− crest": -line["ln_crest"],
            "− spread": -line["ln_spread"],
            "absmax": line["absmax"],
            "verdict": short.get(line["verdict"], "token"),
        }
        for line in found.to_dict("records")
    ]
    formats = {"input of": "", "p": "g", "R": ".3f", "low": ".3f", "high": ".3f",
               "ln R": "+.3f", "− crest": "+.3f", "− spread": "+.3f",
               "absmax": ".3g", "verdict": ""}  # fmt: skip
    print_table(lines, formats, title=title)


def _print_summary(found: "pd.DataFrame") -> None:
    outside = int((~found["inside_bounds"]).sum())
    excluded = int((found["nonfinite_rows"] + found["zero_rows"]).sum())
    print(
        "R = RMS/estimate: median, smallest, largest. ln R and what it is made of: means of rows,"
    )
    for line in found.drop_duplicates(["hidden_size", "p"]).to_dict("records"):
        print(f"ln R = {line['ln_c']:.3f} (ln c̃) − ln crest − ln spread at p = {line['p']:g}.")
    counts = found.groupby(["p", "verdict"], sort=True).size().rename("layers").reset_index()
    for line in counts.to_dict("records"):
        print(f"p = {line['p']:g}, {line['verdict']}: {line['layers']} layers.")
    if "backend" in found:
        first = found.iloc[0]
        rule = "" if first["scale_rule"] is None else f" {first['scale_rule']}"
        print(
            f"Kernel ({first['backend']} on {first['device']}, {first['format']}{rule}): median "
            f"over layers {found['snr_db'].median():.2f} dB, "
            f"{100 * found['clipped_share'].median():.3f} % clipped, "
            f"{100 * found['flushed_share'].median():.3f} % flushed."
        )
        if found["twin_differences"].notna().all():
            print(f"Rows that differ from the torch twin: {int(found['twin_differences'].sum())}.")
    print(f"{len(found)} lines, {outside} outside the bounds, {excluded} rows excluded.")


def place(line: dict[Hashable, Any]) -> str:
    """Layer and role, or the module's name where it has no role."""
    if line["role"] == "other":
        return line["layer"]
    index = line["index"]
    return line["role"] if index is None or index != index else f"{int(index)} {line['role']}"
