"""``mxstats bounds``: how large and small the output can get."""

import math
from typing import Any

from mxstats.cli import options
from mxstats.cli.output import print_json, print_table


def run(
    dist: options.Dist = "gaussian",
    p: options.Ps = [1.0, 2.0],
    block_size: options.BlockSize = 32,
    hidden_size: options.HiddenSize = 4096,
    json: options.Json = False,
) -> None:
    """Attained bounds of the output: largest |y|, largest and smallest RMS, beside RMSNorm's."""
    from mxstats.theory import output_bounds

    lines: list[dict[str, Any]] = []
    for exponent in p:
        found = output_bounds(dist, p=exponent, block_size=block_size, hidden_size=hidden_size)
        lines.append(
            {
                "norm": "mxnorm",
                "p": exponent,
                "max_abs": found.max_abs,
                "rms_low": found.rms_low,
                "rms_high": found.rms_high,
            }
        )
    rmsnorm = {"norm": "rmsnorm", "p": None, "max_abs": math.sqrt(hidden_size)}
    lines.insert(0, rmsnorm | {"rms_low": 1.0, "rms_high": 1.0})
    if json:
        about = {"distribution": dist, "block_size": block_size, "hidden_size": hidden_size}
        print_json([about | line for line in lines])
        return
    shown = [
        {
            "norm": line["norm"] if line["p"] is None else f"mxnorm p = {line['p']:g}",
            "largest |y|": line["max_abs"],
            "smallest RMS(y)": line["rms_low"],
            "largest RMS(y)": line["rms_high"],
        }
        for line in lines
    ]
    formats = {"norm": "", "largest |y|": ".6g", "smallest RMS(y)": ".6g", "largest RMS(y)": ".6g"}
    print_table(
        shown, formats, title=f"{dist} constant, B = {block_size}, D = {hidden_size}, ε = 0"
    )
