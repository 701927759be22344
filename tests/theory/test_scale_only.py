"""The scale-only constant against its defining sum, the quantiser's bytes, and identities."""

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from mxstats.formats import (
    E2M1,
    E4M3,
    E4M3_SCALE,
    E5M2,
    E5M3_SCALE,
    E8M0,
    INT8,
    ElementFormat,
    ScaleRule,
)
from mxstats.formats.scales import e8m0_bytes
from mxstats.theory import clipped_blocks, constant, distribution, scale_only_constant

RULES = list(ScaleRule)


def test_the_checked_values():
    found = scale_only_constant("gaussian", p=2, block_size=32, scale_rule="floor", element=E4M3)
    # Six decimals are stated.
    assert found.geomean == pytest.approx(1.755466, abs=5e-7)
    assert found.low == pytest.approx(1.670986, abs=5e-7)
    assert found.high == pytest.approx(1.841182, abs=5e-7)
    assert found.unit == 256.0


@pytest.mark.parametrize("log2_sigma", [0.0, 0.37, -5.81])
@pytest.mark.parametrize(("p", "block_size"), [(2, 32), (1, 16), (0.5, 1), (8, 64)])
def test_against_the_defining_sum_in_mpmath(p, block_size, log2_sigma):
    with mp.workdps(30):
        sigma = mp.mpf(2) ** mp.mpf(log2_sigma)

        def below(t):
            return mp.erf(t / sigma / mp.sqrt(2)) ** block_size

        total = sum(
            (mp.mpf(2) ** j / sigma) ** p * (below(mp.mpf(2) ** (j + 1)) - below(mp.mpf(2) ** j))
            for j in range(-130, 30)
        )
        expected = total ** (mp.mpf(1) / p)
        found = scale_only_constant(p=p, block_size=block_size, scale_rule="floor")
        # Sums of a hundred terms near 1, each good to a few ulp.
        assert found.at(log2_sigma) == pytest.approx(float(expected), rel=1e-13)


@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("name", ["gaussian", "laplace", "student-t:10"])
def test_against_the_bytes_of_the_quantiser(name, block_size):
    blocks = 150_000
    draws = distribution(name).sample(np.random.default_rng(block_size), (blocks, block_size))
    maxima = np.abs(draws).max(axis=1)
    for rule in RULES:
        found = scale_only_constant(name, p=2.0, block_size=block_size, scale_rule=rule)
        for log2_sigma in np.arange(16) / 16 - 3.0:
            absmax = (maxima * 2.0**log2_sigma).astype(np.float32)
            scale = E8M0.values[e8m0_bytes(absmax, E4M3, rule)].astype(np.float64)
            square = (scale * found.unit / 2.0**log2_sigma) ** 2
            value = np.sqrt(square.mean())
            stderr = square.std() / np.sqrt(blocks) / (2.0 * value)
            # 576 comparisons of 9 draws: |z| > 4 by chance has a probability below 4 %, and at
            # this seed the largest is below 3.
            assert abs(value - found.at(log2_sigma)) < 4 * stderr, (rule, log2_sigma)


@pytest.mark.parametrize("element", [E4M3, E5M2, E2M1, INT8, ElementFormat(3, 4)])
def test_rules_are_one_function_shifted(element):
    # v = 2^j on [θ2^j, θ2^(j+1)) is FLOOR's step function of m/θ.
    where = np.linspace(0, 1, 7)
    floor = scale_only_constant("laplace", p=1.5, scale_rule="floor", element=element)
    thetas = {"ceil": 0.5, "even": 1 - 2.0 ** -(element.mantissa_bits + 2),
              "rceil": element.largest / 2.0**element.emax / 2}  # fmt: skip
    for rule, theta in thetas.items():
        found = scale_only_constant("laplace", p=1.5, scale_rule=rule, element=element)
        # σ/θ in place of σ, and the constant counts in σ.
        expected = floor.at(where - np.log2(theta)) / theta
        np.testing.assert_allclose(found.at(where), expected, rtol=1e-13)
        assert found.geomean == pytest.approx(floor.geomean / theta, rel=1e-12)


@pytest.mark.parametrize("rule", [*RULES, E4M3_SCALE])
def test_period_and_extremes(rule):
    found = scale_only_constant(p=2, scale_rule=rule, element=E2M1)
    grid = np.linspace(0.0, 1.0, 1001)
    values = found.at(grid)
    np.testing.assert_allclose(found.at(grid + 3), values, rtol=1e-13)
    # Searched for, so at least as extreme as the grid, and no farther than its curvature allows.
    assert found.low <= values.min() + 1e-15
    assert found.high >= values.max() - 1e-15
    assert found.low == pytest.approx(values.min(), rel=1e-6)
    assert found.high == pytest.approx(values.max(), rel=1e-6)
    # The mean of the logarithm over a period, by the grid's own trapezoid.
    assert np.log(found.geomean) == pytest.approx(np.mean(np.log(values[:-1])), abs=1e-12)


def test_floating_scales_come_near_the_exact_constant():
    # Rounding to 3 bits moves m by at most 1/16, without bias to first order.
    exact = constant(p=2, block_size=16)
    found = scale_only_constant(p=2, block_size=16, scale_rule=E4M3_SCALE, element=E2M1)
    assert found.unit == 6.0
    assert found.geomean == pytest.approx(exact, rel=1e-3)
    assert found.high / found.low < 1.001
    # Four times as coarse a scale has sixteen times the second-order effect.
    same = scale_only_constant(p=2, block_size=16, scale_rule=E5M3_SCALE, element=E2M1)
    # Inside the normal range only the mantissa counts.
    assert same.geomean == found.geomean


def test_clipped_blocks_have_the_checked_shares():
    e4m3, e2m1 = (clipped_blocks(scale_rule="floor", element=e) for e in (E4M3, E2M1))
    # Stated in per cent to three decimals, the extremes to two.
    assert 100 * e4m3.at(0.0) == pytest.approx(16.900, abs=5e-4)
    assert 100 * e4m3.mean == pytest.approx(19.265, abs=5e-4)
    assert 100 * e4m3.low == pytest.approx(10.84, abs=5e-3)
    assert 100 * e4m3.high == pytest.approx(27.93, abs=5e-3)
    assert 100 * e2m1.at(0.0) == pytest.approx(29.603, abs=5e-4)
    assert 100 * e2m1.mean == pytest.approx(41.504, abs=5e-4)
    assert 100 * e2m1.low == pytest.approx(27.08, abs=5e-3)
    assert 100 * e2m1.high == pytest.approx(56.06, abs=5e-3)


@pytest.mark.parametrize("name", ["gaussian", "laplace", "student-t:3", stats.uniform(-1, 2)])
@pytest.mark.parametrize("element", [E4M3, E2M1, E5M2, INT8])
def test_mean_clipped_share_depends_on_the_format_alone(name, element):
    kappa = element.largest / 2.0**element.emax
    for rule, top in (("floor", 2.0), ("even", 2 - 2.0 ** -(element.mantissa_bits + 1))):
        found = clipped_blocks(name, scale_rule=rule, element=element)
        # Over a period of σ log2 m is uniform modulo 1. Stated as that, and shown by a grid; the
        # uniform law's kink slows the grid down.
        expected = max(0.0, np.log2(top / kappa))
        assert found.mean == pytest.approx(expected, abs=1e-15)
        assert np.mean(found.at(np.arange(512) / 512)) == pytest.approx(expected, abs=1e-5)
    assert clipped_blocks(name, scale_rule="rceil", element=element).high == 0.0
    assert clipped_blocks(name, scale_rule="ceil", element=element).high == 0.0


@pytest.mark.parametrize("rule", ["floor", "even"])
def test_clipped_blocks_against_the_quantiser(rule):
    blocks = 200_000
    maxima = np.abs(np.random.default_rng(3).standard_normal((blocks, 32))).max(axis=1)
    for element in (E4M3, E2M1):
        found = clipped_blocks(scale_rule=rule, element=element)
        for log2_sigma in (0.0, 0.3, 0.8):
            absmax = (maxima * 2.0**log2_sigma).astype(np.float32)
            scale = E8M0.values[e8m0_bytes(absmax, element, ScaleRule(rule))]
            share = np.mean(absmax > element.largest * scale.astype(np.float64))
            stderr = np.sqrt(share * (1 - share) / blocks)
            # Twelve comparisons: 4 standard errors by chance have a probability of 0.1 %.
            assert abs(share - found.at(log2_sigma)) < 4 * stderr


def test_samples_are_their_empirical_distribution():
    values = np.random.default_rng(0).standard_normal(400)
    values[:40] = 0.0
    found = scale_only_constant(values, p=2.0, block_size=2, scale_rule="floor")
    sizes = np.abs(values) / np.sqrt(np.mean(values**2))
    pairs = np.maximum(sizes[:, None], sizes[None, :]).ravel()
    for log2_sigma in (0.0, 0.4):
        m = pairs * 2.0**log2_sigma
        with np.errstate(divide="ignore"):
            steps = np.where(m > 0, 2.0 ** np.floor(np.log2(m)), 0.0) / 2.0**log2_sigma
        # All pairs, drawn with replacement: exact up to the summation of 160,000 terms.
        assert found.at(log2_sigma) == pytest.approx(np.sqrt(np.mean(steps**2)), rel=1e-12)
    assert 0.005 < found.geomean_stderr / found.geomean < 0.1


def test_heavy_tails_near_the_limit():
    found = scale_only_constant("student-t:2.5", p=2.4, scale_rule="rceil")
    # RCEIL's v lies between κm/2·… the constant keeps to the octave around c̃: θ <= v/m <= 2θ.
    exact = constant("student-t:2.5", p=2.4)
    kappa = 1.75
    assert exact / kappa < found.low <= found.high < 2 * exact / kappa


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scale_rule": "nearest"}, ValueError, "scale_rule='nearest' is unknown; known are floor"),
        ({"scale_rule": E8M0}, ValueError, "E8M0 is a power-of-two scale; name a rule"),
        ({"element": "e4m3"}, TypeError, "element must be an ElementFormat, got 'e4m3'"),
        ({"p": [1, 2]}, TypeError, r"p must be one number, got \[1.0, 2.0\]"),
        ({"block_size": 0}, ValueError, "block_size=0: must be from 1"),
        ({"distribution": "student-t:3", "p": 3}, ValueError, r"p=3: E\[m\^p\] is infinite"),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        scale_only_constant(**arguments)


def test_log2_sigma_must_be_finite():
    with pytest.raises(ValueError, match="log2_sigma must be finite, got nan"):
        scale_only_constant().at(float("nan"))
    for wrong in ("a", None, True, 1j, [[1.0], [1.0, 2.0]]):
        with pytest.raises(TypeError, match="log2_sigma must be"):
            scale_only_constant().at(wrong)
    with pytest.raises(TypeError, match="log2_sigma must be a real number, got 'a'"):
        scale_only_constant(log2_sigma="a")


def test_no_rule_is_not_floor():
    for rule in ("", 0, None):
        with pytest.raises(ValueError, match=f"scale_rule={rule!r} is unknown"):
            clipped_blocks(scale_rule=rule)


@pytest.mark.parametrize("rule", ["floor", "even"])
def test_clipped_blocks_of_atoms(rule):
    # All magnitudes 1: a block is clipped where σ, in its octave, is above 1.75 and below 2θ.
    top = {"floor": 2.0, "even": 1.9375}[rule]
    found = clipped_blocks(np.ones(4000), scale_rule=rule)
    sigmas = np.array([1.0, 1.7499, 1.7501, 1.9374, 1.9376, 1.9999])
    expected = (sigmas > 1.75) & (sigmas < top)
    assert found.at(np.log2(sigmas)).tolist() == expected.tolist()
    # A σ in float64 at the ends themselves: neither κ nor 2θ is clipped.
    assert found.at(0.0) == 0.0
    assert (found.low, found.high) == (0.0, 1.0)


def test_the_mean_clipped_share_of_the_largest_blocks():
    # m is all but constant: a box function, whose mean no grid has to find.
    found = clipped_blocks(stats.uniform(-1, 2), block_size=2**20)
    assert found.mean == np.log2(2 / 1.75)
    assert found.low == pytest.approx(0.0, abs=1e-15)
    assert found.high == pytest.approx(1.0, abs=1e-15)


def test_samples_have_the_extremes_of_their_steps():
    values = np.random.default_rng(5).standard_normal(300)
    sizes = np.sort(np.abs(values)) / np.sqrt(np.mean(values**2))
    found = scale_only_constant(values, p=2.0, block_size=1, scale_rule="floor")
    # At σ = 2^j/size a value jumps up; just before and just after one of them are the extremes.
    jumps = np.mod(-np.log2(sizes), 1.0)
    near = np.concatenate([jumps - 1e-9, jumps + 1e-9])
    m = sizes * 2.0 ** near[:, None]
    squares = 4.0 ** np.floor(np.log2(m)) / 4.0 ** near[:, None]
    constants = np.sqrt(squares.mean(axis=1))
    # 1e-9 of an octave away from the jump.
    assert found.low == pytest.approx(constants.min(), rel=2e-9)
    assert found.high == pytest.approx(constants.max(), rel=2e-9)
    # The mean of ln c = ½ ln(K/σ²), K constant between the sorted jumps.
    edges = np.append(np.sort(jumps), jumps.min() + 1.0)
    middle = 0.5 * (edges[1:] + edges[:-1])
    m = sizes * 2.0 ** middle[:, None]
    c = np.sqrt((4.0 ** np.floor(np.log2(m))).mean(axis=1)) / 2.0**middle
    # A sum of 300 terms.
    assert np.log(found.geomean) == pytest.approx(np.sum(np.diff(edges) * np.log(c)), abs=1e-13)
