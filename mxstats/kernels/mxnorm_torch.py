"""MXNorm in vectorised torch, on any device: the kernel's steps in its order, equal to the bit."""

import torch

from mxstats.kernels.cast_torch import (
    absmax,
    blocks_of,
    encode_blocks,
    float64,
    floating_scale,
    inverse_scale,
    scale_code,
    to_layout,
)
from mxstats.kernels.spec import CastSpec


def mxnorm_torch(
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
) -> list[torch.Tensor]:
    """Codes, scales, ρ̃ and, with a residual, x + residual, of checked arguments."""
    total = x if residual is None else x + residual
    blocks = blocks_of(total.float(), spec.block_size)
    m = absmax(blocks, 2)
    estimator = _scale_values(m, tensor_scale, spec) if from_scales else m
    rho = inverse_rms(estimator, weights, p, c, eps)
    code = scale_code(rho[:, None] * m, tensor_scale, spec)
    codes = encode_blocks(rho[:, None, None] * blocks, code, tensor_scale, 2, spec)
    codes = codes.flatten(1)[:, : x.shape[1]].contiguous()
    outputs = [codes, to_layout(code.to(torch.uint8), blocked), rho]
    return outputs if residual is None else [*outputs, total]


def inverse_rms(
    absmax: torch.Tensor, weights: torch.Tensor | None, p: float, c: float, eps: float
) -> torch.Tensor:
    """ρ̃ (float32 [rows]) from block maxima (float32 [rows, K]), as the kernels' power mean."""
    m = absmax.double()
    n_blocks = float64(m.shape[1], m)
    if p == 2.0:
        terms = m * m if weights is None else m * m * weights.float().double()
        square = terms.sum(1) / n_blocks
    else:
        if p == 1.0:
            power_mean = m.sum(1) / n_blocks
        else:
            largest = m.amax(1)
            ratio = m / torch.where(largest > 0.0, largest, 1.0)[:, None]
            # log2 of 0 is −∞, whose power is the 0 that is wanted.
            mean = torch.exp2(p * torch.log2(ratio)).sum(1) / n_blocks
            power_mean = largest * torch.exp2(torch.log2(mean) / float64(p, m))
        square = power_mean * power_mean
    if weights is None:
        square = square / float64(c * c, m)
    rho = (1.0 / torch.sqrt(square + eps)).float()
    return torch.where(square < torch.inf, rho, torch.nan)


def _scale_values(
    absmax: torch.Tensor, tensor_scale: float | torch.Tensor, spec: CastSpec
) -> torch.Tensor:
    """The dequantised scales (float32) that blocks with these maxima have."""
    code = scale_code(absmax, tensor_scale, spec)
    if not spec.is_floating_scale:
        # 2^(s−127) is the inverse of byte 254 − s; infinite for NaN's 255, which ends as NaN.
        return inverse_scale(254 - code)
    scale = floating_scale(code, spec)
    if spec.has_tensor_scale:
        g = torch.as_tensor(tensor_scale, dtype=torch.float32, device=scale.device)
        scale = scale * g
    return torch.where(code == spec.scale_nan, torch.nan, scale)
