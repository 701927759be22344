"""Codes and scales of the kernels as torchao's MX tensor, byte for byte.

torchao keeps E4M3 and E5M2 elements as torch's own 8-bit floats, and E2M1 two to a byte, the first
in the low nibble (its ``pack_uint4``); scales are ``torch.float8_e8m0fnu``, one for each block of a
row, and every block is whole.
"""

from typing import Any

import torch

from mxstats.formats import E2M1, E4M3, E5M2, E8M0, BlockFormat, block_format

_DTYPES = {E4M3: torch.float8_e4m3fn, E5M2: torch.float8_e5m2, E2M1: torch.float4_e2m1fn_x2}


def as_torchao(
    codes: torch.Tensor,
    scales: torch.Tensor,
    fmt: BlockFormat | str,
    dtype: torch.dtype = torch.bfloat16,
    *,
    kernel_preference: str = "emulated",
) -> Any:
    """Return torchao's ``MXTensor`` of codes and scales along rows, without a copy of 8-bit codes.

    Parameters
    ----------
    codes
        uint8, [..., D], as :func:`mxstats.kernels.mxnorm` and :func:`mxstats.kernels.mx_cast` give
        them: a code in the low bits of each byte.
    scales
        uint8, [..., D/block_size], in the layout of rows.
    fmt
        E4M3, E5M2 or E2M1 elements under power-of-two scales, in blocks of any size.
    dtype
        What the tensor gives itself out for, and is dequantised to.
    kernel_preference
        Torchao's choice of a product for it: ``"emulated"``, its own default, or ``"auto"`` for a
        GPU with MX matrix units.

    Raises
    ------
    ModuleNotFoundError
        Torchao is not installed.
    TypeError, ValueError
        Codes or scales that are not uint8, whose shapes do not fit, or a D that is no multiple of
        the block size; a format that torchao's tensor does not have; an unknown preference.
    """
    chosen = block_format(fmt)
    if chosen.element not in _DTYPES or chosen.scale != E8M0:
        raise ValueError(
            f"fmt={chosen.name}: torchao's MX tensor takes E4M3, E5M2 or E2M1 under E8M0 scales"
        )
    for name, array in (("codes", codes), ("scales", scales)):
        if not isinstance(array, torch.Tensor) or array.dtype != torch.uint8:
            kind = array.dtype if isinstance(array, torch.Tensor) else type(array).__name__
            raise TypeError(f"{name} must be a torch.uint8 tensor, got {kind}")
    if codes.ndim == 0 or codes.shape[-1] % chosen.block_size:
        raise ValueError(
            f"codes has shape {tuple(codes.shape)}; torchao needs a last axis of whole blocks of "
            f"{chosen.block_size}"
        )
    wanted = (*codes.shape[:-1], codes.shape[-1] // chosen.block_size)
    if scales.shape != wanted:
        raise ValueError(
            f"scales has shape {tuple(scales.shape)}; {wanted} is needed for codes of shape "
            f"{tuple(codes.shape)} (scale_layout='rows')"
        )
    try:
        from torchao.prototype.mx_formats.mx_tensor import MXTensor
        from torchao.quantization.quantize_.common.kernel_preference import KernelPreference
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("torchao"):
            raise
        raise ModuleNotFoundError(
            "as_torchao needs torchao: pip install 'torchao>=0.18'", name="torchao"
        ) from None
    known = [each.value for each in KernelPreference]
    if kernel_preference not in known:
        raise ValueError(
            f"kernel_preference={kernel_preference!r} is unknown; known are {', '.join(known)}"
        )
    element = _DTYPES[chosen.element]
    if chosen.element == E2M1:
        # Torchao keeps pairs as plain bytes. They are packed here, not by mxstats.formats.pack,
        # which would take them through NumPy, off the device.
        data = codes[..., ::2] | codes[..., 1::2] << 4
    else:
        data = codes.contiguous().view(element)
    return MXTensor(
        data,
        scales.contiguous().view(torch.float8_e8m0fnu),
        element,
        chosen.block_size,
        dtype,
        KernelPreference(kernel_preference),
        None,
        False,
    )
