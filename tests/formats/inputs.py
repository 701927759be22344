"""Rows that find the faults of a quantiser, in every float dtype."""

import ml_dtypes
import numpy as np

from mxstats import formats

MX = [fmt for fmt in formats.FORMATS.values() if not fmt.tensor_scale]
DTYPES = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
}


def around(values, dtype, steps=3):
    """Each value and its neighbours up to ``steps`` units in the last place, by their bits."""
    values = np.asarray(values, dtype=dtype)
    bits = values.view(f"i{values.itemsize}")
    near = bits[:, None] + np.arange(-steps, steps + 1, dtype=bits.dtype)
    return near[near >= 0].view(dtype)


def binade_borders(dtype):
    """Every power of two of the dtype (float64: those of float32), with neighbours."""
    exponents = np.arange(-24, 16) if np.dtype(dtype) == np.float16 else np.arange(-149, 128)
    if np.dtype(dtype) == ml_dtypes.bfloat16:
        exponents = np.arange(-133, 128)
    return around(np.ldexp(1.0, exponents).astype(dtype), dtype)


def largest(dtype):
    return float(ml_dtypes.finfo(dtype).max)


def specials(dtype):
    """Zeros, subnormals, the ends of the range, 448 and 6 scaled; no NaN and no infinity."""
    tiny = np.array([1, 2, 3, 5, 100], dtype=f"u{np.dtype(dtype).itemsize}").view(dtype)
    top = min(largest(dtype), largest(np.float32))
    some = around(np.array([448.0, 6.0, 7.0, 28.0, 7.5, 1.984375, 57344.0 / 4]), dtype)
    return np.concatenate([np.array([0.0, -0.0, top, -top], dtype=dtype), tiny, some])


def fuzz(dtype, n, seed):
    """[n] values: random magnitudes, borders of binades, special values, ties, both signs.

    A block keeps only what its largest value lets live, so the values come in stretches of 16 that
    lie within some binades of a centre; for half of the stretches that is a border or a special
    value, which is one of them.
    """
    rng = np.random.default_rng(seed)
    low, high = (-24, 15) if np.dtype(dtype) == np.float16 else (-149, 127)
    top = min(largest(dtype), largest(np.float32))
    pool = np.concatenate([binade_borders(dtype), specials(dtype)])
    pool = pool[pool > 0]
    stretches = -(-n // 16)
    chosen = rng.choice(pool, stretches)
    centre = np.where(
        rng.random(stretches) < 0.5, np.log2(chosen.astype(np.float64)), rng.uniform(low, high)
    )
    exponent = np.repeat(centre, 16)[:n] - np.abs(rng.normal(0, 4, n))
    exponent = np.clip(exponent, low, high)
    values = np.exp2(exponent) * rng.uniform(1, 2, n)
    # Short mantissas fall on ties far more often than long ones.
    fraction, power = np.frexp(values)
    values = np.where(rng.random(n) < 0.4, np.ldexp(np.rint(fraction * 32) / 32, power), values)
    values = np.minimum(values, top).astype(dtype)
    values[rng.random(n) < 0.01] = 0
    at = np.minimum(np.arange(stretches) * 16 + rng.integers(0, 16, stretches), n - 1)
    values[at] = np.where(rng.random(stretches) < 0.5, chosen, values[at])
    return values * rng.choice([-1, 1], n).astype(dtype)


def with_dead_blocks(rows, seed):
    """A copy of the rows in which a few values are NaN or infinite."""
    rng = np.random.default_rng(seed)
    rows = rows.copy()
    flat = rows.reshape(-1)
    at = rng.integers(0, flat.size, max(3, flat.size // 400))
    flat[at] = rng.choice(np.array([np.nan, np.inf, -np.inf]), at.size).astype(rows.dtype)
    return rows
