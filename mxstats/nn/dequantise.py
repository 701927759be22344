"""Codes and scales back to numbers, as torch operations that a compiler fuses into what reads them.

An element times its scale, e·s, has at most 8 significant bits for every OCP MX format and for
E2M1 under an E4M3 scale: bfloat16 holds it exactly down to its smallest subnormal, 2^−133, and
float32 to 2^−149. A tensor scale g has 24 bits of its own: it stays a factor outside where the
numbers are to be bfloat16, as it does in a matrix unit, and is multiplied into the scale first,
fl32(s·g)·e, in float32, as :mod:`mxstats.formats` does it.
"""

from functools import lru_cache
from typing import NamedTuple

import torch

from mxstats.kernels.spec import CastSpec, cast_spec

_HARDWARE = {4: torch.float8_e4m3fn, 5: torch.float8_e5m2}  # by exponent bits


class Decoding(NamedTuple):
    """A format as the numbers that its codes are read by."""

    block_size: int
    bits: int
    mantissa_bits: int
    bias: int
    smallest: float
    is_fixed_point: bool
    has_hardware_cast: bool
    scale_mantissa_bits: int
    """−1 for powers of two."""
    scale_bias: int
    scale_step: float
    scale_nan: int
    fits_bfloat16: bool
    """Whether e·s has no more significant bits than bfloat16's 8."""


def decoding(fmt: str) -> Decoding:
    """Return the numbers of a format, given by its key; constants where torch traces the call."""
    return Decoding(*_decoding(fmt))


@torch.compiler.assume_constant_result
def _decoding(fmt: str) -> tuple:
    return tuple(decoding_of(cast_spec(fmt)))


@lru_cache
def decoding_of(spec: CastSpec) -> Decoding:
    """The numbers of a format whose spec is at hand."""
    floating = spec.is_floating_scale
    bits_of_scale = spec.scale_mantissa_bits + 1 if floating else 0
    return Decoding(
        block_size=spec.block_size,
        bits=spec.bits,
        mantissa_bits=spec.mantissa_bits,
        bias=spec.bias,
        smallest=spec.smallest,
        is_fixed_point=spec.is_fixed_point,
        has_hardware_cast=spec.has_hardware_cast,
        scale_mantissa_bits=spec.scale_mantissa_bits if floating else -1,
        scale_bias=spec.scale_bias,
        scale_step=spec.scale_smallest_normal * 2.0**-spec.scale_mantissa_bits,
        scale_nan=spec.scale_nan,
        fits_bfloat16=spec.mantissa_bits + 1 + bits_of_scale <= 8,
    )


def dequantise(
    codes: torch.Tensor,
    scales: torch.Tensor,
    how: Decoding,
    *,
    axis: int,
    dtype: torch.dtype,
    tensor_scale: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """Return e·s as ``dtype``, or e·fl32(s·g) where a tensor scale is given.

    Parameters
    ----------
    codes, scales
        uint8, [rows, columns], and [rows, K] or [K, columns]. The last block may be short.
    how
        The format's numbers.
    axis
        1 where blocks lie along a row, 0 down a column.
    dtype
        float32, or bfloat16, exact where the format fits.
    tensor_scale
        g, float32; without it the result is that of g = 1.
    """
    factor = scale_values(scales, how)
    if tensor_scale is not None:
        factor = factor * tensor_scale
    factor = factor.to(dtype)
    values = element_values(codes, how, dtype)
    length, block_size = codes.shape[axis], how.block_size
    if length % block_size == 0:
        blocks = values.unflatten(axis, (length // block_size, block_size))
        return (blocks * factor.unsqueeze(axis + 1)).flatten(axis, axis + 1)
    of_element = torch.arange(length, device=codes.device) // block_size
    return values * factor.index_select(axis, of_element)


def element_values(codes: torch.Tensor, how: Decoding, dtype: torch.dtype) -> torch.Tensor:
    """The numbers that codes (uint8) of finite elements stand for."""
    if how.has_hardware_cast:
        return codes.view(_HARDWARE[7 - how.mantissa_bits]).to(dtype)
    code = codes.int()
    if how.is_fixed_point:
        sign = 1 << (how.bits - 1)
        return (((code ^ sign) - sign).float() * how.smallest).to(dtype)
    magnitude = code & ((1 << (how.bits - 1)) - 1)
    value = _floating(magnitude, how.mantissa_bits, how.bias, how.smallest)
    return torch.where(code == magnitude, value, -value).to(dtype)


def scale_values(scales: torch.Tensor, how: Decoding) -> torch.Tensor:
    """The float32 numbers that codes (uint8) of scales stand for; NaN for the NaN code."""
    code = scales.int()
    if how.scale_mantissa_bits >= 0:
        value = _floating(code, how.scale_mantissa_bits, how.scale_bias, how.scale_step)
    else:
        # 2^−127 is subnormal: its exponent field is that of no normal number.
        value = torch.where(code == 0, 0x00400000, code << 23).view(torch.float32)
    return torch.where(code == how.scale_nan, float("nan"), value)


def _floating(magnitude: torch.Tensor, mantissa_bits: int, bias: int, step: float) -> torch.Tensor:
    bits = (magnitude << (23 - mantissa_bits)) + ((127 - bias) << 23)
    subnormal = magnitude < (1 << mantissa_bits)
    return torch.where(subnormal, magnitude.float() * step, bits.view(torch.float32))
