"""A converted Llama 3 8B layer against the plain one: python benchmarks/modules.py --out DIR.

Writes <gpu>-converted-layer.parquet. Without a GPU there is nothing to measure: it says so, and
that is no failure.
"""

import argparse
import sys
from pathlib import Path

import mxstats
from mxstats.measure import recording


def main() -> int:
    parser = argparse.ArgumentParser(description="Record the speed of a converted layer on a GPU.")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    chosen = parser.parse_args()
    try:
        recording.require_gpu()
    except recording.NoGPUError as missing:
        print(f"{missing}: nothing to measure", file=sys.stderr)
        return 0
    from mxstats.measure.speed.converted_layer import measure_converted_layer

    facts = recording.about(mxstats.__version__)
    print("; ".join(f"{name} {value}" for name, value in facts.items()))
    gpu = facts["device"].removeprefix("NVIDIA ").lower().replace(" ", "-")
    found = measure_converted_layer()
    recording.write(chosen.out / f"{gpu}-converted-layer.parquet", found, facts)
    print(found.set_index(["variant", "way"]).drop(columns="device").round(0).T.to_string())
    return 0


if __name__ == "__main__":
    sys.exit(main())
