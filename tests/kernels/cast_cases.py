"""Formats, rows and conversions that the tests of the casts share."""

import shutil

import ml_dtypes
import numpy as np
import torch

from mxstats import formats
from tests.formats.inputs import DTYPES, fuzz, with_dead_blocks

E3M4_24 = formats.BlockFormat(formats.ElementFormat(3, 4), block_size=24)
# What no standard format has: no mantissa, a largest value below 1, three bits of fixed point.
USER = (
    E3M4_24,
    formats.BlockFormat(formats.ElementFormat(4, 0), block_size=8),
    formats.BlockFormat(formats.ElementFormat(3, 0, bias=4), block_size=8),
    formats.BlockFormat(formats.ElementFormat(2, 5, bias=90), block_size=16),
    formats.BlockFormat(formats.ElementFormat(0, 2), block_size=20),
    formats.BlockFormat(formats.E4M3, block_size=32, scale=formats.E5M3_SCALE),
)
FORMATS = (*formats.FORMATS.values(), *USER)
CASES = [
    (fmt, rule)
    for fmt in FORMATS
    for rule in (formats.ScaleRule if fmt.scale.is_power_of_two else [None])
]
# (backend, compiler): Inductor needs a C++ compiler on a CPU, and what it would make of the
# interpreter's kernels is what it makes of the others: the operators are opaque to it.
COMPILED = [("triton", "aot_eager"), ("torch", "aot_eager")]
if torch.cuda.is_available() or shutil.which("g++"):
    COMPILED.append(("torch", "inductor"))
if torch.cuda.is_available():
    COMPILED.append(("triton", "inductor"))
FLOATS = ("bfloat16", "float16", "float32")


def case_name(case):
    fmt, rule = case
    return fmt.name if rule is None else f"{fmt.name}-{rule}"


def rows_of(shape, dtype, seed, dead=True):
    """Random magnitudes, borders of binades, ties and special values; with NaN and infinities."""
    values = fuzz(np.dtype(DTYPES[dtype]), int(np.prod(shape)), seed).reshape(shape)
    return with_dead_blocks(values, seed + 1) if dead else values


def held(x, fmt):
    """The values, within what floating scales hold: above, the reference raises."""
    if fmt.scale.is_power_of_two or fmt.tensor_scale:
        return x
    top = fmt.element.largest * fmt.scale.largest / 2
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(x), np.clip(x.astype(np.float32), -top, top), x).astype(x.dtype)


def normal(shape, seed, device):
    """Gaussian float32, made where it is needed."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device)


def to_torch(array, device="cpu"):
    """A torch tensor of the array's own bits."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16).to(device)
    return torch.from_numpy(array.copy()).to(device)


def to_numpy(tensor):
    """A NumPy array of the tensor's own bits."""
    tensor = tensor.cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()
