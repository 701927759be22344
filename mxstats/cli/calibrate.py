"""``mxstats calibrate``: the constants of a format."""

import math
from typing import Annotated

import typer

from mxstats.cli import options
from mxstats.cli.output import print_json, print_pairs


def run(
    dist: options.Dist = "gaussian",
    p: options.P = 2.0,
    fmt: Annotated[
        str, typer.Option("--fmt", help="Format; `mxstats formats` lists them.")
    ] = "mxfp8_e4m3",
    scale_rule: Annotated[
        str | None, typer.Option("--scale-rule", help="floor, ceil, even or rceil; E8M0 only.")
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option("--block-size", "-B", help="Instead of the format's.", show_default=False),
    ] = None,
    json: options.Json = False,
) -> None:
    """The constants of a format: from maxima, from rounded scales, and the error that is left."""
    from mxstats.measure import calibrate

    found = calibrate(dist, p=p, fmt=fmt, scale_rule=scale_rule, block_size=block_size)
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
