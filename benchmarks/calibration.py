"""Calibration on a real model: errors of the estimate and the model's loss, for figure and README.

    python benchmarks/calibration.py --out figures/data

SmolLM2-135M reads the topics of Python's own help (``pydoc_data.topics``), constants are fitted on
what enters its norms, weights of blocks are trained on what it says of that text and of text that
it writes itself, and its loss is measured on texts that it did not read there: the GNU GPL 3 and
the source of the standard library's ``argparse``. Beside the table it saves the trained weights in
``smollm2_135m``, a file a block size. Some minutes on a GPU, an hour on two cores.
"""

import argparse
import inspect
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import mxstats as mxs
from mxstats.activations import capture_to_store
from mxstats.activations.models import load_smollm2
from mxstats.activations.own_text import write_windows
from mxstats.activations.record import text_windows
from mxstats.activations.text import read_text
from mxstats.measure import recording
from mxstats.measure.distillation import distil
from mxstats.measure.evaluation import evaluate

BLOCK_SIZES = (8, 16, 32, 64)
WINDOW = 512


def main() -> int:
    parser = argparse.ArgumentParser(description="Record what calibration brings a real model.")
    parser.add_argument("--out", type=Path, default=Path("figures/data"))
    parser.add_argument("--tokens", type=int, default=22 * WINDOW, help="read for calibration")
    parser.add_argument("--held-out", type=int, default=4 * WINDOW, help="read of each other text")
    parser.add_argument("--own-windows", type=int, default=44, help="that the model writes")
    parser.add_argument("--passes", type=int, default=2, help="of training over all windows")
    parser.add_argument(
        "--learning-rate", type=float, nargs="+", default=[0.01, 0.03],
        help="of training; the one that does best on windows held out is taken",
    )  # fmt: skip
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = time.perf_counter()
    weights = chosen.out / "smollm2_135m"
    weights.mkdir(parents=True, exist_ok=True)

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
        found: dict[tuple[int, str], Any] = {}
        for size in BLOCK_SIZES:
            for per in ("model", "layer", "block"):
                found[size, per] = mxs.calibrate(store, per=per, block_size=size)
            say(f"calibrated B = {size}")
    errors = pd.concat(one.table.assign(kind="error") for one in found.values())
    model, tokenizer = load_smollm2()
    model = model.to(device)
    read = text_windows(tokenizer, help_topics(), max_tokens=chosen.tokens, window=WINDOW)
    written = write_windows(model, bos=read[0][0], windows=chosen.own_windows, length=WINDOW)
    say(f"wrote {len(written)} windows, the first: {tokenizer.decode(written[0][1:25])!r}")
    # Every fifth of both kinds says when to stop, and which rate is best.
    held = [*read[::5], *written[::5]]
    seen = [window for kind in (read, written) for at, window in enumerate(kind) if at % 5]
    for size in BLOCK_SIZES:
        runs = {
            rate: distil(
                model, seen, found[size, "block"],
                held_out=held, passes=chosen.passes, learning_rate=rate,
            )
            for rate in chosen.learning_rate
        }  # fmt: skip
        for rate, run in runs.items():
            moved = run.calibration.table["moved"].median()
            kl = ", ".join(f"{value:.4f}" for value in run.held_out["kl"])
            say(
                f"trained B = {size}, rate {rate:g}: held-out KL {kl}; weights moved by {moved:.3f}"
            )
        best = min(runs, key=lambda rate: runs[rate].held_out["kl"].min())
        trained = replace(
            runs[best].calibration, text="pydoc_data.topics, and text that the model wrote"
        )
        found[size, "block, trained"] = trained
        trained.save(weights / f"smollm2_135m_b{size}.json")
    lines = []
    for name, content in (("GPL-3", read_text(None)), ("argparse.py", inspect.getsource(argparse))):
        windows = text_windows(tokenizer, content, max_tokens=chosen.held_out, window=WINDOW)
        for size in BLOCK_SIZES:
            of_size = {f"per {per}": one for (of, per), one in found.items() if of == size}
            table = evaluate(model, windows, of_size, block_size=size)
            lines.append(table.assign(kind="loss", text=name))
            say(f"{name}, B = {size}\n{table.to_string(index=False)}")
    table = pd.concat([errors, *lines], ignore_index=True)
    facts = {
        "command": "python benchmarks/calibration.py --out figures/data",
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "model": f"{store.manifest.model}, {store.manifest.revision}",
        "text": "pydoc_data.topics",
        "tokens": str(store.manifest.tokens),
        "training": f"{chosen.passes} passes over these and {len(written) * WINDOW} tokens that "
        f"the model wrote, a fifth of both held out, learning rate of {chosen.learning_rate} by it",
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
