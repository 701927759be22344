"""What statistics cost beside the plain forward pass: python benchmarks/capture.py [--tokens N].

SmolLM2-135M reads GPL-3, over and over, in windows of 512 tokens. The two ways take turns, window
by window, so that whatever else the machine does falls on both; the ratio of their times is what
counts, and where the machine is shared, the median ratio of a window. Peak memory is the process's,
model included.
"""

import argparse
import resource
import sys
from statistics import median
from time import perf_counter

import torch

from mxstats.activations import ModelError, capture, load_smollm2, read_text
from mxstats.activations.record import text_windows


def main() -> int:
    parser = argparse.ArgumentParser(description="Time and memory of streaming statistics.")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--keep-rows", type=int, default=0, help="tokens whose rows are kept")
    chosen = parser.parse_args()
    try:
        model, tokenizer = load_smollm2()
    except ModelError as missing:
        print(f"{missing}: nothing to measure", file=sys.stderr)
        return 0
    windows = text_windows(tokenizer, read_text())
    loaded = peak_gigabytes()
    plain, captured, done, turn = 0.0, 0.0, 0, 0
    ratios: list[float] = []
    with torch.no_grad():
        model(torch.tensor([windows[0]]))
        before = peak_gigabytes()
        # Hooks come and go with every window, as a capture of one window would have it.
        while done < chosen.tokens:
            ids = torch.tensor([windows[turn % len(windows)][: chosen.tokens - done]])
            took = [0.0, 0.0]
            for way in (turn % 2, 1 - turn % 2):
                if way:
                    took[1] = timed_capture(model, ids, chosen.block_size, chosen.keep_rows)
                else:
                    start = perf_counter()
                    model(ids)
                    took[0] = perf_counter() - start
            plain, captured = plain + took[0], captured + took[1]
            ratios.append(took[1] / took[0])
            done += ids.numel()
            turn += 1
    print(f"{done:,} tokens, {torch.get_num_threads()} threads, block size {chosen.block_size}")
    print(f"plain forward   {plain:8.1f} s")
    print(f"with statistics {captured:8.1f} s, {captured / plain:.3f} of the plain forward")
    print(
        f"ratio of a window: median {median(ratios):.3f}, "
        f"from {min(ratios):.3f} to {max(ratios):.3f}"
    )
    print(
        f"peak memory     {peak_gigabytes():8.2f} GB; {before:.2f} GB after one plain pass, "
        f"{loaded:.2f} GB after loading"
    )
    return 0


def timed_capture(
    model: torch.nn.Module, ids: torch.Tensor, block_size: int, keep_rows: int
) -> float:
    start = perf_counter()
    with capture(model, keep_rows=keep_rows, block_size=block_size):
        model(ids)
    return perf_counter() - start


def peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    sys.exit(main())
