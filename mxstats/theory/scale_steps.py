"""A block's scale as a step function of its maximum, over one octave.

In a power-of-two format, and in a floating one inside its normal range, doubling the block doubles
the scale: the step function S satisfies S(2m) = 2 S(m), and one octave says it all. With κ =
largest/2^emax of the element, the powers of two are v = 2^j for θ2^j <= m < θ2^(j+1), and

    FLOOR θ = 1,  CEIL θ = 1/2,  EVEN θ = 1 − 2^−(mantissa bits + 2),  RCEIL θ = κ/2.

v is the scale times ``unit``: 2^emax for powers of two, the element's largest value for a floating
scale, which is m/largest rounded to nearest, so that v is near m in every case.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxstats.formats import ElementFormat, ScaleFormat, ScaleRule

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ScaleSteps:
    """S(m) = values[k]·2^j for thresholds[k]·2^j <= m < the next threshold."""

    thresholds: tuple[float, ...]
    """Where S jumps, rising, within one octave."""
    values: tuple[float, ...]
    """What it jumps to."""
    unit: float
    """v = unit · scale."""
    closed: bool
    """Whether a maximum that equals a threshold takes the new value; of no weight unless the
    distribution has atoms (samples)."""

    def ladder(self, low: float, high: float) -> tuple[Array, Array]:
        """Return ln of the thresholds from e^low to e^high, and of the value S takes from each.

        One threshold beyond each end is included.
        """
        octaves = np.arange(np.floor(low / np.log(2.0)) - 2, np.ceil(high / np.log(2.0)) + 3)
        shift = octaves[:, None] * np.log(2.0)
        edges = (np.log(self.thresholds) + shift).ravel()
        values = (np.log(self.values) + shift).ravel()
        first = max(0, int(np.searchsorted(edges, low)) - 1)
        last = int(np.searchsorted(edges, high)) + 1
        return edges[first:last], values[first:last]


def scale_steps(element: ElementFormat, scale_rule: ScaleRule | str | ScaleFormat) -> ScaleSteps:
    """Return the steps of a scale rule, or of a floating scale format, for blocks of ``element``.

    Raises
    ------
    TypeError
        ``element`` is no ElementFormat.
    ValueError
        Unknown rule; a power-of-two scale format, for which a rule has to be named.
    """
    if not isinstance(element, ElementFormat):
        raise TypeError(f"element must be an ElementFormat, got {element!r}")
    if isinstance(scale_rule, ScaleFormat):
        return _floating_steps(element, scale_rule)
    rule = ScaleRule(scale_rule)
    kappa = element.largest / 2.0**element.emax
    theta = {
        ScaleRule.FLOOR: 1.0,
        ScaleRule.CEIL: 0.5,
        ScaleRule.EVEN: 1.0 - 2.0 ** -(element.mantissa_bits + 2),
        ScaleRule.RCEIL: kappa / 2.0,
    }[rule]
    closed = rule in (ScaleRule.FLOOR, ScaleRule.EVEN)
    return ScaleSteps((theta,), (1.0,), 2.0**element.emax, closed)


def _floating_steps(element: ElementFormat, scale: ScaleFormat) -> ScaleSteps:
    if scale.is_power_of_two:
        raise ValueError(f"scale_rule: {scale.name} is a power-of-two scale; name a rule for it")
    n = 2**scale.mantissa_bits
    values = 1.0 + np.arange(n) / n
    # The value below 1 is 1 − 1/(2n): spacings halve at a power of two.
    below = np.concatenate([[1.0 - 0.5 / n], values[:-1]])
    thresholds = 0.5 * (below + values)
    return ScaleSteps(tuple(thresholds), tuple(values), element.largest, closed=True)
