"""The recorded run of the kernels on a GPU, in one command: python benchmarks/kernels.py --out DIR.

Writes <gpu>-forward, <gpu>-backward, <gpu>-overhead and <gpu>-layer.parquet, and kernel_speed and
layer_speed.parquet, the data of the figures of those names, each as soon as it is measured. Without
a GPU there is nothing to measure: it says so, and that is no failure.
"""

import argparse
import sys
import time
from pathlib import Path

import pandas as pd

import mxstats
from mxstats.measure import recording

# Shapes of the ceiling table first; what comes after them are hidden sizes of other models.
SHAPES = (
    (16384, 4096), (16384, 2048), (16384, 8192), (8192, 16384), (2048, 4096),
    (16384, 5120), (16384, 7168), (16384, 11008),
)  # fmt: skip
# Variants and casts, where one shape stands for the others.
VARIANT_SHAPES = ((16384, 4096),)
PART = ("forward", "backward", "overhead", "layer")


def main() -> int:
    parser = argparse.ArgumentParser(description="Record the speed of the kernels on a GPU.")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--only", choices=PART, nargs="*", default=list(PART))
    chosen = parser.parse_args()
    try:
        recording.require_gpu()
    except recording.NoGPUError as missing:
        print(f"{missing}: nothing to measure", file=sys.stderr)
        return 0
    facts = recording.about(mxstats.__version__)
    print("; ".join(f"{name} {value}" for name, value in facts.items()))
    gpu = facts["device"].removeprefix("NVIDIA ").lower().replace(" ", "-")
    start = time.perf_counter()
    found = {}
    for part in PART:
        if part not in chosen.only:
            continue
        to = chosen.out / f"{gpu}-{part}.parquet"
        if part in ("forward", "backward"):
            found[part] = record_direction(part, to, facts)
        elif part == "overhead":
            record_overhead(to, facts)
        else:
            layer = record_layer(to, facts)
            recording.write(chosen.out / "layer_speed.parquet", layer, facts)
        print(f"-- {part}: {time.perf_counter() - start:.0f} s since the start\n", flush=True)
        if part == "backward" and len(found) == 2:
            speed = pd.concat(found.values(), ignore_index=True)
            recording.write(chosen.out / "kernel_speed.parquet", speed, facts)
    return 0


def record_direction(part: str, to: Path, facts: dict[str, str]) -> pd.DataFrame:
    """Measure a direction shape by shape, writing what there is after each."""
    from mxstats.measure.speed.cases import USUAL, chosen
    from mxstats.measure.speed.comparison import compare
    from mxstats.measure.speed.kernel_times import measure_shape

    everything = chosen([part])
    usual = [case for case in everything if case.name in USUAL]
    tables: list[pd.DataFrame] = []
    found = pd.DataFrame()
    print(
        f"{part:36} {'µs':>6} {'±':>5} {'TB/s':>5} {'copy µs':>7} {'of copy':>7} {'torch':>6} "
        f"{'×one':>5} {'×two':>5} {'×fused':>6} | Python {'×one':>5} {'×two':>5}"
    )
    for rows, hidden_size in SHAPES:
        start = time.perf_counter()
        cases = everything if (rows, hidden_size) in VARIANT_SHAPES else usual
        tables.append(measure_shape(rows, hidden_size, cases))
        found = compare(pd.concat(tables, ignore_index=True))
        recording.write(to, found, facts)
        shown = found[(found["rows"] == rows) & (found["hidden_size"] == hidden_size)]
        for line in shown.to_dict("records"):
            print(
                f"{rows:5}×{hidden_size:<5} {line['case']:24} {line['time_us']:6.1f} "
                f"{(line['high_us'] - line['low_us']) / 2:5.1f} {line['tb_per_s']:5.2f} "
                f"{line['copy_us']:7.1f} {line['share_of_copy']:7.1%} "
                f"{line['torch_copy_us']:6.1f} {line['vs_compiled']:5.2f} "
                f"{line['vs_compiled_in_two']:5.2f} {line['vs_rmsnorm_mx']:6.2f} | "
                f"{line['launched_us']:6.1f} {line['launched_vs_compiled']:5.2f} "
                f"{line['launched_vs_compiled_in_two']:5.2f}"
            )
        print(f"   ({time.perf_counter() - start:.0f} s)", flush=True)
    return found


def record_overhead(to: Path, facts: dict[str, str]) -> pd.DataFrame:
    """Measure what launches cost on the CPU."""
    from mxstats.measure.speed.overhead import measure_overhead

    found = measure_overhead()
    recording.write(to, found, facts)
    print("overhead                     CPU µs a call  5–95 %         allocations of outputs")
    for line in found.to_dict("records"):
        print(
            f"{line['operation']:16} {line['way']:11} {line['cpu_us']:13.1f}  "
            f"{line['low_us']:5.1f}–{line['high_us']:5.1f} {line['allocations']:13} of "
            f"{line['outputs']}"
        )
    return found


def record_layer(to: Path, facts: dict[str, str]) -> pd.DataFrame:
    """Measure a layer's parts, and say what they come to."""
    from mxstats.measure.speed.layer import measure_layer
    from mxstats.measure.speed.projection import gains, project

    found = measure_layer()
    recording.write(to, found, facts)
    print(f"{'layer part':30} {'variant':28} {'count':>5} {'µs':>8} {'±':>6}")
    for line in found.to_dict("records"):
        print(
            f"{line['part']:30} {line['variant']:28} {line['count']:5} {line['time_us']:8.1f} "
            f"{(line['high_us'] - line['low_us']) / 2:6.1f}"
        )
    projected = project(found)
    totals = projected.pivot_table(
        index="target", columns="norm", values="time_us", aggfunc="sum", sort=False
    )
    print("total µs\n" + totals.round(1).to_string())
    print("gain of MXNorm over it\n" + gains(projected).mul(100).round(2).to_string())
    return found


if __name__ == "__main__":
    sys.exit(main())
