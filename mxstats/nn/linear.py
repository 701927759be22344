"""A linear whose products take quantised operands, where no norm stands before it.

    out = cast(x) · cast(W)ᵀ,   dx = cast(d) · cast(W),   dW = cast(d)ᵀ · cast(x),

each operand quantised along the axis that its product contracts, casts straight-through.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from mxstats.formats import MXFP8_E4M3, BlockFormat, ScaleRule
from mxstats.nn.group import (
    check_input,
    operands_of_gradient,
    output_dtype,
    refuse_double_backward,
)
from mxstats.nn.products import Operand, product, quantised
from mxstats.nn.settings import Backend, Cast, cast_settings, label


def mx_linear(x: torch.Tensor, weight: torch.Tensor, cast: Cast | None) -> torch.Tensor:
    """Return x·Wᵀ, [..., features], without a bias; plain where ``cast`` is None.

    ``x`` is [..., D] and ``weight`` [features, D]; the result is in autocast's type where it is on,
    and else in that of x. Raises ValueError where the two do not fit.
    """
    check_input(x)
    if weight.ndim != 2 or weight.shape[1] != x.shape[-1]:
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}; (features, {x.shape[-1]}) is needed for an "
            f"input of shape {tuple(x.shape)}"
        )
    if cast is None:
        return functional.linear(x, weight)
    return _MXLinear.apply(x, weight, cast, output_dtype(x))


class _MXLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, cast: Cast, dtype: torch.dtype
    ) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        operand = quantised(weight, cast, 1)
        out = product(quantised(rows, cast, 1), Operand(operand.values.t(), operand.factor), dtype)
        ctx.save_for_backward(rows, weight)
        ctx.cast, ctx.dtype = cast, dtype
        return out.view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        refuse_double_backward()
        (gradient,) = grad_outputs
        rows, weight = ctx.saved_tensors
        wants_x, wants_weight = ctx.needs_input_grad[:2]
        d = gradient.reshape(-1, gradient.shape[-1]).contiguous()
        along, down = operands_of_gradient(d, ctx.cast, ctx.dtype, wants_x, wants_weight)
        dx, dw = None, None
        if along is not None:
            dx = product(along, quantised(weight, ctx.cast, 0), rows.dtype)
            dx = dx.view(*gradient.shape[:-1], rows.shape[1])
        if down is not None:
            transposed = Operand(down.values.t(), down.factor)
            dw = product(transposed, quantised(rows, ctx.cast, 0), weight.dtype)
        return dx, dw, None, None


class MXLinear(nn.Module):
    """A linear layer on quantised operands: out = cast(x)·cast(W)ᵀ + bias.

    Parameters
    ----------
    in_features, out_features
        D and the number of outputs.
    fmt, scale_rule, block_size
        The block format of all operands, None for no rounding; as :func:`mxstats.quantize` takes
        them. ``block_size`` is the format's own when not given.
    bias
        Whether there is one, added after the product.
    operands
        ``"auto"`` (bfloat16 on a GPU for formats that it holds exactly, else float32),
        ``"bfloat16"`` or ``"float32"``: what the dequantised operands are multiplied in.
    backend
        Of the casts: ``"auto"``, ``"triton"`` or ``"torch"``.

    Raises
    ------
    TypeError, ValueError
        Settings out of range; at a call, an input whose last axis is not D.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        fmt: BlockFormat | str | None = MXFP8_E4M3,
        scale_rule: ScaleRule | str | None = None,
        block_size: int | None = None,
        bias: bool = False,
        operands: str = "auto",
        backend: Backend = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.cast, _ = cast_settings(fmt, scale_rule, block_size, backend, operands)
        made = nn.Linear(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.weight, self.bias = made.weight, made.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features] of x [..., in_features]."""
        out = mx_linear(x, self.weight, self.cast)
        return out if self.bias is None else out + self.bias.to(out.dtype)

    def extra_repr(self) -> str:
        """Sizes and format."""
        sizes = f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"
        return f"{sizes}, {label(self.cast)}"
