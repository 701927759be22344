"""One cell of a simulation: what is drawn, how it is cut, and the exact values that scale it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mxstats.theory.arguments import check_block_size, check_hidden_size, check_p, n_blocks
from mxstats.theory.block_maximum import log_moment
from mxstats.theory.constant import log_constant
from mxstats.theory.distributions import Distribution, Samples, distribution

Array = NDArray[np.float64]

LARGEST_ROW = 2**20
SMALLEST_P = 1e-6


@dataclass(frozen=True, eq=False)
class Cell:
    """A distribution, exponents p, a block and a row length, and the exact c̃ and E[m^p] (rms = 1).

    Where the row is shorter than a block it is one full block of its own length.
    """

    dist: Distribution | Samples
    p: tuple[float, ...]
    block_size: int
    hidden_size: int
    log_constant: Array
    """ln c̃ for this block and hidden size, shape [P]."""
    mean_power: Array
    """E[m^p] of a full block, shape [P]."""

    @property
    def n_blocks(self) -> int:
        """K = ⌈D/B⌉."""
        return int(n_blocks(self.hidden_size, self.block_size))

    @property
    def n_full(self) -> int:
        """Number of full blocks, ⌊D/B⌋."""
        return self.hidden_size // self.block_size

    @property
    def block_lengths(self) -> NDArray[np.int64]:
        """n_k, shape [K]; the last may be short."""
        lengths = np.full(self.n_blocks, self.block_size)
        lengths[-1] = self.hidden_size - (self.n_blocks - 1) * self.block_size
        return lengths


def make_cell(dist: Any, p: ArrayLike, block_size: int, hidden_size: int) -> Cell:
    """Check the arguments of :func:`mxstats.simulate` that describe the rows, and make the cell.

    Raises ValueError and TypeError as :func:`mxstats.constant`, for p a number or a sequence of
    them and the other arguments one number each.
    """
    dist = distribution(dist)
    exponents = check_p(p, dist)
    if exponents.ndim > 1:
        raise TypeError(f"p must be a number or a sequence of numbers, got {exponents.tolist()}")
    for value in exponents.flat:
        if value < SMALLEST_P:
            raise ValueError(
                f"p={value:g}: m^p is 1 to all digits; a simulation needs p of at least "
                f"{SMALLEST_P:g}"
            )
    block = scalar("block_size", check_block_size(block_size))
    width = scalar("hidden_size", check_hidden_size(hidden_size))
    if width > LARGEST_ROW:
        raise ValueError(
            f"hidden_size={width}: must be at most {LARGEST_ROW} (2^20), for a row is held in "
            f"memory whole"
        )
    block = min(block, width)
    exponents = np.atleast_1d(exponents)
    with np.errstate(over="ignore"):
        mean_power = np.exp(log_moment(dist, exponents, np.asarray(block)))
    return Cell(
        dist=dist,
        p=tuple(exponents.tolist()),
        block_size=block,
        hidden_size=width,
        log_constant=log_constant(dist, exponents, block, width),
        mean_power=mean_power,
    )


def scalar(name: str, value: NDArray[np.int64]) -> int:
    """Return a checked array of no dimensions as an int; TypeError for any other."""
    if value.ndim:
        raise TypeError(f"{name} must be one number, got {value.tolist()}")
    return int(value)
