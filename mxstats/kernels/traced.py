"""A format as the plain numbers that a function under ``torch.compile`` may hold.

Dynamo takes what a function marked as constant returns for a constant, but some releases (2.11)
give it no frozen dataclass, a number among its arguments may turn symbolic once it has changed,
and no method of its result can be called. So a format goes in as a string, and comes out as a
string and numbers.
"""

from functools import lru_cache
from typing import NamedTuple

import torch

from mxstats.formats import BlockFormat, ScaleRule, block_format
from mxstats.formats.blocks import format_of_key
from mxstats.kernels.spec import cast_spec


class FormatNumbers(NamedTuple):
    """What the callers of an operator read off a :class:`~mxstats.kernels.spec.CastSpec`."""

    key: str
    block_size: int
    has_tensor_scale: bool
    least_tensor_scale: float
    largest: float
    """Largest element times largest scale."""


def format_numbers(fmt: BlockFormat | str, scale_rule: ScaleRule | str | None) -> FormatNumbers:
    """Return the numbers of a format with a scale rule; raises as ``cast_spec`` does."""
    if isinstance(fmt, str):
        return FormatNumbers(*_numbers(None, fmt, scale_rule))
    return FormatNumbers(*_numbers(block_format(fmt).key, None, scale_rule))


@torch.compiler.assume_constant_result
def _numbers(key: str | None, name: str | None, scale_rule: ScaleRule | str | None) -> tuple:
    return _cached_numbers(key, name, scale_rule)


@lru_cache
def _cached_numbers(
    key: str | None, name: str | None, scale_rule: ScaleRule | str | None
) -> tuple[str, int, bool, float, float]:
    spec = cast_spec(block_format(name or "") if key is None else format_of_key(key), scale_rule)
    return (
        spec.key,
        spec.block_size,
        spec.has_tensor_scale,
        spec.least_tensor_scale,
        spec.largest * spec.scale_largest,
    )
