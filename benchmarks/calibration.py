"""Calibration on a real model: errors of the estimate and the model's loss, for figure and README.

    python benchmarks/calibration.py --out figures/data

SmolLM2-135M reads the topics of Python's own help (``pydoc_data.topics``), constants are fitted on
what enters its norms, and its loss is measured on texts that it did not read there: the GNU GPL 3
and the source of the standard library's ``argparse``. Some 20 minutes on two cores.
"""

import argparse
import inspect
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import torch

import mxstats as mxs
from mxstats.activations import capture_to_store
from mxstats.activations.models import load_smollm2
from mxstats.activations.record import text_windows
from mxstats.activations.text import read_text
from mxstats.measure.evaluation import evaluate
from mxstats.measure.speed import recording

BLOCK_SIZES = (8, 16, 32, 64)
WINDOW = 512


def main() -> int:
    parser = argparse.ArgumentParser(description="Record what calibration brings a real model.")
    parser.add_argument("--out", type=Path, default=Path("figures/data"))
    parser.add_argument("--tokens", type=int, default=22 * WINDOW, help="read for calibration")
    parser.add_argument("--held-out", type=int, default=4 * WINDOW, help="read of each other text")
    parser.add_argument("--first-token-weight", type=float, default=1.0)
    chosen = parser.parse_args()
    start = time.perf_counter()

    def say(what: str) -> None:
        print(f"{time.perf_counter() - start:6.0f} s  {what}", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        text = Path(scratch) / "topics.txt"
        text.write_text(help_topics(), encoding="utf-8")
        store = capture_to_store(
            Path(scratch) / "store", text=text, tokens=chosen.tokens, window=WINDOW,
            keep_rows=chosen.tokens,
        )  # fmt: skip
        say(f"captured {store.manifest.tokens} tokens")
        found = {}
        for size in BLOCK_SIZES:
            for per in ("model", "layer", "block"):
                found[size, per] = mxs.calibrate(
                    store, per=per, block_size=size,
                    first_token_weight=chosen.first_token_weight,
                )  # fmt: skip
            say(f"calibrated B = {size}")
    errors = pd.concat(one.table.assign(kind="error") for one in found.values())
    model, tokenizer = load_smollm2()
    lines = []
    for name, content in (("GPL-3", read_text(None)), ("argparse.py", inspect.getsource(argparse))):
        windows = text_windows(tokenizer, content, max_tokens=chosen.held_out, window=WINDOW)
        for size in BLOCK_SIZES:
            of_size = {f"per {per}": found[size, per] for per in ("model", "layer", "block")}
            table = evaluate(model, windows, of_size, block_size=size)
            lines.append(table.assign(kind="loss", text=name))
            say(f"{name}, B = {size}\n{table.to_string(index=False)}")
    table = pd.concat([errors, *lines], ignore_index=True)
    facts = {
        "command": "python benchmarks/calibration.py --out figures/data",
        "model": f"{store.manifest.model}, {store.manifest.revision}",
        "text": "pydoc_data.topics",
        "tokens": str(store.manifest.tokens),
        "first_token_weight": f"{chosen.first_token_weight:g}",
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "mxstats": mxs.__version__,
    }
    say(str(recording.write(chosen.out / "calibration.parquet", table, facts)))
    return 0


def help_topics() -> str:
    """The text of Python's help topics, which every installation has."""
    from pydoc_data import topics

    return "\n\n".join(topics.topics[name] for name in sorted(topics.topics))


if __name__ == "__main__":
    sys.exit(main())
