"""MXNorm in plain NumPy on the reference quantiser: what every backend has to equal to the bit."""

import ml_dtypes
import numpy as np
import torch

from mxstats import formats
from mxstats.formats.tensors import to_numpy

TORCH = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
NUMPY = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


def as_torch(rows, device="cpu"):
    """A NumPy array of float16, float32 or ml_dtypes' bfloat16 as a tensor."""
    if rows.dtype == ml_dtypes.bfloat16:
        tensor = torch.from_numpy(rows.view(np.int16).copy()).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(rows.copy())
    return tensor.to(device)


def block_maxima(values, block_size):
    """float32 [rows, K] max |x|, NaN where there is one; the last block may be short."""
    edges = np.arange(0, values.shape[1], block_size)
    return np.stack([np.abs(values[:, e : e + block_size]).max(1) for e in edges], axis=1)


def reference_rho(m, p, c, weights, eps):
    """float32 [rows] (r̂² + ε)^(−1/2) of block maxima, by the definition with a pow."""
    m = m.astype(np.float64)
    eps = np.float64(np.float32(eps))
    with np.errstate(invalid="ignore"):
        if weights is not None:
            square = np.mean(np.float32(weights).astype(np.float64) * m * m, axis=1)
        elif p == 2:
            square = np.mean(m * m, axis=1) / np.float64(np.float32(c)) ** 2
        else:
            largest = m.max(axis=1, keepdims=True)
            largest[largest == 0.0] = 1.0
            mean = largest[:, 0] * np.mean((m / largest) ** p, axis=1) ** (1 / p)
            if p == 1:
                mean = np.mean(m, axis=1)
            square = mean * mean / np.float64(np.float32(c)) ** 2
        rho = (1.0 / np.sqrt(square + eps)).astype(np.float32)
    return np.where(np.isfinite(square), rho, np.float32(np.nan))


def reference(
    x,
    *,
    p=2.0,
    c=None,
    weights=None,
    fmt="MXFP8_E4M3",
    scale_rule=None,
    eps=1e-5,
    residual=None,
    estimate_from="absmax",
    tensor_scale=None,
):
    """codes, scales [rows, K], ρ̃, and x + residual, as NumPy arrays; x is NumPy [rows, D]."""
    fmt = formats.block_format(fmt)
    h = x if residual is None else (x + residual).astype(x.dtype)
    values = h.astype(np.float32)
    n_blocks = -(-x.shape[1] // fmt.block_size)
    g = None
    if fmt.tensor_scale:
        if tensor_scale is None:
            # |y| is at most this, whatever the row.
            least = None if weights is None else np.float32(weights).min()
            top = np.sqrt(n_blocks / least) if c is None else np.float32(c) * n_blocks ** (1 / p)
            tensor_scale = top / (fmt.element.largest * fmt.scale.largest)
        g = float(np.float32(tensor_scale))
    m = block_maxima(values, fmt.block_size)
    if estimate_from == "scales":
        own = formats.quantize(values, fmt, scale_rule=scale_rule, tensor_scale=g)
        m = fmt.scale.values[own.scales] * np.float32(1 if g is None else g)
    rho = reference_rho(m, p, c, weights, eps)
    with np.errstate(invalid="ignore"):  # infinity times NaN
        y = rho[:, None] * values
    found = formats.quantize(y, fmt, scale_rule=scale_rule, tensor_scale=g)
    return found.codes, found.scales, rho, h


def check(outputs, expected, scale_layout="rows"):
    """Assert that MXNorm's outputs are the reference's, bit for bit; a NaN equals a NaN."""
    codes, scales, rho, h = expected
    rows = codes.shape[0]
    np.testing.assert_array_equal(outputs.rho.cpu().numpy().reshape(rows), rho)
    if scale_layout == "blocked":
        # The padding as well, which is zero.
        np.testing.assert_array_equal(outputs.scales.cpu().numpy(), formats.to_blocked(scales))
    else:
        np.testing.assert_array_equal(outputs.scales.cpu().numpy().reshape(scales.shape), scales)
    np.testing.assert_array_equal(outputs.codes.cpu().numpy().reshape(codes.shape), codes)
    if outputs.residual is not None:
        found = to_numpy(outputs.residual).reshape(h.shape)
        np.testing.assert_array_equal(found.astype(np.float32), h.astype(np.float32))
        # Zeros compare equal whatever their sign.
        signs = np.signbit(found) == np.signbit(h)
        assert (signs | np.isnan(h.astype(np.float32))).all()
