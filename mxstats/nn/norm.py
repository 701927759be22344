"""MXNorm alone: the dequantised output of the kernel as a tensor, with a gradient.

    out = dequantise(cast(ρ̃·x)) · gain

For places where no linear of ours reads the norm, such as the last one before a head. The cast is
straight-through in the backward, which is :func:`mxstats.kernels.mxnorm_backward`.
"""

from typing import Any

import torch
from torch import nn

from mxstats.formats import MXFP8_E4M3, BlockFormat, ScaleRule
from mxstats.kernels import mxnorm, mxnorm_backward
from mxstats.nn.calibrated import BlockWeighted
from mxstats.nn.dequantise import decoding, dequantise
from mxstats.nn.group import check_input, gain_of, refuse_double_backward
from mxstats.nn.settings import Backend, Cast, Norm, cast_settings, label, mxnorm_settings


def mx_norm(
    x: torch.Tensor, norm: Norm, cast: Cast | None, block_weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the dequantised output of MXNorm in float32, [..., D], without a gain (rms = 1)."""
    return _MXNorm.apply(x, block_weights, norm, cast)


class _MXNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        block_weights: torch.Tensor | None,
        norm: Norm,
        cast: Cast | None,
    ) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        made = mxnorm(
            rows,
            p=norm.p,
            c=norm.c,
            weights=block_weights,
            fmt=norm.fmt,
            scale_rule=None if cast is None else cast.scale_rule,
            eps=norm.eps,
            tensor_scale=norm.tensor_scale,
            backend=norm.backend,
        )
        if cast is None:
            y = made.rho[:, None] * rows.float()
        else:
            y = dequantise(
                made.codes,
                made.scales,
                decoding(cast.fmt),
                axis=1,
                dtype=torch.float32,
                tensor_scale=norm.tensor_scale,
            )
        ctx.save_for_backward(rows, made.rho, block_weights)
        ctx.norm = norm
        return y.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        refuse_double_backward()
        (gradient,) = grad_outputs
        rows, rho, block_weights = ctx.saved_tensors
        norm = ctx.norm
        dx = mxnorm_backward(
            gradient.reshape(rows.shape).contiguous(),
            rows,
            rho,
            p=norm.p,
            c=norm.c,
            weights=block_weights,
            block_size=norm.block_size,
            backend=norm.backend,
        )
        return dx.view(gradient.shape), None, None, None


class MXNorm(BlockWeighted):
    """The norm alone: out = dequantise(cast(ρ̃·x))·gain, in the type of x (rms = 1 before the gain).

    Parameters
    ----------
    hidden_size
        D, at least the block size.
    p, c, weights, fmt, scale_rule, block_size, eps, unit_offset, backend
        As for :class:`mxstats.nn.MXNormLinear`.
    gain
        Whether there is a γ, multiplied after the cast.

    Raises
    ------
    TypeError, ValueError
        As :class:`mxstats.nn.MXNormLinear`.
    """

    gamma: nn.Parameter | None
    block_weights: torch.Tensor | None

    def __init__(
        self,
        hidden_size: int,
        *,
        p: float = 2.0,
        c: float | None = None,
        weights: torch.Tensor | None = None,
        fmt: BlockFormat | str | None = MXFP8_E4M3,
        scale_rule: ScaleRule | str | None = None,
        block_size: int | None = None,
        eps: float = 1e-5,
        gain: bool = True,
        unit_offset: bool = False,
        backend: Backend = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.cast, size = cast_settings(fmt, scale_rule, block_size, backend)
        self.norm = mxnorm_settings(
            hidden_size,
            self.cast,
            p=p,
            c=c,
            weights=weights,
            block_size=size,
            eps=eps,
            unit_offset=unit_offset,
            backend=backend,
            name="hidden_size",
        )
        start = torch.zeros if unit_offset else torch.ones
        own = nn.Parameter(start(hidden_size, device=device, dtype=dtype)) if gain else None
        self.register_parameter("gamma", own)
        self.keep_block_weights(weights, device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., hidden_size] in the type of x."""
        check_input(x)
        if x.shape[-1] != self.hidden_size:
            raise ValueError(
                f"x has shape {tuple(x.shape)}; its last axis must be {self.hidden_size}"
            )
        y = mx_norm(x, self.norm, self.cast, self.block_weights)
        return (y if self.gamma is None else y * gain_of(self.gamma, self.norm)).to(x.dtype)

    def extra_repr(self) -> str:
        """Size, norm and format."""
        return f"{self.hidden_size}, p={self.norm.p:g}, {label(self.cast)}"
