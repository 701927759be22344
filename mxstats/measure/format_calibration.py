"""Constants for a format and a distribution: what an engineer with a new format has to know."""

from dataclasses import dataclass
from typing import Any

from mxstats.formats import BlockFormat, ScaleRule, block_format
from mxstats.formats.reference import check_rule
from mxstats.theory import (
    FormatError,
    RmsError,
    ScaleOnlyConstant,
    constant,
    distribution,
    format_error,
    rms_error,
    scale_only_constant,
)


@dataclass(frozen=True)
class FormatCalibration:
    """The constants of one distribution, exponent and format, and the error that is left."""

    distribution: str
    fmt: BlockFormat
    scale_rule: ScaleRule | None
    p: float
    constant: Any
    """c̃(p, B) for an estimate from the block maxima; an Estimate for samples."""
    rms_error: RmsError
    """V and bias of that estimate."""
    scale_only: ScaleOnlyConstant
    """The constant for an estimate from rounded scales alone, periodic in log2 σ."""
    format_error: FormatError
    """What quantising the elements adds."""


def calibrate_format(
    source: Any = "gaussian",
    *,
    p: float = 2.0,
    fmt: BlockFormat | str = "MXFP8_E4M3",
    scale_rule: ScaleRule | str | None = None,
    block_size: int | None = None,
) -> FormatCalibration:
    """Return every constant of a format for entries distributed as ``source``.

    Parameters
    ----------
    source
        What :func:`mxstats.distribution` takes.
    p
        Exponent of the power mean, a scalar.
    fmt
        A format or its name.
    scale_rule
        As :func:`mxstats.quantize` takes it: FLOOR when not given, none for floating scales.
    block_size
        Another block size than the format's own.

    Raises
    ------
    ValueError, TypeError
        As :func:`mxstats.constant`, :func:`mxstats.scale_only_constant`, :func:`mxstats.quantize`.
    """
    entries, fmt = distribution(source), block_format(fmt)
    if block_size is not None:
        fmt = fmt.with_block_size(block_size)
    error = format_error(entries, fmt, scale_rule=scale_rule)
    rule = check_rule(scale_rule, fmt)
    given = {"p": p, "block_size": fmt.block_size}
    return FormatCalibration(
        distribution=entries.name,
        fmt=fmt,
        scale_rule=rule,
        p=p,
        constant=constant(entries, **given),
        rms_error=rms_error(entries, **given),
        scale_only=scale_only_constant(
            entries, **given, scale_rule=fmt.scale if rule is None else rule, element=fmt.element
        ),
        format_error=error,
    )
