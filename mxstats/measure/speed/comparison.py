"""Arithmetic on tables of times: bandwidth, share of the copy, ratios to the baselines.

A table has a line for each (rows, hidden_size, case) with the columns rows, hidden_size, direction,
case, time_us, low_us, high_us (the GPU's time a call: median, 5 % and 95 % of the passes),
launched_us (a call from Python, the CPU's part included where it is the slower), bytes, copy_us,
copy_low_us, copy_high_us (the fastest copy of the same bytes), torch_copy_us, sets, fits_cache.
"""

import numpy as np
import pandas as pd

# Column of the ratio, baseline, and the direction that it belongs to.
BASELINES = {
    "vs_compiled": {"forward": "compiled", "backward": "compiled backward"},
    "vs_compiled_in_two": {"forward": "compiled in two"},
    "vs_rmsnorm_mx": {"forward": "rmsnorm_mx", "backward": "rmsnorm_mx_backward"},
    "vs_liger": {"forward": "liger + mx_cast"},
}
_SHAPE = ["rows", "hidden_size", "direction"]


def compare(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with what follows from it.

    tb_per_s is bytes/time; share_of_copy is copy time/time, 1 for a kernel as fast as the copy; the
    columns of ``BASELINES`` are baseline time/time, above 1 where the case is the faster, and those
    with ``launched_`` in front are the same of calls from Python. NaN where a baseline was not
    measured.
    """
    table = table.copy()
    table["tb_per_s"] = table["bytes"] / table["time_us"] / 1e6
    table["share_of_copy"] = table["copy_us"] / table["time_us"]
    for column, names in BASELINES.items():
        for prefix, time in (("", "time_us"), ("launched_", "launched_us")):
            baseline = table[table["case"] == table["direction"].map(names)]
            of_shape = baseline.set_index(_SHAPE)[time]
            shapes = pd.MultiIndex.from_frame(table[_SHAPE])
            table[prefix + column] = of_shape.reindex(shapes).to_numpy(np.float64) / table[time]
    return table
