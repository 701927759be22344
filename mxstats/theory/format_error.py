"""What rounding to elements adds: signal-to-noise ratio, clipped and flushed shares; exact.

The scale of an element's block depends on the element itself through the block maximum. Given
|x| = t, the maximum of the other B − 1 entries has distribution function F^(B−1), so that the block
takes step i of the scale (τ_i <= m < τ_{i+1}, scale s_i) with probability

    F(τ_{i+1})^(B−1) − F(τ_i)^(B−1)  for t < τ_i,     F(τ_{i+1})^(B−1)  for τ_i <= t < τ_{i+1},

and 0 beyond. Within a step the element's rounding cells cut the line at s_i times the midpoints of
its values e, and E(t − e s_i)² over a cell is T − 2e s_i U + e²s_i² S, differences of the
distribution's own partial moments. All of it is a sum; nothing is sampled, nothing assumed of the
rounding error. Periodic in log2 σ, within the range of the scale format.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxstats.formats import BlockFormat, ElementFormat, ScaleRule, block_format
from mxstats.theory.block_maximum import block_tails
from mxstats.theory.distributions import Distribution, Samples
from mxstats.theory.distributions import distribution as as_distribution
from mxstats.theory.periodic import MOST, SAMPLED, Periodic, periodic
from mxstats.theory.scale_steps import ScaleSteps, scale_steps

Array = NDArray[np.float64]

# Differences of partial moments near 1 leave about 1e-15 of absolute error in a mean square error
# of 1e-4 and more; asking a mean over the period to stand still beyond that would never end.
_STILL = 1e-9


@dataclass(frozen=True)
class FormatError:
    """Error of a block format on rows of independent entries; each a function of log2 σ."""

    sqnr_db: Periodic
    """−10 log10(E(x − x̂)²/E x²) in dB; its mean is over log2 σ."""
    output_rms: Periodic
    """√(E x̂²) of the dequantised entries at rms = 1."""
    clipped: Periodic
    """Share of entries above largest · scale, which saturate."""
    flushed: Periodic
    """Share of entries, other than zeros, that round to zero."""


def format_error(
    distribution: Any = "gaussian",
    fmt: BlockFormat | str = "MXFP8_E4M3",
    *,
    scale_rule: ScaleRule | str | None = None,
) -> FormatError:
    """Return the error that quantising to ``fmt`` makes on independent entries.

    Parameters
    ----------
    distribution
        What :func:`mxstats.distribution` takes.
    fmt
        A format or its name. A tensor scale is taken as fixed; σ then counts in units of the
        element's largest value times that scale.
    scale_rule
        As :func:`mxstats.quantize` takes it: FLOOR when not given, none for floating scales.

    Raises
    ------
    ValueError, TypeError
        As :func:`mxstats.constant` and :func:`mxstats.quantize`.
    """
    dist, fmt = as_distribution(distribution), block_format(fmt)
    if fmt.scale.is_power_of_two:
        steps = scale_steps(fmt.element, ScaleRule(scale_rule or ScaleRule.FLOOR))
    elif scale_rule is not None:
        raise ValueError(
            f"scale_rule={str(scale_rule)!r}: {fmt.name} has floating scales and no rule to choose"
        )
    else:
        steps = scale_steps(fmt.element, fmt.scale)
    moments = _cells(dist, fmt.element, fmt.block_size, steps)

    def sqnr_db(log2_sigma: Array) -> Array:
        return -10.0 * np.log10(moments(log2_sigma)[0])

    def output_rms(log2_sigma: Array) -> Array:
        return np.sqrt(moments(log2_sigma)[1])

    search = {"still": _STILL, "most": SAMPLED if isinstance(dist, Samples) else MOST}
    return FormatError(
        sqnr_db=periodic(sqnr_db, **search),
        output_rms=periodic(output_rms, **search),
        clipped=periodic(lambda where: moments(where)[2], **search),
        flushed=periodic(lambda where: moments(where)[3], **search),
    )


def _cells(
    dist: Distribution | Samples, element: ElementFormat, block_size: int, steps: ScaleSteps
) -> Callable[[Array], Array]:
    """Return the map from log2 σ [n] to E(x−x̂)², E x̂², clipped and flushed shares, [4, n]."""
    # Cell c is (midpoint below e_c, midpoint above]; the largest value has a second cell, of what
    # it clips, which has no end.
    values, top = np.append(element.magnitudes, element.largest), element.largest
    cuts = np.concatenate([[0.0], 0.5 * (values[1:-1] + values[:-2]), [top, np.inf]])
    with np.errstate(divide="ignore"):
        log_cuts = np.log(cuts)
    tails = block_tails(dist, block_size, p=2.0, closed=steps.closed)
    survivals = _survivals(dist)
    others = (block_size - 1.0) / block_size

    @cache  # the four quantities are asked for on the same grids
    def at(log2_sigma: float) -> list[float]:
        shift = np.log(2.0) * (log2_sigma % 1.0)
        edges, scales = steps.ladder(tails.low - np.log(2.0), tails.high + np.log(2.0))
        edges, log_scale = edges - shift, scales[:-1, None] - shift - np.log(steps.unit)
        start, end = edges[:-1, None], edges[1:, None]
        with np.errstate(invalid="ignore"):
            # F^(B−1) from F^B; 1 throughout for blocks of one.
            reached = (
                np.exp(others * tails.log_cdf(edges)) if block_size > 1 else np.ones(edges.size)
            )
        weights = np.diff(reached)[:, None], reached[1:, None]

        def between(cuts: Array) -> list[Array]:
            """P, E|x| and E x² between neighbouring cuts, weighted by each step's probability."""
            parts = np.minimum(cuts, start), np.clip(cuts, start, end)
            of_parts = [[-np.diff(tail) for tail in survivals(part)] for part in parts]
            return [weights[0] * b + weights[1] * w for b, w in zip(*of_parts, strict=True)]

        count, mean, square = between(log_cuts + log_scale)
        value = values * np.exp(log_scale)
        error = square - 2.0 * value * mean + value * value * count
        # Cell 0 begins above zero: an exact zero, which only samples can have, is not flushed.
        flushed = count[:, 0].sum()
        return [error.sum(), np.sum(value * value * count), count[:, -1].sum(), flushed]

    return lambda log2_sigma: np.array([at(float(one)) for one in log2_sigma]).T


def _survivals(dist: Distribution | Samples) -> Callable[[Array], tuple[Array, Array, Array]]:
    """Return the map from u to P, E|X| and E X² over |X| > e^u."""
    if isinstance(dist, Samples):
        return dist.survivals

    def survivals(u: Array) -> tuple[Array, Array, Array]:
        count, mean, square = dist.log_survival, dist.log_mean_survival, dist.log_square_survival
        # The ends are limits; a finite number far beyond double precision does for them.
        u = np.clip(u, -745.0, 745.0)
        return np.exp(count(u)), np.exp(mean(u)), np.exp(square(u))

    return survivals
