"""Which modules of a model a capture listens to."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeAlias

from mxstats.errors import CaptureError

if TYPE_CHECKING:
    from torch import nn

# What torch.compile puts into a qualified name; dropping it makes names independent of it.
_WRAPPER = "_orig_mod"
_NAMES_SHOWN = 5
# Norms of a model that mxstats.nn has converted, known by name: capturing needs no nn.
_CONVERTED = frozenset(
    {"SharedMXNorm", "SharedRMSNorm", "FinalMXNorm", "MXNorm", "MXNormLinear", "RMSNormLinear"}
)

Modules: TypeAlias = "type[nn.Module] | str | Callable[[str, nn.Module], bool] | None"


def named_modules(model: "nn.Module") -> dict[str, "nn.Module"]:
    """Every module of ``model`` by its qualified name, without the marks of ``torch.compile``."""
    return {
        ".".join(part for part in name.split(".") if part != _WRAPPER): module
        for name, module in model.named_modules()
    }


def pick_modules(model: "nn.Module", modules: Modules = None) -> dict[str, "nn.Module"]:
    """The modules that ``modules`` stands for, by qualified name, in the model's order.

    Parameters
    ----------
    model
        Any ``torch.nn.Module``.
    modules
        None for every RMSNorm (a class whose name ends in ``RMSNorm``, or
        ``torch.nn.RMSNorm``) and every norm of a converted model, by the names of
        ``mxstats.nn``'s classes; a module class; a glob over qualified names such as
        ``"*.layers.3.*norm"``; or a function ``(name, module) -> bool``.

    Raises
    ------
    CaptureError
        Nothing is picked; the message lists the norm classes that the model does have.
    TypeError
        ``model`` or ``modules`` is of another kind.
    """
    from torch import nn

    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    chosen, searched_for = _predicate(modules)
    everything = named_modules(model)
    picked = {name: module for name, module in everything.items() if chosen(name, module)}
    if not picked:
        raise CaptureError(
            f"no module of {type(model).__name__} is {searched_for}; "
            f"{_norm_classes(list(everything.values()))}"
        )
    return picked


def listed(names: list[str]) -> str:
    """All of a few names, or the count and the first few of many."""
    shown = ", ".join(names[:_NAMES_SHOWN])
    if len(names) <= _NAMES_SHOWN:
        return shown
    return f"{len(names)} modules: {shown}, …"


def _predicate(modules: Modules) -> tuple[Callable[[str, "nn.Module"], bool], str]:
    from torch import nn

    if modules is None:
        return (
            lambda _, module: (
                isinstance(module, nn.RMSNorm)
                or type(module).__name__.endswith("RMSNorm")
                or type(module).__name__ in _CONVERTED
            ),
            "an RMSNorm",
        )
    if isinstance(modules, str):
        # The root's name is empty, and "*" is not meant to include the model itself.
        return (
            lambda name, _: name != "" and fnmatchcase(name, modules),
            f"named like {modules!r}",
        )
    if isinstance(modules, type):
        if not issubclass(modules, nn.Module):
            raise TypeError(
                f"modules must be a torch.nn.Module class, got the class {modules.__name__}"
            )
        return lambda _, module: isinstance(module, modules), f"a {modules.__name__}"
    if callable(modules):
        return lambda name, module: bool(modules(name, module)), "accepted by the predicate"
    raise TypeError(
        "modules must be None, a torch.nn.Module class, a glob over qualified names or a function "
        f"(name, module) -> bool, got {type(modules).__name__}"
    )


def _norm_classes(modules: list["nn.Module"]) -> str:
    found = sorted({type(m).__name__ for m in modules if "norm" in type(m).__name__.lower()})
    return f"its norm classes are {', '.join(found)}" if found else "it has no norm class at all"
