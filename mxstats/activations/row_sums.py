"""What a batch of rows adds to streaming statistics: sums of powers, block maxima, exponents."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

POWERS = 4
# Bins are the biased exponents of float32: bin 0 is zero and what lies below 2^-126, bin e > 0
# holds 2^(e-127) <= |x| < 2^(e-126).
EXPONENT_BINS = 256
EXPONENT_BIAS = 127
_SMALLEST_EXPONENT = -1023


def power_of_two(exponent: "torch.Tensor") -> "torch.Tensor":
    """2^exponent in float64, exact, 0 below 2^-1022; ``torch.pow`` need not be exact."""
    import torch

    biased = exponent.to(torch.int64).clamp(_SMALLEST_EXPONENT, 1023) + 1023
    return (biased << 52).view(torch.float64)


def power_sums(
    rows: "torch.Tensor", unit: "torch.Tensor", weights: "torch.Tensor"
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Sums of the powers 1 to 4 of ``rows * unit``: over channels, and weighted over rows.

    ``rows`` is ``[n, D]``, ``unit`` ``[n, 1]`` and ``weights`` ``[4, n]``; gives ``[4, n]`` and
    ``[4, D]``.
    """
    import torch

    # One buffer for all four powers: fresh memory costs a CPU more than the arithmetic does.

    powers = torch.empty((POWERS, *rows.shape), dtype=torch.float64, device=rows.device)
    first, second, third, fourth = powers
    torch.mul(rows, unit, out=first)
    torch.mul(first, first, out=second)
    torch.mul(second, first, out=third)
    torch.mul(second, second, out=fourth)
    return powers.sum(2), torch.bmm(weights[:, None], powers)[:, 0]


def block_absmax(magnitude: "torch.Tensor", block_size: int) -> "torch.Tensor":
    """Largest magnitude of each block, ``[n, K]``, of magnitudes ``[n, D]``."""
    # The padding of a short last block is zero, which no maximum of magnitudes notices.
    from torch.nn.functional import pad

    short = -magnitude.shape[1] % block_size
    if short:
        magnitude = pad(magnitude, (0, short))
    return magnitude.unflatten(1, (-1, block_size)).amax(2)


def exponent_counts(rows: "torch.Tensor") -> "torch.Tensor":
    """How many entries have each biased exponent of float32, ``[256]``; see EXPONENT_BINS."""
    import torch

    if rows.dtype == torch.bfloat16:
        bins = (rows.contiguous().view(torch.int16) >> 7) & 255
    elif rows.dtype == torch.float64:
        # Eleven bits of exponent, cut to float32's range.
        bins = ((rows.contiguous().view(torch.int64) >> 52) & 2047) - 1023 + EXPONENT_BIAS
        bins = bins.clamp(0, EXPONENT_BINS - 1)
    else:
        bins = (rows.float().contiguous().view(torch.int32) >> 23) & 255
    # Eight bits are the fastest to count.
    return torch.bincount(bins.to(torch.uint8).flatten(), minlength=EXPONENT_BINS)
