"""Checks of the arguments that every formula shares: p, block_size, hidden_size."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mxstats.theory.distributions import Distribution, Samples

LARGEST_BLOCK = 2**20
# Below it 1/p overflows and p itself has lost digits.
SMALLEST_P = 1e-300


def check_p(p: ArrayLike, dist: Distribution | Samples) -> NDArray[np.float64]:
    """Return p as float64; ValueError unless 0 < p < tail index."""
    values = _numeric("p", p, "a real number above 0")
    for value in values.flat:
        if not 0.0 < value < np.inf:
            raise ValueError(f"p={value:g}: p must be a finite real number above 0")
        if value < SMALLEST_P:
            raise ValueError(f"p={value:g}: p must be at least {SMALLEST_P:g}, a normal double")
        if value >= dist.tail_index:
            raise ValueError(
                f"p={value:g}: E[m^p] is infinite for {dist.name}; p must be below "
                f"{dist.tail_index:g}"
            )
    return values


def check_block_size(block_size: ArrayLike) -> NDArray[np.int64]:
    """Return block_size as int64; ValueError unless it is 1 to 2^20."""
    values = _integer("block_size", block_size)
    for value in values.flat:
        if not 1 <= value <= LARGEST_BLOCK:
            raise ValueError(f"block_size={value}: must be from 1 to {LARGEST_BLOCK} (2^20)")
    return values


def check_hidden_size(hidden_size: ArrayLike) -> NDArray[np.int64]:
    """Return hidden_size as int64; ValueError unless it is positive."""
    return check_count("hidden_size", hidden_size)


def check_count(name: str, value: ArrayLike) -> NDArray[np.int64]:
    """Return a count as int64; ValueError unless every value is at least 1."""
    values = _integer(name, value)
    for one in values.flat:
        if one < 1:
            raise ValueError(f"{name}={one}: must be at least 1")
    return values


def broadcast(**arguments: ArrayLike) -> tuple[NDArray[Any], ...]:
    """Broadcast named arguments; ValueError naming them and their shapes where they do not fit."""
    try:
        return tuple(np.broadcast_arrays(*arguments.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {np.shape(value)}" for name, value in arguments.items())
        raise ValueError(f"these shapes do not broadcast: {shapes}") from None


def n_blocks(hidden_size: ArrayLike, block_size: ArrayLike) -> NDArray[np.int64]:
    """K = ⌈D/B⌉."""
    return -(-np.asarray(hidden_size) // np.asarray(block_size))


def _numeric(name: str, value: ArrayLike, wanted: str) -> NDArray[Any]:
    array = _rectangular(name, value)
    if array.dtype.kind not in "fiu" or array.size == 0:
        raise TypeError(f"{name} must be {wanted}, got {value!r}")
    return array.astype(np.float64)


def _integer(name: str, value: ArrayLike) -> NDArray[np.int64]:
    array = _rectangular(name, value)
    if array.dtype.kind not in "iu" or array.size == 0:
        # Python integers beyond 64 bits arrive as objects.
        shown = "one beyond 64 bits" if array.dtype.kind == "O" else repr(value)
        raise TypeError(f"{name} must be an integer, got {shown}")
    if np.max(array) > np.iinfo(np.int64).max:
        raise ValueError(f"{name}={np.max(array)}: too large for a 64-bit integer")
    return array.astype(np.int64)


def _rectangular(name: str, value: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError:
        raise TypeError(f"{name} must be a number or a rectangular array, got {value!r}") from None
