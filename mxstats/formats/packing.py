"""Packed storage of codes narrower than a byte: a little-endian bit stream along the last axis.

Code i takes bits w·i to w·i + w − 1 of the stream (w its width), and bit j of the stream is bit
j mod 8 of byte ⌊j/8⌋, bit 0 being the lowest.

* 4 bits: two codes a byte, the first in the low nibble. This is what ``torch.float4_e2m1fn_x2``
  holds (torch/headeronly/util/Float4_e2m1fn_x2.h), and torchao's ``pack_uint4``.
* 6 bits: codes a, b, c, d in three bytes, a | b<<6, b>>2 | c<<4, c>>4 | d<<2. OCP MX v1.0 leaves
  the order of packed codes open, and torch has no packed 6-bit type. torchao 0.18 keeps the 6-bit
  codes of its MX tensors unpacked, one to a byte; its integer packing (``prototype.dtypes.uintx``)
  makes two arrays, of the low nibbles and of the high bit pairs. Neither reads as this stream.
* 8 bits: the codes themselves.
"""

import numbers
import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxstats.formats.tensors import check_array, like

# bits of a code -> (codes a group, bytes a group): the smallest whole number of bytes
_GROUPS = {4: (2, 1), 6: (4, 3), 8: (1, 1)}


def pack(codes: Any, bits: int) -> Any:
    """Pack codes along the last axis.

    Parameters
    ----------
    codes
        uint8, [..., n], NumPy or torch; a code in the low ``bits`` of each byte.
    bits
        4, 6 or 8.

    Returns
    -------
    uint8, of the kind that came: [..., ⌈n/2⌉] for 4 bits, [..., 3⌈n/4⌉] for 6 bits (a last group
    is filled up with codes 0); for 8 bits ``codes`` itself.

    Raises
    ------
    TypeError
        Not an array of uint8.
    ValueError
        Another width; no axis; a code that does not fit in ``bits``.
    """
    per_group, group_bytes = _group(bits)
    array = uint8_array(codes, "codes")
    if array.ndim == 0:
        raise ValueError("codes is a single number; at least one axis is needed")
    largest = int(array.max(initial=0))
    if largest >= 2**bits:
        raise ValueError(f"codes has a code {largest}: at most {2**bits - 1} fits in bits={bits}")
    if bits == 8:
        return codes
    n = array.shape[-1]
    groups = -(-n // per_group)
    if n < groups * per_group:
        filled = np.zeros((*array.shape[:-1], groups * per_group), dtype=np.uint8)
        filled[..., :n] = array
        array = filled
    one = [array[..., i::per_group] for i in range(per_group)]
    packed = np.empty((*array.shape[:-1], groups, group_bytes), dtype=np.uint8)
    # Bits shifted out of the byte are dropped by uint8 itself.
    if bits == 4:
        packed[..., 0] = one[0] | one[1] << 4
    else:
        packed[..., 0] = one[0] | one[1] << 6
        packed[..., 1] = one[1] >> 2 | one[2] << 4
        packed[..., 2] = one[2] >> 4 | one[3] << 2
    return like(packed.reshape(*array.shape[:-1], groups * group_bytes), codes)


def unpack(packed: Any, bits: int, n: int) -> Any:
    """Return the first ``n`` codes along the last axis: the inverse of :func:`pack`.

    Parameters
    ----------
    packed
        uint8, as :func:`pack` gives it, NumPy or torch.
    bits
        4, 6 or 8.
    n
        Codes along the last axis.

    Returns
    -------
    uint8, [..., n], of the kind that came; for 8 bits ``packed`` itself.

    Raises
    ------
    TypeError
        Not an array of uint8, or n not an integer.
    ValueError
        Another width; no axis; n codes take another number of bytes; a code other than 0 behind
        the n-th, which n would lose.
    """
    per_group, group_bytes = _group(bits)
    array = uint8_array(packed, "packed")
    n = integer(n, "n")
    if array.ndim == 0:
        raise ValueError("packed is a single number; at least one axis is needed")
    groups = -(-n // per_group)
    if n < 0 or groups * group_bytes != array.shape[-1]:
        raise ValueError(
            f"n={n}: {array.shape[-1]} bytes hold {_lengths(array.shape[-1], bits)} codes of "
            f"{bits} bits"
        )
    if bits == 8:
        return packed
    byte = array.reshape(*array.shape[:-1], groups, group_bytes)
    codes = np.empty((*array.shape[:-1], groups, per_group), dtype=np.uint8)
    if bits == 4:
        codes[..., 0] = byte[..., 0] & 0xF
        codes[..., 1] = byte[..., 0] >> 4
    else:
        codes[..., 0] = byte[..., 0] & 0x3F
        codes[..., 1] = (byte[..., 0] >> 6 | byte[..., 1] << 2) & 0x3F
        codes[..., 2] = (byte[..., 1] >> 4 | byte[..., 2] << 4) & 0x3F
        codes[..., 3] = byte[..., 2] >> 2
    codes = codes.reshape(*array.shape[:-1], groups * per_group)
    if codes[..., n:].any():
        raise ValueError(f"n={n}: a code other than 0 follows the last one")
    return like(np.ascontiguousarray(codes[..., :n]), packed)


def uint8_array(x: Any, name: str) -> NDArray[np.uint8]:
    """Return ``x`` as a NumPy array of uint8, or raise TypeError naming the argument."""
    check_array(x, name)
    # Asked of the tensor: NumPy has no array at all for some of torch's dtypes.
    if str(x.dtype).removeprefix("torch.") != "uint8":
        raise TypeError(f"{name} has dtype {x.dtype}; uint8 is needed (the bytes: view them so)")
    return x if isinstance(x, np.ndarray) else x.detach().cpu().numpy()


def integer(value: Any, name: str) -> int:
    """Return an integer argument as int, or raise TypeError naming it."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None


def real(value: Any, name: str) -> float:
    """Return a real number as float, or raise TypeError (ValueError beyond 64 bits) naming it."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a real number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be a real number below 2^1024, got a larger one") from None


def _group(bits: int) -> tuple[int, int]:
    """Codes and bytes of a group, or an error for a width that is not packed."""
    if integer(bits, "bits") not in _GROUPS:
        raise ValueError(f"bits={bits}: codes of 4, 6 or 8 bits can be packed")
    return _GROUPS[bits]


def _lengths(n_bytes: int, bits: int) -> str:
    """Say how many codes ``n_bytes`` may hold."""
    per_group, group_bytes = _GROUPS[bits]
    groups, rest = divmod(n_bytes, group_bytes)
    if rest:
        return "no whole number of groups of"
    most, least = groups * per_group, max(0, (groups - 1) * per_group + 1)
    return f"{most}" if most <= least else f"{least} to {most}"
