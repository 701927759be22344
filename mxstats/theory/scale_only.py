"""The constant when only the rounded block scales are kept: exact, and periodic in log2 σ.

A unit that hands out the block scales but not the maxima gives S(m), a step function of m
(:mod:`mxstats.theory.scale_steps`). With σ the rows' RMS and m at rms = 1,

    c(σ)^p = E[(S(σm)/σ)^p] = Σ_j (v_j/σ)^p (F(t_{j+1}/σ)^B − F(t_j/σ)^B),

a sum, without quadrature. It is evaluated as v₀^p (1 + Σ_up ΔS − Σ_down ΔF), the discrete form of
the block maximum's own integral, in which nothing cancels.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mxstats.formats import E4M3, ElementFormat, ScaleFormat, ScaleRule
from mxstats.theory.arguments import check_block_size, check_p
from mxstats.theory.block_maximum import block_tails
from mxstats.theory.distributions import Distribution, Samples
from mxstats.theory.distributions import distribution as as_distribution
from mxstats.theory.periodic import Periodic, grid_mean, periodic, step_function
from mxstats.theory.scale_steps import ScaleSteps, scale_steps

Array = NDArray[np.float64]

# Jumps of a sample's constant up to which it is taken between all of them; above, this many are
# below 1e-5 of a period apart, and a grid does as well.
_MOST_JUMPS = 2**17
_SAMPLED = 256
# The mean of the clipped share is known, so that the grid serves its extremes alone.
_MOST_CLIPPED = 1024


@dataclass(frozen=True)
class ScaleOnlyConstant:
    """c(log2 σ) = E[S(m)^p]^(1/p)/RMS for v = S(m) in units near the block maximum.

    To work on the stored scales themselves, whose power mean is 1/``unit`` of that of v, divide
    the constant by ``unit``.
    """

    function: Periodic
    unit: float
    """v = unit · scale: 2^emax of the element for powers of two, its largest value else."""
    geomean_stderr: float = 0.0
    """Standard error of ``geomean``; 0 unless the distribution is a sample."""
    value: Any = None
    """The constant at the log2_sigma that was asked for, None where none was."""

    @property
    def geomean(self) -> float:
        """Geometric mean over a period: the constant to use where σ is not known."""
        return self.function.mean

    @property
    def low(self) -> float:
        """Smallest constant over all σ."""
        return self.function.low

    @property
    def high(self) -> float:
        """Largest constant over all σ."""
        return self.function.high

    def at(self, log2_sigma: ArrayLike) -> Any:
        """The constant for rows of RMS 2^log2_sigma.

        For a floating scale σ counts in units of the element's largest value times the tensor
        scale g, within the scale format's normal range. Raises ValueError unless it is finite.
        """
        return self.function.at(log2_sigma)


def scale_only_constant(
    distribution: Any = "gaussian",
    *,
    p: float = 2.0,
    block_size: int = 32,
    scale_rule: ScaleRule | str | ScaleFormat = ScaleRule.FLOOR,
    element: ElementFormat = E4M3,
    log2_sigma: ArrayLike | None = None,
) -> ScaleOnlyConstant:
    """Return the constant for an estimate made from rounded block scales alone.

    Parameters
    ----------
    distribution, p, block_size
        As :func:`mxstats.constant` takes them, scalars.
    scale_rule
        A rule for power-of-two scales (E8M0), or a floating scale format (NVFP4's
        ``E4M3_SCALE``).
    element
        The element format, on whose largest value and mantissa the rule depends.
    log2_sigma
        Where ``.value`` is wanted: log2 of the rows' RMS.

    Returns
    -------
    ScaleOnlyConstant
        ``.geomean``, ``.low``, ``.high``, ``.at(log2_sigma)``. Gaussian, B = 32, p = 2, FLOOR:
        1.755466, 1.670986, 1.841182. Values are as good as those of :func:`mxstats.constant`, and
        so is the mean for a smooth density and for up to 2^17 samples (2^14 under a scale with 3
        mantissa bits). For more samples, and for a density with edges (a uniform one), mean and
        extremes are good to 1e-5, at B = 2^20 to 1e-4.

    Raises
    ------
    ValueError, TypeError
        As :func:`mxstats.constant`; an unknown rule, a power-of-two scale format without a rule.
    """
    dist, exponent, size = _scalars(distribution, p, block_size)
    steps = scale_steps(element, scale_rule)

    function = _constant(dist, exponent, size, steps)
    what = f"scale_only_constant of {dist.name}"
    if not isinstance(dist, Samples):
        found, stderr = periodic(function, what=what, geometric=True), 0.0
    else:
        jumps = _jumps(dist, steps.thresholds)
        if jumps.size <= _MOST_JUMPS:
            found = step_function(function, jumps, falling=True)
        else:
            found = periodic(function, what=what, geometric=True, most=_SAMPLED)

        def of_part(part: Samples) -> float:
            return grid_mean(_constant(part, exponent, size, steps), _SAMPLED, geometric=True)

        stderr = float(dist.jackknife(of_part).stderr)
    value = None if log2_sigma is None else found.at(log2_sigma)
    return ScaleOnlyConstant(found, steps.unit, stderr, value)


def clipped_blocks(
    distribution: Any = "gaussian",
    *,
    block_size: int = 32,
    scale_rule: ScaleRule | str = ScaleRule.FLOOR,
    element: ElementFormat = E4M3,
) -> Periodic:
    """Share of blocks whose maximum is above largest · scale, as a function of log2 σ.

    Σ_j P(κ2^j < σm < 2θ2^j), κ = largest/2^emax (:mod:`mxstats.theory.scale_steps`). Its mean over
    a period is log2(2θ/κ) whatever the distribution: 19.265 % for FLOOR and E4M3, 0 for RCEIL.
    Extremes as good as those of the constant. Raises as :func:`scale_only_constant`.
    """
    dist, _, size = _scalars(distribution, 1.0, block_size)
    steps = scale_steps(element, ScaleRule(scale_rule))
    kappa = element.largest / steps.unit
    top = 2.0 * steps.thresholds[0]
    if top <= kappa:
        return Periodic(np.zeros_like, 0.0, 0.0, 0.0)
    clipping = ScaleSteps((kappa, top), (1.0, 1.0), steps.unit, closed=True)
    # A maximum of κ itself is not clipped, one of 2θ has the next scale.
    tails = block_tails(dist, size), block_tails(dist, size, closed=True)

    def share(log2_sigma: Array) -> Array:
        edges, _ = clipping.ladder(tails[0].low - np.log(2.0), tails[0].high + np.log(2.0))
        # Pairs (κ2^j, 2θ2^j), from a whole one on.
        starts = np.isclose(np.mod((edges - np.log(kappa)) / np.log(2.0) + 0.5, 1.0), 0.5)
        first = int(np.argmax(starts))
        pairs = edges[first : first + 2 * ((edges.size - first) // 2), None] - _offset(log2_sigma)
        above, beyond = tails[0].log_survival(pairs[0::2]), tails[1].log_survival(pairs[1::2])
        return np.sum(np.exp(above) - np.exp(beyond), axis=0)

    if isinstance(dist, Samples) and (jumps := _jumps(dist, (kappa, top))).size <= _MOST_JUMPS:
        found = step_function(share, jumps, falling=False)
    else:
        found = periodic(share, what=f"clipped_blocks of {dist.name}", most=_MOST_CLIPPED)
    return replace(found, mean=float(np.log2(top / kappa)))


def _constant(
    dist: Distribution | Samples, p: float, block_size: int, steps: ScaleSteps
) -> Callable[[Array], Array]:
    tails = block_tails(dist, block_size, p=p, closed=steps.closed)

    def constant(log2_sigma: Array) -> Array:
        shift = _offset(log2_sigma)
        edges, values = steps.ladder(tails.low - np.log(2.0), tails.high + np.log(2.0))
        # The value below the median is the reference; every other enters as a step of v^p from its
        # neighbour, weighted by the probability beyond its threshold.
        middle = int(np.searchsorted(edges, tails.median))
        middle = min(max(middle, 1), edges.size - 1)
        base = values[middle - 1]
        rise = -np.expm1(-p * np.diff(values))[:, None]
        growth = p * (values[1:, None] - base)
        log_edges = edges[1:, None] - shift
        up = np.exp(growth[middle - 1 :] + tails.log_survival(log_edges[middle - 1 :]))
        down = np.exp(growth[: middle - 1] + tails.log_cdf(log_edges[: middle - 1]))
        # All steps below the ladder telescope into one; it counts where samples hold zeros.
        rest = np.exp(p * (values[0] - base) + tails.log_cdf(edges[0] - shift))
        total = np.sum(rise[middle - 1 :] * up, axis=0) - rest
        total -= np.sum(rise[: middle - 1] * down, axis=0)
        return np.exp(base - shift + np.log1p(total) / p)

    return constant


def _jumps(dist: Samples, thresholds: tuple[float, ...]) -> Array:
    """Where in log2 σ, modulo 1, a value of the sample meets a threshold."""
    values = np.unique(dist.sorted_magnitudes)
    values = np.log2(values[values > 0.0])
    return np.unique(np.mod(np.log2(thresholds)[:, None] - values, 1.0))


def _offset(log2_sigma: Array) -> Array:
    """Natural logarithm of σ within its octave: the quantity repeats with period 1 in log2 σ."""
    return np.log(2.0) * np.mod(log2_sigma, 1.0)


def _scalars(
    distribution: Any, p: float, block_size: int
) -> tuple[Distribution | Samples, float, int]:
    dist = as_distribution(distribution)
    exponent, size = check_p(p, dist), check_block_size(block_size)
    for name, value in (("p", exponent), ("block_size", size)):
        if np.ndim(value):
            raise TypeError(f"{name} must be one number, got {value.tolist()}")
    return dist, float(exponent), int(size)
