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

__all__ = [
    "BlockMoments",
    "Estimate",
    "Gaussian",
    "Laplace",
    "OutputBounds",
    "RmsError",
    "Samples",
    "StudentT",
    "block_moments",
    "constant",
    "constant_asymptotic",
    "distribution",
    "log_ratio_mean",
    "log_ratio_std",
    "output_bounds",
    "rms_error",
]
