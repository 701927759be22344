"""What a user of torch writes instead: RMSNorm·γ and the MX cast (E4M3, E8M0 by FLOOR) in torch.

    y = x·(mean(x²) + ε)^(−1/2)·γ,   s = max(E(absmax) − 8, 0),
    code = E4M3(clamp(y·2^(127−s), −448, 448)),

with E the biased exponent field of a block's absmax, all in float32 and in forms that Inductor
turns into a few fused kernels: bit views instead of logarithms, no branches. Only finite input is
handled, which spares the plain version work that the kernels do. The bytes are those of
:func:`mxstats.formats.quantize`.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn import functional

BLOCK_SIZE = 32
_LARGEST = 448.0
_EMAX = 8


def rmsnorm(x: torch.Tensor, gamma: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """Return RMSNorm·γ in float32; x [..., D], γ [D]."""
    wide = x.float()
    inverse_rms = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return wide * inverse_rms * gamma.float()


def rmsnorm_rounded(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    """Return RMSNorm·γ in the dtype of x, as a module hands it to the cast."""
    return rmsnorm(x, gamma).to(x.dtype)


def mx_cast(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes [..., D] (float8_e4m3fn) and scales [..., D/32] (uint8); 32 must divide D."""
    blocks = y.float().unflatten(-1, (-1, BLOCK_SIZE))
    absmax = blocks.abs().amax(dim=-1, keepdim=True)
    scale = ((absmax.view(torch.int32) >> 23) - _EMAX).clamp(min=0)
    # At most 246, so that the exponent field of 2^(127−s) is that of a normal number.
    inverse = ((254 - scale) << 23).view(torch.float32)
    codes = (blocks * inverse).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)
    return codes.flatten(-2), scale.squeeze(-1).to(torch.uint8)


def rmsnorm_mx(x: torch.Tensor, gamma: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes and scales of RMSNorm·γ, never rounded to x's dtype in between."""
    return mx_cast(rmsnorm(x, gamma))


def rmsnorm_backward(
    dy: torch.Tensor, x: torch.Tensor, rho: torch.Tensor, gamma: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return dx = ρ(γ·dy − x·ρ²·mean(γ·dy·x)) and dγ = Σ dy·x·ρ, float32; dy, x [N, D], ρ [N]."""
    wide, rho = x.float(), rho.unsqueeze(-1)
    normalised, grown = wide * rho, dy.float() * gamma.float()
    dx = rho * (grown - normalised * (grown * normalised).mean(dim=-1, keepdim=True))
    return dx.to(x.dtype), (dy.float() * normalised).sum(dim=0)


def swiglu_mx(gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes and scales of silu(gate)·up; gate_up [N, 2·D]."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return mx_cast(functional.silu(gate) * up)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function compiled for the shapes it is called with, one graph, no fallback."""
    return torch.compile(function, dynamic=False, fullgraph=True)


def liger_rmsnorm() -> Callable[..., torch.Tensor] | None:
    """Return Liger's RMSNorm(x, γ, ε), None where ``liger_kernel`` is not installed."""
    if find_spec("liger_kernel") is None:
        return None
    from liger_kernel.transformers.functional import (  # pyright: ignore[reportMissingImports]
        liger_rms_norm,
    )

    return liger_rms_norm
