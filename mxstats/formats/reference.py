"""The reference quantiser: what every kernel of mxstats has to equal, bit for bit.

For each block along the axis: a = its absmax in float32, the scale from a by the rule, each element
divided by the scale (exactly, a power of two) and rounded once. NVFP4 divides by fl32(s·g), g being
the tensor's scale. A block that holds NaN or an infinity gets the NaN scale and codes 0; other
blocks are untouched. OCP MX v1.0, section 6.3; NVFP4 as NVIDIA's Transformer Engine defines it.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxstats.formats.blocks import BlockFormat, block_format
from mxstats.formats.packing import integer, real
from mxstats.formats.rounding import encode
from mxstats.formats.scales import ScaleRule, e8m0_bytes, floating_bytes
from mxstats.formats.tensors import like, to_numpy

# Values worked on at a time: what fits the second-level cache with its temporaries.
_CHUNK = 2**16


@dataclass(frozen=True)
class Quantized:
    """A quantised tensor: codes, scales, and what is needed to read them.

    ``codes`` and ``scales`` are of the kind that was quantised, NumPy or torch.
    """

    codes: Any
    """uint8, the shape of the input; a code in the low bits of each byte."""
    scales: Any
    """uint8, the shape of the input but K = ⌈n/block_size⌉ along ``axis``."""
    fmt: BlockFormat
    axis: int
    tensor_scale: float | None = None
    """g, float32, where the format has one."""

    def dequantize(self) -> Any:
        """Return element value × scale as float32, in the shape of the input.

        Exact for power-of-two scales but for overflow; rounded once to float32 for floating ones.
        Element times scale may be 2^128, which float32 does not hold, and is then infinite, though
        x was finite: for a float element of m >= 1 mantissa bits and emax >= 1 under CEIL, EVEN and
        RCEIL where |x| >= 2^128·(1 − 2^−(m+2)) (1.9375·2^127 for E4M3); never under FLOOR. With a
        tensor scale, where the product of element, scale and g rounds to 2^128.

        A block with the NaN scale is NaN throughout.
        """
        codes, scales = to_numpy(self.codes), to_numpy(self.scales)
        elements = np.moveaxis(self.fmt.element.values[codes], self.axis, -1)
        scale = np.moveaxis(self.fmt.scale.values[scales], self.axis, -1)
        if self.tensor_scale is not None:
            scale = scale * np.float32(self.tensor_scale)
        wide = np.repeat(scale, self.fmt.block_size, axis=-1)[..., : elements.shape[-1]]
        with np.errstate(over="ignore"):
            values = elements * wide
        return like(np.ascontiguousarray(np.moveaxis(values, -1, self.axis)), self.codes)


def quantize(
    x: Any,
    fmt: BlockFormat | str,
    *,
    scale_rule: ScaleRule | str | None = None,
    axis: int = -1,
    tensor_scale: float | None = None,
) -> Quantized:
    """Quantise ``x`` in blocks along ``axis``.

    Parameters
    ----------
    x
        NumPy array or torch tensor of float16, bfloat16, float32 or float64. The block's absmax is
        rounded to float32 (beyond its range it counts as infinite), its elements are not: they are
        rounded once, to the element.
    fmt
        A format or its name.
    scale_rule
        How the power of two is chosen; FLOOR (OCP's rule) when not given. A floating scale has no
        rule: it is absmax/largest, rounded to nearest, no smaller than the smallest normal.
    axis
        The axis that is cut into blocks; its last block may be short.
    tensor_scale
        g of a format with a tensor scale; max(amax/(largest element · largest scale), 2^−126) over
        the finite values when not given (1 for a tensor of zeros).

    Returns
    -------
    Quantized
        ``codes``, ``scales``, ``dequantize()``.

    Raises
    ------
    TypeError
        An integer or complex dtype, a masked array, or no array at all; an axis that is no integer,
        a tensor scale that is no real number.
    ValueError
        Unknown format or rule; axis out of range; a rule for a floating scale; a block whose scale
        is above what the scale format holds.
    """
    fmt = block_format(fmt)
    rule = check_rule(scale_rule, fmt)
    values = to_numpy(x)
    if values.dtype == np.uint8:  # to_numpy lets codes pass
        raise TypeError("x has dtype uint8; a float dtype is needed")
    if values.ndim == 0:
        raise ValueError("x is a single number; at least one axis is needed")
    axis = integer(axis, "axis")
    if not -values.ndim <= axis < values.ndim:
        raise ValueError(f"axis={axis}: out of range for {values.ndim} axes")
    axis %= values.ndim
    rows = np.moveaxis(values, axis, -1)
    shape = rows.shape
    # −1 cannot be inferred where an axis is empty.
    rows = rows.reshape(math.prod(shape[:-1]), shape[-1])
    g = _tensor_scale(rows, fmt, tensor_scale)
    codes, scales = _quantize_rows(rows, fmt, rule, g)
    return Quantized(
        codes=like(np.ascontiguousarray(np.moveaxis(codes.reshape(shape), -1, axis)), x),
        scales=like(
            np.ascontiguousarray(
                np.moveaxis(scales.reshape(*shape[:-1], scales.shape[1]), -1, axis)
            ),
            x,
        ),
        fmt=fmt,
        axis=axis,
        tensor_scale=None if g is None else float(g),
    )


def _quantize_rows(
    rows: NDArray[Any], fmt: BlockFormat, rule: ScaleRule | None, g: np.float32 | None
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Codes [n_rows, n] and scales [n_rows, K] of blocks along the last axis."""
    n_rows, n = rows.shape
    n_blocks = -(-n // fmt.block_size)
    codes = np.zeros((n_rows, n_blocks * fmt.block_size), dtype=np.uint8)
    scales = np.zeros((n_rows, n_blocks), dtype=np.uint8)
    if codes.size == 0:
        return codes[:, :n], scales
    # Some whole rows at a time, or of a long row some whole blocks.
    across = min(n_blocks, max(1, _CHUNK // fmt.block_size))
    down = max(1, _CHUNK // (across * fmt.block_size))
    for row in range(0, n_rows, down):
        for block in range(0, n_blocks, across):
            here = min(across, n_blocks - block)
            columns = slice(block * fmt.block_size, (block + here) * fmt.block_size)
            part = _padded(rows[row : row + down, columns], here * fmt.block_size)
            blocks = part.reshape(-1, fmt.block_size)
            of_blocks, of_scales = _quantize_blocks(blocks, fmt, rule, g)
            codes[row : row + down, columns] = of_blocks.reshape(part.shape)
            scales[row : row + down, block : block + here] = of_scales.reshape(-1, here)
    return codes[:, :n], scales


def _quantize_blocks(
    blocks: NDArray[Any], fmt: BlockFormat, rule: ScaleRule | None, g: np.float32 | None
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Codes [n, block_size] and scales [n] of blocks [n, block_size], float32 or float64."""
    # Of two comparisons with NaN neither holds, so that maximum carries a NaN to the end.
    absmax = np.abs(blocks).max(axis=1)
    with np.errstate(over="ignore", invalid="ignore"):  # invalid: of a signalling NaN
        absmax = absmax.astype(np.float32)
    finite = np.isfinite(absmax)
    if not finite.all():
        blocks = np.where(finite[:, None], blocks, 0)
    if rule is not None:
        scales = e8m0_bytes(absmax, fmt.element, rule)
        inverse = np.ldexp(blocks.dtype.type(1), 127 - scales.astype(np.int32))
        return encode(blocks * inverse[:, None], fmt.element), scales
    scales = floating_bytes(absmax, fmt.element, fmt.scale, g)
    divisor = np.where(finite, fmt.scale.values[scales], np.float32(1))
    if g is not None:
        divisor *= g
    return encode(blocks / divisor[:, None], fmt.element), scales


def _padded(rows: NDArray[Any], width: int) -> NDArray[Any]:
    """Rows in float32, or float64 where they are that, with zeros up to ``width``."""
    dtype = np.float64 if rows.dtype.name == "float64" else np.float32
    if rows.shape[1] == width:
        return np.ascontiguousarray(rows, dtype=dtype)
    padded = np.zeros((rows.shape[0], width), dtype=dtype)
    padded[:, : rows.shape[1]] = rows
    return padded


def _tensor_scale(rows: NDArray[Any], fmt: BlockFormat, given: float | None) -> np.float32 | None:
    if not fmt.tensor_scale:
        if given is not None:
            raise ValueError(f"tensor_scale={given}: {fmt.name} has none")
        return None
    # Below the smallest normal float32 the quotients (a/largest)/g would lose their digits, and
    # where the product s·g vanished the elements would be divided by 0.
    least = np.float32(max(2.0**-126, 2.0**-149 / fmt.scale.smallest_normal))
    if given is not None:
        with np.errstate(over="ignore"):
            g = np.float32(real(given, "tensor_scale"))
        if not least <= g < np.inf:
            raise ValueError(f"tensor_scale={given}: must be a finite float32, at least {least:g}")
        return g
    amax = np.float32(0.0)
    # Some whole rows at a time, or a part of a long row.
    across = min(rows.shape[1], _CHUNK)
    down = _CHUNK // max(across, 1)
    for row in range(0, rows.shape[0] if rows.size else 0, down):
        for column in range(0, rows.shape[1], across):
            part = rows[row : row + down, column : column + across]
            # Infinite beyond float32, as the block's absmax is.
            with np.errstate(over="ignore", invalid="ignore"):
                part = np.abs(part.astype(np.float64)).astype(np.float32)
            amax = np.max(part, where=np.isfinite(part), initial=amax)
    if amax == 0.0:
        return np.float32(1.0)
    top = np.float32(fmt.element.largest * fmt.scale.largest)
    return np.maximum(np.float32(amax) / top, least)


def check_rule(rule: ScaleRule | str | None, fmt: BlockFormat) -> ScaleRule | None:
    """Return the rule in force: FLOOR where None is given, None for a floating scale.

    Raises ValueError for an unknown rule, and for any rule where the scale is floating.
    """
    if fmt.scale.is_power_of_two:
        return ScaleRule.FLOOR if rule is None else ScaleRule(rule)
    if rule is not None:
        raise ValueError(
            f"scale_rule={str(rule)!r}: {fmt.name} has floating {fmt.scale.name} scales, for which "
            f"there is no rule to choose"
        )
    return None
