"""The numerics of block-scaled formats: the MXNorm constant, its error, its bounds, and real rows.

Names load when first used (PEP 562), so that ``import mxstats`` itself stays instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mxstats.activations import ActivationStore, capture, monitor
    from mxstats.errors import CaptureError, MxstatsError, StoreError
    from mxstats.formats import BlockFormat, ElementFormat, ScaleFormat, ScaleRule, quantize
    from mxstats.measure import calibrate, validate
    from mxstats.simulation import compare, simulate
    from mxstats.theory import (
        Estimate,
        Gaussian,
        Laplace,
        StudentT,
        block_moments,
        constant,
        constant_asymptotic,
        distribution,
        format_error,
        output_bounds,
        rms_error,
        scale_only_constant,
    )

_HOME = {
    "ActivationStore": "mxstats.activations",
    "BlockFormat": "mxstats.formats",
    "CaptureError": "mxstats.errors",
    "ElementFormat": "mxstats.formats",
    "Estimate": "mxstats.theory",
    "Gaussian": "mxstats.theory",
    "Laplace": "mxstats.theory",
    "MxstatsError": "mxstats.errors",
    "ScaleFormat": "mxstats.formats",
    "ScaleRule": "mxstats.formats",
    "StoreError": "mxstats.errors",
    "StudentT": "mxstats.theory",
    "block_moments": "mxstats.theory",
    "calibrate": "mxstats.measure",
    "capture": "mxstats.activations",
    "compare": "mxstats.simulation",
    "constant": "mxstats.theory",
    "constant_asymptotic": "mxstats.theory",
    "distribution": "mxstats.theory",
    "format_error": "mxstats.theory",
    "monitor": "mxstats.activations",
    "output_bounds": "mxstats.theory",
    "quantize": "mxstats.formats",
    "rms_error": "mxstats.theory",
    "scale_only_constant": "mxstats.theory",
    "simulate": "mxstats.simulation",
    "validate": "mxstats.measure",
}
_PACKAGES = (
    "activations", "experiments", "formats", "kernels", "measure", "nn", "simulation", "theory",
)  # fmt: skip

__all__ = [
    "ActivationStore",
    "BlockFormat",
    "CaptureError",
    "ElementFormat",
    "Estimate",
    "Gaussian",
    "Laplace",
    "MxstatsError",
    "ScaleFormat",
    "ScaleRule",
    "StoreError",
    "StudentT",
    "block_moments",
    "calibrate",
    "capture",
    "compare",
    "constant",
    "constant_asymptotic",
    "distribution",
    "format_error",
    "monitor",
    "output_bounds",
    "quantize",
    "rms_error",
    "scale_only_constant",
    "simulate",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"mxstats.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'mxstats' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
