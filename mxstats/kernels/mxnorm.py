"""MXNorm: a row divided by an estimate of its RMS from block maxima, and cast, in one pass.

With m_k the absmax of block k of K = ⌈D/block_size⌉,

    M = (Σ_k m_k^p / K)^(1/p),   r̂ = M/c   or, with weights (p = 2),   r̂² = Σ_k w_k m_k² / K,
    ρ̃ = (r̂² + ε)^(−1/2),   y = ρ̃·x,   (codes, scales) = cast(y),

the power mean, its root and ρ̃ in float64, rounded to float32 once; y rounded to float32; the scale
of block k from fl32(ρ̃·m_k), which is the absmax of its y. Source: MXNorm, arXiv 2603.13180.

The operator has no autograd: codes are uint8, which has no gradient, and an fp8 output would have
its gradient cast to fp8. What autograd can see is a norm with the linears that share it.
"""

from typing import NamedTuple

import torch

from mxstats.formats import MXFP8_E4M3, BlockFormat, ScaleRule
from mxstats.kernels.arguments import (
    as_rows,
    check_number,
    is_blocked,
    same_rows,
    scales_shape,
    vector,
)
from mxstats.kernels.backend import resolve
from mxstats.kernels.mxnorm_arguments import (
    check_constant,
    check_scale_tensor,
    float32,
    least_weight,
    scale_of_bound,
)
from mxstats.kernels.mxnorm_torch import mxnorm_torch
from mxstats.kernels.spec import from_key
from mxstats.kernels.traced import format_numbers

ESTIMATES = ("absmax", "scales")


class MXNormOutput(NamedTuple):
    """What :func:`mxnorm` returns."""

    codes: torch.Tensor
    """uint8, the shape of x: a code in the low bits of each byte."""
    scales: torch.Tensor
    """uint8, [..., K]; flat in the blocked layout."""
    rho: torch.Tensor
    """ρ̃, float32, [...]; NaN for a row that holds a NaN or an infinity."""
    residual: torch.Tensor | None
    """x + residual in the dtype and shape of x; None where no residual was given."""


def mxnorm(
    x: torch.Tensor,
    *,
    p: float = 2.0,
    c: float | None = None,
    weights: torch.Tensor | None = None,
    fmt: BlockFormat | str = MXFP8_E4M3,
    scale_rule: ScaleRule | str | None = None,
    eps: float = 1e-5,
    residual: torch.Tensor | None = None,
    estimate_from: str = "absmax",
    scale_layout: str = "rows",
    tensor_scale: float | torch.Tensor | None = None,
    backend: str = "auto",
) -> MXNormOutput:
    """Normalise rows by the power mean of their block maxima and cast them to a block format.

    The codes and scales are those that :func:`mxstats.formats.quantize` gives for y = fl32(ρ̃·x).

    Parameters
    ----------
    x
        bfloat16, float16 or float32, [..., D] with last stride 1, D from 1 to 65,536; the last
        block may be short.
    p
        Power of the mean, from 1/1024 to 1024.
    c
        The constant, M/RMS of the rows expected (:func:`mxstats.constant`).
    weights
        In place of c, with p = 2 alone: one positive weight for each block, [K]. Their values are
        looked at when a tensor is first used and after it was changed in place, which waits for the
        GPU.
    fmt, scale_rule
        As :func:`mxstats.formats.quantize` takes them.
    eps
        ε, above 0: a row of zeros has ρ̃ = ε^(−1/2). c, ε and the weights are rounded to float32.
    residual
        Shape and dtype of x: h = x + residual, rounded to that dtype, takes the place of x and is
        returned.
    estimate_from
        ``"scales"`` puts in place of m_k the value of the scale that the block of x itself would
        get, as a unit does that hands out scales alone: 2^(s−127), 2^−127 for a block of zeros; of
        a floating scale its value, within the scale's normal range, times the tensor scale if there
        is one: that must be given then, and is the same g as of the output. c or the weights must
        be those for scales (:func:`mxstats.scale_only_constant`, divided by its ``unit``).
    scale_layout
        ``"rows"`` or ``"blocked"``, the layout of :func:`mxstats.formats.to_blocked` for the rows
        of all leading axes together, with zeros for its padding.
    tensor_scale
        g of a format that has one (NVFP4), a number or a tensor of one float32, whose value is not
        looked at. When not given, :func:`~mxstats.kernels.mxnorm_arguments.static_tensor_scale`.
        A block that needs a scale above the largest saturates.
    backend
        ``"triton"``, ``"torch"``, or ``"auto"``: Triton for a CUDA tensor and torch for any other.

    Returns
    -------
    MXNormOutput
        One non-finite value in a row makes its ρ̃ NaN, all of its scales NaN, and its codes 0.

    Raises
    ------
    TypeError
        x, residual or weights of another type or dtype.
    ValueError
        Shapes, strides or devices that do not fit; p, c, eps, tensor_scale or weights out of range;
        both c and weights, or neither; weights with p other than 2; an unknown name; a scale rule
        for a floating scale; a tensor scale for a format that has none.
    """
    rows = as_rows(x)
    numbers = format_numbers(fmt, scale_rule)
    n_blocks = -(-rows.shape[1] // numbers.block_size)
    p, c = check_constant(p, c, weights)
    if weights is not None:
        weights = vector(weights, "weights", n_blocks, x)
    eps = check_number(eps, "eps")
    if residual is not None:
        if isinstance(residual, torch.Tensor) and residual.dtype != x.dtype:
            raise TypeError(f"residual has dtype {residual.dtype}; that of x is {x.dtype}")
        residual = same_rows(residual, "residual", x)
    if estimate_from not in ESTIMATES:
        raise ValueError(
            f"estimate_from={estimate_from!r} is unknown; known are {', '.join(ESTIMATES)}"
        )
    given_scale = None
    if tensor_scale is None:
        if numbers.has_tensor_scale and estimate_from == "scales":
            raise ValueError("tensor_scale=None: needed where estimate_from='scales' and x has one")
    else:
        if not numbers.has_tensor_scale:
            raise ValueError(f"tensor_scale={tensor_scale}: the format has none")
        if isinstance(tensor_scale, torch.Tensor):
            given_scale, tensor_scale = check_scale_tensor(tensor_scale, x), None
        else:
            tensor_scale = check_number(tensor_scale, "tensor_scale", numbers.least_tensor_scale)
    outputs = mxnorm_op(
        rows,
        residual,
        weights,
        numbers.key,
        p,
        c,
        eps,
        estimate_from == "scales",
        is_blocked(scale_layout),
        tensor_scale,
        given_scale,
        resolve(backend, x),
    )
    lead = x.shape[:-1]
    scales = outputs[1] if scale_layout == "blocked" else outputs[1].view(*lead, n_blocks)
    return MXNormOutput(
        codes=outputs[0].view(x.shape),
        scales=scales,
        rho=outputs[2].view(lead),
        residual=None if residual is None else outputs[3].view(x.shape),
    )


@torch.library.custom_op("mxstats::mxnorm", mutates_args=())
def mxnorm_op(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weights: torch.Tensor | None,
    spec_key: str,
    p: float,
    c: float | None,
    eps: float,
    from_scales: bool,
    blocked: bool,
    tensor_scale: float | None,
    given_scale: torch.Tensor | None,
    backend: str,
) -> list[torch.Tensor]:
    """Codes, scales, ρ̃ and, with a residual, x + residual, of rows [rows, D]."""
    spec = from_key(spec_key)
    if weights is not None:
        least_weight(weights)
    if given_scale is not None:
        g = given_scale
    elif tensor_scale is not None:
        g = float32(tensor_scale)
    elif spec.has_tensor_scale:
        g = scale_of_bound(spec, spec.n_blocks(x.shape[1]), p, c, weights)
    else:
        g = 1.0
    if weights is not None:
        # Not before: what was read of their values is known by the very tensor that came.
        weights = weights.contiguous()
    constant = 1.0 if c is None else float32(c)
    arguments = (x, residual, weights, spec, p, constant, float32(eps), from_scales, blocked, g)
    if backend == "torch":
        return mxnorm_torch(*arguments)
    # Not before it is needed: torch runs without Triton.
    from mxstats.kernels.mxnorm_triton import launch

    return launch(*arguments)


@mxnorm_op.register_fake
def _(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weights: torch.Tensor | None,
    spec_key: str,
    p: float,
    c: float | None,
    eps: float,
    from_scales: bool,
    blocked: bool,
    tensor_scale: float | None,
    given_scale: torch.Tensor | None,
    backend: str,
) -> list[torch.Tensor]:
    rows, hidden_size = x.shape
    shape = scales_shape(rows, from_key(spec_key).n_blocks(hidden_size), blocked)
    outputs = [
        x.new_empty((rows, hidden_size), dtype=torch.uint8),
        x.new_empty(shape, dtype=torch.uint8),
        x.new_empty((rows,), dtype=torch.float32),
    ]
    return outputs if residual is None else [*outputs, x.new_empty((rows, hidden_size))]
