"""MXNorm's numbers: the constant or the weights, their checks, and the tensor scale they imply."""

import math
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from mxstats.formats import BlockFormat
from mxstats.kernels.arguments import LARGEST, check_number, on_device, vector
from mxstats.kernels.spec import CastSpec, cast_spec

# The powers whose mean float64 holds to the last bit of a float32: roots and powers beyond them
# magnify its rounding.
_LOWEST_P, _HIGHEST_P = 2.0**-10, 2.0**10
# weights -> (version of their values, the least of them)
_known: WeakIdKeyDictionary = WeakIdKeyDictionary()


def static_tensor_scale(
    fmt: BlockFormat | str,
    hidden_size: int,
    *,
    p: float = 2.0,
    c: float | None = None,
    weights: torch.Tensor | None = None,
) -> float:
    """The g under which no output of :func:`mxnorm` is above the largest element and scale.

    max |y| is c·K^(1/p), or √(K/min w), whatever the rows: g is that over (largest element ·
    largest scale), rounded to float32. It needs no pass over the output, but spends the scale's
    range on rows of a single spike.

    Raises ValueError for a format without a tensor scale, a hidden size below 1, a bound beyond
    float32, and for p, c and weights as :func:`mxnorm` does. Reads the weights (see there).
    """
    spec = cast_spec(fmt)
    if not spec.has_tensor_scale:
        raise ValueError(f"fmt={fmt}: the format has no tensor scale")
    if hidden_size < 1:
        raise ValueError(f"hidden_size={hidden_size}: must be at least 1")
    p, c = check_constant(p, c, weights)
    n_blocks = spec.n_blocks(hidden_size)
    if weights is not None:
        weights = vector(weights, "weights", n_blocks, weights)
    return scale_of_bound(spec, n_blocks, p, c, weights)


def check_constant(p: float, c: float | None, weights: Any) -> tuple[float, float | None]:
    """Return p and c as floats; ValueError unless they fit with each other and the weights."""
    p = float(p)
    if not _LOWEST_P <= p <= _HIGHEST_P:
        raise ValueError(f"p={p:g}: must be from 1/1024 to 1024")
    if weights is None:
        if c is None:
            raise ValueError("c=None, weights=None: the constant or the blocks' weights are needed")
        return p, check_number(c, "c")
    if c is not None:
        raise ValueError(f"c={c}: weights came as well; give one of the two")
    if p != 2.0:
        raise ValueError(f"p={p:g}: weights are for p=2 alone")
    return p, None


def check_scale_tensor(value: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return a tensor of one float32 on the device of x as a scalar, else raise ValueError."""
    if value.numel() != 1 or value.dtype != torch.float32:
        raise ValueError(
            f"tensor_scale has shape {tuple(value.shape)} and dtype {value.dtype}; one float32 is "
            f"needed"
        )
    return on_device(value.reshape(()), "tensor_scale", x)


def least_weight(weights: torch.Tensor) -> float:
    """Return min w; ValueError unless all weights are above 0 and finite in float32.

    Reading it waits for the GPU: so what was read is kept, with the version that torch counts up at
    each change in place. A tensor made in inference mode has no version and is read every time.
    """
    version = None if weights.is_inference() else weights._version
    known = _known.get(weights)
    if known is not None and version is not None and known[0] == version:
        return known[1]
    values = weights.detach().float()
    least, largest = (float(v) for v in torch.aminmax(values))
    if not (least > 0.0 and largest <= LARGEST):
        at = int(torch.nonzero(~((values > 0.0) & (values <= LARGEST)))[0])
        raise ValueError(
            f"weights[{at}]={float(values[at]):g}: every weight must be above 0 and finite"
        )
    _known[weights] = (version, least)
    return least


def scale_of_bound(
    spec: CastSpec, n_blocks: int, p: float, c: float | None, weights: torch.Tensor | None
) -> float:
    """The bound of |y| over (largest element · largest scale), of checked arguments."""
    if weights is not None:
        bound = math.sqrt(n_blocks / least_weight(weights))
    elif c is not None and math.log2(n_blocks) / p < 128.0:
        bound = float32(c) * n_blocks ** (1.0 / p)
    else:
        bound = math.inf
    if bound > LARGEST:
        raise ValueError("tensor_scale=None: needed, the output's bound is beyond float32")
    return max(float32(bound / (spec.largest * spec.scale_largest)), spec.least_tensor_scale)


def float32(value: float) -> float:
    """The number rounded to float32."""
    return float(np.float32(value))
