"""Rows of independent draws, cut into streams that are the same however a run is divided.

A stream is a fixed number of rows, which depends on hidden_size alone. Stream i draws from its own
child of ``SeedSequence(seed)``, the one with spawn key (i,), and is always drawn whole and then
cut. So row j of a seed is the same bits whether ten rows are asked for or ten million, whichever
worker draws it, and however many rows it handles at once; nothing is assumed about how a
distribution uses its generator.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mxstats.theory.distributions import Distribution, Samples

Array = NDArray[np.float64]

# 2 MB of float64: it stays in a core's cache from the draw to the last reduction, and the cost of
# starting a stream (some 20 µs for its seed) is below 1 % of the draws'.
STREAM_VALUES = 2**18


class Stream(NamedTuple):
    """Stream number i of a run, from 0, of which the first ``rows`` rows are used."""

    number: int
    rows: int


def stream_rows(hidden_size: int) -> int:
    """Rows in a whole stream: ⌊2^18 / D⌋, at least 1."""
    return max(1, STREAM_VALUES // hidden_size)


def streams(rows: int, hidden_size: int) -> Iterator[Stream]:
    """Return the streams of a run of ``rows`` rows in order; all but the last are whole."""
    whole = stream_rows(hidden_size)
    return (Stream(start // whole, min(whole, rows - start)) for start in range(0, rows, whole))


def draw(
    dist: Distribution | Samples, seed: np.random.SeedSequence, stream: Stream, hidden_size: int
) -> Array:
    """Rows of one stream at rms = 1, shape [stream.rows, hidden_size], float64.

    Samples give magnitudes, other distributions signed values. ``seed`` may itself be the child of
    another: the stream's number is appended to its spawn key.
    """
    child = np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, stream.number))
    # PCG64 by name: numpy reserves the right to change what default_rng stands for.
    rng = np.random.Generator(np.random.PCG64(child))
    return dist.sample(rng, (stream_rows(hidden_size), hidden_size))[: stream.rows]
