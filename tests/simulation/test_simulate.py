"""simulate against a loop over the same draws, and the promises about bits, chunks and memory."""

import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mxstats.simulation import simulate
from mxstats.simulation.samplers import Stream, draw, stream_rows, streams
from mxstats.theory import Samples, block_moments, constant, distribution

QUANTITIES = [
    "constant",
    "moment",
    "moment_variance",
    "covariance",
    "variance",
    "log_ratio_mean",
    "log_ratio_std",
    "scaled_bias",
    "scaled_variance",
    "ratio_mean",
    "ratio_std",
    "max_abs",
    "mean_max_abs",
    "rms_low",
    "rms_high",
]


def documented_rows(dist, seed, rows, hidden_size):
    """The rows by the documented rule and by numpy's own spawning."""
    whole = max(1, 2**18 // hidden_size)
    children = np.random.SeedSequence(seed).spawn(-(-rows // whole))
    drawn = [
        dist.sample(np.random.Generator(np.random.PCG64(child)), (whole, hidden_size))
        for child in children
    ]
    return np.concatenate(drawn)[:rows].tolist()


def variance_stderr(values):
    n, mean = len(values), math.fsum(values) / len(values)
    second = math.fsum((v - mean) ** 2 for v in values) / n
    fourth = math.fsum((v - mean) ** 4 for v in values) / n
    return math.sqrt((fourth - second**2 * (n - 3) / (n - 1)) / n)


def by_hand(dist, p, block_size, hidden_size, rows, seed):
    """Value and standard error of every quantity, one row and one block at a time."""
    c = float(constant(dist, p=p, block_size=block_size, hidden_size=hidden_size))
    expected = math.exp(block_moments(dist, p=p, block_size=block_size).log_mean)
    powers, products, influences, row_powers, logs, outputs = ([] for _ in range(6))
    for x in documented_rows(dist, seed, rows, hidden_size):
        row_power = []
        for start in range(0, hidden_size, block_size):
            block = x[start : start + block_size]
            power = max(abs(v) for v in block) ** p
            row_power.append(power)
            if len(block) == block_size:
                square = math.fsum(v * v for v in block) / block_size
                powers.append(power)
                products.append((square - 1.0) * (power - expected))
                influences.append(square / 2.0 - power / (p * expected))
        row_powers.append(statistics.fmean(row_power))
        estimate = row_powers[-1] ** (1.0 / p) / c
        logs.append(math.log(math.sqrt(math.fsum(v * v for v in x) / hidden_size) / estimate))
        outputs.append(max(abs(v) for v in x) / estimate)
    ratios, n = [math.exp(v) for v in logs], math.ceil(hidden_size / block_size)

    def mean(values):
        return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))

    def spread(values):
        return statistics.variance(values), variance_stderr(values)

    def root_spread(values):
        std = statistics.stdev(values)
        return std, variance_stderr(values) / (2.0 * std)

    power, power_stderr = mean(row_powers)
    return {
        "constant": (power ** (1.0 / p), power_stderr * power ** (1.0 / p - 1.0) / p),
        "moment": mean(powers),
        "moment_variance": spread(powers),
        "covariance": mean(products),
        "variance": spread(influences),
        "log_ratio_mean": mean(logs),
        "log_ratio_std": root_spread(logs),
        "scaled_bias": tuple(n * v for v in mean(logs)),
        "scaled_variance": tuple(n * v for v in spread(logs)),
        "ratio_mean": mean(ratios),
        "ratio_std": root_spread(ratios),
        "max_abs": (max(outputs), math.nan),
        "mean_max_abs": mean(outputs),
        "rms_low": (min(ratios), math.nan),
        "rms_high": (max(ratios), math.nan),
    }


@pytest.mark.parametrize(
    ("name", "p", "block_size", "hidden_size", "rows"),
    [
        ("laplace", 2.5, 16, 50, 40),  # a short last block of 2
        ("gaussian", 1.0, 8, 64, 5000),  # two streams, the second cut
        ("gaussian", 0.5, 1000, 100_000, 5),  # three streams of two rows
        ("student-t:20", 2.0, 64, 10, 300),  # a row shorter than a block
        ("gaussian", 3.0, 1, 7, 200),  # blocks of one
    ],
)
def test_against_a_plain_loop(name, p, block_size, hidden_size, rows):
    dist = distribution(name)
    table = simulate(
        dist, p=p, block_size=block_size, hidden_size=hidden_size, rows=rows, seed=11, chunk_rows=9
    )
    assert table["quantity"].tolist() == QUANTITIES
    assert (table["rows"] == rows).all()
    want = by_hand(dist, p, min(block_size, hidden_size), hidden_size, rows, seed=11)
    got = table.set_index("quantity")
    for quantity, (value, stderr) in want.items():
        # Sums of up to 5e5 terms in another order: 1e-12 of their size, of which a mean log ratio
        # near 0 is a small remainder (hence the absolute part).
        assert got.loc[quantity, "value"] == pytest.approx(value, rel=1e-11, abs=1e-13), quantity
        assert got.loc[quantity, "stderr"] == pytest.approx(
            stderr, rel=1e-10, abs=1e-13, nan_ok=True
        ), quantity


@pytest.mark.parametrize("rows", [5000, 4096, 3])
def test_same_bits_for_any_chunk(rows):
    # hidden_size 64: a stream is 4096 rows, so all of these chunks differ in what they hold.
    given: dict[str, Any] = {
        "p": [1.0, 2.0, 0.7],
        "block_size": 24,
        "hidden_size": 64,
        "rows": rows,
        "seed": 3,
    }
    want = simulate("laplace", **given)
    for chunk_rows in (1, 7, 1000, rows):
        pd.testing.assert_frame_equal(
            simulate("laplace", chunk_rows=chunk_rows, **given), want, check_exact=True
        )


def test_one_exponent_or_several_see_the_same_rows():
    given: dict[str, Any] = {"hidden_size": 128, "rows": 100}
    both = simulate("gaussian", p=[1, 2], **given)
    for p in (1.0, 2.0):
        alone = simulate("gaussian", p=p, **given)
        pd.testing.assert_frame_equal(
            pd.DataFrame(both[both["p"] == p]).reset_index(drop=True), alone, check_exact=True
        )


def test_a_longer_run_extends_a_shorter_one():
    dist, root = distribution("student-t:4"), np.random.SeedSequence(9)

    def all_rows(rows):
        return np.concatenate([draw(dist, root, s, 1000) for s in streams(rows, 1000)])

    short, long = all_rows(400), all_rows(1100)
    assert short.shape == (400, 1000)
    assert np.array_equal(short, long[:400])
    # No two streams are alike.
    assert not np.intersect1d(long[:262], long[262:524]).size
    few, many = (
        dict(zip(table["quantity"], table["value"].tolist(), strict=True))
        for table in (simulate(dist, hidden_size=1000, rows=rows, seed=9) for rows in (400, 1100))
    )
    assert many["max_abs"] >= few["max_abs"]
    assert many["rms_low"] <= few["rms_low"]
    assert many["rms_high"] >= few["rms_high"]


def test_streams_cover_the_rows():
    assert stream_rows(4096) == 64
    assert stream_rows(2**20) == 1
    assert list(streams(130, 4096)) == [Stream(0, 64), Stream(1, 64), Stream(2, 2)]
    assert list(streams(64, 4096)) == [Stream(0, 64)]


def test_seeds_differ_and_repeat():
    first, again, other = (simulate(rows=64, seed=seed) for seed in (1, 1, 2))
    pd.testing.assert_frame_equal(first, again, check_exact=True)
    assert not np.any(first["value"].to_numpy() == other["value"].to_numpy())


def test_progress_reaches_the_end():
    seen = []
    simulate(rows=130, hidden_size=4096, progress=lambda done, rows: seen.append((done, rows)))
    assert seen == [(64, 130), (128, 130), (130, 130)]


def test_rows_of_zeros_have_no_ratio_and_are_counted():
    # 9 in 10 values are 0: a row of 8 is all zeros with probability 0.43.
    dist = Samples(np.tile([0.0] * 9 + [1.0], 1000))
    table = simulate(dist, p=[1.0, 2.0], block_size=4, hidden_size=8, rows=1000)
    x = np.array(documented_rows(dist, 0, 1000, 8))
    live = int(np.any(x > 0.0, axis=1).sum())
    assert 450 < live < 700
    full, ratio = table["quantity"].isin(QUANTITIES[:5]), table["quantity"].isin(QUANTITIES[5:])
    assert (table.loc[full, "rows"] == 1000).all()
    assert (table.loc[ratio, "rows"] == live).all()
    assert np.isfinite(table["value"]).all()


def test_nothing_but_zeros_drawn_is_nan():
    dist = Samples(np.array([0.0] * 100_000 + [1.0]))
    table = simulate(dist, block_size=2, hidden_size=2, rows=3).set_index("quantity")
    assert table.loc["constant", "value"] == 0.0
    assert table.loc["log_ratio_mean":, "value"].isna().all()
    assert (table.loc["log_ratio_mean":, "rows"] == 0).all()


def test_one_row_has_values_without_errors():
    table = simulate(rows=1, hidden_size=64).set_index("quantity")
    assert np.isfinite(table.loc[["constant", "log_ratio_mean", "max_abs"], "value"]).all()
    assert table.loc[["constant", "log_ratio_mean"], "stderr"].isna().all()


def test_a_large_exponent_keeps_its_ratio():
    # m^40 spans 1e-13 to 1e30 here, and its own moments overflow nothing yet.
    table = simulate("gaussian", p=40.0, block_size=1, hidden_size=16, rows=500)
    assert np.isfinite(table["value"]).all()


@pytest.mark.parametrize(
    ("df", "p", "finite"),
    [
        # x^j has a moment below df: 2p, 4p, 2p + 4 and max(8, 4p) are needed, in this order.
        (5, 1.0, ["constant", "moment", "moment_variance"]),
        (6, 1.0, ["constant", "moment", "moment_variance"]),
        (7, 1.0, ["constant", "moment", "moment_variance", "covariance"]),
        (7, 1.5, ["constant", "moment", "moment_variance"]),
        (7, 2.0, ["constant", "moment"]),
        (8, 1.0, ["constant", "moment", "moment_variance", "covariance"]),
        (9, 2.0, ["constant", "moment", "moment_variance", "covariance", "variance"]),
        (9, 2.25, ["constant", "moment", "covariance"]),
    ],
)
def test_stderr_is_infinite_where_the_estimate_has_no_finite_variance(df, p, finite):
    table = simulate(f"student-t:{df}", p=p, block_size=4, hidden_size=16, rows=50)
    by_quantity = table.set_index("quantity")["stderr"]
    over_blocks = by_quantity[QUANTITIES[:5]]
    assert list(over_blocks.index[np.isfinite(over_blocks)]) == finite
    assert (over_blocks.drop(finite) == np.inf).all()
    # Ratios are bounded, so that theirs are finite, or nan for extremes.
    assert not np.isinf(by_quantity[QUANTITIES[5:]]).any()


MEMORY = r"""
import json, re, sys
from pathlib import Path
import numpy as np
from mxstats.simulation import simulate
peaks, wanted = [], json.loads(sys.argv[1])
for arguments in wanted:
    if "ones" in arguments:
        np.ones(arguments["ones"]).sum()
    else:
        simulate("gaussian", p=[1, 2], **arguments)
    # Not ru_maxrss, which begins with the peak of the process that started this one.
    status = Path("/proc/self/status").read_text()
    peaks.append(int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) / 1024)
print(json.dumps(peaks))
"""
needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peak memory is read from /proc"
)


def peak_megabytes(*runs):
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, json.dumps(runs)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@needs_proc
def test_peak_memory_is_the_child_s_own_and_grows_with_what_it_holds():
    mine = np.ones(50_000_000)  # 400 MB of this process
    before, after = peak_megabytes({"rows": 1}, {"ones": 25_000_000})
    assert mine[-1] == 1.0
    assert before < 250.0
    # 200 MB are 190.7 MiB, of which the pages of simulate's own arrays may be used again.
    assert 130.0 < after - before < 200.0


@needs_proc
def test_memory_does_not_grow_with_rows():
    # 30 000 rows of 4096 are 983 MB of draws.
    few, many = peak_megabytes({"rows": 300}, {"rows": 30_000})
    assert many < 300.0
    # A page or two of the interpreter's own, not the 980 MB.
    assert many < few + 10.0


@needs_proc
def test_memory_of_the_widest_row_in_the_smallest_blocks():
    assert peak_megabytes({"rows": 2, "hidden_size": 2**20, "block_size": 1})[0] < 300.0
