"""Error of a format: against the quantiser's own output, enumeration, and plain quadrature."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, special, stats

from mxstats.formats import (
    E2M1,
    E4M3,
    E5M3_SCALE,
    E8M0,
    FORMATS,
    NVFP4,
    BlockFormat,
    ElementFormat,
    quantize,
)
from mxstats.theory import distribution, format_error

USERS = BlockFormat(ElementFormat(exponent_bits=3, mantissa_bits=4), block_size=24, scale=E8M0)
CELLS = [
    ("gaussian", "MXFP8_E4M3", "floor"),
    ("laplace", "MXFP8_E4M3", "rceil"),
    ("student-t:5", "MXFP8_E5M2", "even"),
    ("gaussian", "MXFP6_E3M2", "ceil"),
    ("laplace", "MXFP6_E2M3", "floor"),
    ("gaussian", "MXFP4_E2M1", "even"),
    ("laplace", "MXFP4_E2M1", "ceil"),
    ("student-t:10", "MXINT8", "floor"),
    ("gaussian", NVFP4, None),
    ("laplace", NVFP4, None),
    ("gaussian", USERS, "floor"),
    (stats.logistic(), "MXFP4_E2M1", "rceil"),
]


def measured(draws, fmt, rule, log2_sigma):
    """Squared error and output, clipped and flushed indicators at rms = 1, of ``quantize``."""
    sigma = 2.0**log2_sigma
    x = (draws * sigma).astype(np.float32)
    # A tensor scale of 2^-6 keeps every block inside E4M3's normal range.
    given = {"tensor_scale": 2.0**-6} if fmt.tensor_scale else {"scale_rule": rule}
    q = quantize(x, fmt, **given)
    scale = np.repeat(fmt.scale.values[q.scales], fmt.block_size, axis=-1).astype(np.float64)
    scale *= q.tensor_scale or 1.0
    exact, back = x.astype(np.float64), q.dequantize().astype(np.float64)
    return np.stack(
        [
            (exact - back) ** 2 / sigma**2,
            back**2 / sigma**2,
            np.abs(exact) > fmt.element.largest * scale,
            (back == 0) & (exact != 0),
        ]
    )


@pytest.mark.parametrize(("name", "fmt", "rule"), CELLS)
def test_against_the_quantiser(name, fmt, rule):
    fmt = FORMATS[fmt] if isinstance(fmt, str) else fmt
    found = format_error(name, fmt, scale_rule=rule)
    blocks = 2**19 // fmt.block_size
    dist = distribution(name)
    draws = dist.sample(np.random.default_rng(7), (blocks, fmt.block_size))
    for log2_sigma in (0.0, 0.35):
        # σ of a tensor-scaled format counts in units of largest · g.
        at = log2_sigma - (np.log2(6 * 2.0**-6) if fmt.tensor_scale else 0.0)
        blockwise = measured(draws, fmt, rule, log2_sigma).mean(axis=2)
        mean, stderr = blockwise.mean(axis=1), blockwise.std(axis=1) / np.sqrt(blocks)
        expected = (
            10 ** (-found.sqnr_db.at(at) / 10),
            found.output_rms.at(at) ** 2,
            found.clipped.at(at),
            found.flushed.at(at),
        )
        for value, error, theory in zip(mean, stderr, expected, strict=True):
            # 96 comparisons: 4 standard errors by chance in 0.6 % of seeds. Shares of a few in a
            # million are Poisson counts, which a standard error from none seen does not describe:
            # hence 4/n of an element beside it.
            assert abs(value - theory) < 4 * error + 4 / draws.size


def test_blocks_of_one_by_quadrature():
    # Alone in its block an element has the scale of its own octave: with FLOOR, x in [2^j, 2^(j+1))
    # is rounded to the E4M3 neighbour of x/2^(j−8), 448 at most.
    fmt = BlockFormat(E4M3, block_size=1)
    values = E4M3.magnitudes

    def error(x):
        scale = 2.0 ** (np.floor(np.log2(x)) - 8)
        return (x - values[np.argmin(np.abs(values - x / scale))] * scale) ** 2

    edges = 0.5 * (values[1:] + values[:-1])
    inside = edges[(edges > 256) & (edges < 512)] / 256
    total = 0.0
    for j in range(-20, 4):
        cuts = np.concatenate([[1.0], inside, [2.0]]) * 2.0**j
        for a, b in pairwise(cuts):
            total += integrate.quad(lambda x: error(x) * 2 * stats.norm.pdf(x), a, b)[0]
    found = 10 ** (-format_error("gaussian", fmt, scale_rule="floor").sqnr_db.at(0.0) / 10)
    # quad is good to 1e-8 relative; what lies below 2^-20 adds 1e-18.
    assert found == pytest.approx(total, rel=1e-7)


@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil"])
def test_samples_by_enumeration(rule):
    values = np.random.default_rng(0).laplace(size=220)
    values[:15] = 0.0
    rms = np.sqrt(np.mean(values**2))
    fmt = BlockFormat(FORMATS["MXFP4_E2M1"].element, block_size=2)
    found = format_error(values, fmt, scale_rule=rule)
    first, second = np.meshgrid(values / rms, values / rms)
    pairs = np.stack([first.ravel(), second.ravel()], axis=1)
    # Every pair with the same weight is the distribution of a block exactly. Quantised in float64,
    # so that nothing moves across a threshold by rounding to float32.
    for log2_sigma in (0.0, 0.6):
        sigma = 2.0**log2_sigma
        q = quantize(pairs * sigma, fmt, scale_rule=rule)
        back = q.dequantize().astype(np.float64) / sigma
        expected = np.mean((pairs - back) ** 2)
        assert 10 ** (-found.sqnr_db.at(log2_sigma) / 10) == pytest.approx(expected, rel=1e-6)
        assert found.output_rms.at(log2_sigma) == pytest.approx(np.sqrt(np.mean(back**2)), rel=1e-7)
        assert found.flushed.at(log2_sigma) == pytest.approx(
            np.mean((back == 0) & (pairs != 0)), abs=1e-12
        )


def test_orders_that_must_hold():
    by_rule = {rule: format_error(scale_rule=rule) for rule in ("floor", "ceil", "even", "rceil")}
    # The smallest scale that never clips is never worse than the next power of two above it.
    assert by_rule["rceil"].sqnr_db.mean >= by_rule["ceil"].sqnr_db.mean - 1e-9
    assert by_rule["rceil"].clipped.high == pytest.approx(0.0, abs=1e-15)
    assert by_rule["floor"].clipped.low > 0.001
    # Small blocks have smaller maxima.
    coarse, fine = (
        format_error("laplace", FORMATS["MXFP4_E2M1"].with_block_size(b), scale_rule="rceil")
        for b in (64, 16)
    )
    assert fine.sqnr_db.mean > coarse.sqnr_db.mean + 0.5


def test_every_known_format_and_rule_has_an_error():
    for fmt in [*FORMATS.values(), USERS, BlockFormat(E4M3, scale=E5M3_SCALE)]:
        found = format_error("laplace", fmt)
        assert 10 < found.sqnr_db.low <= found.sqnr_db.mean <= found.sqnr_db.high < 60
        assert found.output_rms.mean == pytest.approx(1.0, abs=0.05)


def by_quadrature(dist, low, high, block_size, log2_sigma):
    """E(x − x̂)² at rms = 1 of E2M1 elements under FLOOR: e² itself, over every octave of x."""
    values, sigma = E2M1.magnitudes, 2.0**log2_sigma
    nodes, weights = np.polynomial.legendre.leggauss(24)
    # In an octave of x every midpoint of E2M1 times every power of two is 1.25, 1.5 or 1.75.
    cuts = np.array([1.0, 1.25, 1.5, 1.75, 2.0])
    with np.errstate(over="ignore"):
        octaves = np.arange(low, high)

        def reached(exponent):  # P(the others are below 2^exponent)
            u = exponent * np.log(2.0) - np.log(sigma)
            return np.exp((block_size - 1) * np.log1p(-np.exp(dist.log_survival(u))))

        total = 0.0
        for j in octaves:
            y = (0.5 * np.diff(cuts)[:, None] * (nodes + 1) + cuts[:-1, None]).ravel()
            dy = (0.5 * np.diff(cuts)[:, None] * weights).ravel()
            u = np.log(y) + j * np.log(2.0) - np.log(sigma)
            # The block's octave is x's own or a larger one; 40 above, x rounds to 0 all the same.
            steps = np.arange(j, min(j + 40, high) + 1)
            share = np.diff(reached(steps + 1.0), prepend=0.0)
            scale = 2.0 ** (steps - j - 2.0)
            near = values[np.abs(y[:, None, None] / scale[:, None] - values).argmin(axis=2)]
            square = (share * (y[:, None] - near * scale) ** 2).sum(axis=1)
            # x²·density dx/x with x² in the exponent: its octaves run beyond a double.
            density = np.exp(dist.log_density(u) + 2 * (u - np.log(y)))
            total += np.sum(square * density * dy / y)
    return total


class Student:
    """Student-t at rms = 1 with its plain density, from scipy and its asymptotic power law."""

    def __init__(self, df):
        self.df, self.unit = df, np.log(np.sqrt(df / (df - 2)))

    def log_density(self, u):
        """Ln of the density of ln|X|."""
        v = u + self.unit
        # ln of 2 x f(x), by the gamma functions of the definition.
        constant = special.gammaln((self.df + 1) / 2) - special.gammaln(self.df / 2)
        constant -= 0.5 * np.log(self.df * np.pi)
        tail = np.logaddexp(0.0, 2 * v - np.log(self.df))
        return np.log(2) + constant + v - 0.5 * (self.df + 1) * tail

    def log_survival(self, u):
        with np.errstate(divide="ignore"):
            return np.log(2 * stats.t.sf(np.exp(np.minimum(u + self.unit, 300.0)), self.df))


class Uniform:
    def log_density(self, u):
        return np.where(u < 0.5 * np.log(3), u - 0.5 * np.log(3), -np.inf)

    def log_survival(self, u):
        with np.errstate(divide="ignore"):
            return np.log(np.maximum(1 - np.exp(u) / np.sqrt(3), 0.0))


@pytest.mark.parametrize("df", [2.1, 2.2, 4.0])
def test_heavy_tails_by_quadrature(df):
    found = format_error(f"student-t:{df}", "MXFP4_E2M1").sqnr_db
    # Of E x² what lies above 2^600 is 2^(−600(df−2)), 1e-18; below 2^−30 all but nothing.
    exact = by_quadrature(Student(df), -30, 600, 32, 0.3)
    # 24 nodes on a quarter of an octave are exact to rounding.
    assert 10 ** (-found.at(0.3) / 10) == pytest.approx(exact, rel=1e-11)
    assert found.low <= found.mean <= found.high < found.low + 0.05
    # And by scipy's own distribution, whose partial moments are interpolated.
    assert format_error(stats.t(df), "MXFP4_E2M1").sqnr_db.at(0.3) == pytest.approx(
        found.at(0.3), rel=1e-10
    )


def test_a_density_with_edges():
    found = format_error(stats.uniform(-1, 2), "MXFP4_E2M1")
    # At σ = 2/√3 the support ends at 2, an octave, which no panel of the quadrature cuts.
    at = 1 - 0.5 * np.log2(3)
    exact = by_quadrature(Uniform(), -30, 1, 32, at)
    # Just below: at σ itself the edge is a threshold. The function's slope is of order 10 dB.
    assert 10 ** (-found.sqnr_db.at(at - 1e-12) / 10) == pytest.approx(exact, rel=1e-10)
    # Corners: 1024 points give the mean to 1e-5; 4099 others give it to a sixteenth of that.
    for one in (found.sqnr_db, found.output_rms, found.clipped, found.flushed):
        dense = one.at((np.arange(4099) + 0.31) / 4099)
        assert one.mean == pytest.approx(dense.mean(), rel=1e-5)
        # The slope is at most 20 a period, and a corner may be half a point's distance away.
        assert dense.min() - 1e-2 < one.low <= dense.min() + 1e-9
        assert dense.max() - 1e-9 <= one.high < dense.max() + 1e-2


def test_constant_magnitudes_lose_nothing_at_some_sigma():
    found = format_error(np.ones(4000), "MXFP8_E4M3")
    assert found.sqnr_db.at(0.0) == np.inf
    assert found.sqnr_db.high == found.sqnr_db.mean == np.inf
    # FLOOR at σ = 1.9: the scale is 2^-8, 486.4 saturates at 448, which is 1.75.
    assert found.sqnr_db.at(np.log2(1.9)) == pytest.approx(-20 * np.log10(0.15 / 1.9), rel=1e-12)
    assert found.clipped.at([0.0, np.log2(1.9)]).tolist() == [0.0, 1.0]
    # The worst is just below 2, where 1.75 stands for all.
    assert found.sqnr_db.low == pytest.approx(-20 * np.log10(0.125), abs=1e-5)


def test_bad_input():
    with pytest.raises(ValueError, match="fmt='fp7' is unknown; known are MXFP8_E4M3"):
        format_error("gaussian", "fp7")
    with pytest.raises(
        ValueError, match="NVFP4 has floating E4M3 scales, for which there is no rule"
    ):
        format_error("gaussian", NVFP4, scale_rule="floor")
    with pytest.raises(ValueError, match="scale_rule='up' is unknown"):
        format_error("gaussian", "MXFP8_E4M3", scale_rule="up")
    # Not taken for FLOOR, which only None is.
    for rule in ("", 0):
        with pytest.raises(ValueError, match=f"scale_rule={rule!r} is unknown"):
            format_error("gaussian", "MXFP8_E4M3", scale_rule=rule)
    with pytest.raises(ValueError, match="block_size=1000000000: must be from 1 to 1048576"):
        format_error("gaussian", BlockFormat(E4M3, block_size=10**9))
