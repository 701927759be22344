"""The cast to a block format in one pass, along the rows, down the columns, or both of one read.

For each block: a = max |x|, the scale from a by the rule, each element divided by the scale and
rounded once: :func:`mxstats.formats.quantize`, bit for bit. Training needs a weight and a gradient
quantised along both axes, since a product and its two gradients contract different ones; and what
it quantises may be a product itself, W·γ or ρ̃·x, which factors of rows and columns spare from being
stored.

The operator has no gradient: none can flow through bytes, and one that flowed through an 8-bit
float would be rounded to it. The operator that autograd sees is the whole group of a cast and the
products that read it.
"""

from typing import Literal, NamedTuple

import torch

from mxstats.formats import MXFP8_E4M3, BlockFormat, ScaleRule
from mxstats.kernels import cast_torch
from mxstats.kernels.arguments import (
    as_rows,
    given_tensor_scale,
    is_blocked,
    of_rows,
    scales_shape,
    vector,
)
from mxstats.kernels.backend import resolve
from mxstats.kernels.spec import CastSpec, from_key
from mxstats.kernels.traced import FormatNumbers, format_numbers

AXES = ("rows", "columns", "both")


class MXCastOutput(NamedTuple):
    """Codes and scales along the axis asked for; with "both", of the rows, then of the columns."""

    codes: torch.Tensor
    """uint8, the shape of x."""
    scales: torch.Tensor
    """uint8: [..., K] along rows, [K, D] down columns; flat in the blocked layout."""
    column_codes: torch.Tensor | None
    column_scales: torch.Tensor | None
    tensor_scale: torch.Tensor | None
    """g, one float32, of a format that has one."""


def mx_cast(
    x: torch.Tensor,
    *,
    fmt: BlockFormat | str = MXFP8_E4M3,
    scale_rule: ScaleRule | str | None = None,
    axis: Literal["rows", "columns", "both"] = "rows",
    row_factor: torch.Tensor | None = None,
    column_factor: torch.Tensor | None = None,
    tensor_scale: float | torch.Tensor | None = None,
    scale_layout: Literal["rows", "blocked"] = "rows",
    backend: Literal["auto", "triton", "torch"] = "auto",
) -> MXCastOutput:
    """Quantise x, taken as a matrix [rows, D], in one pass.

    Parameters
    ----------
    x
        bfloat16, float16 or float32, [..., D] with last stride 1; the leading axes are its rows.
    fmt, scale_rule
        As for :func:`mxstats.formats.quantize`.
    axis
        ``"rows"`` cuts each row into K = ⌈D/block_size⌉ blocks, the last perhaps short;
        ``"columns"`` cuts each column into K = ⌈rows/block_size⌉; ``"both"`` gives the two from
        one read.
    row_factor, column_factor
        float32, [...] of one value a row, and [D]: what is cast is fl32(fl32(row·x)·column).
    tensor_scale
        g of a format with a tensor scale (NVFP4). When not given, max(amax/(largest element ·
        largest scale), 2^−126) over the finite values, 1 for zeros: that takes a pass over x of its
        own before the cast.
    scale_layout
        ``"rows"``, or ``"blocked"``: flat in the 128×4 layout of
        :func:`mxstats.formats.to_blocked`, of the scales [rows, K], or [D, K] down columns.
    backend
        ``"auto"`` is Triton on a GPU and torch elsewhere.

    Returns
    -------
    MXCastOutput
        Scales beyond what a floating scale format holds saturate, where the reference raises.

    Raises
    ------
    TypeError
        x or its dtype; a factor that is not float32.
    ValueError
        Unknown format, rule, axis, layout or backend; shape or strides of x; a tensor scale for a
        format without one or out of range.
    """
    numbers = format_numbers(fmt, scale_rule)
    if axis not in AXES:
        raise ValueError(f"axis={axis!r} is unknown; known are {', '.join(AXES)}")
    blocked = is_blocked(scale_layout)
    matrix = as_rows(x)
    chosen = resolve(backend, matrix)
    if row_factor is not None:
        row_factor = of_rows(row_factor, "row_factor", x)
    if column_factor is not None:
        column_factor = vector(column_factor, "column_factor", x.shape[-1], x).contiguous()
        if column_factor.dtype != torch.float32:
            raise TypeError(f"column_factor has dtype {column_factor.dtype}; float32 is needed")
    g = None
    if tensor_scale is not None:
        g = given_tensor_scale(tensor_scale, numbers, x)
    elif numbers.has_tensor_scale:
        g = tensor_scale_of(_multiplied(matrix, row_factor, column_factor), numbers)
    outputs = _mx_cast(matrix, numbers.key, axis, row_factor, column_factor, g, blocked, chosen)
    codes = [value.view(x.shape) for value in outputs[::2]]
    scales = list(outputs[1::2])
    if axis != "columns" and not blocked:
        scales[0] = scales[0].view(*x.shape[:-1], scales[0].shape[-1])
    if axis == "both":
        return MXCastOutput(codes[0], scales[0], codes[1], scales[1], g)
    return MXCastOutput(codes[0], scales[0], None, None, g)


def tensor_scale_of(x: torch.Tensor, numbers: FormatNumbers) -> torch.Tensor:
    """Return g = max(amax/(largest element · largest scale), least) over the finite values of x."""
    if x.numel() == 0:
        return torch.ones((), dtype=torch.float32, device=x.device)
    low, high = torch.where(x.isfinite(), x, 0.0).aminmax()
    amax = torch.maximum(high, -low).double()
    # In float64, whose quotient rounds to that of float32: compiled torch does not divide float32
    # as IEEE does.
    g = (amax / cast_torch.float64(numbers.largest, amax)).float()
    return torch.where(amax == 0.0, 1.0, g.clamp(min=numbers.least_tensor_scale))


@torch.library.custom_op("mxstats::mx_cast", mutates_args=())
def _mx_cast(
    x: torch.Tensor,
    spec: str,
    axis: str,
    row_factor: torch.Tensor | None,
    column_factor: torch.Tensor | None,
    tensor_scale: torch.Tensor | None,
    blocked: bool,
    backend: str,
) -> list[torch.Tensor]:
    if backend == "torch":
        y = _multiplied(x, row_factor, column_factor)
        return _mx_cast_torch(y, from_key(spec), axis, tensor_scale, blocked)
    # Not before it is needed: torch runs without Triton.
    from mxstats.kernels.mx_cast_triton import launch

    outputs = empty_outputs(x, from_key(spec), axis, blocked)
    launch(outputs, x, from_key(spec), axis, row_factor, column_factor, tensor_scale, blocked)
    return outputs


@_mx_cast.register_fake
def _(
    x: torch.Tensor,
    spec: str,
    axis: str,
    row_factor: torch.Tensor | None,
    column_factor: torch.Tensor | None,
    tensor_scale: torch.Tensor | None,
    blocked: bool,
    backend: str,
) -> list[torch.Tensor]:
    return empty_outputs(x, from_key(spec), axis, blocked)


def empty_outputs(x: torch.Tensor, spec: CastSpec, axis: str, blocked: bool) -> list[torch.Tensor]:
    """Codes and scales to be filled, of the rows and then of the columns."""
    rows, columns = x.shape
    shapes = []
    if axis != "columns":
        shapes += [(rows, columns), scales_shape(rows, spec.n_blocks(columns), blocked)]
    if axis != "rows":
        K = spec.n_blocks(rows)
        of_scales = scales_shape(columns, K, True) if blocked else (K, columns)
        shapes += [(rows, columns), of_scales]
    return [x.new_empty(shape, dtype=torch.uint8) for shape in shapes]


def _multiplied(
    x: torch.Tensor, row_factor: torch.Tensor | None, column_factor: torch.Tensor | None
) -> torch.Tensor:
    if row_factor is not None:
        x = row_factor[:, None] * x.float()
    return x if column_factor is None else x.float() * column_factor


def _mx_cast_torch(
    x: torch.Tensor,
    spec: CastSpec,
    axis: str,
    tensor_scale: torch.Tensor | None,
    blocked: bool,
) -> list[torch.Tensor]:
    """The kernel in vectorised torch."""
    outputs = []
    if axis != "columns":
        codes, scales = _cast_rows(x, spec, tensor_scale)
        outputs += [codes, cast_torch.to_layout(scales, blocked)]
    if axis != "rows":
        codes, scales = _cast_rows(x.t(), spec, tensor_scale)
        scales = cast_torch.to_layout(scales, True) if blocked else scales.t().contiguous()
        outputs += [codes.t().contiguous(), scales]
    return outputs


def _cast_rows(
    x: torch.Tensor, spec: CastSpec, tensor_scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = cast_torch.blocks_of(x, spec.block_size)
    code = cast_torch.scale_code(cast_torch.absmax(blocks, -1), tensor_scale, spec)
    codes = cast_torch.encode_blocks(blocks.float(), code, tensor_scale, -1, spec)
    return codes.flatten(1)[:, : x.shape[1]].contiguous(), code.to(torch.uint8)
