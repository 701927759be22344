"""What a quantisation did to a tensor: its error, and what it clipped and flushed.

With x̂ = element value · scale, over the elements of every block whose scale is a number:
signal Σx², noise Σ(x − x̂)². Everything is in float64, in which x̂ is exact, for one piece of the
tensor at a time.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxstats.formats.reference import Quantized
from mxstats.formats.tensors import to_numpy

# Elements worked on at a time: some ten float64 temporaries of this size make about 80 MB.
_PIECE = 2**20

# A block's scale takes a byte, also where its format has 7 bits, as an E4M3 without a sign has.
_SCALE_BITS = 8
_TENSOR_SCALE_BITS = 32


@dataclass(frozen=True)
class QuantizationError:
    """Sums over a quantised tensor, and the measures made of them.

    An element of a block with the NaN scale has no x̂: it is counted in ``nan_elements`` and left
    out of everything else.
    """

    elements: int
    blocks: int
    nan_blocks: int
    nan_elements: int
    signal: float
    """Σx²."""
    noise: float
    """Σ(x − x̂)²."""
    max_abs_error: float
    """max |x − x̂|; 0 where nothing was measured."""
    clipped: int
    """Elements with |x| > largest · scale."""
    flushed: int
    """Elements other than 0 whose code is that of 0."""
    stored_bits: int
    """Bits of all codes, packed, and of all scales, a tensor scale's 32 included."""

    @property
    def snr_db(self) -> float:
        """10 log10(Σx²/Σ(x − x̂)²): infinite without an error, NaN without a signal."""
        ratio = self.relative_rms_error
        return math.inf if ratio == 0.0 else -20.0 * math.log10(ratio)

    @property
    def relative_rms_error(self) -> float:
        """√(Σ(x − x̂)²/Σx²); NaN where every x is 0 or none was measured."""
        return math.sqrt(self.noise / self.signal) if self.signal > 0.0 else math.nan

    @property
    def clipped_share(self) -> float:
        """Share of clipped elements among those measured; NaN where there are none."""
        return self._share(self.clipped)

    @property
    def flushed_share(self) -> float:
        """Share of flushed elements among those measured; NaN where there are none."""
        return self._share(self.flushed)

    @property
    def bits_per_element(self) -> float:
        """Stored bits an element: above the format's own where a last block is short."""
        return self.stored_bits / self.elements if self.elements else math.nan

    def _share(self, count: int) -> float:
        measured = self.elements - self.nan_elements
        return count / measured if measured else math.nan


def quantization_error(x: Any, quantized: Quantized) -> QuantizationError:
    """Measure what quantising ``x`` did.

    Parameters
    ----------
    x
        What was quantised, NumPy or torch, [...].
    quantized
        What :func:`mxstats.formats.quantize` made of it.

    Returns
    -------
    QuantizationError
        In float64. Squares of float64 values below 1e-154 underflow to 0.

    Raises
    ------
    TypeError
        x is not an array of a float dtype.
    ValueError
        x has another shape, or holds a NaN or an infinity where its block has a number for scale.
    """
    values, codes = to_numpy(x), to_numpy(quantized.codes)
    if values.dtype == np.uint8:
        raise TypeError("x has dtype uint8; the floats that were quantised are needed")
    if values.shape != codes.shape:
        raise ValueError(f"x has shape {values.shape}; what was quantised has {codes.shape}")
    fmt, g = quantized.fmt, quantized.tensor_scale
    scales = to_numpy(quantized.scales)
    scale_values = fmt.scale.values
    if g is not None:
        # The product that the elements were divided by is a float32. A scale that is in use does
        # not overflow it; others may, under a given g.
        with np.errstate(over="ignore"):
            scale_values = scale_values * np.float32(g)
    totals = _Totals()
    pieces = _pieces(
        np.moveaxis(values, quantized.axis, -1),
        np.moveaxis(codes, quantized.axis, -1),
        np.moveaxis(scales, quantized.axis, -1),
        fmt.block_size,
    )
    for some_x, some_codes, some_scales in pieces:
        scale = scale_values.astype(np.float64)[some_scales]
        wide = np.repeat(scale, fmt.block_size, axis=-1)[..., : some_x.shape[-1]]
        elements = fmt.element.values.astype(np.float64)[some_codes]
        totals.add(some_x.astype(np.float64), elements, wide, fmt.element.largest)
    return QuantizationError(
        elements=values.size,
        blocks=scales.size,
        nan_blocks=int(np.count_nonzero(scales == fmt.scale.nan_code)),
        nan_elements=totals.nan,
        signal=math.fsum(totals.signal),
        noise=math.fsum(totals.noise),
        max_abs_error=totals.max_abs_error,
        clipped=totals.clipped,
        flushed=totals.flushed,
        stored_bits=values.size * fmt.element.bits
        + scales.size * _SCALE_BITS
        + (0 if g is None else _TENSOR_SCALE_BITS),
    )


class _Totals:
    """Running sums over pieces."""

    def __init__(self) -> None:
        self.signal: list[float] = []
        self.noise: list[float] = []
        self.max_abs_error = 0.0
        self.nan = self.clipped = self.flushed = 0

    def add(
        self,
        x: NDArray[np.float64],
        elements: NDArray[np.float64],
        scale: NDArray[np.float64],
        largest: float,
    ) -> None:
        """Add a piece: x, element values and scales, all of one shape."""
        kept = ~np.isnan(scale)
        self.nan += kept.size - int(np.count_nonzero(kept))
        x, elements, scale = x[kept], elements[kept], scale[kept]
        if not np.isfinite(x).all():
            raise ValueError("x is not what was quantised: its NaN or infinity has no NaN scale")
        error = np.abs(x - elements * scale)
        self.signal.append(float(np.sum(x * x)))
        self.noise.append(float(np.sum(error * error)))
        self.max_abs_error = max(self.max_abs_error, float(error.max(initial=0.0)))
        self.clipped += int(np.count_nonzero(np.abs(x) > largest * scale))
        self.flushed += int(np.count_nonzero((elements == 0.0) & (x != 0.0)))


def _pieces(
    x: NDArray[Any], codes: NDArray[np.uint8], scales: NDArray[np.uint8], block_size: int
) -> Iterator[tuple[NDArray[Any], NDArray[np.uint8], NDArray[np.uint8]]]:
    """Cut tensors with blocks along the last axis into pieces of whole blocks, copying nothing."""
    if x.size <= _PIECE:
        yield x, codes, scales
    elif x.ndim == 1:
        step = max(1, _PIECE // block_size)
        for start in range(0, scales.size, step):
            part = slice(start * block_size, (start + step) * block_size)
            yield x[part], codes[part], scales[start : start + step]
    else:
        step = max(1, _PIECE // (x.size // len(x)))
        for start in range(0, len(x), step):
            part = slice(start, start + step)
            if step == 1:
                yield from _pieces(x[start], codes[start], scales[start], block_size)
            else:
                yield x[part], codes[part], scales[part]
