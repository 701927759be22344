"""Fused kernels: the norms and casts of block-scaled formats in one pass, and their gradients.

Each is a Triton kernel on a GPU and vectorised torch elsewhere, both equal to
:mod:`mxstats.formats` bit for bit. Names load when first used (PEP 562): importing the package
needs neither a GPU nor torch nor triton.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mxstats.kernels.mx_cast import MXCastOutput, mx_cast
    from mxstats.kernels.mxnorm import MXNormOutput, mxnorm
    from mxstats.kernels.mxnorm_backward import mxnorm_backward
    from mxstats.kernels.rmsnorm_mx import RMSNormMXOutput, rmsnorm_mx
    from mxstats.kernels.rmsnorm_mx_backward import rmsnorm_mx_backward

_HOME = {
    "MXCastOutput": "mx_cast",
    "MXNormOutput": "mxnorm",
    "RMSNormMXOutput": "rmsnorm_mx",
    "mx_cast": "mx_cast",
    "mxnorm": "mxnorm",
    "mxnorm_backward": "mxnorm_backward",
    "rmsnorm_mx": "rmsnorm_mx",
    "rmsnorm_mx_backward": "rmsnorm_mx_backward",
}

__all__ = [
    "MXCastOutput",
    "MXNormOutput",
    "RMSNormMXOutput",
    "mx_cast",
    "mxnorm",
    "mxnorm_backward",
    "rmsnorm_mx",
    "rmsnorm_mx_backward",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mxstats.kernels' has no attribute {name!r}")
    try:
        module = import_module(f"mxstats.kernels.{_HOME[name]}")
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "triton"):
            raise
        raise ModuleNotFoundError(
            f"mxstats.kernels.{name} needs {error.name}: pip install 'mxstats[torch]'",
            name=error.name,
        ) from None
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The package, in which an operation's name is always the operation.

    The import system binds a submodule to its name in the package; that of an operation's own
    file would hide the operation.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
