"""Synthetic tables of times, as a run would record them, with round numbers."""

import pandas as pd

SHAPES = ((16384, 2048), (16384, 4096), (16384, 5120), (16384, 8192), (8192, 16384), (2048, 4096))
# Time over that of the copy.
CASES = {
    "forward": {
        "mxnorm p=2": 1.02, "rmsnorm_mx": 1.06, "compiled": 2.0, "compiled in two": 3.0,
    },
    "backward": {
        "mxnorm_backward p=2": 1.1, "rmsnorm_mx_backward": 1.2, "compiled backward": 1.6,
    },
}  # fmt: skip


def kernel_times():
    """Copies at 4 TB/s of 3 bytes an element forward, 6 backward."""
    lines = []
    for rows, hidden_size in SHAPES:
        for direction, cases in CASES.items():
            moved = rows * hidden_size * (3 if direction == "forward" else 6)
            for case, factor in cases.items():
                copy = moved / 4e6
                lines.append(
                    {
                        "rows": rows, "hidden_size": hidden_size, "direction": direction,
                        "case": case, "time_us": factor * copy, "low_us": 0.99 * factor * copy,
                        "high_us": 1.02 * factor * copy, "launched_us": 2 * factor * copy,
                        "bytes": moved, "copy_us": copy, "copy_low_us": copy, "copy_high_us": copy,
                        "torch_copy_us": 1.1 * copy, "sets": 8,
                        "fits_cache": moved <= 60 * 2**20, "device": "NVIDIA H200",
                    }
                )  # fmt: skip
    return pd.DataFrame(lines)


def layer_parts():
    """Matmuls 2 × 1000 µs in fp8, attention 900, elementwise 2 × 40 + 120; norms 2 × 50, 2 × 30."""
    parts = [
        ("norm", "norm", "compiled RMSNorm, then cast", 2, 75.0),
        ("norm", "norm", "compiled RMSNorm + cast", 2, 50.0),
        ("norm", "norm", "fused RMSNorm + cast", 2, 31.0),
        ("norm", "norm", "MXNorm", 2, 30.0),
        ("residual", "elementwise", "compiled", 2, 40.0),
        ("cast after attention", "elementwise", "mx_cast", 1, 20.0),
        ("SwiGLU + cast", "elementwise", "compiled", 1, 100.0),
        ("attention", "attention", "flash", 1, 900.0),
        ("qkv", "matmul", "bf16", 1, 1800.0),
        ("qkv", "matmul", "fp8", 1, 1000.0),
        ("down", "matmul", "bf16", 1, 1900.0),
        ("down", "matmul", "fp8", 1, 1000.0),
    ]
    names = ["part", "group", "variant", "count", "time_us"]
    table = pd.DataFrame(parts, columns=names)
    return table.assign(low_us=table["time_us"], high_us=table["time_us"], device="NVIDIA H200")
