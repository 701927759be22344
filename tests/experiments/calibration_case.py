"""A recorded calibration with round numbers, of the shape that benchmarks/calibration.py gives."""

import numpy as np
import pandas as pd

BLOCK_SIZES = (8, 16, 32, 64)
TEXTS = ("GPL-3", "argparse.py")
# Held-out RMS error at layer 0 and the step a norm input; loss penalty at B = 8, doubled with B.
ERRORS = {"model": (0.2, 0.002), "layer": (0.1, 0.001), "block": (0.03, 0.0002)}
PENALTIES = {
    "RMSNorm": 0.0,
    "Gaussian constant": 1.25,
    "per model": 0.05,
    "per layer": 0.02,
    "per block": 0.001,
    "per block, trained": 0.0005,
    "noise √(V/K)": 0.0004,
}
NORMS = [
    (f"model.layers.{layer}.{name}", role, float(layer))
    for layer in range(30)
    for name, role in (
        ("input_layernorm", "pre-attention"),
        ("post_attention_layernorm", "pre-mlp"),
    )
] + [("model.norm", "final", np.nan)]


def calibration_run():
    """Errors a norm input, calibration and block size; losses a text, variant and block size."""
    lines = []
    for size in BLOCK_SIZES:
        for per, (error, step) in ERRORS.items():
            for at, (layer, role, index) in enumerate(NORMS):
                lines.append(
                    {
                        "kind": "error", "layer": layer, "role": role, "index": index,
                        "hidden_size": 576, "p": 2.0, "block_size": size, "per": per,
                        "rows": 11264, "c": 4.0 + at / 100, "in_sample_rms": 0.9 * error,
                        "held_out_rms": (error + step * at) * np.sqrt(size / 32),
                        "sampling_limit": 0.15 * np.sqrt(size / 32 / 18),
                    }
                )  # fmt: skip
        for text in TEXTS:
            for variant, penalty in PENALTIES.items():
                value = penalty * size / 8 * (2 if text == "GPL-3" else 1)
                lines.append(
                    {
                        "kind": "loss", "text": text, "variant": variant, "p": 2.0,
                        "block_size": size, "format": None, "loss": 3.0 + value,
                        "penalty": value, "penalty_error": value / 8, "tokens": 2044,
                    }
                )  # fmt: skip
    return pd.DataFrame(lines)
