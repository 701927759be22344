"""The gradient of MXNorm as one Triton kernel: dy and x are read once, dx is written.

A program holds some rows as equal tiles [rows, blocks, block_size] in the input's own type: five of
1024 for a row of 5120, where a mask up to the next power of two would idle. It needs one number of
the whole row, s (and the power mean, unless p = 2); the maximum of a block and its ties are those
of the tile at hand, found when its gradient is. The formula and the order of operations are those
of :mod:`mxstats.kernels.mxnorm_backward`.
"""

# In a kernel a constexpr is the value it holds, which pyright cannot know.
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl

from mxstats.kernels.arguments import row_chunks
from mxstats.kernels.backend import INTERPRETED
from mxstats.kernels.cast_jit import round_to, to_float32
from mxstats.kernels.launching import empty_like_rows, start, trait
from mxstats.kernels.tiling import power_of_two

# A row of up to this many elements stays in registers between its sum and its gradient.
LONGEST_IN_REGISTERS = 16_384
# Elements of a tile of a row that is too long for registers and is read twice.
_STREAMED_TILE = 4096
# Elements of a tile at most: with 4096 of them a row of 16,384 runs at 85 % of the copy on an H200,
# with 2048 at 99 %.
_LONGEST_TILE = 2048
_WIDEN_BF16 = tl.constexpr("shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;")
_WIDEN_FP16 = tl.constexpr(
    "{ .reg .b16 low, high; mov.b32 {low, high}, $2; cvt.f32.f16 $0, low; cvt.f32.f16 $1, high; }"
)


@dataclass(frozen=True)
class Config:
    """How the kernel is cut; the result does not depend on it."""

    rows: int
    """Rows a program, a power of two."""
    tile: int
    """Elements of a row worked on at a time, a power of two."""
    num_warps: int
    keep: str = "both"
    """What of dy and x stays in registers between the sum and the gradient: ``"both"``, ``"x"``
    (dy is read again, from the cache) or ``"nothing"`` (both are)."""
    stream: bool = True
    """Whether dx is stored past the cache."""
    max_registers: int | None = None


@cache
def config(hidden_size: int, block_size: int, residual: bool = False) -> Config:
    """Return the cut for rows of this length: about 32 elements a thread, 8 of them a tile.

    With a residual's gradient 16 of them: what is read of it between the writes is fewer and longer
    pieces then, at a hidden size of 4096 on an H200 96 % of the copy for 92 %.
    """
    block = power_of_two(min(block_size, hidden_size))
    if hidden_size > LONGEST_IN_REGISTERS:
        return Config(rows=1, tile=max(block, _STREAMED_TILE), num_warps=16, keep="nothing")
    tiles, blocks = row_chunks(-(-hidden_size // block_size))
    tile = blocks * block
    width = power_of_two(tiles * tile)
    # Rows of few or small tiles go together.
    rows = max(1, min(1024 // tile, 8192 // width))
    num_warps = max(1, min(16, max(4, rows * width // 1024), rows * tile // 128))
    tile = max(block, min(tile, (512 if residual else 256) * num_warps, _LONGEST_TILE))
    return Config(rows, tile, num_warps)


def launch(
    dy: torch.Tensor,
    x: torch.Tensor,
    rho: torch.Tensor,
    p: float,
    c: float,
    weights: torch.Tensor | None,
    block_size: int,
    d_residual: torch.Tensor | None,
    cut: Config | None = None,
) -> torch.Tensor:
    """Run the kernel on rows [n, D] that :func:`mxnorm_backward` has checked; return dx."""
    n_rows, hidden_size = x.shape
    dx = empty_like_rows(x, x.dtype)
    if n_rows == 0:
        return dx
    block_size = min(block_size, hidden_size)
    if cut is None:
        cut = config(hidden_size, block_size, d_residual is not None)
    strides = (
        dy.stride(0),
        x.stride(0),
        0 if d_residual is None else d_residual.stride(0),
    )
    block = power_of_two(block_size)
    constants = (
        p,
        hidden_size,
        block_size,
        block,
        cut.rows,
        max(1, cut.tile // block),
        cut.keep != "nothing",
        cut.keep == "both",
        ".cs" if cut.stream else "",
        torch.version.hip is None and not INTERPRETED,
    )
    traits = (trait(dy), trait(x), trait(rho), trait(weights), trait(d_residual))
    start(
        _kernel,
        -(-n_rows // cut.rows),
        (dx, dy, x, rho, weights, d_residual, n_rows, *strides, c, *constants),
        ("mxnorm_backward", cut, constants, strides, traits, n_rows >> 31),
        x.device,
        num_warps=cut.num_warps,
        maxnreg=cut.max_registers,
        # A fused product and sum would round otherwise than torch.
        enable_fp_fusion=False,
    )
    return dx


@triton.jit
def widened(x, ASSEMBLY: tl.constexpr):
    """The float32 of a tile.

    In assembly, because the compiler would convert once, keep the float32 of the whole row from the
    sum to the gradient and so double the registers; what it cannot read it does not merge.
    """
    if ASSEMBLY and x.dtype == tl.bfloat16:
        wide = tl.inline_asm_elementwise(
            _WIDEN_BF16, "=r,=r,r", [x], dtype=tl.float32, is_pure=False, pack=2
        )
    elif ASSEMBLY and x.dtype == tl.float16:
        wide = tl.inline_asm_elementwise(
            _WIDEN_FP16, "=f,=f,r", [x], dtype=tl.float32, is_pure=False, pack=2
        )
    else:
        wide = to_float32(x)
    return wide


@triton.jit
def _sums(dy, x, rho, c, P: tl.constexpr, LEVEL: tl.constexpr):
    """fl32(dy·y) in float64; with LEVEL (a/c)^p, or a for p = 1, a the output's block maxima.

    a/c is at most K^(1/p), so that its power is at most K, however large p is.
    """
    products = (dy * (rho[:, None, None] * x)).to(tl.float64)
    if LEVEL:
        level = (rho[:, None] * tl.max(tl.abs(x), 2)).to(tl.float64)
        if P != 1.0:
            ratio = level / c
            power = tl.full(ratio.shape, P, tl.float64) * tl.log2(tl.where(ratio > 0.0, ratio, 1.0))
            level = tl.where(ratio > 0.0, tl.exp2(power), 0.0)
    else:
        level = tl.zeros([x.shape[0], x.shape[1]], tl.float64)
    return products, level


@triton.jit
def _row_factors(s, level, c, K: tl.constexpr, P: tl.constexpr, WEIGHTED: tl.constexpr):
    """Of pull_k what is the row's, in float64: s/(Kc²), sA/(Kc) or s/K; or s/(Kc), log2 A^(2−p)."""
    n_blocks = tl.full(s.shape, K, tl.float64)
    if WEIGHTED:
        factor = s / n_blocks
    elif P == 2.0:
        factor = s / (n_blocks * (c * c))
    elif P == 1.0:
        factor = (s * (level / (n_blocks * c))) / (n_blocks * c)
    else:
        factor = s / (n_blocks * c)
        level = tl.log2(tl.where(level > 0.0, level / n_blocks, 1.0)) / tl.full(
            s.shape, P, tl.float64
        )
        level = tl.full(s.shape, 2.0 - P, tl.float64) * level
    return factor, level


@triton.jit
def _pull(m, rho, factor, level, c, weight, P: tl.constexpr, WEIGHTED: tl.constexpr):
    """pull_k in float32, from x's block maxima and the factors of the row; 0 of zeros."""
    absmax = rho[:, None] * m
    if P == 2.0:
        pull = factor.to(tl.float32)[:, None] * absmax
        if WEIGHTED:
            pull = pull * weight
    elif P == 1.0:
        pull = factor.to(tl.float32)[:, None]
    else:
        # Of zeros the power would be infinite for p below 1.
        ratio = tl.where(absmax > 0.0, absmax.to(tl.float64) / c, 1.0)
        power = level[:, None] + tl.full(ratio.shape, P - 1.0, tl.float64) * tl.log2(ratio)
        pull = (factor[:, None] * tl.exp2(power)).to(tl.float32)
    return tl.where(m > 0.0, pull, 0.0)


@triton.jit
def _gradient(dy, x, rho, factor, level, c, weight, P: tl.constexpr, WEIGHTED: tl.constexpr):
    """ρ̃ (dy − sign(x)·pull/ties) of a tile [rows, blocks, block], all float32."""
    magnitude = tl.abs(x)
    # tl.max drops NaN, which does no harm: ρ̃ is NaN there.
    absmax = tl.max(magnitude, 2)
    tied = (magnitude == absmax[:, :, None]).to(tl.float32)
    share = tl.div_rn(tl.full(absmax.shape, 1.0, tl.float32), tl.maximum(tl.sum(tied, 2), 1.0))
    pull = _pull(absmax, rho, factor, level, c, weight, P, WEIGHTED) * share
    # ±1 where tied, else ±0: the product is exact, so that fusing it changes nothing.
    sign = x.to(tl.int32, bitcast=True) & -2147483648
    signed = (tied.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    return rho[:, None, None] * tl.fma(signed, -pull[:, :, None], dy)


@triton.jit(do_not_specialize=["n_rows"])
def _kernel(
    dx_ptr,
    dy_ptr,
    x_ptr,
    rho_ptr,
    weights_ptr,
    residual_ptr,
    n_rows,
    dy_stride,
    x_stride,
    residual_stride,
    c,
    P: tl.constexpr,
    D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    KEEP_X: tl.constexpr,
    KEEP_DY: tl.constexpr,
    STORE: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):
    K: tl.constexpr = (D + BLOCK_SIZE - 1) // BLOCK_SIZE
    TILES: tl.constexpr = (K + BLOCKS - 1) // BLOCKS
    WEIGHTED: tl.constexpr = weights_ptr is not None
    LEVEL: tl.constexpr = P != 2.0
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < n_rows
    rho = tl.load(rho_ptr + row, mask=inside, other=0.0)
    c = tl.cast(c, tl.float32).to(tl.float64)
    b = tl.arange(0, BLOCK)[None, None, :]
    column = tl.arange(0, BLOCKS)[None, :, None] * BLOCK_SIZE + b
    lanes = inside[:, None, None] & (b < BLOCK_SIZE)
    row = row[:, None, None]

    xs = ()
    dys = ()
    for i in tl.static_range(TILES):
        at = i * (BLOCKS * BLOCK_SIZE) + column
        mask = lanes & (at < D)
        if KEEP_X:
            x = tl.load(x_ptr + row * x_stride + at, mask=mask, other=0.0)
            xs = xs + (x,)  # noqa: RUF005 (Triton unpacks no tuples)
        if KEEP_DY:
            dy = tl.load(dy_ptr + row * dy_stride + at, mask=mask, other=0.0)
            dys = dys + (dy,)  # noqa: RUF005
    for i in tl.static_range(TILES):
        at = i * (BLOCKS * BLOCK_SIZE) + column
        mask = lanes & (at < D)
        x = xs[i] if KEEP_X else tl.load(x_ptr + row * x_stride + at, mask=mask, other=0.0)
        dy = dys[i] if KEEP_DY else tl.load(dy_ptr + row * dy_stride + at, mask=mask, other=0.0)
        x = widened(x, ASSEMBLY)
        products, terms = _sums(widened(dy, ASSEMBLY), x, rho, c, P, LEVEL)
        # Lane by lane over the tiles, then over the lanes.
        if i == 0:
            s, level = products, terms
        else:
            s, level = s + products, level + terms
    s = tl.sum(tl.sum(s, 2), 1)
    factor, level = _row_factors(s, tl.sum(level, 1), c, K, P, WEIGHTED)

    for i in tl.static_range(TILES):
        at = i * (BLOCKS * BLOCK_SIZE) + column
        mask = lanes & (at < D)
        x = xs[i] if KEEP_X else tl.load(x_ptr + row * x_stride + at, mask=mask, other=0.0)
        dy = dys[i] if KEEP_DY else tl.load(dy_ptr + row * dy_stride + at, mask=mask, other=0.0)
        weight = 1.0
        if WEIGHTED:
            block = i * BLOCKS + tl.arange(0, BLOCKS)[None, :]
            weight = tl.load(weights_ptr + block, mask=block < K, other=0.0).to(tl.float32)
        x = widened(x, ASSEMBLY)
        dy = widened(dy, ASSEMBLY)
        dx = _gradient(dy, x, rho, factor, level, c, weight, P, WEIGHTED)
        if residual_ptr is not None:
            other = tl.load(residual_ptr + row * residual_stride + at, mask=mask, other=0.0)
            dx += widened(other, ASSEMBLY)
        dx = round_to(dx, dx_ptr.dtype.element_ty, ASSEMBLY)
        tl.store(dx_ptr + row * D + at, dx, mask=mask, cache_modifier=STORE)
