"""The cast to a block format as one Triton kernel, for rows, columns or both."""

# In a kernel a constexpr is the value it holds, which pyright cannot know.
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportAssignmentType=false

import torch
import triton
import triton.language as tl

from mxstats.kernels.backend import has_fp8_cast
from mxstats.kernels.cast_jit import (
    absmax_bits,
    encode_blocks,
    scale_code,
    store_scales,
    to_float32,
)
from mxstats.kernels.launching import start, trait
from mxstats.kernels.spec import CastSpec
from mxstats.kernels.tiling import padded_width, power_of_two

# Elements of a program's tile: 32 a thread of 4 warps.
_TILE = 4096


def launch(
    outputs: list[torch.Tensor],
    x: torch.Tensor,
    spec: CastSpec,
    axis: str,
    row_factor: torch.Tensor | None,
    column_factor: torch.Tensor | None,
    tensor_scale: torch.Tensor | None,
    blocked: bool,
) -> None:
    """Fill [codes, scales], of the rows and then of the columns where both are asked for.

    x is [rows, D] with last stride 1, the outputs are contiguous; nothing is checked.
    """
    rows, columns = x.shape
    if rows == 0:
        return
    along_rows, down_columns = axis != "columns", axis != "rows"
    # A tile is [row groups, rows, column groups, columns], of padded blocks or of single lines.
    lines = _lines(rows, columns, axis, blocked)
    block_rows, block_columns = (
        padded_width(reached, spec.block_size) if blocks else 1
        for reached, blocks in zip(lines, (down_columns, along_rows), strict=True)
    )
    tall, wide = _cover(spec, rows, columns, axis, blocked)
    group = max(1, _TILE // (block_rows * block_columns))
    across = min(power_of_two(wide), 4 if down_columns and along_rows else 128, group)
    down = min(power_of_two(tall), max(1, group // across))
    tiles_across = -(-wide // across)
    stride = x.stride(0)
    constants = (
        spec,
        down,
        block_rows,
        across,
        block_columns,
        along_rows,
        down_columns,
        blocked,
        has_fp8_cast(x.device),
    )
    start(
        _kernel,
        -(-tall // down) * tiles_across,
        (
            x, *outputs[:2], *outputs[-2:], row_factor, column_factor, tensor_scale, rows, stride,
            columns, tiles_across, *constants,
        ),
        (
            "mx_cast", constants, stride, columns, rows >> 31,
            *(trait(one) for one in (x, row_factor, column_factor, tensor_scale)),
        ),
        x.device,
        num_warps=4,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "tiles_across"])
def _kernel(
    x,
    codes,
    scales,
    column_codes,
    column_scales,
    row_factor,
    column_factor,
    tensor_scale,
    rows,
    stride,
    columns,
    tiles_across,
    SPEC: tl.constexpr,
    DOWN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    ACROSS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    ALONG_ROWS: tl.constexpr,
    DOWN_COLUMNS: tl.constexpr,
    BLOCKED: tl.constexpr,
    HARDWARE: tl.constexpr,
):
    block_rows: tl.constexpr = SPEC.block_size if DOWN_COLUMNS else 1
    block_columns: tl.constexpr = SPEC.block_size if ALONG_ROWS else 1
    program = tl.program_id(0)
    down = program // tiles_across * DOWN + tl.arange(0, DOWN)
    across = program % tiles_across * ACROSS + tl.arange(0, ACROSS)
    in_rows, in_columns = tl.arange(0, BLOCK_ROWS), tl.arange(0, BLOCK_COLUMNS)
    # Lanes beyond the block size stand in for nothing.
    row_lane, column_lane = in_rows < block_rows, in_columns < block_columns
    row = down[:, None] * block_rows + in_rows[None, :]
    column = across[:, None] * block_columns + in_columns[None, :]
    mask = (row_lane & (row < rows))[:, :, None, None] & (column_lane & (column < columns))
    row_offset = row[:, :, None, None].to(tl.int64)
    loaded = tl.load(x + (row_offset * stride + column), mask=mask, other=0.0)
    value = to_float32(loaded)
    if row_factor is not None:
        value *= tl.load(row_factor + row, mask=row < rows, other=0.0)[:, :, None, None]
    if column_factor is not None:
        value *= tl.load(column_factor + column, mask=column < columns, other=0.0)
    # The bits of 16-bit rows are cheaper to compare, where they are those of the values.
    sized = loaded if row_factor is None and column_factor is None else value
    out = row_offset * columns + column
    g = 1.0
    if SPEC.has_tensor_scale:
        g = tl.load(tensor_scale)
    if ALONG_ROWS:
        absmax = absmax_bits(sized, 3).to(tl.float32, bitcast=True)
        code = scale_code(absmax, g, SPEC)
        tl.store(codes + out, encode_blocks(value, code, g, 3, SPEC, HARDWARE, False), mask=mask)
        K = tl.cdiv(columns, SPEC.block_size)
        at, block = row[:, :, None], across[None, None, :]
        store_scales(scales, code, at, block, rows, K, row_lane[None, :, None], BLOCKED)
    if DOWN_COLUMNS:
        absmax = absmax_bits(sized, 1).to(tl.float32, bitcast=True)
        code = scale_code(absmax, g, SPEC)
        tl.store(
            column_codes + out, encode_blocks(value, code, g, 1, SPEC, HARDWARE, False), mask=mask
        )
        K = tl.cdiv(rows, SPEC.block_size)
        at, block = column[None, :, :], down[:, None, None]
        if BLOCKED:
            # The layout is of the scales of rows: those of x's transpose.
            store_scales(column_scales, code, at, block, columns, K, column_lane, True)
        else:
            store_scales(column_scales, code, block, at, K, columns, column_lane, False)


def _lines(rows: int, columns: int, axis: str, blocked: bool) -> tuple[int, int]:
    """Rows and columns that the tiles must reach: those of the layout's padding included."""
    if blocked and axis != "columns":
        rows = -(-rows // 128) * 128
    if blocked and axis != "rows":
        columns = -(-columns // 128) * 128
    return rows, columns


def _cover(spec: CastSpec, rows: int, columns: int, axis: str, blocked: bool) -> tuple[int, int]:
    """Blocks, or single lines, that the tiles must reach down and across: the padding included."""
    if blocked and axis != "columns":
        rows = -(-rows // 128) * 128
        columns = -(-spec.n_blocks(columns) // 4) * 4 * spec.block_size
    if blocked and axis != "rows":
        rows = max(rows, -(-spec.n_blocks(rows) // 4) * 4 * spec.block_size)
        columns = max(columns, -(-columns // 128) * 128)
    tall = rows if axis == "rows" else spec.n_blocks(rows)
    wide = columns if axis == "columns" else spec.n_blocks(columns)
    return tall, wide
