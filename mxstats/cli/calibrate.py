"""``mxstats calibrate``: the constants of a format, or those that fit a captured model."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from mxstats.cli import options
from mxstats.cli.output import print_json, print_pairs, print_table, progress, records
from mxstats.cli.validate import place

_FOR_ROWS = "Of a store: "


def run(
    store: Annotated[
        # Not a Path, which would drop a slash of s3://bucket/store.
        str | None,
        typer.Argument(
            help="A store made by capture, folder or URL; none: a format, for a distribution."
        ),
    ] = None,
    dist: Annotated[
        str | None,
        typer.Option("--dist", help="Distribution: gaussian, laplace or student-t:DF."),
    ] = None,
    p: options.P = 2.0,
    fmt: Annotated[
        str | None,
        typer.Option("--fmt", help="Format; `mxstats formats` lists them. MXFP8_E4M3 if none."),
    ] = None,
    scale_rule: Annotated[
        str | None, typer.Option("--scale-rule", help="floor, ceil, even or rceil; E8M0 only.")
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option("--block-size", "-B", help="Instead of the format's.", show_default=False),
    ] = None,
    per: Annotated[
        str | None,
        typer.Option("--per", help=f"{_FOR_ROWS}a constant per model or layer, or block weights."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help=f"{_FOR_ROWS}write the constants to this JSON file."),
    ] = None,
    first_token_weight: Annotated[
        float | None,
        typer.Option(
            "--first-token-weight", help=f"{_FOR_ROWS}rows that a window's first one counts for."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help=f"{_FOR_ROWS}of the bootstrap.")] = 0,
    json: options.Json = False,
) -> None:
    """Constants: of a format for a distribution, or fitted to the rows of a store."""
    if store is None:
        for name, value in (
            ("--per", per),
            ("--out", out),
            ("--first-token-weight", first_token_weight),
        ):
            if value is not None:
                raise ValueError(f"{name} {value}: needs a STORE to fit; none was given")
        _format("gaussian" if dist is None else dist, p, fmt, scale_rule, block_size, json)
        return
    if dist is not None:
        raise ValueError(
            f"--dist {dist}: is for a format's calibration; STORE {store} is fitted to its own rows"
        )
    if scale_rule is not None:
        raise ValueError(
            f"--scale-rule {scale_rule}: is for a format's calibration; the fit to STORE {store} "
            f"is of block maxima, before any scale"
        )
    _rows(store, p, fmt, block_size, per, out, first_token_weight, seed, json)


def _rows(
    store: str,
    p: float,
    fmt: str | None,
    block_size: int | None,
    per: str | None,
    out: Path | None,
    first_token_weight: float | None,
    seed: int,
    json: bool,
) -> None:
    from mxstats.activations import ActivationStore
    from mxstats.measure import calibrate
    from mxstats.measure.calibrated import check_file

    if out is not None:
        check_file(out)
    with progress("calibrate") as report:
        found = calibrate(
            ActivationStore(store),
            p=p,
            fmt=fmt,
            block_size=block_size,
            per="layer" if per is None else per,
            first_token_weight=first_token_weight,
            seed=seed,
            progress=report,
        )
    if out is not None:
        found.save(out)
    if json:
        print_json(records(found.table))
        return
    lines = [
        {
            "input of": place(line),
            "rows": line["rows"],
            "c": line["c"],
            "low": line["c_low"],
            "high": line["c_high"],
            "fitted": 100 * line["in_sample_rms"],
            "held out": 100 * line["held_out_rms"],
            "√(V/K)": 100 * line["sampling_limit"],
            "max |y|": line["bound_max_abs"],
        }
        for line in found.table.to_dict("records")
    ]
    formats = {"input of": "", "rows": "d", "c": ".3f", "low": ".3f", "high": ".3f",
               "fitted": ".2f", "held out": ".2f", "√(V/K)": ".2f", "max |y|": ".2f"}  # fmt: skip
    what = {"model": "one constant", "layer": "a constant a layer", "block": "a weight a block"}
    title = f"{found.model}: {what[found.per]}, p = {found.p:g}, B = {found.block_size}"
    print_table(lines, formats, title=title)
    _explain(found.table.iloc[0].to_dict(), found.per)
    if out is not None:
        print(f"Written to {out}.")


def _explain(line: dict[Any, Any], per: str) -> None:
    if per == "block":
        print("c is the scalar that the weights are regularised towards where rows are few.")
    print(
        f"c with its 95 % interval by bootstrap over {line['groups']} {line['group']}. RMS of "
        f"ln(estimate/RMS) in %, fitted and on text held out; √(V/K) is what sampling alone gives."
    )
    print(f"max |y| is the output's bound; RMSNorm's is {line['bound_rmsnorm']:.4g}.")


def _format(
    dist: str,
    p: float,
    fmt: str | None,
    scale_rule: str | None,
    block_size: int | None,
    json: bool,
) -> None:
    from mxstats.measure import FormatCalibration, calibrate

    found: FormatCalibration = calibrate(
        dist, p=p, fmt=fmt, scale_rule=scale_rule, block_size=block_size
    )
    scale_only, error = found.scale_only, found.format_error
    rule = None if found.scale_rule is None else str(found.scale_rule)
    if json:
        periodic = {
            "sqnr_db": error.sqnr_db,
            "output_rms": error.output_rms,
            "clipped_share": error.clipped,
            "flushed_share": error.flushed,
        }
        print_json(
            {
                "distribution": dist,
                "p": p,
                "format": found.fmt.name,
                "block_size": found.fmt.block_size,
                "scale_rule": rule,
                "bits_per_element": found.fmt.bits_per_element,
                "constant": found.constant,
                "sqrt_v": math.sqrt(found.rms_error.variance),
                "bias": found.rms_error.bias,
                "scale_only": {
                    "geomean": scale_only.geomean,
                    "low": scale_only.low,
                    "high": scale_only.high,
                    "unit": scale_only.unit,
                },
            }
            | {
                name: {"mean": one.mean, "low": one.low, "high": one.high}
                for name, one in periodic.items()
            }
        )
        return
    swing = 100 * math.log(scale_only.high / scale_only.low) / 2
    print_pairs(
        f"{found.fmt.name}, {rule or found.fmt.scale.name} scales, {dist}, p = {p:g}",
        [
            ("bits an element", f"{found.fmt.bits_per_element:g}"),
            ("c̃ from block maxima", f"{found.constant:.15g}   (rms = 1)"),
            ("√V", f"{math.sqrt(found.rms_error.variance):.6g}"),
            ("c from rounded scales", f"{scale_only.geomean:.9g}   geometric mean over σ"),
            (
                "  over all σ",
                f"{scale_only.low:.9g} to {scale_only.high:.9g}   (±{swing:.2f} %)",
            ),
            ("  scale unit", f"{scale_only.unit:g}   (c counts scale × this)"),
            ("signal to noise", _range(error.sqnr_db, " dB", 2)),
            ("RMS of output", _range(error.output_rms, "", 6)),
            ("clipped", _range(error.clipped, " %", 4, 100)),
            ("flushed to zero", _range(error.flushed, " %", 4, 100)),
        ],
    )


def _range(one: object, unit: str, digits: int, factor: float = 1.0) -> str:
    mean, low, high = (factor * getattr(one, name) for name in ("mean", "low", "high"))
    return f"{mean:.{digits}f}{unit}   ({low:.{digits}f} to {high:.{digits}f} over all σ)"
