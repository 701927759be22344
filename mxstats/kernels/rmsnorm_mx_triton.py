"""RMSNorm with weights and its cast as one Triton kernel: a row is read, held, and written.

A program holds some rows in registers, in pieces [rows, blocks, block_size] of the input's dtype,
and γ; it may go from row to row while the next are on their way. Rows above 16,384 are read twice,
the second time out of the cache.
"""

# In a kernel a constexpr is the value it holds, which pyright cannot know.
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportPossiblyUnboundVariable=false, reportUnboundVariable=false

from functools import cache

import torch
import triton
import triton.language as tl

from mxstats.kernels.backend import has_fp8_cast
from mxstats.kernels.cast_jit import (
    absmax_bits,
    encode_blocks,
    round_to,
    scale_code,
    store_scales,
    to_float32,
)
from mxstats.kernels.launching import start, trait
from mxstats.kernels.rmsnorm_mx_plan import Cut, cut, piece_blocks
from mxstats.kernels.spec import CastSpec
from mxstats.kernels.tiling import LONGEST_IN_REGISTERS, padded_width

# Sums of squares that float32 can have lost something of: those below, and infinite ones.
_SMALLEST_SUM = tl.constexpr(2.0**-80)


def launch(
    outputs: list[torch.Tensor],
    x: torch.Tensor,
    gamma: torch.Tensor,
    residual: torch.Tensor | None,
    tensor_scale: torch.Tensor | None,
    spec: CastSpec,
    eps: float,
    blocked: bool,
    tuned: Cut | None = None,
) -> None:
    """Fill [codes, scales, ρ], and the sum where there is a residual.

    x is [rows, D] with last stride 1, the outputs are contiguous; nothing is checked.
    """
    rows, hidden_size = x.shape
    if rows == 0:
        return
    chosen = tuned
    if chosen is None:
        plain = residual is None and not blocked
        chosen = cut(hidden_size, spec.block_size, x.element_size(), plain)
    blocks = piece_blocks(hidden_size, spec.block_size)
    n_blocks = spec.n_blocks(hidden_size)
    # The blocked layout has rows and columns of padding, which are written too.
    written = -(-n_blocks // 4) * 4 if blocked else n_blocks
    covered = -(-rows // 128) * 128 if blocked else rows
    strides = (x.stride(0), 0 if residual is None else residual.stride(0))
    constants = (
        hidden_size,
        spec,
        chosen.rows,
        -(-written // blocks),
        blocks,
        padded_width(hidden_size, spec.block_size),
        hidden_size <= LONGEST_IN_REGISTERS,
        chosen.num_stages,
        blocked,
        has_fp8_cast(x.device),
    )
    programs = -(-covered // chosen.rows)
    if chosen.programs:
        programs = min(programs, chosen.programs * _processors(x.device))
    total = None if residual is None else outputs[3]
    traits = (trait(x), trait(gamma), trait(residual), trait(tensor_scale))
    start(
        _kernel,
        programs,
        (
            x, gamma, residual, tensor_scale, *outputs[:3], total, rows, covered, *strides, eps,
            *constants,
        ),
        ("rmsnorm_mx", chosen, constants, strides, traits, rows >> 31),
        x.device,
        num_warps=chosen.num_warps,
    )  # fmt: skip


@cache
def _processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; some few elsewhere."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit(do_not_specialize=["rows", "covered"])
def _kernel(
    x,
    gamma,
    residual,
    tensor_scale,
    codes,
    scales,
    rho_out,
    total_out,
    rows,
    covered,
    x_stride,
    residual_stride,
    eps,
    HIDDEN_SIZE: tl.constexpr,
    SPEC: tl.constexpr,
    ROWS: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr,
    RESIDENT: tl.constexpr,
    STAGES: tl.constexpr,
    BLOCKED: tl.constexpr,
    HARDWARE: tl.constexpr,
):
    g = 1.0
    if SPEC.has_tensor_scale:
        g = tl.load(tensor_scale)
    # Programs that see many rows hold γ as well.
    if RESIDENT and STAGES > 1:
        weights = ()
        for piece in tl.static_range(COUNT):
            weights += (_weight(gamma, piece, HIDDEN_SIZE, SPEC, BLOCKS, WIDTH),)
    step = tl.num_programs(0) * ROWS
    for first in tl.range(tl.program_id(0) * ROWS, covered, step, num_stages=STAGES):
        row = first + tl.arange(0, ROWS)
        if RESIDENT:
            kept = ()
            for piece in tl.static_range(COUNT):
                part = _load(
                    x, residual, total_out, row, piece, rows, x_stride, residual_stride,
                    HIDDEN_SIZE, SPEC, BLOCKS, WIDTH, BLOCKED, HARDWARE,
                )  # fmt: skip
                if piece == 0:
                    squares = _squares(part)
                else:
                    squares += _squares(part)
                kept += (part,)
            total = _total(squares)
            if part.dtype != tl.float32:
                known = _is_known(total)
                if tl.min(known.to(tl.int32), 0) == 0:
                    total = tl.where(known, total, _exact_total(kept, COUNT))
        else:
            # Zeros of the right kind: squares of what lies beyond the row.
            squares = _squares(
                _load(
                    x, residual, None, row, COUNT, rows, x_stride, residual_stride,
                    HIDDEN_SIZE, SPEC, BLOCKS, WIDTH, BLOCKED, HARDWARE,
                )
            )  # fmt: skip
            exact = tl.zeros((ROWS, BLOCKS), tl.float64)
            for piece in range(COUNT):
                part = _load(
                    x, residual, total_out, row, piece, rows, x_stride, residual_stride,
                    HIDDEN_SIZE, SPEC, BLOCKS, WIDTH, BLOCKED, HARDWARE,
                )  # fmt: skip
                squares += _squares(part)
                wide = to_float32(part).to(tl.float64)
                exact += tl.sum(wide * wide, 2)
            total = _total(squares)
            total = tl.where(_is_known(total), total, tl.sum(exact, 1))
        # tl.sqrt and / of float64 are the IEEE ones.
        epsilon = tl.full((ROWS,), eps, tl.float32).to(tl.float64)
        root = tl.sqrt(total / HIDDEN_SIZE + epsilon)
        # A row that holds an infinity has no rms either.
        rho = tl.where(total < float("inf"), 1.0 / root, float("nan")).to(tl.float32)
        tl.store(rho_out + row, rho, mask=row < rows)
        if RESIDENT:
            for piece in tl.static_range(COUNT):
                if STAGES > 1:
                    weight = weights[piece]
                else:
                    weight = _weight(gamma, piece, HIDDEN_SIZE, SPEC, BLOCKS, WIDTH)
                _finish(
                    kept[piece], rho, weight, g, codes, scales, row, piece, rows,
                    HIDDEN_SIZE, SPEC, BLOCKS, WIDTH, BLOCKED, HARDWARE,
                )  # fmt: skip
        else:
            for piece in range(COUNT):
                part = _load(
                    x, residual, None, row, piece, rows, x_stride, residual_stride,
                    HIDDEN_SIZE, SPEC, BLOCKS, WIDTH, BLOCKED, HARDWARE,
                )  # fmt: skip
                weight = _weight(gamma, piece, HIDDEN_SIZE, SPEC, BLOCKS, WIDTH)
                _finish(
                    part, rho, weight, g, codes, scales, row, piece, rows,
                    HIDDEN_SIZE, SPEC, BLOCKS, WIDTH, BLOCKED, HARDWARE,
                )  # fmt: skip


@triton.jit
def _columns(
    piece, HIDDEN_SIZE: tl.constexpr, SPEC: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr
):
    """Columns [BLOCKS, block] of a piece, and where they are of the row."""
    block = piece * BLOCKS + tl.arange(0, BLOCKS)
    lane = tl.arange(0, WIDTH)
    column = block[:, None] * SPEC.block_size + lane[None, :]
    return column, (lane[None, :] < SPEC.block_size) & (column < HIDDEN_SIZE)


@triton.jit
def _weight(
    gamma, piece, HIDDEN_SIZE: tl.constexpr, SPEC: tl.constexpr, BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """γ of a piece."""
    column, inside = _columns(piece, HIDDEN_SIZE, SPEC, BLOCKS, WIDTH)
    return tl.load(gamma + column, mask=inside, other=0.0)


@triton.jit
def _load(
    x, residual, total_out, row, piece, rows, x_stride, residual_stride,
    HIDDEN_SIZE: tl.constexpr, SPEC: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCKED: tl.constexpr, HARDWARE: tl.constexpr,
):  # fmt: skip
    """A piece [ROWS, BLOCKS, block] of x, or of the sum, which is stored where it has a place."""
    column, inside = _columns(piece, HIDDEN_SIZE, SPEC, BLOCKS, WIDTH)
    wide_row = row[:, None, None].to(tl.int64)
    mask = inside[None, :, :]
    if row.shape[0] > 1 or BLOCKED:
        mask = mask & (row < rows)[:, None, None]
    part = tl.load(x + (wide_row * x_stride + column[None, :, :]), mask=mask, other=0.0)
    if residual is not None:
        at = residual + (wide_row * residual_stride + column[None, :, :])
        added = to_float32(tl.load(at, mask=mask, other=0.0))
        part = round_to(to_float32(part) + added, part.dtype, HARDWARE)
        if total_out is not None:
            tl.store(total_out + (wide_row * HIDDEN_SIZE + column[None, :, :]), part, mask=mask)
    return part


@triton.jit
def _squares(part):
    """x²: exact in float32 for bf16 and fp16 within its range, in float64 for float32."""
    wide = to_float32(part)
    if part.dtype == tl.float32:
        wide = wide.to(tl.float64)
    return wide * wide


@triton.jit
def _total(squares):
    """Their sum over a row, float64, rounded to its last bits whatever the order."""
    return tl.sum(tl.sum(squares.to(tl.float64), 2), 1)


@triton.jit
def _is_known(total):
    """Whether squares in float32 cannot have lost what counts."""
    return (total >= _SMALLEST_SUM) & (total < float("inf"))


@triton.jit
def _exact_total(kept, COUNT: tl.constexpr):
    """Σ x² of the rows, all in float64."""
    for piece in tl.static_range(COUNT):
        wide = to_float32(kept[piece]).to(tl.float64)
        part = tl.sum(wide * wide, 2)
        if piece == 0:
            exact = part
        else:
            exact += part
    return tl.sum(exact, 1)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _finish(
    part, rho, weight, tensor_scale, codes, scales, row, piece, rows,
    HIDDEN_SIZE: tl.constexpr, SPEC: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr,
    BLOCKED: tl.constexpr, HARDWARE: tl.constexpr,
):  # fmt: skip
    """Normalise, weigh and quantise a piece."""
    column, inside = _columns(piece, HIDDEN_SIZE, SPEC, BLOCKS, WIDTH)
    y = rho[:, None, None] * to_float32(part) * to_float32(weight)[None, :, :]
    if HARDWARE:
        # One instruction an element; the interpreter has no fast way to it.
        absmax = tl.reduce(tl.abs(y), 2, _larger)
    else:
        absmax = absmax_bits(y, 2).to(tl.float32, bitcast=True)
    code = scale_code(absmax, tensor_scale, SPEC)
    out = row[:, None, None].to(tl.int64) * HIDDEN_SIZE + column[None, :, :]
    mask = inside[None, :, :]
    if row.shape[0] > 1 or BLOCKED:
        mask = mask & (row < rows)[:, None, None]
    tl.store(codes + out, encode_blocks(y, code, tensor_scale, 2, SPEC, HARDWARE, False), mask=mask)
    block = piece * BLOCKS + tl.arange(0, BLOCKS)
    K: tl.constexpr = (HIDDEN_SIZE + SPEC.block_size - 1) // SPEC.block_size
    store_scales(scales, code, row[:, None], block[None, :], rows, K, True, BLOCKED)
