"""A norm and every linear that reads it, from residual stream to outputs, as one operation.

    MXNorm:   y = cast(ρ̃·x),       out_i = y · cast(W_i·γ)ᵀ
    RMSNorm:  y = cast(ρ·x·γ),     out_i = y · cast(W_i)ᵀ

with ρ̃ and the cast of y from one pass over x (:func:`mxstats.kernels.mxnorm`,
:func:`mxstats.kernels.rmsnorm_mx`). Backward, with casts taken as straight-through,

    dy = Σ_i cast(d_i) · cast(W_i·γ),          in float32,
    dx = the norm's gradient of dy,            (:func:`mxstats.kernels.mxnorm_backward`)
    dV_i = cast(d_i)ᵀ · cast(y),               dW_i = dV_i·γ,   dγ = Σ_i Σ_rows dV_i·W_i,

every operand quantised along the axis that its product contracts: d_i along features for dy and
along tokens for dV_i, W_i·γ along features out, y along tokens, anew from ρ̃·x and never from its
codes. What autograd sees is the whole of it, since no gradient can flow through codes.

Saved for the backward are x, ρ̃ and the parameters themselves: a sharded parameter is not kept
whole between the passes. Source: MXNorm, arXiv 2603.13180.
"""

from collections.abc import Sequence
from typing import Any

import torch

from mxstats.kernels import mxnorm, mxnorm_backward, rmsnorm_mx, rmsnorm_mx_backward
from mxstats.nn.products import Operand, decoded, plain, product, quantised, quantised_both
from mxstats.nn.settings import MXNORM, Cast, Norm


def norm_linear(
    x: torch.Tensor,
    gamma: torch.Tensor,
    linears: Sequence[torch.Tensor],
    norm: Norm,
    cast: Cast | None,
    block_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Return the outputs of linears without bias that share the norm of x.

    Parameters
    ----------
    x
        [..., D], bfloat16, float16 or float32, on any strides.
    gamma
        γ, [D].
    linears
        Their weights, [features, D] each.
    norm, cast
        Settings; no rounding where ``cast`` is None.
    block_weights
        MXNorm's weights of the blocks, [K], in place of c.

    Returns
    -------
    tuple
        [..., features] each, in autocast's type where it is on and else in that of x.

    Raises
    ------
    TypeError
        x is no tensor, or of another dtype.
    ValueError
        A weight that does not have D columns, or is not a matrix; a γ that is not [D]; an x
        without an axis.
    """
    check_input(x)
    for number, weight in enumerate(linears):
        if weight.ndim != 2 or weight.shape[1] != x.shape[-1]:
            raise ValueError(
                f"linears[{number}] has shape {tuple(weight.shape)}; (features, {x.shape[-1]}) is "
                f"needed for an input of shape {tuple(x.shape)}"
            )
    if gamma.shape != x.shape[-1:]:
        raise ValueError(f"gamma has shape {tuple(gamma.shape)}; ({x.shape[-1]},) is needed")
    outputs = _NormLinear.apply(x, gamma, block_weights, norm, cast, output_dtype(x), *linears)
    return tuple(outputs)


def check_input(x: torch.Tensor) -> None:
    """Raise unless x is a tensor with an axis; of its dtype the kernels speak."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x must be a torch tensor, got {type(x).__name__}")
    if x.ndim == 0:
        raise ValueError("x is a single number; at least one axis is needed, [..., D]")


def output_dtype(x: torch.Tensor) -> torch.dtype:
    """The type of a product with x: autocast's where it is on for the device, else that of x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class _NormLinear(torch.autograd.Function):
    @staticmethod
    # Arguments without names: where there are as many of them as the signature has parameters,
    # torch.compile without gradients (2.13) takes the function for one without a ctx.
    def forward(ctx: Any, *arguments: Any) -> tuple[torch.Tensor, ...]:
        x, gamma, block_weights, norm, cast, dtype, *linears = arguments
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        gain = gain_of(gamma, norm)
        y, rho = _normalised(rows, gain, block_weights, norm, cast, dtype)
        outputs = []
        for weight in linears:
            operand = _weight(weight, gain, norm, cast, dtype, 1)
            out = product(y, Operand(operand.values.t(), operand.factor), dtype)
            outputs.append(out.view(*x.shape[:-1], weight.shape[0]))
        ctx.save_for_backward(rows, rho, gamma, block_weights, *linears)
        ctx.norm, ctx.cast, ctx.dtype = norm, cast, dtype
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        refuse_double_backward()
        rows, rho, gamma, block_weights, *linears = ctx.saved_tensors
        norm, cast, dtype = ctx.norm, ctx.cast, ctx.dtype
        gain = gain_of(gamma, norm)
        wants_x, wants_gamma = ctx.needs_input_grad[:2]
        wants_weights = ctx.needs_input_grad[6:]
        # γ of MXNorm is in the weights, and its gradient in theirs; that of RMSNorm is in the norm.
        in_weights = norm.kind == MXNORM
        wants_dy = wants_x or (wants_gamma and not in_weights)
        wants_dv = [wanted or (wants_gamma and in_weights) for wanted in wants_weights]
        y = _along_tokens(rows, rho, gain, norm, cast, dtype) if any(wants_dv) else None
        dy, dgain, dweights = None, None, []
        for weight, gradient, wanted in zip(linears, grad_outputs, wants_dv, strict=True):
            d = gradient.reshape(-1, gradient.shape[-1]).contiguous()
            along, down = operands_of_gradient(d, cast, dtype, wants_dy, wanted)
            if along is not None:
                operand = _weight(weight, gain, norm, cast, dtype, 0)
                part = product(along, operand, torch.float32)
                dy = part if dy is None else dy + part
            if down is None or y is None:
                dweights.append(None)
                continue
            dv = product(Operand(down.values.t(), down.factor), y, torch.float32)
            if in_weights:
                if wants_gamma:
                    of_one = (dv * weight.float()).sum(0)
                    dgain = of_one if dgain is None else dgain + of_one
                dv = dv * gain
            dweights.append(dv.to(weight.dtype))
        dx = None
        if dy is not None and in_weights:
            dx = mxnorm_backward(
                dy,
                rows,
                rho,
                p=norm.p,
                c=norm.c,
                weights=block_weights,
                block_size=norm.block_size,
                backend=norm.backend,
            )
        elif dy is not None:
            dx, dgain = rmsnorm_mx_backward(dy, rows, rho, gain, backend=norm.backend)
        shape = (*grad_outputs[0].shape[:-1], rows.shape[1])
        return (
            dx.view(shape) if dx is not None and wants_x else None,
            dgain.to(gamma.dtype) if dgain is not None and wants_gamma else None,
            None,
            None,
            None,
            None,
            *(dw if wanted else None for dw, wanted in zip(dweights, wants_weights, strict=True)),
        )


def gain_of(gamma: torch.Tensor, norm: Norm) -> torch.Tensor:
    """γ, or 1 + γ where the family stores it so, in float32."""
    return 1.0 + gamma.float() if norm.unit_offset else gamma.float()


def refuse_double_backward() -> None:
    """Raise where a backward pass is itself recorded: the kernels have no second derivative."""
    # A compiled graph says so itself, and records with gradients switched on.
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            "create_graph=True: double backward is not supported, the kernels have no second "
            "derivative"
        )


def operands_of_gradient(
    d: torch.Tensor, cast: Cast | None, dtype: torch.dtype, wants_rows: bool, wants_columns: bool
) -> tuple[Operand | None, Operand | None]:
    """A gradient [tokens, features] along its features and along its tokens, as far as wanted."""
    if cast is None:
        d = d.to(dtype)
        return (
            plain(d, dtype) if wants_rows else None,
            plain(d, dtype) if wants_columns else None,
        )
    if wants_rows and wants_columns:
        return quantised_both(d, cast)
    return (
        quantised(d, cast, 1) if wants_rows else None,
        quantised(d, cast, 0) if wants_columns else None,
    )


def _weight(
    weight: torch.Tensor,
    gain: torch.Tensor,
    norm: Norm,
    cast: Cast | None,
    dtype: torch.dtype,
    axis: int,
) -> Operand:
    """What a linear multiplies by: with MXNorm the gain is in it, in float32."""
    in_weight = gain if norm.kind == MXNORM else None
    if cast is not None:
        return quantised(weight, cast, axis, column_factor=in_weight)
    return plain(weight if in_weight is None else weight.float() * in_weight, dtype)


def _normalised(
    rows: torch.Tensor,
    gain: torch.Tensor,
    block_weights: torch.Tensor | None,
    norm: Norm,
    cast: Cast | None,
    dtype: torch.dtype,
) -> tuple[Operand, torch.Tensor]:
    """The operand y along its features, and ρ̃ or ρ."""
    scale_rule = None if cast is None else cast.scale_rule
    g = norm.tensor_scale
    # Where nothing is cast, ρ̃ is still the kernel's, and its codes are left unused.
    if norm.kind == MXNORM:
        made = mxnorm(
            rows,
            p=norm.p,
            c=norm.c,
            weights=block_weights,
            fmt=norm.fmt,
            scale_rule=scale_rule,
            eps=norm.eps,
            tensor_scale=g,
            backend=norm.backend,
        )
    else:
        made = rmsnorm_mx(
            rows, gain, fmt=norm.fmt, scale_rule=scale_rule, eps=norm.eps, backend=norm.backend
        )
        g = made.tensor_scale
    if cast is None:
        return plain(_output(rows, made.rho, gain, norm), dtype), made.rho
    return decoded(made.codes, made.scales, cast, 1, g), made.rho


def _along_tokens(
    rows: torch.Tensor,
    rho: torch.Tensor,
    gain: torch.Tensor,
    norm: Norm,
    cast: Cast | None,
    dtype: torch.dtype,
) -> Operand:
    """The operand y along its tokens."""
    if cast is None:
        return plain(_output(rows, rho, gain, norm), dtype)
    return quantised(
        rows,
        cast,
        0,
        row_factor=rho,
        column_factor=None if norm.kind == MXNORM else gain,
        tensor_scale=norm.tensor_scale,
    )


def _output(rows: torch.Tensor, rho: torch.Tensor, gain: torch.Tensor, norm: Norm) -> torch.Tensor:
    """What is normalised, in float32: the very steps of the kernels."""
    y = rho[:, None] * rows.float()
    return y if norm.kind == MXNORM else y * gain
