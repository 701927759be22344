"""The gradient of MXNorm: dx from dy, x and the ρ̃ of the forward pass.

    y = ρ̃x,   ρ̃ = (r̂² + ε)^(−1/2),   r̂ = M_p(m)/c  or  r̂² = Σ_k w_k m_k² / K,
    dx = ρ̃dy − ρ̃³ (Σ dy·x) r̂ ∂r̂/∂x,   r̂ ∂r̂/∂m_k = M_p^(2−p) m_k^(p−1) / (K c²)  or  w_k m_k / K.

m_k reaches x only where |x| = m_k, with the sign of x, in equal shares where several elements tie,
as the gradient of ``torch.amax`` does it. The casts that follow are taken as straight-through,
clipped elements included. Source: MXNorm, arXiv 2603.13180.

In terms of the output, whose block maxima are a_k = ρ̃m_k, every factor is of the size of dy or
of y, so that no intermediate leaves float32's range where x² or ρ̃³ would:

    s = Σ dy·y,   A = ρ̃r̂ = M_p(a)/c,
    dx = ρ̃ (dy − sign(x)·pull_k/ties_k),
    pull_k = s a_k/(K c²) for p = 2,   s A/(K c) for p = 1,   s w_k a_k/K for weights,
             s A^(2−p) (a_k/c)^(p−1) / (K c) for any p;   0 in a block of zeros.

Order of operations, the same in Triton and in torch: y = fl32(ρ̃x), products fl32(dy·y), their sum
in float64, the factors of the row in float64 and rounded to float32 once, then float32:
pull·fl32(1/ties), dy less it, times ρ̃, plus the residual's gradient, rounded to the type of x.

NaN or an infinity in a row of x made its ρ̃ NaN, and so its dx. One in a row of dy makes s NaN or
infinite and leaves nothing finite in the row's dx: 0·∞ in the elements that are no maximum, as in
the gradient of ``torch.amax``.
"""

import torch

from mxstats.kernels.arguments import as_rows, of_rows, same_rows, vector
from mxstats.kernels.backend import resolve
from mxstats.kernels.mxnorm_arguments import check_constant
from mxstats.kernels.mxnorm_backward_torch import mxnorm_backward_torch


def mxnorm_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    rho: torch.Tensor,
    *,
    p: float = 2.0,
    c: float | None = None,
    weights: torch.Tensor | None = None,
    block_size: int = 32,
    d_residual: torch.Tensor | None = None,
    backend: str = "auto",
) -> torch.Tensor:
    """Return dx, the gradient of MXNorm's input.

    dx = ρ̃dy − ρ̃³ (Σ dy·x) r̂ ∂r̂/∂x, shared evenly among the elements that tie for their block's
    maximum; + d_residual.

    Parameters
    ----------
    dy
        The gradient of the output, [..., D], bfloat16, float16 or float32.
    x
        What was normed (the sum, where a residual was added), [..., D], of those types.
    rho
        ρ̃ of the forward pass, float32 [...]; ε is in it. NaN where a row was not finite.
    p, c, weights, block_size
        As in the forward pass: c, a number above 0, or for p = 2 weights [K], K = ⌈D/block_size⌉.
        Both are rounded to float32.
    d_residual
        The gradient that reaches x by another way, [..., D], added to dx.
    backend
        ``"auto"`` (Triton on a CUDA device, else torch), ``"triton"`` or ``"torch"``.

    Returns
    -------
    torch.Tensor
        dx, contiguous, of the shape and type of x. It has no autograd of its own.

    Raises
    ------
    TypeError
        An argument that is no tensor, or of another dtype.
    ValueError
        Shapes or devices that do not fit; a last stride other than 1; D = 0 or above 65,536; p or
        c not above 0; c and weights both or neither; weights with p other than 2; an unknown
        backend, or Triton's for a tensor that no GPU holds.
    """
    rows = as_rows(x)
    dy_rows = same_rows(dy, "dy", x)
    hidden_size = rows.shape[1]
    rho_rows = of_rows(rho, "rho", x)
    p, c = check_constant(p, c, weights)
    if isinstance(block_size, bool) or not isinstance(block_size, int):
        raise TypeError(f"block_size must be an integer, got {block_size!r}")
    if block_size < 1:
        raise ValueError(f"block_size={block_size}: must be at least 1")
    if weights is not None:
        weights = vector(weights, "weights", -(-hidden_size // block_size), x).contiguous()
    constant = 1.0 if c is None else c
    if d_residual is not None:
        d_residual = same_rows(d_residual, "d_residual", x)
    dx = _mxnorm_backward(
        dy_rows,
        rows,
        rho_rows,
        p,
        constant,
        weights,
        block_size,
        d_residual,
        resolve(backend, x),
    )
    return dx.view(x.shape)


# No autograd on the operator: the one that autograd sees is the group of norm and linears.
@torch.library.custom_op("mxstats::mxnorm_backward", mutates_args=())
def _mxnorm_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    rho: torch.Tensor,
    p: float,
    c: float,
    weights: torch.Tensor | None,
    block_size: int,
    d_residual: torch.Tensor | None,
    backend: str,
) -> torch.Tensor:
    if backend == "triton":
        # Not before it is needed: torch runs without Triton.
        from mxstats.kernels.mxnorm_backward_triton import launch as run
    else:
        run = mxnorm_backward_torch
    return run(dy, x, rho, p, c, weights, block_size, d_residual)


@_mxnorm_backward.register_fake
def _(dy, x, rho, p, c, weights, block_size, d_residual, backend):
    return torch.empty_like(x, memory_format=torch.contiguous_format)
