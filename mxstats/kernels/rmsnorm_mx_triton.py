"""RMSNorm with weights and its cast as one Triton kernel: a row is read, held, and written.

A program holds some rows in registers, in chunks [rows, blocks, block_size] of the input's dtype.
Rows above 16,384 are read twice, the second time out of the cache.
"""

# In a kernel a constexpr is the value it holds, which pyright cannot know.
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from dataclasses import replace
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
from mxstats.kernels.spec import CastSpec
from mxstats.kernels.tiling import LONGEST_IN_REGISTERS, Config, config, padded_width


def launch(
    outputs: list[torch.Tensor],
    x: torch.Tensor,
    gamma: torch.Tensor,
    residual: torch.Tensor | None,
    tensor_scale: torch.Tensor | None,
    spec: CastSpec,
    eps: float,
    blocked: bool,
    tuned: Config | None = None,
) -> None:
    """Fill [codes, scales, ρ], and the sum where there is a residual.

    x is [rows, D] with last stride 1, the outputs are contiguous; nothing is checked.
    """
    rows, hidden_size = x.shape
    if rows == 0:
        return
    cut = _config(hidden_size, spec.block_size, x.element_size()) if tuned is None else tuned
    n_blocks = spec.n_blocks(hidden_size)
    # The blocked layout has rows and columns of padding, which are written too.
    written = -(-n_blocks // 4) * 4 if blocked else n_blocks
    covered = -(-rows // 128) * 128 if blocked else rows
    strides = (x.stride(0), 0 if residual is None else residual.stride(0))
    constants = (
        hidden_size,
        spec,
        cut.rows,
        -(-written // cut.blocks),
        cut.blocks,
        hidden_size <= LONGEST_IN_REGISTERS,
        blocked,
        has_fp8_cast(x.device),
    )
    total = None if residual is None else outputs[3]
    traits = (trait(x), trait(gamma), trait(residual), trait(tensor_scale))
    start(
        _kernel,
        -(-covered // cut.rows),
        (x, gamma, residual, tensor_scale, *outputs[:3], total, rows, *strides, eps, *constants),
        ("rmsnorm_mx", cut, constants, strides, traits, rows >> 31),
        x.device,
        num_warps=cut.num_warps,
    )


@cache
def _config(hidden_size: int, block_size: int, itemsize: int) -> Config:
    """Return MXNorm's cut, but one tile for a power of two, and two warps for several tiles.

    On an H200 one tile of 4096 runs at 92 % of the copy and two of 2048 at 88 %; at a hidden size
    of 5120 two warps at 83 % and four at 77 %.
    """
    cut = config(hidden_size, block_size, itemsize)
    if hidden_size > LONGEST_IN_REGISTERS or cut.rows > 1:
        return cut
    blocks = padded_width(-(-hidden_size // block_size), hidden_size)
    if blocks * block_size == hidden_size:
        return replace(cut, blocks=blocks, num_warps=max(cut.num_warps, hidden_size // 2048))
    return replace(cut, num_warps=min(cut.num_warps, 2 if hidden_size < 6144 else 4))


@triton.jit(do_not_specialize=["rows"])
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
    x_stride,
    residual_stride,
    eps,
    HIDDEN_SIZE: tl.constexpr,
    SPEC: tl.constexpr,
    ROWS: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCKS: tl.constexpr,
    RESIDENT: tl.constexpr,
    BLOCKED: tl.constexpr,
    HARDWARE: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    squares = tl.zeros((ROWS, BLOCKS), tl.float64)
    if RESIDENT:
        kept = ()
        for chunk in tl.static_range(COUNT):
            part = _load(
                x, residual, total_out, row, chunk, rows, x_stride, residual_stride,
                HIDDEN_SIZE, SPEC, BLOCKS, HARDWARE,
            )  # fmt: skip
            squares += _squares(part)
            kept += (part,)
    else:
        for chunk in range(COUNT):
            part = _load(
                x, residual, total_out, row, chunk, rows, x_stride, residual_stride,
                HIDDEN_SIZE, SPEC, BLOCKS, HARDWARE,
            )  # fmt: skip
            squares += _squares(part)
    total = tl.sum(squares, 1)
    # tl.sqrt and / of float64 are the IEEE ones.
    epsilon = tl.full((ROWS,), eps, tl.float32).to(tl.float64)
    root = tl.sqrt(total / HIDDEN_SIZE + epsilon)
    # A row that holds an infinity has no rms either.
    rho = tl.where(total < float("inf"), 1.0 / root, float("nan")).to(tl.float32)
    tl.store(rho_out + row, rho, mask=row < rows)
    g = 1.0
    if SPEC.has_tensor_scale:
        g = tl.load(tensor_scale)
    if RESIDENT:
        for chunk in tl.static_range(COUNT):
            _finish(
                kept[chunk], rho, gamma, g, codes, scales, row, chunk, rows,
                HIDDEN_SIZE, SPEC, BLOCKS, BLOCKED, HARDWARE,
            )  # fmt: skip
    else:
        for chunk in range(COUNT):
            part = _load(
                x, residual, None, row, chunk, rows, x_stride, residual_stride,
                HIDDEN_SIZE, SPEC, BLOCKS, HARDWARE,
            )  # fmt: skip
            _finish(
                part, rho, gamma, g, codes, scales, row, chunk, rows,
                HIDDEN_SIZE, SPEC, BLOCKS, BLOCKED, HARDWARE,
            )  # fmt: skip


@triton.jit
def _columns(chunk, HIDDEN_SIZE: tl.constexpr, SPEC: tl.constexpr, BLOCKS: tl.constexpr):
    """Columns [BLOCKS, block] of a chunk, and where they are of the row."""
    block = chunk * BLOCKS + tl.arange(0, BLOCKS)
    lane = tl.arange(0, SPEC.padded_block)
    column = block[:, None] * SPEC.block_size + lane[None, :]
    return column, (lane[None, :] < SPEC.block_size) & (column < HIDDEN_SIZE)


@triton.jit
def _load(
    x, residual, total_out, row, chunk, rows, x_stride, residual_stride,
    HIDDEN_SIZE: tl.constexpr, SPEC: tl.constexpr, BLOCKS: tl.constexpr, HARDWARE: tl.constexpr,
):  # fmt: skip
    """A chunk [ROWS, BLOCKS, block] of x, or of the sum, which is stored where it has a place."""
    column, inside = _columns(chunk, HIDDEN_SIZE, SPEC, BLOCKS)
    wide_row = row[:, None, None].to(tl.int64)
    mask = (row < rows)[:, None, None] & inside[None, :, :]
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
    """Σ x² of each block, float64: exact to its last bits whatever the order."""
    wide = to_float32(part).to(tl.float64)
    return tl.sum(wide * wide, 2)


@triton.jit
def _finish(
    part, rho, gamma, tensor_scale, codes, scales, row, chunk, rows,
    HIDDEN_SIZE: tl.constexpr, SPEC: tl.constexpr, BLOCKS: tl.constexpr,
    BLOCKED: tl.constexpr, HARDWARE: tl.constexpr,
):  # fmt: skip
    """Normalise, weigh and quantise a chunk."""
    column, inside = _columns(chunk, HIDDEN_SIZE, SPEC, BLOCKS)
    weight = to_float32(tl.load(gamma + column, mask=inside, other=0.0))
    y = rho[:, None, None] * to_float32(part) * weight[None, :, :]
    code = scale_code(absmax_bits(y, 2).to(tl.float32, bitcast=True), tensor_scale, SPEC)
    out = row[:, None, None].to(tl.int64) * HIDDEN_SIZE + column[None, :, :]
    mask = (row < rows)[:, None, None] & inside[None, :, :]
    tl.store(codes + out, encode_blocks(y, code, tensor_scale, 2, SPEC, HARDWARE, False), mask=mask)
    block = chunk * BLOCKS + tl.arange(0, BLOCKS)
    K: tl.constexpr = (HIDDEN_SIZE + SPEC.block_size - 1) // SPEC.block_size
    store_scales(scales, code, row[:, None], block[None, :], rows, K, True, BLOCKED)
