"""Modules that train on the kernels: norms with the linears that share them, as one operation.

Names load when first used (PEP 562): importing the package needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mxstats.nn.convert import convert
    from mxstats.nn.interop import as_torchao
    from mxstats.nn.linear import MXLinear
    from mxstats.nn.norm import MXNorm
    from mxstats.nn.norm_linear import MXNormLinear, RMSNormLinear

_HOME = {
    "MXLinear": "linear",
    "MXNorm": "norm",
    "MXNormLinear": "norm_linear",
    "RMSNormLinear": "norm_linear",
    "as_torchao": "interop",
    "convert": "convert",
}

__all__ = ["MXLinear", "MXNorm", "MXNormLinear", "RMSNormLinear", "as_torchao", "convert"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'mxstats.nn' has no attribute {name!r}")
    try:
        module = import_module(f"mxstats.nn.{_HOME[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"mxstats.nn.{name} needs torch: pip install 'mxstats[torch]'", name="torch"
        ) from None
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
