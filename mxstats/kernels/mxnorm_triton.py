"""MXNorm as one Triton kernel: a row is read once, normalised and written as codes and scales.

A program holds some rows in registers, as tiles [rows, blocks, block_size] in the input's own
dtype. It takes the block maxima of every tile, ρ̃ from all of them
(:mod:`mxstats.kernels.power_mean`), and then the codes and scales of every tile. Rows above 16,384
are read twice, the second time out of the cache.
"""

# In a kernel a constexpr is the value it holds, which pyright cannot know.
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

from typing import cast

import torch
import triton
import triton.language as tl

from mxstats.kernels.arguments import scales_shape
from mxstats.kernels.backend import has_fp8_cast
from mxstats.kernels.cast_jit import (
    absmax_bits,
    encode_blocks,
    floating_scale,
    inverse_scale,
    round_to,
    scale_code,
    store_scales,
    to_float32,
)
from mxstats.kernels.launching import (
    empty_like_rows,
    empty_matrix,
    empty_vector,
    start,
    trait,
)
from mxstats.kernels.mxnorm_plan import plan
from mxstats.kernels.power_mean import inverse_rms, power_term
from mxstats.kernels.spec import CastSpec
from mxstats.kernels.tiling import Config


def launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weights: torch.Tensor | None,
    spec: CastSpec,
    p: float,
    c: float,
    eps: float,
    from_scales: bool,
    blocked: bool,
    tensor_scale: float | torch.Tensor,
    tuned: Config | None = None,
) -> list[torch.Tensor]:
    """Launch the kernel on checked arguments: codes, scales, ρ̃ and, with a residual, x + residual.

    x and residual are [rows, D] with last stride 1; c, eps and tensor_scale are float32 values, of
    which those that the plan does not use may be anything. ``tuned`` replaces the configuration.
    """
    rows, hidden_size = x.shape
    device = x.device
    in_memory = isinstance(tensor_scale, torch.Tensor)
    # Then |y| <= c·K^(1/p) <= 2^36, and a scale times g is between 2^−90 and 2^90.
    near = (
        spec.is_floating_scale
        and not in_memory
        and not from_scales
        and weights is None
        and spec.scale_smallest_normal * tensor_scale > 2.0**-90
        and spec.scale_largest * tensor_scale < 2.0**90
        and p >= 1.0
        and c < 2.0**20
    )
    made = plan(
        spec,
        hidden_size,
        x.element_size(),
        p,
        weights is not None,
        residual is not None,
        from_scales,
        blocked,
        in_memory,
        near,
        has_fp8_cast(device),
        tuned,
    )
    codes = empty_like_rows(x, torch.uint8)
    if blocked:
        (size,) = scales_shape(rows, made.n_blocks, blocked)
        scales = empty_vector(size, torch.uint8, device)
    else:
        scales = empty_matrix(rows, made.n_blocks, torch.uint8, device)
    rho = empty_vector(rows, torch.float32, device)
    outputs = [codes, scales, rho]
    total, x_stride, residual_stride = None, x.stride(0), 0
    # torch's allocator aligns the outputs always alike.
    key = ("mxnorm", made, x_stride, trait(x), rows >> 31)
    if residual is not None:
        total = empty_like_rows(x, x.dtype)
        outputs.append(total)
        residual_stride = residual.stride(0)
        key += (residual_stride, trait(residual))
    if weights is not None:
        key += (trait(weights),)
    if made.scale_in_memory:
        key += (trait(cast(torch.Tensor, tensor_scale)),)
    if rows == 0:
        return outputs
    # The blocked layout has rows of padding too.
    covered = -(-rows // 128) * 128 if blocked else rows
    start(
        _mxnorm_kernel,
        -(-covered // made.config.rows),
        (
            x,
            residual,
            weights,
            codes,
            scales,
            rho,
            total,
            rows,
            x_stride,
            residual_stride,
            c,
            eps,
            tensor_scale,
            made,
        ),
        key,
        device,
        num_warps=made.config.num_warps,
        num_stages=made.config.num_stages,
    )
    return outputs


@triton.jit(do_not_specialize=["rows"])
def _mxnorm_kernel(
    x_ptr,
    residual_ptr,
    weights_ptr,
    codes_ptr,
    scales_ptr,
    rho_ptr,
    total_ptr,
    rows,
    x_stride,
    residual_stride,
    c,
    eps,
    tensor_scale,
    PLAN: tl.constexpr,
):
    ROWS: tl.constexpr = PLAN.config.rows
    BLOCKS: tl.constexpr = PLAN.config.blocks
    TILES: tl.constexpr = PLAN.tiles
    P: tl.constexpr = PLAN.p
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    g = tl.load(tensor_scale) if PLAN.scale_in_memory else tl.cast(tensor_scale, tl.float32)
    top = tl.zeros([ROWS], tl.int32)
    terms = tl.zeros([ROWS, BLOCKS], tl.float64)

    # Tuples hold the tiles of a row; only a loop that is unrolled can add to them.
    if PLAN.in_registers:
        values = ()
        maxima = ()
        for tile in tl.static_range(TILES):
            x = _load(x_ptr, residual_ptr, row, tile, rows, x_stride, residual_stride, PLAN)
            values += (x,)
            maxima += (absmax_bits(x, 2).to(tl.float32, bitcast=True),)
        if P != 1.0 and P != 2.0:
            for tile in tl.static_range(TILES):
                top = tl.maximum(top, _largest_bits(maxima[tile], tile, g, PLAN))
        for tile in tl.static_range(TILES):
            terms += _terms(maxima[tile], top, weights_ptr, tile, g, PLAN)
    else:
        if P != 1.0 and P != 2.0:
            for tile in range(TILES):
                x = _load(x_ptr, residual_ptr, row, tile, rows, x_stride, residual_stride, PLAN)
                m = absmax_bits(x, 2).to(tl.float32, bitcast=True)
                top = tl.maximum(top, _largest_bits(m, tile, g, PLAN))
        for tile in range(TILES):
            x = _load(x_ptr, residual_ptr, row, tile, rows, x_stride, residual_stride, PLAN)
            m = absmax_bits(x, 2).to(tl.float32, bitcast=True)
            terms += _terms(m, top, weights_ptr, tile, g, PLAN)

    rho = inverse_rms(
        tl.sum(terms, 1),
        top.to(tl.float32, bitcast=True),
        c,
        eps,
        PLAN.n_blocks,
        P,
        PLAN.weighted,
    )
    tl.store(rho_ptr + row, rho, mask=row < rows)

    if PLAN.in_registers:
        for tile in tl.static_range(TILES):
            _store(
                values[tile], maxima[tile], rho, codes_ptr, scales_ptr, total_ptr, row, tile, rows,
                g, PLAN,
            )  # fmt: skip
    else:
        for tile in range(TILES):
            x = _load(x_ptr, residual_ptr, row, tile, rows, x_stride, residual_stride, PLAN)
            m = absmax_bits(x, 2).to(tl.float32, bitcast=True)
            _store(x, m, rho, codes_ptr, scales_ptr, total_ptr, row, tile, rows, g, PLAN)


@triton.jit
def _column(tile, PLAN: tl.constexpr):
    """Columns [1, blocks, width] of a tile, and which of them exist."""
    block = tile * PLAN.config.blocks + tl.arange(0, PLAN.config.blocks)
    inner = tl.arange(0, PLAN.width)[None, None, :]
    column = block[None, :, None] * PLAN.spec.block_size + inner
    return column, (column < PLAN.hidden_size) & (inner < PLAN.spec.block_size)


@triton.jit
def _load(x_ptr, residual_ptr, row, tile, rows, x_stride, residual_stride, PLAN: tl.constexpr):
    """A tile of x, or of x + residual rounded to the dtype of x; zeros where there is nothing."""
    column, exists = _column(tile, PLAN)
    mask = (row < rows)[:, None, None] & exists
    at = row[:, None, None]
    EVICT: tl.constexpr = PLAN.config.load_eviction if PLAN.in_registers else ""
    x = tl.load(x_ptr + at * x_stride + column, mask=mask, other=0.0, eviction_policy=EVICT)
    if PLAN.has_residual:
        other = tl.load(
            residual_ptr + at * residual_stride + column,
            mask=mask,
            other=0.0,
            eviction_policy=EVICT,
        )
        x = round_to(to_float32(x) + to_float32(other), x.dtype, PLAN.hardware)
    return x


@triton.jit
def _estimator(m, tile, g, PLAN: tl.constexpr):
    """What stands for the block maxima in the power mean: themselves, or their rounded scales."""
    if PLAN.from_scales:
        SPEC: tl.constexpr = PLAN.spec
        code = scale_code(m, g, SPEC)
        if SPEC.is_floating_scale:
            scale = floating_scale(code, SPEC)
            if SPEC.has_tensor_scale:
                scale = scale * g
            scale = tl.where(code == SPEC.scale_nan, float("nan"), scale)
        else:
            # 2^(s−127) is the inverse of byte 254 − s; infinite for NaN's 255, which ends as NaN.
            scale = inverse_scale(254 - code)
        block = tile * PLAN.config.blocks + tl.arange(0, PLAN.config.blocks)
        # A block of padding counts for nothing, but no scale is zero.
        m = tl.where((block < PLAN.n_blocks)[None, :], scale, 0.0)
    return m


@triton.jit
def _largest_bits(m, tile, g, PLAN: tl.constexpr):
    """Bits of each row's largest, NaN kept."""
    return tl.max(_estimator(m, tile, g, PLAN).to(tl.int32, bitcast=True), 1)


@triton.jit
def _terms(m, top, weights_ptr, tile, g, PLAN: tl.constexpr):
    """The tile's terms [rows, blocks] of the power sum."""
    P: tl.constexpr = PLAN.p
    terms = power_term(_estimator(m, tile, g, PLAN), top.to(tl.float32, bitcast=True), P)
    if PLAN.weighted:
        block = tile * PLAN.config.blocks + tl.arange(0, PLAN.config.blocks)
        weights = tl.load(weights_ptr + block, mask=block < PLAN.n_blocks, other=0.0)
        terms = terms * to_float32(weights).to(tl.float64)[None, :]
    return terms


@triton.jit
def _store(x, m, rho, codes_ptr, scales_ptr, total_ptr, row, tile, rows, g, PLAN: tl.constexpr):
    """Normalise and quantise a tile; store its codes, its scales and, with a residual, itself."""
    SPEC: tl.constexpr = PLAN.spec
    K: tl.constexpr = PLAN.n_blocks
    column, exists = _column(tile, PLAN)
    mask = (row < rows)[:, None, None] & exists
    at = row[:, None, None] * PLAN.hidden_size + column
    if PLAN.has_residual:
        tl.store(total_ptr + at, x, mask=mask)
    y = rho[:, None, None] * to_float32(x)
    # Rounding keeps the order: this is the absmax of the block of y.
    code = scale_code(rho[:, None] * m, g, SPEC, PLAN.near and PLAN.hardware)
    codes = encode_blocks(y, code, g, 2, SPEC, PLAN.hardware, PLAN.near)
    tl.store(codes_ptr + at, codes, mask=mask, cache_modifier=PLAN.config.store_cache)
    block = tile * PLAN.config.blocks + tl.arange(0, PLAN.config.blocks)[None, :]
    store_scales(scales_ptr, code, row[:, None], block, rows, K, row[:, None] >= 0, PLAN.blocked)
