"""Matrix products of quantised operands, as a unit that multiplies blocks would make them.

An operand is quantised along the axis that its product contracts, and what is multiplied are the
numbers that its codes and scales stand for, with float32 accumulation. In bfloat16 (the default on
a GPU, for formats that it holds) the numbers are those of :mod:`mxstats.nn.dequantise`; values
below 2^−133 are rounded to bfloat16's subnormals there, which ``operands="float32"`` avoids.
"""

from typing import NamedTuple

import torch

from mxstats.kernels import mx_cast
from mxstats.nn.dequantise import Decoding, decoding, dequantise
from mxstats.nn.settings import Cast


class Operand(NamedTuple):
    """A matrix ready to be multiplied: ``values``, times ``factor`` where there is one."""

    values: torch.Tensor
    factor: torch.Tensor | None


def product(a: Operand, b: Operand, dtype: torch.dtype) -> torch.Tensor:
    """Return a·b, [M, K]·[K, N], accumulated in float32 and rounded to ``dtype`` once."""
    # Under autocast float32 operands would be rounded to its own type.
    with torch.autocast(a.values.device.type, enabled=False):
        exact = a.values.dtype == torch.float32 or a.values.dtype == dtype
        if exact and a.factor is None and b.factor is None:
            return torch.mm(a.values, b.values).to(dtype)
        total = _float32_product(a.values, b.values)
        for factor in (a.factor, b.factor):
            total = total if factor is None else total * factor
        return total.to(dtype)


def _float32_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.dtype == torch.float32:
        return torch.mm(a, b)
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    # Elsewhere there is no product of 16-bit operands with another type of result.
    return torch.mm(a.float(), b.float())


def plain(values: torch.Tensor, dtype: torch.dtype) -> Operand:
    """An operand that is not quantised, rounded to ``dtype``."""
    return Operand(values.to(dtype), None)


def quantised(
    x: torch.Tensor,
    cast: Cast,
    axis: int,
    *,
    row_factor: torch.Tensor | None = None,
    column_factor: torch.Tensor | None = None,
    tensor_scale: torch.Tensor | float | None = None,
) -> Operand:
    """The operand that x [rows, columns], times its factors, becomes in blocks along ``axis``."""
    along = "rows" if axis == 1 else "columns"
    made = mx_cast(
        x.contiguous(),  # a weight may be stored the other way round
        fmt=cast.fmt,
        scale_rule=cast.scale_rule,
        axis=along,
        row_factor=row_factor,
        column_factor=column_factor,
        tensor_scale=tensor_scale,
        backend=cast.backend,
    )
    return decoded(made.codes, made.scales, cast, axis, made.tensor_scale)


def quantised_both(x: torch.Tensor, cast: Cast) -> tuple[Operand, Operand]:
    """The operands that x becomes along its rows and down its columns, from one read of it."""
    made = mx_cast(x, fmt=cast.fmt, scale_rule=cast.scale_rule, axis="both", backend=cast.backend)
    assert made.column_codes is not None
    assert made.column_scales is not None
    return (
        decoded(made.codes, made.scales, cast, 1, made.tensor_scale),
        decoded(made.column_codes, made.column_scales, cast, 0, made.tensor_scale),
    )


def decoded(
    codes: torch.Tensor,
    scales: torch.Tensor,
    cast: Cast,
    axis: int,
    tensor_scale: torch.Tensor | float | None = None,
) -> Operand:
    """The operand of codes and scales that a kernel has made."""
    how = decoding(cast.fmt)
    if operand_dtype(cast, how, codes.device) == torch.float32:
        values = dequantise(
            codes, scales, how, axis=axis, dtype=torch.float32, tensor_scale=tensor_scale
        )
        return Operand(values, None)
    if tensor_scale is not None:
        tensor_scale = torch.as_tensor(tensor_scale, dtype=torch.float32, device=codes.device)
    values = dequantise(codes, scales, how, axis=axis, dtype=torch.bfloat16)
    return Operand(values, tensor_scale)


def operand_dtype(cast: Cast, how: Decoding, device: torch.device) -> torch.dtype:
    """The type that quantised operands are multiplied in."""
    if cast.operands == "auto":
        on_matrix_unit = device.type == "cuda" and how.fits_bfloat16
        return torch.bfloat16 if on_matrix_unit else torch.float32
    return torch.bfloat16 if cast.operands == "bfloat16" else torch.float32
