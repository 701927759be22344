"""Modules of a norm with the linears that read it: MXNorm's, and RMSNorm's as its baseline."""

from collections.abc import Sequence
from typing import cast as cast_type

import torch
from torch import nn

from mxstats.formats import MXFP8_E4M3, BlockFormat, ScaleRule
from mxstats.nn.calibrated import BlockWeighted
from mxstats.nn.group import norm_linear
from mxstats.nn.settings import (
    Backend,
    Cast,
    Norm,
    cast_settings,
    features_of,
    label,
    mxnorm_settings,
    rmsnorm_settings,
)


class NormLinear(BlockWeighted):
    """What :class:`MXNormLinear` and :class:`RMSNormLinear` share: parameters and the operation.

    Attributes
    ----------
    gamma
        γ, [in_features], ones at first (zeros where the gain is 1 + γ).
    linears
        The linears, as ``torch.nn.Linear``; their weights are [features, in_features].
    norm, cast
        Settings, plain values.
    """

    norm: Norm
    cast: Cast | None
    block_weights: torch.Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int | Sequence[int],
        bias: bool,
        unit_offset: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        features, self.is_single = features_of(out_features)
        start = torch.zeros if unit_offset else torch.ones
        self.gamma = nn.Parameter(start(in_features, device=device, dtype=dtype))
        self.linears = nn.ModuleList(
            nn.Linear(in_features, each, bias=bias, device=device, dtype=dtype) for each in features
        )

    @property
    def out_features(self) -> int | tuple[int, ...]:
        """As it was given."""
        features = tuple(linear.out_features for linear in self.each_linear())
        return features[0] if self.is_single else features

    def each_linear(self) -> list[nn.Linear]:
        """The linears in their order."""
        return cast_type(list[nn.Linear], list(self.linears))

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Return [..., features] of x [..., in_features]; a tuple where a tuple was asked for."""
        weights = [linear.weight for linear in self.each_linear()]
        outputs = norm_linear(x, self.gamma, weights, self.norm, self.cast, self.block_weights)
        outputs = tuple(
            out if linear.bias is None else out + linear.bias.to(out.dtype)
            for out, linear in zip(outputs, self.each_linear(), strict=True)
        )
        return outputs[0] if self.is_single else outputs

    def extra_repr(self) -> str:
        """Sizes, norm and format."""
        norm = f"p={self.norm.p:g}, " if self.norm.kind == "mxnorm" else ""
        constant = "" if self.norm.c is None else f"c={self.norm.c:.6g}, "
        return f"{self.in_features}, {self.out_features}, {norm}{constant}{label(self.cast)}"


class MXNormLinear(NormLinear):
    """MXNorm and every linear that shares it, as one operation on one pass over x.

    y = cast(ρ̃·x) with ρ̃ from the block maxima (rms = 1), out_i = y·cast(W_i·γ)ᵀ + bias_i; forward
    and backward products take operands quantised along the axis that they contract. See
    :mod:`mxstats.nn.group` for the formulas. Source: MXNorm, arXiv 2603.13180.

    Parameters
    ----------
    in_features
        D, at least the block size.
    out_features
        Features of one linear, or a tuple of them for several that share the norm (q, k, v; gate,
        up): a tuple gives a tuple.
    p
        Power of the mean of block maxima.
    c
        The constant; that of Gaussian rows of D when not given (:func:`mxstats.constant`).
    weights
        With p = 2, one weight for each block, [K], in place of c. A buffer that is no part of the
        state dict, as c is not: calibration is configuration.
    fmt, scale_rule, block_size
        The block format of all operands, None for no rounding; as :func:`mxstats.quantize` takes
        them. ``block_size`` is the format's own when not given, and 32 without a format.
    eps
        ε of ρ̃ = (r̂² + ε)^(−1/2).
    bias
        Whether the linears have one, added after the product.
    unit_offset
        Whether the gain is 1 + γ, as in Gemma.
    operands
        ``"auto"`` (bfloat16 on a GPU for formats that it holds exactly, else float32),
        ``"bfloat16"`` or ``"float32"``: what the dequantised operands are multiplied in.
    backend
        Of the kernels: ``"auto"``, ``"triton"`` or ``"torch"``.

    Raises
    ------
    TypeError, ValueError
        Settings out of range or against each other: both c and weights, weights of another length
        than K, D below the block size; at a call, an input whose last axis is not D. RuntimeError
        for a double backward.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int | Sequence[int],
        *,
        p: float = 2.0,
        c: float | None = None,
        weights: torch.Tensor | None = None,
        fmt: BlockFormat | str | None = MXFP8_E4M3,
        scale_rule: ScaleRule | str | None = None,
        block_size: int | None = None,
        eps: float = 1e-5,
        bias: bool = False,
        unit_offset: bool = False,
        operands: str = "auto",
        backend: Backend = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        cast, size = cast_settings(fmt, scale_rule, block_size, backend, operands)
        norm = mxnorm_settings(
            in_features,
            cast,
            p=p,
            c=c,
            weights=weights,
            block_size=size,
            eps=eps,
            unit_offset=unit_offset,
            backend=backend,
        )
        super().__init__(in_features, out_features, bias, unit_offset, device, dtype)
        self.norm, self.cast = norm, cast
        self.keep_block_weights(weights, device)


class RMSNormLinear(NormLinear):
    """RMSNorm and every linear that shares it, on the fused kernel of RMSNorm and cast.

    y = cast(ρ·x·γ) with ρ = (mean x² + ε)^(−1/2) (rms = 1), out_i = y·cast(W_i)ᵀ + bias_i. The
    baseline of :class:`MXNormLinear`, whose parameters it shares but for p, c and weights.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int | Sequence[int],
        *,
        fmt: BlockFormat | str | None = MXFP8_E4M3,
        scale_rule: ScaleRule | str | None = None,
        block_size: int | None = None,
        eps: float = 1e-5,
        bias: bool = False,
        unit_offset: bool = False,
        operands: str = "auto",
        backend: Backend = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        cast, size = cast_settings(fmt, scale_rule, block_size, backend, operands)
        norm = rmsnorm_settings(
            cast, block_size=size, eps=eps, unit_offset=unit_offset, backend=backend
        )
        super().__init__(in_features, out_features, bias, unit_offset, device, dtype)
        self.norm, self.cast = norm, cast
        self.keep_block_weights(None, device)


__all__: list[str] = ["MXNormLinear", "NormLinear", "RMSNormLinear"]
