"""What a module of a quantised network is set to, as plain values.

Named tuples of strings and numbers: a traced function takes each of their fields for a constant,
and an autograd function can be handed the whole of one.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch

from mxstats.formats import MXFP8_E4M3, BlockFormat, ScaleRule, block_format
from mxstats.kernels.arguments import check_number
from mxstats.kernels.backend import BACKENDS
from mxstats.kernels.mxnorm_arguments import check_constant, least_weight, static_tensor_scale
from mxstats.kernels.spec import cast_spec
from mxstats.nn.dequantise import decoding_of
from mxstats.theory import constant

MXNORM, RMSNORM = "mxnorm", "rmsnorm"
NORMS = (MXNORM, RMSNORM)
OPERANDS = ("auto", "bfloat16", "float32")
Backend: TypeAlias = Literal["auto", "triton", "torch"]


class Cast(NamedTuple):
    """How operands of a product are quantised."""

    fmt: str
    """The key of a :class:`~mxstats.formats.BlockFormat`."""
    scale_rule: str | None
    backend: Backend
    operands: str
    """What the product is given: ``"bfloat16"``, ``"float32"``, or ``"auto"``."""


class Norm(NamedTuple):
    """How a row is normalised, to rms = 1."""

    kind: str
    """``"mxnorm"``, by block maxima, or ``"rmsnorm"``."""
    eps: float
    unit_offset: bool
    """Whether the gain is 1 + γ, as in Gemma."""
    p: float
    c: float | None
    """None where weights of the blocks stand in its place, and for RMSNorm."""
    block_size: int
    fmt: str
    """The key of the format of its output; where that is not cast, of one with the same blocks."""
    tensor_scale: float | None
    """g of its output, for a format that has one: MXNorm's is that of the bound."""
    backend: Backend


def cast_settings(
    fmt: BlockFormat | str | None,
    scale_rule: ScaleRule | str | None = None,
    block_size: int | None = None,
    backend: Backend = "auto",
    operands: str = "auto",
) -> tuple[Cast | None, int]:
    """Return the cast, None for no rounding at all, and the size of its blocks.

    Raises
    ------
    TypeError, ValueError
        As :func:`mxstats.kernels.spec.cast_spec`; a scale rule without a format; an unknown
        backend or kind of operands, or operands that bfloat16 does not hold.
    """
    if operands not in OPERANDS:
        raise ValueError(f"operands={operands!r} is unknown; known are {', '.join(OPERANDS)}")
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} is unknown; known are {', '.join(BACKENDS)}")
    if fmt is None:
        if scale_rule is not None:
            raise ValueError(f"scale_rule={str(scale_rule)!r}: there is no cast where fmt is None")
        size = 32 if block_size is None else block_size
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"block_size must be an integer, got {size!r}")
        if size < 1:
            raise ValueError(f"block_size={size}: must be at least 1")
        return None, size
    chosen = block_format(fmt)
    if block_size is not None:
        chosen = chosen.with_block_size(block_size)
    if not decoding_of(cast_spec(chosen, scale_rule)).fits_bfloat16 and operands == "bfloat16":
        raise ValueError(
            f"operands='bfloat16': {chosen.name} has more significant bits than its 8; use float32"
        )
    rule = None if scale_rule is None else ScaleRule(scale_rule).value
    return Cast(chosen.key, rule, backend, operands), chosen.block_size


def mxnorm_settings(
    hidden_size: int,
    cast: Cast | None,
    *,
    p: float,
    c: float | None,
    weights: torch.Tensor | None,
    block_size: int,
    eps: float,
    unit_offset: bool,
    backend: Backend,
    name: str = "in_features",
) -> Norm:
    """Return the settings of an MXNorm; c is the Gaussian constant of the row when not given.

    ``name`` is what the caller's argument for the hidden size is called.

    Raises
    ------
    TypeError
        Weights that are no tensor.
    ValueError
        ``hidden_size`` below the block size; both c and weights; weights that are not [K] or with
        p other than 2; and what :func:`mxstats.constant` says of p.
    """
    if isinstance(hidden_size, bool) or not isinstance(hidden_size, int):
        raise TypeError(f"{name} must be an integer, got {hidden_size!r}")
    for value, what in ((p, "p"), (c, "c")):
        if value is not None:
            _check_real(value, what)
    if hidden_size < block_size:
        raise ValueError(
            f"{name}={hidden_size}: below block_size={block_size}, one block would hold more "
            f"than the row"
        )
    n_blocks = -(-hidden_size // block_size)
    if weights is not None and not isinstance(weights, torch.Tensor):
        raise TypeError(f"weights must be a torch tensor, got {type(weights).__name__}")
    if weights is None and c is None:
        c = float(constant("gaussian", p=p, block_size=block_size, hidden_size=hidden_size))
    p, c = check_constant(p, c, weights)
    if weights is not None and weights.shape != (n_blocks,):
        raise ValueError(
            f"weights has shape {tuple(weights.shape)}; ({n_blocks},) is needed, one for each "
            f"block of {block_size} in {hidden_size}"
        )
    if weights is not None and not weights.is_meta:
        least_weight(weights)
    fmt = _format_of(cast, block_size)
    g = None
    if block_format(fmt).tensor_scale:
        g = static_tensor_scale(fmt, hidden_size, p=p, c=c, weights=weights)
    return Norm(MXNORM, _checked_eps(eps), unit_offset, p, c, block_size, fmt, g, backend)


def rmsnorm_settings(
    cast: Cast | None, *, block_size: int, eps: float, unit_offset: bool, backend: Backend
) -> Norm:
    """Return the settings of an RMSNorm whose output is cast."""
    fmt = _format_of(cast, block_size)
    return Norm(RMSNORM, _checked_eps(eps), unit_offset, 2.0, None, block_size, fmt, None, backend)


def _format_of(cast: Cast | None, block_size: int) -> str:
    return MXFP8_E4M3.with_block_size(block_size).key if cast is None else cast.fmt


def features_of(out_features: int | Sequence[int]) -> tuple[list[int], bool]:
    """Return the features of each linear, and whether one number alone was given.

    Raises TypeError for anything but an integer or several, ValueError for none or below 1.
    """
    is_single = isinstance(out_features, int | np.integer)
    features = [out_features] if is_single else out_features
    if isinstance(features, str) or not isinstance(features, Iterable):
        raise TypeError(f"out_features must be an integer or several, got {out_features!r}")
    features = list(features)
    if not features:
        raise ValueError("out_features=(): at least one linear is needed")
    for each in features:
        if isinstance(each, bool) or not isinstance(each, int | np.integer):
            raise TypeError(f"out_features must be integers, got {each!r}")
        if each < 1:
            raise ValueError(f"out_features={out_features}: must be at least 1")
    return [int(each) for each in features], is_single


def _checked_eps(eps: float) -> float:
    _check_real(eps, "eps")
    return check_number(eps, "eps")


def _check_real(value: Any, name: str) -> None:
    # A tensor of one number, or NumPy's, is one; a string, which float() would take, is none.
    if isinstance(value, str | bytes | bool):
        raise TypeError(f"{name} must be a number, got {value!r}")


def label(cast: Cast | None) -> str:
    """A cast as a module's printed form has it."""
    if cast is None:
        return "no cast"
    rule = "" if cast.scale_rule is None else f" {cast.scale_rule}"
    return f"{block_format(cast.fmt).name}{rule}"
