"""Exact results: distributions, the block maximum, the constant, its error, the bounds."""

from mxstats.theory.block_maximum import BlockMoments, block_moments
from mxstats.theory.bounds import OutputBounds, output_bounds
from mxstats.theory.constant import constant, constant_asymptotic
from mxstats.theory.distributions import (
    Estimate,
    Gaussian,
    Laplace,
    Samples,
    StudentT,
    distribution,
)
from mxstats.theory.error import RmsError, log_ratio_mean, log_ratio_std, rms_error
from mxstats.theory.format_error import FormatError, format_error
from mxstats.theory.scale_only import ScaleOnlyConstant, clipped_blocks, scale_only_constant

__all__ = [
    "BlockMoments",
    "Estimate",
    "FormatError",
    "Gaussian",
    "Laplace",
    "OutputBounds",
    "RmsError",
    "Samples",
    "ScaleOnlyConstant",
    "StudentT",
    "block_moments",
    "clipped_blocks",
    "constant",
    "constant_asymptotic",
    "distribution",
    "format_error",
    "log_ratio_mean",
    "log_ratio_std",
    "output_bounds",
    "rms_error",
    "scale_only_constant",
]
