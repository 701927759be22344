"""The gradient of MXNorm in vectorised torch, on any device, without Triton.

The steps of :mod:`mxstats.kernels.mxnorm_backward` in the same order on the same types, so that the
results are equal bit for bit, but for a last bit where log2 and exp2 enter: p other than 1 and 2.
"""

import torch

from mxstats.kernels.cast_torch import absmax, blocks_of, float64


def mxnorm_backward_torch(
    dy: torch.Tensor,
    x: torch.Tensor,
    rho: torch.Tensor,
    p: float,
    c: float,
    weights: torch.Tensor | None,
    block_size: int,
    d_residual: torch.Tensor | None,
) -> torch.Tensor:
    """Return dx of rows [n, D] that the public function has checked."""
    hidden_size = x.shape[1]
    blocks = blocks_of(x.float(), block_size)
    n_blocks = float64(blocks.shape[1], x)
    rho = rho[:, None]
    # On the device, in float64: a Python number would round to float32 on the way.
    constant = torch.tensor(c, dtype=torch.float32, device=x.device).double()
    s = (dy.float() * (rho * x.float())).double().sum(-1, keepdim=True)
    of_blocks = absmax(blocks, -1)
    output = rho * of_blocks
    if weights is not None:
        pull = ((s / n_blocks).float() * output) * weights.float()
    elif p == 2.0:
        pull = (s / (n_blocks * (constant * constant))).float() * output
    elif p == 1.0:
        level = output.double().sum(-1, keepdim=True) / (n_blocks * constant)
        pull = ((s * level) / (n_blocks * constant)).float().expand_as(output)
    else:
        pull = _pull_of_any_p(s / (n_blocks * constant), output.double() / constant, p)
    pull = torch.where(of_blocks > 0.0, pull, 0.0)

    tied = (blocks.abs() == of_blocks[..., None]).float()
    share = 1.0 / tied.sum(-1).clamp(min=1.0)
    # ±1 or ±0 times the pull: an exact product.
    pulled = tied.copysign(blocks) * -(pull * share)[..., None]
    pulled = pulled.flatten(1)[:, :hidden_size]
    dx = rho * (dy.float() + pulled)
    if d_residual is not None:
        dx = dx + d_residual.float()
    return dx.to(x.dtype)


def _pull_of_any_p(factor: torch.Tensor, ratio: torch.Tensor, p: float) -> torch.Tensor:
    """s/(Kc) · A^(2−p) (a/c)^(p−1) from a/c, float64 [rows, K]."""
    # Of a block of zeros the power would be infinite for p below 1.
    logs = torch.where(ratio > 0.0, ratio, 1.0).log2()
    terms = torch.where(ratio > 0.0, (p * logs).exp2(), 0.0)
    total, n_blocks = terms.sum(-1, keepdim=True), float64(ratio.shape[1], ratio)
    level = torch.where(total > 0.0, total / n_blocks, 1.0).log2() / float64(p, ratio)
    return (factor * ((2.0 - p) * level + (p - 1.0) * logs).exp2()).float()
