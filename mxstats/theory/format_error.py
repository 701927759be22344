"""What rounding to elements adds: signal-to-noise ratio, clipped and flushed shares; exact.

The scale of an element's block depends on the element itself through the block maximum. Given
|x| = t, the maximum of the other B − 1 entries has distribution function F^(B−1), so that the block
takes step i of the scale (τ_i <= m < τ_{i+1}, scale s_i) with probability

    F(τ_{i+1})^(B−1) − F(τ_i)^(B−1)  for t < τ_i,     F(τ_{i+1})^(B−1)  for τ_i <= t < τ_{i+1},

and 0 beyond. Within a step the element's rounding cells cut the line at s_i times the midpoints of
its values e, and E(t − e s_i)² over a cell is T − 2e s_i U + e²s_i² S, differences of the
distribution's own partial moments. All of it is a sum; nothing is sampled, nothing assumed of the
rounding error. Periodic in log2 σ, within the range of the scale format.

A power-law tail needs hundreds of octaves before E x² is complete. Forty above the median its
noise-to-signal ratio repeats from octave to octave, so that the last one stands for all beyond it,
with the weight that E x² gives them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxstats.formats import BlockFormat, ElementFormat, ScaleRule, block_format
from mxstats.formats.reference import check_rule
from mxstats.theory.arguments import check_block_size
from mxstats.theory.block_maximum import block_tails
from mxstats.theory.distributions import Distribution, Samples
from mxstats.theory.distributions import distribution as as_distribution
from mxstats.theory.partial_moments import partial_moments
from mxstats.theory.periodic import Periodic, together
from mxstats.theory.scale_steps import ScaleSteps, scale_steps

Array = NDArray[np.float64]

# Differences of partial moments near 1 leave about 1e-15 of absolute error in a mean square error
# of 1e-4 and more; asking a mean over the period to stand still beyond that would never end.
_STILL = 1e-9
# Enough for corners, whose mean is then good to 1e-5, and for samples, whose own error is larger.
_MOST, _MOST_SAMPLED = 1024, 256
# A smaller mean square error is the rounding of its sum.
_ROUNDING = 1e-15
# Octaves above the median beyond which a power-law tail repeats itself, to 1e-12 at least.
_FAR = 40.0 * np.log(2.0)
# Cells worked on at a time: what fits the second-level cache with its temporaries.
_CHUNK = 2**14


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

    Returns
    -------
    FormatError
        Values are good to 1e-9, and so are means for a smooth density; to 1e-5 for one with edges
        (a uniform one). For samples, whose quantities have a jump for every value, means are those
        of 256 points, good to 1e-3, and extremes to 1e-2. Where nothing is lost (a mean square
        error below 1e-15), as at some σ of constant magnitudes, ``sqnr_db`` is infinite; its
        largest value and its mean are then infinite as well.

    Raises
    ------
    ValueError, TypeError
        As :func:`mxstats.constant` and :func:`mxstats.quantize`; a density of scipy.stats that is
        not smooth between the ends of its support.
    """
    dist, fmt = as_distribution(distribution), block_format(fmt)
    check_block_size(fmt.block_size)
    rule = check_rule(scale_rule, fmt)
    steps = scale_steps(fmt.element, fmt.scale if rule is None else rule)
    moments = _cells(dist, fmt.element, fmt.block_size, steps)

    def quantities(log2_sigma: Array) -> Array:
        error, output, clipped, flushed = moments(log2_sigma)
        error = np.where(error < _ROUNDING, 0.0, error)
        with np.errstate(divide="ignore"):
            return np.stack([-10.0 * np.log10(error), np.sqrt(output), clipped, flushed])

    names = ("sqnr_db", "output_rms", "clipped", "flushed")
    found = together(
        quantities,
        tuple(f"{name} of {fmt.name} and {dist.name}" for name in names),
        still=_STILL,
        most=_MOST_SAMPLED if isinstance(dist, Samples) else _MOST,
    )
    return FormatError(*found)


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
    high = min(tails.high, tails.median + _FAR)
    edges, scales = steps.ladder(tails.low - np.log(2.0), high + np.log(2.0))
    log_scales = scales[:-1] - np.log(steps.unit)
    octave = len(steps.thresholds) if high < tails.high else 0
    survivals = partial_moments(dist, edges[-1])
    others = (block_size - 1.0) / block_size

    def moments(shift: Array) -> Array:
        at = edges - shift[:, None]
        scale = np.exp(log_scales - shift[:, None])[..., None]
        with np.errstate(invalid="ignore"):
            # F^(B−1) from F^B; 1 throughout for blocks of one.
            reached = np.exp(others * tails.log_cdf(at)) if block_size > 1 else np.ones(at.shape)
        apart, within = np.diff(reached)[..., None], reached[:, 1:, None]
        of_edges, of_cuts = survivals(at), survivals(log_cuts + np.log(scale))
        if octave:
            square = of_edges[2]
            beyond = square[:, -1] / (square[:, -1 - octave] - square[:, -1])
            within = within.copy()
            within[:, -octave:] *= 1.0 + beyond[:, None, None]

        def between(edge: Array, cut: Array) -> Array:
            """A partial moment between neighbouring cuts, weighted by each step's probability."""
            # The tail beyond the lower of a cut and the step's start, and beyond the cut where it
            # is inside the step.
            start, end = edge[:, :-1, None], edge[:, 1:, None]
            below, inside = np.maximum(cut, start), np.clip(cut, end, start)
            return -apart * np.diff(below) - within * np.diff(inside)

        count, mean, square = (between(*one) for one in zip(of_edges, of_cuts, strict=True))
        value = values * scale
        error = square - 2.0 * value * mean + value * value * count
        # Cell 0 begins above zero: an exact zero, which only samples can have, is not flushed.
        sums = error, value * value * count, count[..., -1:], count[..., :1]
        return np.array([one.sum(axis=(1, 2)) for one in sums])

    at_once = max(1, _CHUNK // (log_scales.size * cuts.size))

    def chunked(log2_sigma: Array) -> Array:
        shift = np.log(2.0) * np.mod(log2_sigma, 1.0)
        parts = range(0, shift.size, at_once)
        return np.concatenate([moments(shift[at : at + at_once]) for at in parts], axis=1)

    return chunked
