"""ρ̃, the inverse RMS of MXNorm, from the block maxima of a row: Triton helpers.

    M = (Σ_k m_k^p / K)^(1/p),   r̂² = (M/c)²  or, with weights,  r̂² = Σ_k w_k m_k² / K,
    ρ̃ = fl32((r̂² + ε)^(−1/2)),

in float64 with IEEE division and square root, rounded to float32 once: so another order of the sum
gives the same ρ̃ but for a row in some 10^8. For p = 1 and 2 the terms are m and m², which float64
holds for every float32; for other p they are relative to the row's largest m, since m^p would
overflow. Source: MXNorm, arXiv 2603.13180; the weights are one 1/c² for each block.
"""

import triton
import triton.language as tl


@triton.jit
def power_term(absmax, largest, P: tl.constexpr):
    """Terms (float64) of the sum over blocks: m, m², or (m/largest)^p.

    absmax is float32 [rows, blocks]; ``largest``, float32 [rows], is looked at only for p other
    than 1 and 2.
    """
    m = absmax.to(tl.float64)
    if P == 1.0:
        return m
    if P == 2.0:
        return m * m
    # A row of zeros has zeros for terms whatever it is divided by.
    ratio = m / tl.where(largest > 0.0, largest, 1.0).to(tl.float64)[:, None]
    exponent = tl.full(m.shape, P, tl.float64) * tl.log2(tl.where(ratio == 0.0, 1.0, ratio))
    return tl.where(ratio == 0.0, 0.0, tl.exp2(exponent))


@triton.jit
def inverse_rms(total, largest, c, eps, K: tl.constexpr, P: tl.constexpr, WEIGHTED: tl.constexpr):
    """ρ̃ (float32 [rows]) from the sums over blocks; NaN for a row that holds NaN or an infinity.

    c and eps are float32 scalars; c is not looked at when the sums are weighted.
    """
    mean = total / tl.full(total.shape, K, tl.float64)
    if WEIGHTED:
        square = mean
    else:
        constant = tl.cast(c, tl.float32).to(tl.float64)
        if P == 2.0:
            square = mean
        else:
            if P == 1.0:
                power_mean = mean
            else:
                root = tl.log2(tl.where(mean == 0.0, 1.0, mean)) / tl.full(
                    mean.shape, P, tl.float64
                )
                power_mean = tl.where(mean == 0.0, 0.0, largest.to(tl.float64) * tl.exp2(root))
            square = power_mean * power_mean
        square = square / (constant * constant)
    rho = (1.0 / tl.sqrt(square + tl.cast(eps, tl.float32).to(tl.float64))).to(tl.float32)
    # An infinite square would make it 0.
    return tl.where(square < float("inf"), rho, float("nan"))
