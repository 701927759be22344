"""``mxstats constant``: c̃(p, B) with its error."""

import math

from mxstats.cli import options
from mxstats.cli.output import print_json, print_pairs, warn_few_blocks


def run(
    dist: options.Dist = "gaussian",
    p: options.P = 2.0,
    block_size: options.BlockSize = 32,
    hidden_size: options.MaybeHiddenSize = None,
    json: options.Json = False,
) -> None:
    """The constant c̃(p, B), exactly, with √V and the noise of R at a hidden size."""
    from mxstats.theory import constant, log_ratio_std, rms_error
    from mxstats.theory.arguments import n_blocks

    value = constant(dist, p=p, block_size=block_size, hidden_size=hidden_size)
    error = rms_error(dist, p=p, block_size=block_size)
    found = {
        "distribution": dist,
        "p": p,
        "block_size": block_size,
        "hidden_size": hidden_size,
        "constant": value,
        "sqrt_v": math.sqrt(error.variance),
        "bias": error.bias,
    }
    if hidden_size is not None:
        std = log_ratio_std(dist, p=p, block_size=block_size, hidden_size=hidden_size)
        blocks = int(n_blocks(hidden_size, block_size))
        found |= {"n_blocks": blocks, "ratio_std": std}
        warn_few_blocks(blocks, std)
    if json:
        print_json(found)
        return
    pairs = [
        ("c̃, rms = 1", f"{value:.15g}"),
        ("√V", _or_infinite(found["sqrt_v"], "E|X|^max(4, 2p) is infinite")),
        ("bias, lim K·E ln R", _or_infinite(error.bias, "a moment that it needs is infinite")),
    ]
    if hidden_size is not None:
        pairs.append(
            (
                f"std of R at D = {hidden_size}",
                f"{found['ratio_std']:.6g}   (K = {found['n_blocks']}, leading order in 1/K)",
            )
        )
    at = "" if hidden_size is None else f", D = {hidden_size}"
    print_pairs(f"{dist}, p = {p:g}, B = {block_size}{at}", pairs)


def _or_infinite(value: float, reason: str) -> str:
    return f"{value:.6g}" if math.isfinite(value) else f"{value}   ({reason})"
