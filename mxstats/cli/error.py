"""``mxstats error``: how far the RMS estimate strays on rows that are as assumed."""

import math
from typing import Annotated

import typer

from mxstats.cli import options
from mxstats.cli.output import print_json, print_table, warn_few_blocks


def run(
    dist: options.Dist = "gaussian",
    p: options.Ps = [1.0, 2.0],
    block_size: options.BlockSize = 32,
    hidden_size: Annotated[
        list[int], typer.Option("--hidden-size", "-D", help="Elements a row; repeat for more.")
    ] = [1024, 4096, 16384],
    json: options.Json = False,
) -> None:
    """√V, bias and the spread of R = RMS/estimate at hidden sizes, to leading order in 1/K."""
    from mxstats.theory import log_ratio_mean, log_ratio_std, rms_error
    from mxstats.theory.arguments import n_blocks

    lines = []
    for exponent in p:
        error = rms_error(dist, p=exponent, block_size=block_size)
        for width in hidden_size:
            at = {"p": exponent, "block_size": block_size, "hidden_size": width}
            std = log_ratio_std(dist, **at)
            blocks = int(n_blocks(width, block_size))
            warn_few_blocks(blocks, std)
            lines.append(
                {
                    "p": exponent,
                    "D": width,
                    "K": blocks,
                    "√V": math.sqrt(error.variance),
                    "std of R": std,
                    "mean of ln R": log_ratio_mean(dist, **at),
                }
            )
    if json:
        names = {"√V": "sqrt_v", "std of R": "ratio_std", "mean of ln R": "log_ratio_mean",
                 "D": "hidden_size", "K": "n_blocks", "p": "p"}  # fmt: skip
        about = {"distribution": dist, "block_size": block_size}
        print_json([about | {names[key]: value for key, value in line.items()} for line in lines])
        return
    formats = {"p": "g", "D": "d", "K": "d", "√V": ".6f", "std of R": ".6f", "mean of ln R": ".2e"}
    print_table(lines, formats, title=f"{dist}, B = {block_size}; R = RMS/estimate, 1 when right")
    if any(math.isinf(line["√V"]) for line in lines):
        print("V is infinite where E|X|^max(4, 2p) is: R then has no standard deviation to quote.")
