"""V and the bias are the leading order in 1/K: what is left out falls as 1/K.

A plain simulation sees the gap K·Var ℓ − V only at small K, for its standard error relative to V
is √(2/rows) at every K while the gap shrinks. So the gap itself is measured with exact control
variates. With a = mean_k q_k − 1 and w = mean_k m_k^p/E m^p − 1,

    ℓ = ½ ln(1 + a) − ln(1 + w)/p  =  L + Q + …,   L = a/2 − w/p,   Q = −a²/4 + w²/(2p),

of which Var L = V/K, E L = 0 and E Q = bias/K hold exactly at any K. Hence

    K (K·Var ℓ − V)    = K² E[(ℓ − E ℓ)² − L²],
    K (K·E ℓ − bias)   = K² E[ℓ − L − Q],

whose noise is that of the remainders alone. If the gaps fall as 1/K both tend to constants.

Laplace at B = 4: a heavy tail in a short block makes the gaps large (V's is 2.7 V/K at p = 1).
"""

from functools import cache

import numpy as np
import pytest
from scipy import stats

from mxstats.simulation import simulate
from mxstats.simulation.cell import make_cell
from mxstats.simulation.samplers import draw, streams
from mxstats.simulation.totals import reduce_blocks
from mxstats.theory import rms_error

DIST, BLOCK, EXPONENTS = "laplace", 4, (1.0, 2.0)
BLOCKS = np.array([16, 32, 64, 128, 256, 512])
BLOCKS_A_RUN = 16_000_000
BLOCKS_A_PLAIN_RUN = 3_200_000
CASES = [(what, p) for what in ("variance", "bias") for p in EXPONENTS]
# Two-sided 4 σ of a Gaussian, as a probability.
FOUR_SIGMA = 2.0 * stats.norm.sf(4.0)


@cache
def scaled_gaps(n_blocks):
    """K × gap and its standard error for each case, by control variates."""
    cell = make_cell(DIST, EXPONENTS, BLOCK, BLOCK * n_blocks)
    # A seed for each K: runs of one seed share their random numbers, and χ² adds independent ones.
    root = np.random.SeedSequence(n_blocks)
    # E ℓ is bias/K + O(1/K²), close enough for a variance: the square of what is left is O(1/K⁴).
    centres = [rms_error(DIST, p=p, block_size=BLOCK).bias / n_blocks for p in cell.p]
    terms = {case: [] for case in CASES}
    for stream in streams(BLOCKS_A_RUN // n_blocks, cell.hidden_size):
        x = draw(cell.dist, root, stream, cell.hidden_size)
        maxima, squares = reduce_blocks(x, BLOCK, len(x))
        for p, mean_power, log_c, centre in zip(
            cell.p, cell.mean_power, cell.log_constant, centres, strict=True
        ):
            power = maxima**p
            a, w = squares.mean(-1) - 1.0, power.mean(-1) / mean_power - 1.0
            ell = 0.5 * np.log1p(a) - np.log(power.mean(-1)) / p + log_c
            linear, square = a / 2.0 - w / p, -(a**2) / 4.0 + w**2 / (2.0 * p)
            terms["variance", p].append((ell - centre) ** 2 - linear**2)
            terms["bias", p].append(ell - linear - square)
    gaps = {}
    for case, parts in terms.items():
        values = n_blocks**2 * np.concatenate(parts)
        gaps[case] = values.mean(), values.std(ddof=1) / np.sqrt(values.size)
    return gaps


def fit(case):
    """Least squares of K × gap = α + β/K: α, β and χ² of 4 degrees of freedom."""
    y, sigma = np.array([scaled_gaps(int(k))[case] for k in BLOCKS]).T
    design = np.stack([np.ones(BLOCKS.size), 1.0 / BLOCKS], axis=-1) / sigma[:, None]
    (alpha, beta), *_ = np.linalg.lstsq(design, y / sigma)
    return alpha, beta, float(np.sum((design @ (alpha, beta) - y / sigma) ** 2))


def single_power(case):
    """Least squares of ln|K × gap| = const + (1 − s) ln K: s and its standard error."""
    y, sigma = np.array([scaled_gaps(int(k))[case] for k in BLOCKS]).T
    (slope, _), covariance = np.polyfit(
        np.log(BLOCKS), np.log(np.abs(y)), 1, w=np.abs(y) / sigma, cov="unscaled"
    )
    return 1.0 - slope, np.sqrt(covariance[0, 0])


@pytest.mark.parametrize(("what", "p"), CASES)
def test_the_gap_falls_as_one_over_n_blocks(what, p):
    alpha, _, chi2 = fit((what, p))
    gaps = np.array([scaled_gaps(int(k))[what, p] for k in BLOCKS])
    # The gap is there to be seen: at K = 32 by many standard errors.
    assert abs(gaps[1, 0]) > 12.0 * gaps[1, 1]
    # α/K + β/K² fits all six K; χ² of 4 degrees of freedom, at the probability of 4 σ.
    assert chi2 < stats.chi2.isf(FOUR_SIGMA, 4)
    # K × gap stays at one value: from K = 32 on within a quarter (β/K is 10 to 20 % there) and 4 σ.
    assert np.all(np.abs(gaps[1:, 0] - alpha) < 0.25 * abs(alpha) + 4.0 * gaps[1:, 1])


@pytest.mark.parametrize(("what", "p"), CASES)
def test_neither_half_a_power_less_nor_more(what, p):
    # β/K² bends a single power's exponent to 0.8 or 0.9 at these K; 1/2 and 3/2, the next that an
    # expansion in 1/√K could have, are excluded at 4 standard errors.
    power, stderr = single_power((what, p))
    assert power - 4.0 * stderr > 0.5
    assert power + 4.0 * stderr < 1.5


@pytest.mark.parametrize("n_blocks", BLOCKS.tolist())
def test_simulate_approaches_the_leading_order(n_blocks):
    table = simulate(
        DIST,
        p=EXPONENTS,
        block_size=BLOCK,
        hidden_size=BLOCK * n_blocks,
        rows=BLOCKS_A_PLAIN_RUN // n_blocks,
        seed=1000 + n_blocks,
    )
    found = {
        (row["quantity"], row["p"]): (row["value"], row["stderr"])
        for row in table.to_dict("records")
    }
    for p in EXPONENTS:
        theory = rms_error(DIST, p=p, block_size=BLOCK)
        for quantity, what, limit in (
            ("scaled_variance", "variance", theory.variance),
            ("scaled_bias", "bias", theory.bias),
        ):
            value, stderr = found[quantity, p]
            alpha, beta, _ = fit((what, p))
            gap = alpha / n_blocks + beta / n_blocks**2
            # 24 comparisons at 4 σ fail by chance once in 650; the fit's own error is far below
            # the plain simulation's.
            assert abs(value - limit - gap) < 4.0 * stderr
            if n_blocks == 512:
                # At K = 512 the gap is half a percent of V: within the noise the limit is reached.
                assert abs(value - limit) < 4.0 * stderr + abs(alpha) / n_blocks
