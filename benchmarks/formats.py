"""The quantiser against gfloat block by block and torchao's eager cast.

Run it as ``python benchmarks/formats.py``.
A 4096 × 4096 float32 tensor in blocks of 32, in one process, one side after the other, several
times; the ratio is that of the medians. gfloat has FLOOR alone, which stands against both rules,
and is timed on some of the blocks and scaled up, a block costing what a block costs; torchao runs
with as many threads as torch takes by itself, ours with one. Where the rules are the same, so must
the results be. Exits with 1 where ours is less than 200 times as fast as gfloat, or takes more than
twice torchao's time.
"""

import os
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from statistics import median
from typing import Any

import gfloat
import numpy as np
import torch
from gfloat.formats import format_info_mxfp4_e2m1, format_info_mxfp8_e4m3
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.kernels import unpack_uint4
from torchao.prototype.mx_formats.mx_tensor import to_mx

import mxstats as mxs

SIZE = 4096
BLOCK_SIZE = 32
GFLOAT_BLOCKS = 1000
REPEATS = 5
WANTED_GFLOAT, WANTED_TORCHAO = 200.0, 2.0

CASES: dict[str, tuple[Any, Any]] = {
    "MXFP8_E4M3": (format_info_mxfp8_e4m3, torch.float8_e4m3fn),
    "MXFP4_E2M1": (format_info_mxfp4_e2m1, torch.float4_e2m1fn_x2),
}


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def gfloat_blocks(blocks: np.ndarray, info: Any) -> list[np.ndarray]:
    return [gfloat.quantize_block(info, b, gfloat.compute_scale_amax) for b in blocks]


def same_as_torchao(ours: Any, theirs: tuple[torch.Tensor, torch.Tensor]) -> bool:
    scales, codes = theirs
    if codes.shape != ours.codes.shape:
        codes = unpack_uint4(codes)
    return np.array_equal(ours.codes, codes.view(torch.uint8).numpy()) and np.array_equal(
        ours.scales, scales.view(torch.uint8).numpy()
    )


def main() -> int:
    x = np.random.default_rng(0).standard_normal((SIZE, SIZE), dtype=np.float32)
    tensor = torch.from_numpy(x)
    blocks = x.reshape(-1, BLOCK_SIZE)
    some = blocks[:: blocks.shape[0] // GFLOAT_BLOCKS][:GFLOAT_BLOCKS]
    print(
        f"Python {platform.python_version()}, numpy {np.__version__}, torch {torch.__version__}, "
        f"mxstats {mxs.__version__}, gfloat {version('gfloat')}, torchao {version('torchao')}, "
        f"{platform.machine()}, {os.cpu_count()} cores, torch with {torch.get_num_threads()} "
        f"threads"
    )
    print(
        f"{SIZE} × {SIZE} float32, blocks of {BLOCK_SIZE}, {REPEATS} repeats a side, medians; "
        f"gfloat on {len(some)} of {len(blocks)} blocks, scaled up"
    )
    print(f"{'format':11} {'rule':6} {'mxstats':>9} {'gfloat':>9} {'ratio':>7}  torchao  ratio")
    good = True
    for name, (info, dtype) in CASES.items():
        fmt = mxs.formats.block_format(name)
        for rule in (mxs.formats.ScaleRule.FLOOR, mxs.formats.ScaleRule.RCEIL):
            mode = ScaleCalculationMode(rule.value)
            sides: tuple[Callable[[], Any], ...] = (
                lambda fmt=fmt, rule=rule: mxs.formats.quantize(x, fmt, scale_rule=rule),
                lambda info=info: gfloat_blocks(some, info),
                lambda dtype=dtype, mode=mode: to_mx(tensor, dtype, BLOCK_SIZE, mode),
            )
            for side in sides:  # first calls import, and fill the tables of the format
                side()
            runs = [[timed(side) for side in sides] for _ in range(REPEATS)]
            ours, slow, eager = (median(run[i][0] for run in runs) for i in range(3))
            slow *= len(blocks) / len(some)
            good &= slow / ours >= WANTED_GFLOAT and ours / eager <= WANTED_TORCHAO
            print(
                f"{name:11} {rule.name:6} {1e3 * ours:6.0f} ms {slow:7.1f} s {slow / ours:7.0f}  "
                f"{1e3 * eager:4.0f} ms {ours / eager:6.2f}"
            )
            found = runs[-1][0][1]
            if not same_as_torchao(found, runs[-1][2][1]):
                print("  torchao differs")
                good = False
            if rule is mxs.formats.ScaleRule.FLOOR:
                values = found.dequantize().reshape(-1, BLOCK_SIZE)
                values = values[:: len(blocks) // GFLOAT_BLOCKS][:GFLOAT_BLOCKS]
                if not np.array_equal(values, np.stack(runs[-1][1][1])):
                    print("  gfloat differs")
                    good = False
    print(
        f"wanted: gfloat/mxstats at least {WANTED_GFLOAT:g}, mxstats/torchao at most "
        f"{WANTED_TORCHAO:g}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
