"""How large MXNorm's output can get, how small, and rows that get there.

y = x / r̂ with r̂ = M_p(m)/c̃ and ε = 0. With row length D, blocks of n_k entries (n = B but for a
short last one) and K = ⌈D/B⌉:

    largest |y|          c̃ K^(1/p)                                one spike
    largest RMS(y)       c̃ K^(1/p) √(n_max/D)          p <= 2     one block of equal magnitudes
                         c̃ K^(1/p) (Σ n_k^s)^(1/(2s))/√D,  s = p/(p−2),  p > 2
                                                                   every block of equal magnitudes,
                                                                   m_k ∝ n_k^(1/(p−2))
    smallest RMS(y)      c̃ √(K/D)                       p <= 2     one spike in every block
                         c̃ K^(1/p)/√D                   p > 2      one spike in all

They follow from m_k²/n_k <= q_k <= m_k² and the extremes of Σ w_k m_k² at a fixed Σ m_k^p, a
convex function of m^p for p <= 2 and a concave one above. RMSNorm has √D and 1.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mxstats.theory.arguments import check_block_size, check_hidden_size, check_p, n_blocks
from mxstats.theory.constant import constant
from mxstats.theory.distributions import Estimate
from mxstats.theory.distributions import distribution as as_distribution

Extreme = Literal["max_abs", "rms_low", "rms_high"]


@dataclass(frozen=True)
class OutputBounds:
    """Bounds of MXNorm's output at ε = 0, each attained; no unit, for the output is normalised.

    With ε > 0 the upper bounds stand and the lower one holds for rows large against √ε. The
    dequantised output may pass a bound by the element's rounding.
    """

    p: float
    block_size: int
    hidden_size: int
    constant: float
    """c̃ for this block and hidden size; every bound is proportional to it."""
    constant_stderr: float = 0.0
    """Standard error of c̃; 0 unless the distribution is a sample."""

    @property
    def n_blocks(self) -> int:
        """K = ⌈D/B⌉."""
        return -(-self.hidden_size // self.block_size)

    @property
    def block_lengths(self) -> NDArray[np.int64]:
        """n_k, shape [K]."""
        lengths = np.full(self.n_blocks, self.block_size)
        lengths[-1] = self._last_length
        return lengths

    @property
    def max_abs(self) -> float:
        """Largest possible |y_i|."""
        return self.constant * self._root_of_blocks

    @property
    def rms_high(self) -> float:
        """Largest possible RMS of the output."""
        longest = min(self.block_size, self.hidden_size)
        widest = longest / self.hidden_size
        if self.p <= 2.0:
            return self.constant * self._root_of_blocks * float(np.sqrt(widest))
        # Lengths relative to the longest: s is huge for p just above 2.
        s = self.p / (self.p - 2.0)
        total = self.n_blocks - 1 + (self._last_length / longest) ** s
        power_sum = float(total ** (0.5 / s) * np.sqrt(widest))
        return self.constant * self._root_of_blocks * power_sum

    @property
    def rms_low(self) -> float:
        """Smallest possible RMS of the output."""
        if self.p <= 2.0:
            return self.constant * float(np.sqrt(self.n_blocks / self.hidden_size))
        return self.constant * self._root_of_blocks / float(np.sqrt(self.hidden_size))

    def witness(self, which: Extreme) -> NDArray[np.float64]:
        """Return a row x of shape [hidden_size] whose output attains the bound ``which``.

        Raises ValueError unless ``which`` is "max_abs", "rms_low" or "rms_high".
        """
        if which not in get_args(Extreme):
            raise ValueError(f"which={which!r}: must be one of {', '.join(get_args(Extreme))}")
        x = np.zeros(self.hidden_size)
        if which == "max_abs" or (which == "rms_low" and self.p > 2.0):
            x[0] = 1.0
        elif which == "rms_low":
            x[:: self.block_size] = 1.0
        elif self.p <= 2.0:
            x[: self.block_size] = 1.0
        else:
            lengths = self.block_lengths
            with np.errstate(under="ignore"):
                levels = (lengths / lengths.max()) ** (1.0 / (self.p - 2.0))
            x[:] = np.repeat(levels, lengths)
        return x

    @property
    def _root_of_blocks(self) -> float:
        """K^(1/p)."""
        with np.errstate(over="ignore"):
            return float(np.float64(self.n_blocks) ** (1.0 / self.p))

    @property
    def _last_length(self) -> int:
        return self.hidden_size - (self.n_blocks - 1) * self.block_size


def output_bounds(
    distribution: Any = "gaussian", *, p: float = 2.0, block_size: int = 32, hidden_size: int
) -> OutputBounds:
    """Bounds of MXNorm's output when c̃ is the one of ``distribution``.

    At hidden_size 4096, block_size 32, Gaussian, the largest output is 300.4 for p=1 and 27.0 for
    p=2; RMSNorm's is √4096 = 64.

    Raises
    ------
    ValueError, TypeError
        As :func:`mxstats.constant`, for scalars; K^(1/p) beyond double precision.
    """
    dist = as_distribution(distribution)
    exponent, size, width = (
        check_p(p, dist),
        check_block_size(block_size),
        check_hidden_size(hidden_size),
    )
    for name, value in (("p", exponent), ("block_size", size), ("hidden_size", width)):
        if np.ndim(value):
            raise TypeError(f"{name} must be one number, got {value.tolist()}")
    value = constant(dist, p=p, block_size=block_size, hidden_size=hidden_size)
    if np.log(int(n_blocks(width, size))) / float(exponent) > 700.0:
        raise ValueError(
            f"p={float(exponent):g}: K^(1/p) is beyond double precision; use a larger p"
        )
    c, stderr = value if isinstance(value, Estimate) else (value, 0.0)
    return OutputBounds(float(exponent), int(size), int(width), float(c), float(stderr))
