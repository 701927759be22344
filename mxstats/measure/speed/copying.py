"""A copy of the same bytes: the fastest that anything reading and writing as much could be.

The kernel reads R bytes and writes W bytes an element, R and W whole numbers, as an operation does
that turns bfloat16 rows into codes (R = 2, W = 1). What remains, scales and ρ̃, is written too, a
piece by each program. There is no arithmetic but the exclusive or that makes every load count. The
fastest of several block sizes, warps and store policies is the ceiling.
"""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
import triton
import triton.language as tl

from mxstats.measure.speed.timing import Pass, captured, race
from mxstats.measure.speed.traffic import Traffic

# Words of four bytes a stream and program; warps; how a store leaves the cache.
_WORDS = (1024, 2048, 4096, 8192)
_WARPS = (4, 8)
_STORES = ("", ".cs")


@triton.jit
def _copy_kernel(
    source,
    target,
    rest,
    n_words,
    rest_words,
    rest_piece,
    READS: tl.constexpr,
    WRITES: tl.constexpr,
    WORDS: tl.constexpr,
    REST: tl.constexpr,
    STORE: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, WORDS)
    at = program * (WORDS * READS) + lane
    value = tl.load(source + at, mask=at < n_words * READS, other=0)
    for stream in tl.static_range(1, READS):
        more = at + stream * WORDS
        value ^= tl.load(source + more, mask=more < n_words * READS, other=0)
    to = program * (WORDS * WRITES) + lane
    for stream in tl.static_range(WRITES):
        also = to + stream * WORDS
        tl.store(target + also, value, mask=also < n_words * WRITES, cache_modifier=STORE)
    piece = tl.arange(0, REST)
    to = program * rest_piece + piece
    tl.store(rest + to, piece, mask=(piece < rest_piece) & (to < rest_words))


@dataclass(frozen=True)
class CopyPlan:
    """What :func:`copy_bytes` moves: whole bytes an element, and the rest in words of four."""

    n_words: int
    reads: int
    writes: int
    rest_words: int

    @property
    def total(self) -> int:
        """Bytes moved."""
        return 4 * (self.n_words * (self.reads + self.writes) + self.rest_words)


def copy_plan(traffic: Traffic, elements: int) -> CopyPlan:
    """Return the plan that moves the bytes of ``traffic``, of an operation on so many elements.

    The total is that of ``traffic``, rounded up to four bytes. Raises ValueError where less than a
    byte an element is read or written.
    """
    reads, writes = traffic.read // elements, traffic.written // elements
    if reads < 1 or writes < 1 or elements % 4:
        raise ValueError(
            f"elements={elements}: must be a multiple of 4, and at most the bytes read "
            f"({traffic.read}) and written ({traffic.written})"
        )
    rest = traffic.total - (reads + writes) * elements
    return CopyPlan(elements // 4, reads, writes, -(-rest // 4))


def buffers(plan: CopyPlan, device: torch.device | str) -> tuple[torch.Tensor, ...]:
    """Return source (random), target and rest for one copy, int32."""
    source = torch.empty(plan.n_words * plan.reads, dtype=torch.int32, device=device)
    return (
        source.random_(-(2**31), 2**31),
        source.new_empty(plan.n_words * plan.writes),
        source.new_empty(max(plan.rest_words, 1)),
    )


def copy_bytes(
    plan: CopyPlan,
    held: tuple[torch.Tensor, ...],
    *,
    words: int = 2048,
    warps: int = 8,
    store: str = "",
) -> None:
    """Read the source and write target and rest."""
    source, target, rest = held
    programs = triton.cdiv(plan.n_words, words)
    # Of whole 16-byte stores; the last programs may have none left to write.
    piece = 4 * triton.cdiv(triton.cdiv(plan.rest_words, programs), 4)
    _copy_kernel[(programs,)](
        source, target, rest, plan.n_words, plan.rest_words, piece,
        READS=plan.reads, WRITES=plan.writes, WORDS=words,
        REST=triton.next_power_of_2(max(piece, 1)), STORE=store, num_warps=warps,
    )  # fmt: skip


def fastest_copy(plan: CopyPlan, sets: Sequence[tuple[torch.Tensor, ...]]) -> Pass:
    """Return the captured pass of the fastest of all block sizes, warps and store policies."""
    passes = {}
    for words, warps, store in product(_WORDS, _WARPS, _STORES):
        call = partial(_copy_held, plan, words, warps, store)
        passes[f"{words}, {warps}, {store}"] = captured(call, sets)
    times = race(passes, rounds=8, warm_up=2)
    return passes[min(times, key=lambda name: times[name].median)]


def _copy_held(
    plan: CopyPlan, words: int, warps: int, store: str, held: tuple[torch.Tensor, ...]
) -> None:
    copy_bytes(plan, held, words=words, warps=warps, store=store)


def torch_copy(total: int, n: int, device: torch.device) -> Pass:
    """Return a captured pass of torch's own copy that reads and writes total/2 bytes each."""
    sets = [
        torch.empty(2, total // 2, dtype=torch.uint8, device=device).random_(0, 256)
        for _ in range(n)
    ]

    def call(pair: torch.Tensor) -> None:
        pair[0].copy_(pair[1])

    return captured(call, sets)
