"""What a launch costs on the CPU, and how much memory it allocates, at a shape of no work.

Three ways into a kernel: its bare launcher, its torch operator, and the public function, which
checks its arguments and calls the operator. Microseconds a call by the host's clock, over batches
of calls that nothing waits for; the GPU takes less a call than the CPU, so that it never holds up
the queue.
"""

import time
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch

from mxstats.kernels.mx_cast import empty_outputs as empty_cast
from mxstats.kernels.mx_cast import mx_cast
from mxstats.kernels.mx_cast_triton import launch as launch_cast
from mxstats.kernels.mxnorm import mxnorm
from mxstats.kernels.mxnorm_backward import mxnorm_backward
from mxstats.kernels.mxnorm_backward_triton import launch as launch_backward
from mxstats.kernels.mxnorm_triton import launch as launch_mxnorm
from mxstats.kernels.rmsnorm_mx import empty_outputs as empty_rmsnorm
from mxstats.kernels.rmsnorm_mx import rmsnorm_mx
from mxstats.kernels.rmsnorm_mx_triton import launch as launch_rmsnorm
from mxstats.kernels.spec import cast_spec
from mxstats.measure.speed.cases import gamma
from mxstats.measure.speed.timing import summary, tensors
from mxstats.theory import constant

ROWS, HIDDEN_SIZE = 64, 1024
_BATCHES, _CALLS = 25, 200
_EPS = 1e-5

Ways = dict[str, Callable[[], Any]]


def measure_overhead() -> pd.DataFrame:
    """Table: operation, way, cpu_us (median of batches), low_us, high_us, allocations, outputs.

    allocations and outputs are those of one call; a launcher allocates its outputs alone.
    """
    lines = []
    for operation, ways in operations(torch.device("cuda", torch.cuda.current_device())).items():
        for way, call in ways.items():
            times = summary(_batches(call))
            lines.append(
                {
                    "operation": operation,
                    "way": way,
                    "cpu_us": times.median,
                    "low_us": times.low,
                    "high_us": times.high,
                    "allocations": allocations(call),
                    "outputs": len(list(tensors(call()))),
                    "rows": ROWS,
                    "hidden_size": HIDDEN_SIZE,
                    "device": torch.cuda.get_device_name(),
                }
            )
    return pd.DataFrame(lines)


def operations(
    device: torch.device, rows: int = ROWS, hidden_size: int = HIDDEN_SIZE
) -> dict[str, Ways]:
    """Return, for each operation, its launcher, operator and function on one small input."""
    c, spec = float(constant(p=2.0, block_size=32)), cast_spec("MXFP8_E4M3")
    x, dy = (torch.randn(rows, hidden_size, device=device).bfloat16() for _ in range(2))
    rho, g = x.float().square().mean(dim=-1).rsqrt(), gamma(hidden_size, device)
    ops, way = torch.ops.mxstats, "triton"

    # These launchers fill outputs that came; what allocates them is counted too.
    def rmsnorm_launcher() -> list[torch.Tensor]:
        outputs = empty_rmsnorm(x, None, spec, False)
        launch_rmsnorm(outputs, x, g, None, None, spec, _EPS, False)
        return outputs

    def cast_launcher() -> list[torch.Tensor]:
        outputs = empty_cast(x, spec, "rows", False)
        launch_cast(outputs, x, spec, "rows", None, None, None, False)
        return outputs

    return {
        "mxnorm": {
            "launcher": lambda: launch_mxnorm(x, None, None, spec, 2.0, c, _EPS, False, False, 1.0),
            "operator": lambda: ops.mxnorm(
                x, None, None, spec.key, 2.0, c, _EPS, False, False, None, None, way
            ),
            "function": lambda: mxnorm(x, c=c, backend=way),
        },
        "mxnorm_backward": {
            "launcher": lambda: launch_backward(dy, x, rho, 2.0, c, None, 32, None),
            "operator": lambda: ops.mxnorm_backward(dy, x, rho, 2.0, c, None, 32, None, way),
            "function": lambda: mxnorm_backward(dy, x, rho, c=c, backend=way),
        },
        "rmsnorm_mx": {
            "launcher": rmsnorm_launcher,
            "operator": lambda: ops.rmsnorm_mx(x, g, None, None, spec.key, _EPS, False, way),
            "function": lambda: rmsnorm_mx(x, g, backend=way),
        },
        "mx_cast": {
            "launcher": cast_launcher,
            "operator": lambda: ops.mx_cast(x, spec.key, "rows", None, None, None, False, way),
            "function": lambda: mx_cast(x, backend=way),
        },
    }


def allocations(call: Callable[[], Any]) -> int:
    """Number of blocks that one call takes from torch's CUDA allocator."""
    call()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    call()
    return torch.cuda.memory_stats()["allocation.all.allocated"] - before


def _batches(call: Callable[[], Any]) -> list[float]:
    for _ in range(_CALLS):
        call()
    found = []
    for _ in range(_BATCHES):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        found.append(1e6 * (time.perf_counter() - start) / _CALLS)
    torch.cuda.synchronize()
    return found
