"""Calibration on a real model: errors of the estimate and the model's loss, for figure and README.

    python benchmarks/calibration.py --out figures/data

SmolLM2-135M reads the topics of Python's own help (``pydoc_data.topics``), constants are fitted on
what enters its norms, weights of blocks are trained on what it says of that text and of text that
it writes itself, and its loss is measured on texts that it did not read there: the GNU GPL 3 and
the source of the standard library's ``argparse``. Some minutes on a GPU, an hour on two cores.
"""

import argparse
import inspect
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import mxstats as mxs
from mxstats.activations import capture_to_store
from mxstats.activations.models import load_smollm2
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
    parser.add_argument("--first-token-weight", type=float, default=1.0)
    parser.add_argument("--own-windows", type=int, default=22, help="that the model writes")
    parser.add_argument("--passes", type=int, default=4, help="of training over all windows")
    parser.add_argument("--learning-rate", type=float, default=0.03)
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
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
        found: dict[tuple[int, str], Any] = {}
        for size in BLOCK_SIZES:
            for per in ("model", "layer", "block"):
                found[size, per] = mxs.calibrate(
                    store, per=per, block_size=size,
                    first_token_weight=chosen.first_token_weight,
                )  # fmt: skip
            say(f"calibrated B = {size}")
    errors = pd.concat(one.table.assign(kind="error") for one in found.values())
    model, tokenizer = load_smollm2()
    model = model.to(device)
    read = text_windows(tokenizer, help_topics(), max_tokens=chosen.tokens, window=WINDOW)
    written = own_text(model, read[0][0], chosen.own_windows, WINDOW)
    say(f"wrote {len(written)} windows, the first: {tokenizer.decode(written[0][1:25])!r}")
    for size in BLOCK_SIZES:
        trained = distil(
            model, [*read, *written], found[size, "block"],
            passes=chosen.passes, learning_rate=chosen.learning_rate,
        )  # fmt: skip
        found[size, "block, trained"] = trained.calibration
        kl, turn = trained.steps["kl"], len(read) + len(written)
        moved = trained.calibration.table["moved"].median()
        say(
            f"trained B = {size}: KL {kl[:turn].mean():.4f} in the first pass, "
            f"{kl[-turn:].mean():.4f} in the last; weights moved by {moved:.3f}"
        )
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
        "first_token_weight": f"{chosen.first_token_weight:g}",
        "training": f"{chosen.passes} passes over these and {len(written) * WINDOW} tokens that "
        f"the model wrote, learning rate {chosen.learning_rate:g}",
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


def own_text(model: torch.nn.Module, bos: int, windows: int, length: int) -> list[list[int]]:
    """Windows that the model writes after a BOS, each token drawn with its probability."""
    if not windows:
        return []
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    written = torch.full((windows, 1), bos)
    cache: Any = None
    with torch.no_grad():
        for _ in range(length - 1):
            found = model(written[:, -1:].to(device), past_key_values=cache, use_cache=True)
            cache = found.past_key_values
            chances = found.logits[:, -1].float().softmax(-1).cpu()
            written = torch.cat([written, torch.multinomial(chances, 1, generator=generator)], 1)
    return written.tolist()


if __name__ == "__main__":
    sys.exit(main())
