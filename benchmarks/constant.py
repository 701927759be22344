"""The constant's whole grid against one scipy order-statistic call a value.

Run it as ``python benchmarks/constant.py``.
Both sides compute E[m^p]^(1/p)/RMS for p = 1 and 2, B = 2^0 … 2^20 and three distributions, in one
process, one after the other, several times; the ratio is that of the medians. Exits with 1 where it
is below 20.
"""

import platform
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import scipy
from scipy import stats

import mxstats as mxs

EXPONENTS = np.array([1.0, 2.0])
BLOCK_SIZES = 2 ** np.arange(21)
WANTED_RATIO = 20.0
REPEATS = 5

OURS = ("gaussian", "laplace", "student-t:10")


def scipy_distributions() -> tuple:
    laplace, student = stats.make_distribution(stats.laplace), stats.make_distribution(stats.t)
    return stats.Normal(), laplace(), student(df=10)


def ours() -> np.ndarray:
    p = EXPONENTS[:, None]
    return np.stack([mxs.constant(name, p=p, block_size=BLOCK_SIZES) for name in OURS])


def one_call_a_value() -> np.ndarray:
    # Made anew each time: scipy keeps the moments of an object that it has seen.
    values = np.empty((len(OURS), EXPONENTS.size, BLOCK_SIZES.size))
    for i, x in enumerate(scipy_distributions()):
        rms = np.sqrt(x.moment(2, kind="raw"))
        for j, p in enumerate((1, 2)):
            for k, size in enumerate(BLOCK_SIZES):
                m = stats.order_statistic(stats.abs(x), r=int(size), n=int(size))
                values[i, j, k] = m.moment(p, kind="raw") ** (1 / p) / rms
    return values


def timed(function: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    start = time.perf_counter()
    values = function()
    return time.perf_counter() - start, values


def main() -> int:
    for side in (ours, one_call_a_value):  # first calls import and compile regular expressions
        side()
    runs = [(timed(ours), timed(one_call_a_value)) for _ in range(REPEATS)]
    fast, slow = (median(run[side][0] for run in runs) for side in (0, 1))
    values, reference = runs[-1][0][1], runs[-1][1][1]
    difference = np.abs(values / reference - 1.0)
    print(
        f"Python {platform.python_version()}, numpy {np.__version__}, scipy {scipy.__version__}, "
        f"mxstats {mxs.__version__}, {platform.machine()}"
    )
    print(f"grid: {values.size} values, {REPEATS} repeats a side, medians")
    print(f"mxstats.constant           {1e3 * fast:9.1f} ms")
    print(f"scipy order_statistic      {1e3 * slow:9.1f} ms, one moment call a value")
    print(f"ratio                      {slow / fast:9.1f}    (wanted: {WANTED_RATIO:g})")
    for name, errors in zip(OURS, difference, strict=True):
        j, k = np.unravel_index(np.argmax(errors), errors.shape)
        print(
            f"largest relative difference, {name:13} {errors.max():.1e} "
            f"(p={EXPONENTS[j]:g}, B={BLOCK_SIZES[k]})"
        )
    return 0 if slow / fast >= WANTED_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
