"""The gradient of RMSNorm with weights, straight through the cast that followed it.

With x̂ = ρ·x and g = γ·dy,

    dx = ρ·(g − x̂·(Σ g·x̂)/D) + d_residual,   dγ = Σ_rows dy·x̂,

in float32, dx rounded once to the dtype of x. x̂ is formed first, since ρ³ would leave float32
long before x does. The cast counts as the identity, clipped elements included.
"""

import torch

from mxstats.kernels.arguments import as_rows, of_rows, same_rows, vector
from mxstats.kernels.backend import resolve


def rmsnorm_mx_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    rho: torch.Tensor,
    gamma: torch.Tensor,
    *,
    d_residual: torch.Tensor | None = None,
    backend: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return dx and dγ from the gradient of the normalised output.

    Parameters
    ----------
    dy
        Gradient of y = ρ·x·γ, of the shape of x; bfloat16, float16 or float32.
    x
        What was normalised, [..., D]: with a residual the sum that the forward returned.
    rho
        ρ as the forward returned it, float32, [...].
    gamma
        γ, [D].
    d_residual
        The gradient that reaches x by another way, of the shape of x; added to dx.
    backend
        As for :func:`mxstats.kernels.mx_cast`.

    Returns
    -------
    tuple
        dx, of the shape and dtype of x, and dγ, float32, [D]. The kernel sums dγ over some rows a
        program and then over programs, always in the same order on the same device.

    Raises
    ------
    TypeError
        A tensor of another kind or dtype.
    ValueError
        Shapes, strides or devices that do not fit; an unknown backend.
    """
    rows = as_rows(x)
    dx, dgamma = _rmsnorm_mx_backward(
        same_rows(dy, "dy", x),
        rows,
        of_rows(rho, "rho", x),
        vector(gamma, "gamma", x.shape[-1], x).contiguous(),
        None if d_residual is None else same_rows(d_residual, "d_residual", x),
        resolve(backend, rows),
    )
    return dx.view(x.shape), dgamma


@torch.library.custom_op("mxstats::rmsnorm_mx_backward", mutates_args=())
def _rmsnorm_mx_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    rho: torch.Tensor,
    gamma: torch.Tensor,
    d_residual: torch.Tensor | None,
    backend: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    if backend == "torch":
        return _backward_torch(dy, x, rho, gamma, d_residual)
    # Not before it is needed: torch runs without Triton.
    from mxstats.kernels.rmsnorm_mx_backward_triton import launch

    return launch(dy, x, rho, gamma, d_residual)


@_rmsnorm_mx_backward.register_fake
def _(
    dy: torch.Tensor,
    x: torch.Tensor,
    rho: torch.Tensor,
    gamma: torch.Tensor,
    d_residual: torch.Tensor | None,
    backend: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    return dx, x.new_empty((x.shape[1],), dtype=torch.float32)


def _backward_torch(
    dy: torch.Tensor,
    x: torch.Tensor,
    rho: torch.Tensor,
    gamma: torch.Tensor,
    d_residual: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel in vectorised torch; equal but for the order of the sums."""
    dy, normal = dy.float(), rho[:, None] * x.float()
    weighted = dy * gamma.float()
    projection = (weighted * normal).sum(1, keepdim=True) / x.shape[1]
    dx = rho[:, None] * (weighted - normal * projection)
    if d_residual is not None:
        dx = dx + d_residual.float()
    return dx.to(x.dtype), (dy * normal).sum(0)
