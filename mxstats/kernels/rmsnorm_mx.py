"""RMSNorm with weights and the cast of its output to a block format, in one pass.

    ρ = fl32(1/√(Σx²/D + ε)),   y = fl32(fl32(ρ·x)·γ),   y cast as :func:`mxstats.formats.quantize`

The root and the division are in float64 and rounded once. Of bf16 and fp16, whose squares float32
holds, the squares at the same place of a row's few pieces
(:func:`~mxstats.kernels.rmsnorm_mx_plan.piece_blocks`) are added in float32, in their order, and
those sums in float64: ρ is within a unit of the true one. Where float32 would overflow, or lose
what counts, and for fp32, all of the sum is in float64. So ρ does not depend on the order of the
sum but in about one row of 10^7.

The honest baseline of MXNorm: it reads and writes the same bytes. What it cannot share is the
reduction: D squares where MXNorm takes D/block_size maxima that the cast needs anyway.

The operator has no gradient, since none can flow through bytes; see
:mod:`mxstats.kernels.rmsnorm_mx_backward`.
"""

from typing import Literal, NamedTuple

import torch

from mxstats.formats import MXFP8_E4M3, BlockFormat, ScaleRule
from mxstats.kernels import cast_torch
from mxstats.kernels.arguments import (
    as_rows,
    check_number,
    given_tensor_scale,
    is_blocked,
    same_rows,
    scales_shape,
    vector,
)
from mxstats.kernels.backend import resolve
from mxstats.kernels.rmsnorm_mx_plan import piece_blocks
from mxstats.kernels.spec import CastSpec, from_key
from mxstats.kernels.traced import FormatNumbers, format_numbers


class RMSNormMXOutput(NamedTuple):
    """What one pass over the rows gives."""

    codes: torch.Tensor
    """uint8, the shape of x."""
    scales: torch.Tensor
    """uint8, [..., K], or flat in the blocked layout."""
    rho: torch.Tensor
    """float32, [...]: 1/rms, NaN for a row with a value that is not finite."""
    residual: torch.Tensor | None
    """x + residual, rounded to their dtype: the very values that were normalised."""
    tensor_scale: torch.Tensor | None
    """g, one float32, of a format that has one."""


def rmsnorm_mx(
    x: torch.Tensor,
    gamma: torch.Tensor,
    *,
    fmt: BlockFormat | str = MXFP8_E4M3,
    scale_rule: ScaleRule | str | None = None,
    eps: float = 1e-5,
    residual: torch.Tensor | None = None,
    tensor_scale: float | torch.Tensor | None = None,
    scale_layout: Literal["rows", "blocked"] = "rows",
    backend: Literal["auto", "triton", "torch"] = "auto",
) -> RMSNormMXOutput:
    """Normalise each row to rms = 1, multiply by γ, and quantise, in one pass.

    Parameters
    ----------
    x
        bfloat16, float16 or float32, [..., D] with last stride 1, D up to 65,536.
    gamma
        γ, [D], of one of those dtypes.
    fmt, scale_rule
        As for :func:`mxstats.formats.quantize`; blocks along the last axis.
    eps
        ε, above 0, rounded to float32.
    residual
        Of the shape and dtype of x; added to it first, in float32, and rounded to that dtype.
    tensor_scale
        g of a format with a tensor scale (NVFP4). When not given, the bound |y| ≤ √D·max|γ| takes
        the place of the largest value: no pass over x is needed, and what the rows do not use of
        that bound is lost in the scales' resolution.
    scale_layout, backend
        As for :func:`mxstats.kernels.mx_cast`.

    Raises
    ------
    TypeError
        A tensor of another kind or dtype.
    ValueError
        Unknown format, rule, layout or backend; shape, strides or device of a tensor; ε not above
        0; a tensor scale for a format without one or out of range.
    """
    numbers = format_numbers(fmt, scale_rule)
    blocked = is_blocked(scale_layout)
    rows = as_rows(x)
    chosen = resolve(backend, rows)
    weights = vector(gamma, "gamma", x.shape[-1], x).contiguous()
    eps = check_number(eps, "eps")
    added = None
    if residual is not None:
        added = same_rows(residual, "residual", x)
        if residual.dtype != x.dtype:
            raise TypeError(f"residual has dtype {residual.dtype}; that of x is {x.dtype}")
    g = None
    if tensor_scale is not None:
        g = given_tensor_scale(tensor_scale, numbers, x)
    elif numbers.has_tensor_scale:
        g = bounding_tensor_scale(weights, numbers)
    codes, scales, rho, *total = _rmsnorm_mx(
        rows, weights, added, g, numbers.key, eps, blocked, chosen
    )
    return RMSNormMXOutput(
        codes.view(x.shape),
        scales if blocked else scales.view(*x.shape[:-1], scales.shape[-1]),
        rho.view(x.shape[:-1]),
        total[0].view(x.shape) if total else None,
        g,
    )


def bounding_tensor_scale(gamma: torch.Tensor, numbers: FormatNumbers) -> torch.Tensor:
    """Return g = √D·max|γ|/(largest element · largest scale), float32, over the finite weights."""
    largest = torch.where(gamma.isfinite(), gamma, 0.0).abs().amax().double()
    bound = largest * gamma.numel() ** 0.5 / cast_torch.float64(numbers.largest, largest)
    return bound.clamp(numbers.least_tensor_scale, torch.finfo(torch.float32).max).float()


@torch.library.custom_op("mxstats::rmsnorm_mx", mutates_args=())
def _rmsnorm_mx(
    x: torch.Tensor,
    gamma: torch.Tensor,
    residual: torch.Tensor | None,
    tensor_scale: torch.Tensor | None,
    spec: str,
    eps: float,
    blocked: bool,
    backend: str,
) -> list[torch.Tensor]:
    arguments = (x, gamma, residual, tensor_scale, from_key(spec), eps, blocked)
    if backend == "torch":
        return _rmsnorm_mx_torch(*arguments)
    # Not before it is needed: torch runs without Triton.
    from mxstats.kernels.rmsnorm_mx_triton import launch

    outputs = empty_outputs(x, residual, from_key(spec), blocked)
    launch(outputs, *arguments)
    return outputs


@_rmsnorm_mx.register_fake
def _(
    x: torch.Tensor,
    gamma: torch.Tensor,
    residual: torch.Tensor | None,
    tensor_scale: torch.Tensor | None,
    spec: str,
    eps: float,
    blocked: bool,
    backend: str,
) -> list[torch.Tensor]:
    return empty_outputs(x, residual, from_key(spec), blocked)


def empty_outputs(
    x: torch.Tensor, residual: torch.Tensor | None, spec: CastSpec, blocked: bool
) -> list[torch.Tensor]:
    """Codes, scales, ρ and, with a residual, the sum, to be filled."""
    rows, hidden_size = x.shape
    shape = scales_shape(rows, spec.n_blocks(hidden_size), blocked)
    outputs = [
        x.new_empty((rows, hidden_size), dtype=torch.uint8),
        x.new_empty(shape, dtype=torch.uint8),
        x.new_empty((rows,), dtype=torch.float32),
    ]
    if residual is not None:
        outputs.append(x.new_empty((rows, hidden_size)))
    return outputs


def _rmsnorm_mx_torch(
    x: torch.Tensor,
    gamma: torch.Tensor,
    residual: torch.Tensor | None,
    tensor_scale: torch.Tensor | None,
    spec: CastSpec,
    eps: float,
    blocked: bool,
) -> list[torch.Tensor]:
    """The kernel in vectorised torch."""
    hidden_size = x.shape[1]
    if residual is not None:
        x = (x.float() + residual.float()).to(x.dtype)
    total = _sum_of_squares(x, spec.block_size)
    mean = total / cast_torch.float64(hidden_size, total)
    root = (mean + torch.tensor(eps, dtype=torch.float32).item()).sqrt()
    rho = torch.where(total.isfinite(), 1.0 / root, torch.nan).float()
    y = rho[:, None] * x.float() * gamma.float()
    blocks = cast_torch.blocks_of(y, spec.block_size)
    code = cast_torch.scale_code(cast_torch.absmax(blocks, -1), tensor_scale, spec)
    codes = cast_torch.encode_blocks(blocks, code, tensor_scale, -1, spec)
    outputs = [
        codes.flatten(1)[:, :hidden_size].contiguous(),
        cast_torch.to_layout(code.to(torch.uint8), blocked),
        rho,
    ]
    return outputs if residual is None else [*outputs, x]


def _sum_of_squares(x: torch.Tensor, block_size: int) -> torch.Tensor:
    """Σ x² of each row, float64, in the kernel's order."""
    exact = x.double().square().sum(1)
    if x.dtype == torch.float32:
        return exact
    length = piece_blocks(x.shape[1], block_size) * block_size
    pieces = cast_torch.blocks_of(x.float(), length)
    squares = pieces[:, 0].square()
    for piece in range(1, pieces.shape[1]):
        squares = squares + pieces[:, piece].square()
    total = squares.double().sum(1)
    return torch.where((total >= 2.0**-80) & (total < torch.inf), total, exact)
