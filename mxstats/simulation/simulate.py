"""Monte Carlo of one cell: random rows in, a table of estimates with standard errors out.

Rows are drawn a stream at a time, reduced to block maxima and mean squares, and those to moments
that merge (``samplers``, ``totals``, ``accumulators``); nothing grows with the number of rows.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mxstats.simulation.cell import Cell, make_cell, scalar
from mxstats.simulation.samplers import draw, stream_rows, streams
from mxstats.simulation.totals import Totals, merge_totals, reduce_blocks, totals_of
from mxstats.theory.arguments import check_count

Array = NDArray[np.float64]

BACKENDS = ("auto", "numpy")


def simulate(
    distribution: Any = "gaussian",
    *,
    p: ArrayLike = 2.0,
    block_size: int = 32,
    hidden_size: int = 4096,
    rows: int = 10_000,
    seed: int = 0,
    backend: str = "auto",
    chunk_rows: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> pd.DataFrame:
    """Simulate MXNorm's RMS estimate on random rows; every estimate with its standard error.

    A row x of D = hidden_size independent draws (rms = 1) is cut into K = ⌈D/B⌉ blocks, a short
    last one by its own length; m_k is a block's largest magnitude, q_k its mean square. With the
    exact c̃(p, B) for this row length, r̂ = (mean_k m_k^p)^(1/p)/c̃ estimates RMS(x); R = RMS(x)/r̂,
    ℓ = ln R and y = x/r̂ (ε = 0).

    Parameters
    ----------
    distribution
        What :func:`mxstats.distribution` takes: a name, a distribution, or an array of samples.
    p
        Exponent of the power mean, or a sequence of them; the same rows serve all.
    block_size, hidden_size
        B, 1 to 2^20, and D, 1 to 2^20. A row shorter than B is one full block of length D.
    rows
        Number of rows.
    seed
        Not negative. A seed fixes every bit of the table, and the rows of a run are the first ones
        of any longer run. Runs of one seed share their random numbers, whatever their distribution
        and sizes: give cells that are to be independent seeds of their own.
    backend
        ``"numpy"``, or ``"auto"``, which is the same today.
    chunk_rows
        Rows reduced at once, never more than the 2 MB that are drawn at once (the default). It
        changes no bit of the result.
    progress
        Called as ``progress(rows_done, rows)`` after each stream of rows.

    Returns
    -------
    DataFrame
        Columns ``quantity``, ``p``, ``value``, ``stderr``, ``rows`` (the rows that entered), and
        for each p these quantities:

        ==================== ====================================================================
        constant             c̃ = (mean over rows and blocks of m^p)^(1/p), stderr by the delta
                             method
        moment               E[m^p] over full blocks
        moment_variance      Var(m^p) over full blocks
        covariance           Cov(q, m^p), the mean over full blocks of (q − 1)(m^p − E m^p) with
                             the exact E m^p; unbiased, as E q = 1
        variance             V, the variance over full blocks of q/2 − m^p/(p E m^p) with the exact
                             E m^p; unbiased at any K
        log_ratio_mean       E ℓ over rows
        log_ratio_std        standard deviation of ℓ
        scaled_bias          K·E ℓ, which tends to the bias coefficient as K grows
        scaled_variance      K·Var ℓ, which tends to V
        ratio_mean           E R
        ratio_std            standard deviation of R
        max_abs              largest |y_i| in any row; stderr nan, as for every extreme
        mean_max_abs         E of the row's largest |y_i|
        rms_low, rms_high    smallest and largest RMS(y) = R in any row; stderr nan
        ==================== ====================================================================

        Standard errors come from the sample's own moments (rows are independent, and so are the
        blocks in them); with one row those over rows are nan. ``stderr`` is inf where the
        distribution's tail makes the estimator's own variance infinite. That covers estimates of
        what is itself infinite: V for t(3) has a value, which grows with the number of rows without
        end, and stderr inf. A row of zeros (samples can give one) has no ratio and is left out of
        the quantities from log_ratio_mean on; their ``rows`` says how many entered.

    Raises
    ------
    ValueError
        As :func:`mxstats.constant`; p below 1e-6, or so large that the fourth moment of m^p is
        beyond double precision; hidden_size above 2^20; rows or chunk_rows below 1; seed below 0;
        an unknown backend.
    TypeError
        Arguments of the wrong kind.
    """
    cell = make_cell(distribution, p, block_size, hidden_size)
    n_rows = scalar("rows", check_count("rows", rows))
    root = np.random.SeedSequence(_check_seed(seed))
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r}: must be one of {', '.join(BACKENDS)}")
    whole = stream_rows(cell.hidden_size)
    chunk = whole
    if chunk_rows is not None:
        chunk = min(whole, scalar("chunk_rows", check_count("chunk_rows", chunk_rows)))
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a callable of (rows_done, rows), got {progress!r}")

    def totals() -> Any:
        done = 0
        for stream in streams(n_rows, cell.hidden_size):
            x = draw(cell.dist, root, stream, cell.hidden_size)
            yield totals_of(cell, *reduce_blocks(x, cell.block_size, chunk))
            done += stream.rows
            if progress is not None:
                progress(done, n_rows)

    return table(cell, reduce(merge_totals, totals()))


class _Estimate(NamedTuple):
    quantity: str
    value: Array
    stderr: Array
    rows: int


def table(cell: Cell, totals: Totals) -> pd.DataFrame:
    """Return the table of :func:`simulate` for the rows that ``totals`` has seen."""
    p, k = np.asarray(cell.p), cell.n_blocks
    rows, live = totals.row_powers.count, totals.ratios.count
    # Of x^j, tail_index > j is needed: twice the power in the mean for the mean's standard error,
    # four times for the variance's. Ratios are bounded, so all of their moments are finite.
    tail, none = cell.dist.tail_index, np.full(p.shape, np.nan)
    blocks, ratios = totals.blocks, totals.ratios
    power, product, influence = range(3)
    log_ratio, ratio, largest = range(3)

    def reliable(stderr: Array, order: Array) -> Array:
        return np.where(order < tail, stderr, np.inf)

    root, root_stderr = totals.row_powers.mean ** (1.0 / p), totals.row_powers.root_stderr(p)
    mean, mean_stderr = blocks.mean, blocks.mean_stderr
    spread, spread_stderr = blocks.variance, blocks.variance_stderr
    row_mean, row_mean_stderr = ratios.mean, ratios.mean_stderr
    row_std, row_std_stderr = ratios.std, ratios.std_stderr
    estimates = [
        _Estimate("constant", root, reliable(root_stderr, 2 * p), rows),
        _Estimate("moment", mean[power], reliable(mean_stderr[power], 2 * p), rows),
        _Estimate("moment_variance", spread[power], reliable(spread_stderr[power], 4 * p), rows),
        _Estimate("covariance", mean[product], reliable(mean_stderr[product], 2 * p + 4), rows),
        _Estimate(
            "variance",
            spread[influence],
            reliable(spread_stderr[influence], np.maximum(8, 4 * p)),
            rows,
        ),
        _Estimate("log_ratio_mean", row_mean[log_ratio], row_mean_stderr[log_ratio], live),
        _Estimate("log_ratio_std", row_std[log_ratio], row_std_stderr[log_ratio], live),
        _Estimate("scaled_bias", k * row_mean[log_ratio], k * row_mean_stderr[log_ratio], live),
        _Estimate(
            "scaled_variance",
            k * ratios.variance[log_ratio],
            k * ratios.variance_stderr[log_ratio],
            live,
        ),
        _Estimate("ratio_mean", row_mean[ratio], row_mean_stderr[ratio], live),
        _Estimate("ratio_std", row_std[ratio], row_std_stderr[ratio], live),
        _Estimate("max_abs", ratios.largest[largest], none, live),
        _Estimate("mean_max_abs", row_mean[largest], row_mean_stderr[largest], live),
        _Estimate("rms_low", ratios.smallest[ratio], none, live),
        _Estimate("rms_high", ratios.largest[ratio], none, live),
    ]
    return pd.DataFrame(
        [
            (one.quantity, exponent, float(one.value[i]), float(one.stderr[i]), one.rows)
            for i, exponent in enumerate(cell.p)
            for one in estimates
        ],
        columns=["quantity", "p", "value", "stderr", "rows"],
    )


def _check_seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise TypeError(f"seed must be an integer, got {seed!r}")
    if seed < 0:
        raise ValueError(f"seed={seed}: must not be negative")
    return int(seed)
