"""The casts of :mod:`mxstats.kernels.cast_jit` in vectorised torch, on any device, without Triton.

The same steps in the same order on the same types, so that the results are equal bit for bit.
"""

import torch

from mxstats.kernels.spec import CEIL, EVEN, FLOOR, CastSpec

_INFINITY = 0x7F800000


def absmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    """float32 max |x| along an axis, NaN where one is: of integers, as the kernels take it."""
    return (x.float().view(torch.int32) & 0x7FFFFFFF).amax(dim).view(torch.float32)


def scale_code(
    absmax: torch.Tensor, tensor_scale: torch.Tensor | float | None, spec: CastSpec
) -> torch.Tensor:
    """Code (int32) of the scale of blocks with this float32 absmax; saturates, never raises."""
    bits = absmax.view(torch.int32) & 0x7FFFFFFF
    if spec.is_floating_scale:
        ratio = absmax / _float32(spec.largest, absmax)
        if spec.has_tensor_scale:
            ratio = ratio / _float32(tensor_scale, absmax)
        wanted = ratio.view(torch.int32).clamp(min=(128 - spec.scale_bias) << 23)
        code = _rounded_code(wanted, spec.scale_mantissa_bits, spec.scale_bias)
        code = code.clamp(max=spec.scale_nan - 1)
    else:
        if spec.rule == FLOOR:
            code = (bits >> 23) - spec.emax
        elif spec.rule == CEIL:
            code = ((bits + 0x7FFFFF) >> 23) - spec.emax
        elif spec.rule == EVEN:
            code = ((bits + (1 << (22 - spec.mantissa_bits))) >> 23) - spec.emax
        else:
            ratio = (absmax / _float32(spec.largest, absmax)).view(torch.int32)
            code = (ratio + torch.where(ratio < 0x800000, 0x3FFFFF, 0x7FFFFF).int()) >> 23
        code = torch.where(bits == 0, 0, code.clamp(0, 254))
    return torch.where(bits >= _INFINITY, spec.scale_nan, code)


def inverse_scale(byte: torch.Tensor) -> torch.Tensor:
    """The float32 2^(127−s) of an E8M0 byte s (int32), exactly; NaN for 255."""
    bits = torch.where(byte == 254, 0x00400000, (254 - byte) << 23)
    return torch.where(byte == 255, 0x7FC00000, bits).view(torch.float32)


def floating_scale(code: torch.Tensor, spec: CastSpec) -> torch.Tensor:
    """The float32 value of a floating scale's code (int32), at least the smallest normal."""
    bits = (code << (23 - spec.scale_mantissa_bits)) + ((127 - spec.scale_bias) << 23)
    return bits.view(torch.float32)


def encode(v: torch.Tensor, spec: CastSpec) -> torch.Tensor:
    """Codes (uint8) of finite float32: nearest, ties to even, saturating; −0 keeps its sign."""
    if spec.is_fixed_point:
        steps = (v * 2.0**spec.mantissa_bits).clamp(-spec.top_code, spec.top_code)
        return (steps.round().int() & ((1 << spec.bits) - 1)).to(torch.uint8)
    bits = v.view(torch.int32)
    magnitude = bits & 0x7FFFFFFF
    anchor = _float32(spec.smallest * 2.0**23, v)
    below = (magnitude.view(torch.float32) + anchor).view(torch.int32) - anchor.view(torch.int32)
    normal = _rounded_code(magnitude, spec.mantissa_bits, spec.bias)
    code = torch.where(magnitude < ((spec.emin + 127) << 23), below, normal)
    sign = (bits >> (32 - spec.bits)) & (1 << (spec.bits - 1))
    return (code.clamp(max=spec.top_code) | sign).to(torch.uint8)


def encode_blocks(
    y: torch.Tensor,
    code: torch.Tensor,
    tensor_scale: torch.Tensor | float | None,
    dim: int,
    spec: CastSpec,
) -> torch.Tensor:
    """Codes (uint8) of y (float32), whose blocks along ``dim`` have scales with these codes."""
    dead = code == spec.scale_nan
    if spec.is_floating_scale:
        divisor = floating_scale(code, spec)
        if spec.has_tensor_scale:
            divisor = divisor * _float32(tensor_scale, y)
        v = y / torch.where(dead, 1.0, divisor).unsqueeze(dim)
    else:
        v = y * inverse_scale(code).unsqueeze(dim)
    return encode(torch.where(dead.unsqueeze(dim), 0.0, v), spec)


def blocks_of(x: torch.Tensor, block_size: int) -> torch.Tensor:
    """[rows, D] as [rows, K, block_size], the last block filled with zeros.

    A block longer than the row is as long as the row.
    """
    rows, length = x.shape
    block_size = max(1, min(block_size, length))
    n_blocks = -(-length // block_size)
    padded = torch.nn.functional.pad(x, (0, n_blocks * block_size - length))
    return padded.view(rows, n_blocks, block_size)


def to_layout(scales: torch.Tensor, blocked: bool) -> torch.Tensor:
    """Scales (uint8, [rows, K]) as they are, or as the flat 128×4 layout with zeros for padding."""
    if not blocked:
        return scales
    rows, columns = scales.shape
    down, across = -(-rows // 128), -(-columns // 4)
    padded = torch.nn.functional.pad(scales, (0, across * 4 - columns, 0, down * 128 - rows))
    return padded.view(down, 4, 32, across, 4).permute(0, 3, 2, 1, 4).reshape(-1)


def _rounded_code(bits: torch.Tensor, mantissa_bits: int, bias: int) -> torch.Tensor:
    shift = 23 - mantissa_bits
    odd = (bits >> shift) & 1
    if mantissa_bits == 0 and (127 - bias) % 2 == 1:
        odd ^= 1
    return ((bits + odd + ((1 << (shift - 1)) - 1)) >> shift) - ((127 - bias) << mantissa_bits)


def float64(value: float, like: torch.Tensor) -> torch.Tensor:
    """A number as a float64 on the device of ``like``, to be divided by.

    CUDA multiplies by the reciprocal of a Python number instead, which rounds twice.
    """
    return torch.full((), value, dtype=torch.float64, device=like.device)


def _float32(value: torch.Tensor | float | None, like: torch.Tensor) -> torch.Tensor:
    """A value as a float32 tensor: a Python number would be taken as a double on some devices."""
    return torch.as_tensor(value, dtype=torch.float32, device=like.device)
