"""The gradient of RMSNorm with weights as one Triton kernel and one reduction.

A program takes every n-th group of rows. It holds dy and x of a group in registers, in chunks
[rows, columns], and a sum of its dγ, which the reduction adds up over programs; the next rows are
on their way meanwhile. Rows above 16,384 are read twice and keep that sum in global memory.
"""

# In a kernel a constexpr is the value it holds, which pyright cannot know.
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportPossiblyUnboundVariable=false, reportUnboundVariable=false

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from mxstats.kernels.backend import has_fp8_cast
from mxstats.kernels.cast_jit import round_to, to_float32
from mxstats.kernels.launching import empty_like_rows, start, trait
from mxstats.kernels.mxnorm_backward_triton import widened
from mxstats.kernels.tiling import power_of_two

# Up to this hidden size a row stays in registers.
_RESIDENT = 16_384
# Elements of a program's tile below which it takes several rows; of a tile of a longer row.
_TILE, _LONG_TILE = 2048, 4096
# Elements of a tile that a warp works on, 8 a thread.
_WARP_ELEMENTS = 256
# Bytes of rows on their way that a multiprocessor has room for.
_ON_THE_WAY = 160_000


def launch(
    dy: torch.Tensor,
    x: torch.Tensor,
    rho: torch.Tensor,
    gamma: torch.Tensor,
    d_residual: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return dx and dγ; all that is [rows, D] has last stride 1, and nothing is checked."""
    rows, hidden_size = x.shape
    dx = empty_like_rows(x, x.dtype)
    if rows == 0:
        return dx, torch.zeros(hidden_size, dtype=torch.float32, device=x.device)
    size = dy.element_size() + x.element_size()
    if d_residual is not None:
        size += d_residual.element_size()
    plan = _plan(hidden_size, size)
    programs = min(-(-rows // plan.rows), _processors(x.device) * plan.programs)
    make = torch.empty if plan.resident else torch.zeros
    partial = make((programs, hidden_size), dtype=torch.float32, device=x.device)
    strides = (dy.stride(0), x.stride(0), 0 if d_residual is None else d_residual.stride(0))
    constants = (
        hidden_size,
        plan.rows,
        plan.chunks,
        plan.width,
        plan.resident,
        plan.stages,
        has_fp8_cast(x.device),
    )
    traits = (trait(dy), trait(x), trait(rho), trait(gamma), trait(d_residual))
    start(
        _kernel,
        programs,
        (dy, x, rho, gamma, d_residual, dx, partial, rows, *strides, *constants),
        ("rmsnorm_mx_backward", plan, constants, strides, traits, rows >> 31),
        x.device,
        num_warps=plan.warps,
    )
    return dx, partial.sum(0)


class _Plan(NamedTuple):
    rows: int
    chunks: int
    width: int
    resident: bool
    warps: int
    programs: int
    """Programs a multiprocessor: with several rows on their way one is enough for long rows."""
    stages: int
    """Rows on their way at a time, and one more."""


@cache
def _plan(hidden_size: int, bytes_an_element: int) -> _Plan:
    """How a program holds a group of rows, 8 elements of a chunk a thread.

    On an H200, of the copy: at a hidden size of 8192 94 % with two rows on their way, 72 % with
    none; at 16,384, where registers are too few for both rows and γ, 84 % and 91 %.
    """
    resident = hidden_size <= _RESIDENT
    if hidden_size <= _TILE:
        width, programs, stages = power_of_two(hidden_size), 3, 3
    elif hidden_size <= _LONG_TILE:
        width, programs, stages = _LONG_TILE, 1, 4
    elif hidden_size <= 2 * _LONG_TILE:
        width, programs, stages = _TILE, 1, 3
    else:
        width, programs, stages = _LONG_TILE, 1, 3 if hidden_size <= 3 * _LONG_TILE else 1
    rows = max(1, _TILE // width)
    chunks = -(-hidden_size // width)
    if (stages - 1) * programs * rows * chunks * width * bytes_an_element > _ON_THE_WAY:
        stages = 1
    warps = min(16, max(1, rows * width // _WARP_ELEMENTS))
    return _Plan(rows, chunks, width, resident, warps, programs, stages)


@cache
def _processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; some few elsewhere."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


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
    STAGES: tl.constexpr,
    HARDWARE: tl.constexpr,
):
    program = tl.program_id(0)
    partial_ptr += program.to(tl.int64) * HIDDEN_SIZE
    if RESIDENT:
        sums = ()
        weights = ()
        for chunk in tl.static_range(CHUNKS):
            sums += (tl.zeros((ROWS, WIDTH), tl.float32),)
            # Where there is room for rows on their way there is room for γ.
            if STAGES > 1:
                weights += (_gamma(gamma_ptr, chunk, HIDDEN_SIZE, WIDTH),)
    for first in tl.range(program * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        rho = tl.load(rho_ptr + row, mask=row < rows, other=0.0)
        if RESIDENT:
            gradients = ()
            values = ()
            for chunk in tl.static_range(CHUNKS):
                gradients += (_load(dy_ptr, dy_stride, row, chunk, rows, HIDDEN_SIZE, WIDTH),)
                values += (_load(x_ptr, x_stride, row, chunk, rows, HIDDEN_SIZE, WIDTH),)
            new_sums = ()
            for chunk in tl.static_range(CHUNKS):
                if STAGES > 1:
                    weight = weights[chunk]
                else:
                    weight = _gamma(gamma_ptr, chunk, HIDDEN_SIZE, WIDTH)
                contribution = _contribution(gradients[chunk], values[chunk], rho, HARDWARE)
                new_sums += (sums[chunk] + contribution,)
                # Column by column over the chunks, so that one reduction a row is left.
                if chunk == 0:
                    products = contribution * to_float32(weight)
                else:
                    products += contribution * to_float32(weight)
            sums = new_sums
            projection = tl.sum(products, 1) / HIDDEN_SIZE
            for chunk in tl.static_range(CHUNKS):
                if STAGES > 1:
                    weight = weights[chunk]
                else:
                    weight = _gamma(gamma_ptr, chunk, HIDDEN_SIZE, WIDTH)
                _store(
                    gradients[chunk], values[chunk], rho, projection, weight, d_residual_ptr,
                    d_residual_stride, dx_ptr, row, chunk, rows, HIDDEN_SIZE, WIDTH, HARDWARE,
                )  # fmt: skip
        else:
            products = tl.zeros((ROWS, WIDTH), tl.float32)
            for chunk in range(CHUNKS):
                dy = _load(dy_ptr, dy_stride, row, chunk, rows, HIDDEN_SIZE, WIDTH)
                x = _load(x_ptr, x_stride, row, chunk, rows, HIDDEN_SIZE, WIDTH)
                contribution = _contribution(dy, x, rho, HARDWARE)
                products += contribution * to_float32(_gamma(gamma_ptr, chunk, HIDDEN_SIZE, WIDTH))
                column = chunk * WIDTH + tl.arange(0, WIDTH)
                inside = column < HIDDEN_SIZE
                so_far = tl.load(partial_ptr + column, mask=inside, other=0.0)
                tl.store(partial_ptr + column, so_far + tl.sum(contribution, 0), mask=inside)
            # The sums are read back for the next rows.
            tl.debug_barrier()
            projection = tl.sum(products, 1) / HIDDEN_SIZE
            for chunk in range(CHUNKS):
                dy = _load(dy_ptr, dy_stride, row, chunk, rows, HIDDEN_SIZE, WIDTH)
                x = _load(x_ptr, x_stride, row, chunk, rows, HIDDEN_SIZE, WIDTH)
                weight = _gamma(gamma_ptr, chunk, HIDDEN_SIZE, WIDTH)
                _store(
                    dy, x, rho, projection, weight, d_residual_ptr,
                    d_residual_stride, dx_ptr, row, chunk, rows, HIDDEN_SIZE, WIDTH, HARDWARE,
                )  # fmt: skip
    if RESIDENT:
        for chunk in tl.static_range(CHUNKS):
            column = chunk * WIDTH + tl.arange(0, WIDTH)
            tl.store(partial_ptr + column, tl.sum(sums[chunk], 0), mask=column < HIDDEN_SIZE)


@triton.jit
def _load(pointer, stride, row, chunk, rows, HIDDEN_SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """A chunk [ROWS, WIDTH] in its own dtype."""
    column = chunk * WIDTH + tl.arange(0, WIDTH)
    mask = (column < HIDDEN_SIZE)[None, :]
    if row.shape[0] > 1:
        mask = mask & (row < rows)[:, None]
    return tl.load(pointer + (row[:, None].to(tl.int64) * stride + column[None, :]), mask, 0.0)


@triton.jit
def _gamma(gamma_ptr, chunk, HIDDEN_SIZE: tl.constexpr, WIDTH: tl.constexpr):
    column = chunk * WIDTH + tl.arange(0, WIDTH)
    return tl.load(gamma_ptr + column, column < HIDDEN_SIZE, 0.0)[None, :]


@triton.jit
def _contribution(dy, x, rho, HARDWARE: tl.constexpr):
    """What a chunk adds to dγ, [ROWS, WIDTH]."""
    return widened(dy, HARDWARE) * (rho[:, None] * widened(x, HARDWARE))


@triton.jit
def _store(
    dy, x, rho, projection, weight, d_residual_ptr, d_residual_stride, dx_ptr, row, chunk, rows,
    HIDDEN_SIZE: tl.constexpr, WIDTH: tl.constexpr, HARDWARE: tl.constexpr,
):  # fmt: skip
    """Write dx of a chunk."""
    weighted = widened(dy, HARDWARE) * to_float32(weight)
    normal = rho[:, None] * widened(x, HARDWARE)
    dx = rho[:, None] * (weighted - normal * projection[:, None])
    if d_residual_ptr is not None:
        dx += to_float32(
            _load(d_residual_ptr, d_residual_stride, row, chunk, rows, HIDDEN_SIZE, WIDTH)
        )
    column = chunk * WIDTH + tl.arange(0, WIDTH)
    mask = (column < HIDDEN_SIZE)[None, :]
    if row.shape[0] > 1:
        mask = mask & (row < rows)[:, None]
    out = dx_ptr + (row[:, None].to(tl.int64) * HIDDEN_SIZE + column[None, :])
    tl.store(out, round_to(dx, x.dtype, HARDWARE), mask=mask)
