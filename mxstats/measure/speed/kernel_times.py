"""The table of kernel times: every case of a shape races in one process, with its copy."""

import gc
from collections.abc import Callable, Sequence

import pandas as pd
import torch

from mxstats.measure.speed.cases import Case, inputs
from mxstats.measure.speed.copying import buffers, copy_plan, fastest_copy, torch_copy
from mxstats.measure.speed.timing import captured, launched, n_sets, race, unwritten


def measure_kernels(
    shapes: Sequence[tuple[int, int]],
    cases: Sequence[Case],
    *,
    progress: Callable[[str, float], None] | None = None,
) -> pd.DataFrame:
    """Time cases at shapes (rows, hidden size) on the current CUDA device.

    Returns the table that :mod:`mxstats.measure.speed.comparison` describes, without what is
    computed from it, and the column ``device``.

    Raises RuntimeError where a case leaves part of its output unwritten.
    """
    tables = []
    for at, (rows, hidden_size) in enumerate(shapes):
        if progress is not None:
            progress(f"{rows} × {hidden_size}", at / len(shapes))
        tables.append(measure_shape(rows, hidden_size, cases))
    return pd.concat(tables, ignore_index=True)


@torch.no_grad()
def measure_shape(rows: int, hidden_size: int, cases: Sequence[Case]) -> pd.DataFrame:
    """Time cases at one shape; see :func:`measure_kernels`."""
    device = torch.device("cuda", torch.cuda.current_device())
    properties = torch.cuda.get_device_properties(device)
    # Compiled code of earlier shapes counts towards a limit beyond which torch compiles no more.
    torch.compiler.reset()
    count = n_sets(2 * rows * hidden_size, properties.L2_cache_size)
    sets = [inputs(rows, hidden_size, device, seed) for seed in range(count)]
    calls = {case.name: case.build(hidden_size, device) for case in cases}
    on_gpu = {name: captured(call, sets) for name, call in calls.items()}
    for name, one in on_gpu.items():
        if missing := unwritten(one):
            raise RuntimeError(f"{name}, {rows} × {hidden_size}: {missing} elements not written")
    traffics = {case.name: case.traffic(rows, hidden_size) for case in cases}
    for moved in set(traffics.values()):
        plan = copy_plan(moved, rows * hidden_size)
        on_gpu[f"copy {moved}"] = fastest_copy(plan, [buffers(plan, device) for _ in range(count)])
        on_gpu[f"torch copy {moved}"] = torch_copy(moved.total, count, device)
    times = race(on_gpu)
    from_python = race({name: launched(call, sets) for name, call in calls.items()}, rounds=20)
    lines = []
    for case in cases:
        moved = traffics[case.name]
        time, copy = times[case.name], times[f"copy {moved}"]
        lines.append(
            {
                "rows": rows,
                "hidden_size": hidden_size,
                "direction": case.direction,
                "case": case.name,
                "time_us": time.median,
                "low_us": time.low,
                "high_us": time.high,
                "launched_us": from_python[case.name].median,
                "bytes": moved.total,
                "copy_us": copy.median,
                "copy_low_us": copy.low,
                "copy_high_us": copy.high,
                "torch_copy_us": times[f"torch copy {moved}"].median,
                "sets": count,
                "fits_cache": moved.total <= properties.L2_cache_size,
                "device": properties.name,
            }
        )
    on_gpu.clear()
    gc.collect()
    torch.cuda.empty_cache()
    return pd.DataFrame(lines)
