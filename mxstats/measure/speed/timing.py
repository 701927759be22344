"""Times of GPU work by CUDA events: medians and spread, contenders taking turns.

A pass calls a function once for each of several input sets. The sets together are several times the
L2 cache and every call's output stays alive until the pass ends, so that neither reads nor writes
are served from the cache. A captured pass is one CUDA graph: the time a call is the GPU's alone. A
launched pass is the same calls made from Python: where the CPU is the slower, its time shows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

# Several times the cache, so that a set's data is gone when its turn comes again.
_CACHES_A_PASS = 4
# Enough calls a pass that the half microsecond of an event is nothing.
_FEWEST_SETS = 8
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Times:
    """Microseconds a call: the median of the passes, their 5 % and 95 % points."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Pass:
    """``run()`` calls the function ``launches`` times; ``outputs`` are those of a captured pass.

    ``inputs`` are kept for it: a graph holds addresses alone, and the next capture gives memory
    that nobody holds back to the device.
    """

    run: Callable[[], Any]
    launches: int
    outputs: tuple[torch.Tensor, ...] = ()
    inputs: Any = None


def n_sets(bytes_a_set: int, l2_bytes: int) -> int:
    """Number of input sets: at least 8, and together at least 4 times the cache."""
    return max(_FEWEST_SETS, -(-_CACHES_A_PASS * l2_bytes // bytes_a_set))


def captured(call: Callable[[Any], Any], sets: Sequence[Any]) -> Pass:
    """Return a pass over ``sets`` as one CUDA graph, the function warmed up before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call(sets[0])
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = [call(one) for one in sets]
    return Pass(graph.replay, len(sets), tuple(tensors(outputs)), (call, sets))


def launched(call: Callable[[Any], Any], sets: Sequence[Any]) -> Pass:
    """Return a pass over ``sets`` launched call by call."""
    return Pass(lambda: [call(one) for one in sets], len(sets))


def race(passes: Mapping[str, Pass], *, rounds: int = 40, warm_up: int = 4) -> dict[str, Times]:
    """Time passes in turn, round after round, so that clocks and heat treat them alike.

    Captured passes race apart from launched ones: behind a pass that waits for the CPU the GPU is
    idle when the next begins, and would wait for its graph.
    """
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in passes}
    for at in range(warm_up + rounds):
        for name, one in passes.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            one.run()
            end.record()
            if at >= warm_up:
                events[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: summary([1e3 * a.elapsed_time(b) / passes[name].launches for a, b in pairs])
        for name, pairs in events.items()
    }


def summary(samples: Sequence[float]) -> Times:
    """Return the median and the 5 % and 95 % points of samples in microseconds."""
    low, median, high = np.quantile(np.asarray(samples, dtype=np.float64), (0.05, 0.5, 0.95))
    return Times(float(median), float(low), float(high))


def unwritten(one: Pass) -> int:
    """Number of output elements that a captured pass leaves as they were poisoned.

    The poison is all bits set: NaN as a float, an E4M3 code or an E8M0 scale, so that no element of
    a finite result has it.
    """
    views = [t.view(_INTEGERS[t.element_size()]) for t in one.outputs]
    for view in views:
        view.fill_(-1)
    one.run()
    return sum(int((view == -1).sum()) for view in views)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples and lists, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from tensors(one)
