"""Bounds of the output under a weight for each block, r̂² = mean_k w_k m_k², at ε = 0.

m_k²/n_k <= q_k <= m_k² and RMS² = Σ n_k q_k/D, so that with blocks of n_k entries

    largest |y|       √(K/min w)                    one spike in the lightest block
    largest RMS(y)    √(max_k K n_k/(D w_k))        one block of equal magnitudes
    smallest RMS(y)   √(min_k K/(D w_k))            one spike in the heaviest block

Weights of at least K/D, which is 1/B where B divides D, keep RMSNorm's own bound, √D.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxstats.measure.blocks import block_lengths

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WeightedBounds:
    """As :class:`mxstats.theory.OutputBounds`, of weights in place of a constant; p is 2."""

    block_size: int
    hidden_size: int
    weights: Array
    """[K], each above 0."""
    p: float = 2.0

    def __post_init__(self) -> None:
        weights = np.asarray(self.weights, dtype=np.float64)
        wanted = -(-self.hidden_size // self.block_size)
        if weights.shape != (wanted,):
            raise ValueError(
                f"weights have shape {weights.shape}; [{wanted}] is needed for hidden_size="
                f"{self.hidden_size} in blocks of {self.block_size}"
            )
        bad = np.flatnonzero(~((weights > 0.0) & np.isfinite(weights)))
        if bad.size:
            raise ValueError(
                f"weights[{bad[0]}]={weights[bad[0]]:g}: every weight must be above 0 and finite"
            )
        object.__setattr__(self, "weights", weights)

    @property
    def n_blocks(self) -> int:
        """K = ⌈D/B⌉."""
        return self.weights.size

    @property
    def max_abs(self) -> float:
        """Largest possible |y_i|."""
        return float(np.sqrt(self.n_blocks / self.weights.min()))

    @property
    def rms_high(self) -> float:
        """Largest possible RMS of the output."""
        lengths = block_lengths(self.block_size, self.hidden_size)
        return float(np.sqrt(self.n_blocks / self.hidden_size * (lengths / self.weights).max()))

    @property
    def rms_low(self) -> float:
        """Smallest possible RMS of the output."""
        return float(np.sqrt(self.n_blocks / self.hidden_size / self.weights.max()))
