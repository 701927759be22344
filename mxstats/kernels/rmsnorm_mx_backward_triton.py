"""The gradient of RMSNorm with weights as one Triton kernel and one reduction.

A program takes every n-th group of rows. It holds dy and x of a group in registers, in chunks
[rows, columns], and a sum of its dγ, which the reduction adds up over programs. Rows above 16,384
are read twice and keep that sum in global memory.
"""

# In a kernel a constexpr is the value it holds, which pyright cannot know.
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from functools import cache, lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from mxstats.kernels.arguments import row_chunks
from mxstats.kernels.backend import has_fp8_cast
from mxstats.kernels.cast_jit import round_to, to_float32

# Up to this hidden size a row stays in registers.
_RESIDENT = 16_384
# Elements of a program's tile below which it takes several rows.
_TILE = 2048
# Columns are dealt out in pieces that a thread or a few read in one go.
_PIECE = 32


def launch(
    dy: torch.Tensor,
    x: torch.Tensor,
    rho: torch.Tensor,
    gamma: torch.Tensor,
    d_residual: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return dx and dγ; all that is [rows, D] has last stride 1, and nothing is checked."""
    rows, hidden_size = x.shape
    dx = torch.empty((rows, hidden_size), dtype=x.dtype, device=x.device)
    if rows == 0:
        return dx, torch.zeros(hidden_size, dtype=torch.float32, device=x.device)
    plan = _plan(hidden_size)
    programs = min(-(-rows // plan.rows), _programs(x.device, plan))
    make = torch.empty if plan.resident else torch.zeros
    partial = make((programs, hidden_size), dtype=torch.float32, device=x.device)
    _kernel[(programs,)](
        dy,
        x,
        rho,
        gamma,
        d_residual,
        dx,
        partial,
        rows,
        dy.stride(0),
        x.stride(0),
        0 if d_residual is None else d_residual.stride(0),
        HIDDEN_SIZE=hidden_size,
        ROWS=plan.rows,
        CHUNKS=plan.chunks,
        WIDTH=plan.width,
        RESIDENT=plan.resident,
        HARDWARE=has_fp8_cast(x.device),
        num_warps=plan.warps,
    )
    return dx, partial.sum(0)


class _Plan(NamedTuple):
    rows: int
    chunks: int
    width: int
    resident: bool
    warps: int


@lru_cache
def _plan(hidden_size: int) -> _Plan:
    """How a program holds a group of rows: at least 8 elements of a chunk a thread, at most 48."""
    chunks, pieces = row_chunks(-(-hidden_size // _PIECE))
    width = pieces * _PIECE
    resident = hidden_size <= _RESIDENT
    whole = width * (chunks if resident else 1)
    rows = 1 << (max(1, _TILE // whole).bit_length() - 1)
    if chunks == 1 or not resident:
        warps = rows * width // 512
    else:
        warps = max(rows * width // 256, 1 << (-(-rows * whole // 1536) - 1).bit_length())
    return _Plan(rows, chunks, width, resident, min(16, max(1, warps)))


@cache
def _programs(device: torch.device, plan: _Plan) -> int:
    """Programs that a GPU runs at a time, by the registers they take; some few elsewhere."""
    if device.type != "cuda":
        return 8
    elements = plan.rows * plan.width * plan.chunks // (32 * plan.warps)
    resident_warps = 24 if elements <= 16 else 16 if elements <= 32 else 12
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return processors * max(1, resident_warps // plan.warps)


@triton.jit(do_not_specialize=["rows"])
def _kernel(
    dy_ptr,
    x_ptr,
    rho_ptr,
    gamma_ptr,
    d_residual_ptr,
    dx_ptr,
    partial_ptr,
    rows,
    dy_stride,
    x_stride,
    d_residual_stride,
    HIDDEN_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNKS: tl.constexpr,
    WIDTH: tl.constexpr,
    RESIDENT: tl.constexpr,
    HARDWARE: tl.constexpr,
):
    program = tl.program_id(0)
    sums = ()
    if RESIDENT:
        for _ in tl.static_range(CHUNKS):
            sums += (tl.zeros((ROWS, WIDTH), tl.float32),)
    for first in range(program * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)
        rho = tl.load(rho_ptr + row, mask=row < rows, other=0.0)
        projection = tl.zeros((ROWS,), tl.float32)
        if RESIDENT:
            gradients = ()
            values = ()
            new_sums = ()
            for chunk in tl.static_range(CHUNKS):
                dy = _load(dy_ptr, dy_stride, row, chunk, rows, HIDDEN_SIZE, WIDTH)
                x = _load(x_ptr, x_stride, row, chunk, rows, HIDDEN_SIZE, WIDTH)
                contribution, product = _products(dy, x, rho, gamma_ptr, chunk, HIDDEN_SIZE, WIDTH)
                new_sums += (sums[chunk] + contribution,)
                projection += product
                gradients += (dy,)
                values += (x,)
            sums = new_sums
            projection = projection / HIDDEN_SIZE
            for chunk in tl.static_range(CHUNKS):
                _store(
                    gradients[chunk], values[chunk], rho, projection, gamma_ptr, d_residual_ptr,
                    d_residual_stride, dx_ptr, row, chunk, rows, HIDDEN_SIZE, WIDTH, HARDWARE,
                )  # fmt: skip
        else:
            for chunk in range(CHUNKS):
                dy = _load(dy_ptr, dy_stride, row, chunk, rows, HIDDEN_SIZE, WIDTH)
                x = _load(x_ptr, x_stride, row, chunk, rows, HIDDEN_SIZE, WIDTH)
                contribution, product = _products(dy, x, rho, gamma_ptr, chunk, HIDDEN_SIZE, WIDTH)
                projection += product
                at = partial_ptr + program.to(tl.int64) * HIDDEN_SIZE + chunk * WIDTH
                column = tl.arange(0, WIDTH)
                inside = chunk * WIDTH + column < HIDDEN_SIZE
                so_far = tl.load(at + column, mask=inside, other=0.0)
                tl.store(at + column, so_far + tl.sum(contribution, 0), mask=inside)
            # The sums are read back for the next rows.
            tl.debug_barrier()
            projection = projection / HIDDEN_SIZE
            for chunk in range(CHUNKS):
                dy = _load(dy_ptr, dy_stride, row, chunk, rows, HIDDEN_SIZE, WIDTH)
                x = _load(x_ptr, x_stride, row, chunk, rows, HIDDEN_SIZE, WIDTH)
                _store(
                    dy, x, rho, projection, gamma_ptr, d_residual_ptr,
                    d_residual_stride, dx_ptr, row, chunk, rows, HIDDEN_SIZE, WIDTH, HARDWARE,
                )  # fmt: skip
    if RESIDENT:
        for chunk in tl.static_range(CHUNKS):
            column = chunk * WIDTH + tl.arange(0, WIDTH)
            tl.store(
                partial_ptr + program.to(tl.int64) * HIDDEN_SIZE + column,
                tl.sum(sums[chunk], 0),
                mask=column < HIDDEN_SIZE,
            )


@triton.jit
def _load(pointer, stride, row, chunk, rows, HIDDEN_SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """A chunk [ROWS, WIDTH] in its own dtype."""
    column = chunk * WIDTH + tl.arange(0, WIDTH)
    mask = (row < rows)[:, None] & (column < HIDDEN_SIZE)[None, :]
    return tl.load(pointer + (row[:, None].to(tl.int64) * stride + column[None, :]), mask, 0.0)


@triton.jit
def _gamma(gamma_ptr, chunk, HIDDEN_SIZE: tl.constexpr, WIDTH: tl.constexpr):
    column = chunk * WIDTH + tl.arange(0, WIDTH)
    return to_float32(tl.load(gamma_ptr + column, column < HIDDEN_SIZE, 0.0))[None, :]


@triton.jit
def _products(dy, x, rho, gamma_ptr, chunk, HIDDEN_SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """What a chunk adds to dγ, [ROWS, WIDTH], and to Σ g·x̂, [ROWS]."""
    contribution = to_float32(dy) * (rho[:, None] * to_float32(x))
    return contribution, tl.sum(contribution * _gamma(gamma_ptr, chunk, HIDDEN_SIZE, WIDTH), 1)


@triton.jit
def _store(
    dy, x, rho, projection, gamma_ptr, d_residual_ptr, d_residual_stride, dx_ptr, row, chunk, rows,
    HIDDEN_SIZE: tl.constexpr, WIDTH: tl.constexpr, HARDWARE: tl.constexpr,
):  # fmt: skip
    """Write dx of a chunk."""
    weighted = to_float32(dy) * _gamma(gamma_ptr, chunk, HIDDEN_SIZE, WIDTH)
    normal = rho[:, None] * to_float32(x)
    dx = rho[:, None] * (weighted - normal * projection[:, None])
    if d_residual_ptr is not None:
        dx += to_float32(
            _load(d_residual_ptr, d_residual_stride, row, chunk, rows, HIDDEN_SIZE, WIDTH)
        )
    column = chunk * WIDTH + tl.arange(0, WIDTH)
    mask = (row < rows)[:, None] & (column < HIDDEN_SIZE)[None, :]
    out = dx_ptr + (row[:, None].to(tl.int64) * HIDDEN_SIZE + column[None, :])
    tl.store(out, round_to(dx, x.dtype, HARDWARE), mask=mask)
