"""Rows that enter a model's norms, kept while the model runs.

A forward pre-hook on each picked module copies the module's input, flattened to rows of
``hidden_size``, to the CPU. The hooks live exactly as long as the ``with`` block.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from mxstats.activations.pick import Modules, listed, named_modules, pick_modules
from mxstats.activations.roles import Role, layer_index, role_of
from mxstats.errors import CaptureError

if TYPE_CHECKING:
    import torch
    from torch import nn

_COMPILED = (
    "the model is compiled, and code that torch.compile made before the hooks were placed does "
    "not run them: capture and run the uncompiled module (compiled._orig_mod) instead"
)


@contextmanager
def capture(
    model: "nn.Module",
    modules: Modules = None,
    *,
    keep_rows: int = 65536,
    where: str = "input",
) -> Iterator["Captured"]:
    """Keep what enters the RMSNorms of ``model`` during the ``with`` block.

    >>> with capture(model) as seen:  # doctest: +SKIP
    ...     model(ids)
    >>> seen["model.norm"].rows.shape  # doctest: +SKIP
    torch.Size([64, 576])

    Parameters
    ----------
    model
        Any ``torch.nn.Module``. Run it uncompiled, or compile it inside the block: code that
        ``torch.compile`` made before knows nothing of the hooks. A forward that activation
        checkpointing repeats in the backward pass counts again.
    modules
        None for every RMSNorm; or a module class, a glob over qualified names, or a function
        ``(name, module) -> bool``.
    keep_rows
        Most rows kept a layer. The first ones are kept; later ones are counted, not kept.
    where
        ``"input"``, the only place there is: what the module is called with, its first argument,
        positional or by keyword.

    Yields
    ------
    Captured
        One :class:`CapturedLayer` for each picked module, in the model's order. It fills as the
        model runs and stays readable afterwards; it does not hold the model.

    Raises
    ------
    CaptureError
        Nothing is picked; an input that is not a floating-point tensor, or changes its width; or,
        where the block ends without an exception, a picked module that was never called, or was
        left out of some passes through a compiled ``model``.
    TypeError
        ``model``, ``modules`` or ``keep_rows`` is of the wrong kind.
    ValueError
        ``keep_rows`` below 1, or another ``where``.
    """
    _check_options(keep_rows, where)
    picked = pick_modules(model, modules)
    all_names = set(named_modules(model))
    seen = Captured(
        {name: CapturedLayer(name, role_of(name, all_names), keep_rows) for name in picked}
    )
    passes: list[None] = []
    with ExitStack() as hooks:
        if _is_compiled(model):
            # The hooks of the outermost module run outside of the compiled code.
            counter = model.register_forward_pre_hook(lambda *_: passes.append(None))
            hooks.callback(counter.remove)
        for name, module in picked.items():
            hook = _hook_for(seen[name], _first_parameter(module))
            handle = module.register_forward_pre_hook(hook, with_kwargs=True)
            hooks.callback(handle.remove)
        yield seen
    silent = [layer.name for layer in seen if layer.calls == 0]
    if silent:
        raise CaptureError(_never_called(silent, compiled=_is_compiled(model)))
    partly = [layer.name for layer in seen if layer.calls < len(passes)]
    if partly:
        # A new input shape compiles again, hooks included, while older shapes go without them.
        raise CaptureError(
            f"missing from some of the {len(passes)} passes: {listed(partly)}; {_COMPILED}"
        )


class CapturedLayer:
    """What was seen at one module.

    Attributes
    ----------
    name : str
        Qualified name of the module.
    role : str
        Its part in the decoder, one of :data:`mxstats.activations.roles.ROLES`.
    index : int or None
        Number of the decoder layer it lies in.
    calls : int
        How often the module was called.
    rows_seen : int
        Rows that went through, kept or not.
    """

    def __init__(self, name: str, role: Role, keep_rows: int):
        self.name = name
        self.role: Role = role
        self.index = layer_index(name)
        self.calls = 0
        self.rows_seen = 0
        self._room = keep_rows
        self._chunks: list[torch.Tensor] = []

    @property
    def rows(self) -> "torch.Tensor":
        """The rows kept: ``[rows, hidden_size]``, in the input's dtype, on the CPU, detached.

        Raises
        ------
        CaptureError
            The module has seen no row yet.
        """
        import torch

        if not self._chunks:
            raise CaptureError(f"{self.name} has not seen a row yet")
        if len(self._chunks) > 1:
            self._chunks = [torch.cat(self._chunks)]
        return self._chunks[0]

    def add(self, hidden: Any) -> None:
        """Count the rows of ``hidden``, ``[..., hidden_size]``, and keep those there is room for.

        Raises
        ------
        CaptureError
            Not a floating-point tensor, or not as wide as the rows before it.
        """
        import torch

        if not isinstance(hidden, torch.Tensor) or not hidden.is_floating_point():
            kind = hidden.dtype if isinstance(hidden, torch.Tensor) else type(hidden).__name__
            raise CaptureError(f"the input of {self.name} is {kind}, not a floating-point tensor")
        if hidden.ndim == 0:
            raise CaptureError(f"the input of {self.name} is a single number, not rows")
        width = hidden.shape[-1]
        if self._chunks and width != self._chunks[0].shape[1]:
            raise CaptureError(
                f"the input of {self.name} was {self._chunks[0].shape[1]} wide and is now {width}"
            )
        rows = hidden.detach().reshape(-1, width)
        kept = rows[: self._room]
        if len(kept):
            # A copy of its own: a view would keep the model's whole buffer alive.
            self._chunks.append(kept.to("cpu", copy=True, memory_format=torch.contiguous_format))
        self._room -= len(kept)
        self.calls += 1
        self.rows_seen += len(rows)

    def __repr__(self) -> str:
        kept = sum(len(chunk) for chunk in self._chunks)
        return f"CapturedLayer({self.name!r}, {self.role}, {kept} of {self.rows_seen} rows kept)"


class Captured:
    """The layers of one capture, in the model's order.

    Iterating gives :class:`CapturedLayer` objects; ``captured[name]`` gives one of them.
    """

    def __init__(self, layers: Mapping[str, CapturedLayer]):
        self._layers = dict(layers)

    @property
    def names(self) -> list[str]:
        """Qualified names of the layers."""
        return list(self._layers)

    def __getitem__(self, name: str) -> CapturedLayer:
        if name not in self._layers:
            raise CaptureError(f"no layer {name!r} was captured, only {listed(self.names)}")
        return self._layers[name]

    def __iter__(self) -> Iterator[CapturedLayer]:
        return iter(self._layers.values())

    def __len__(self) -> int:
        return len(self._layers)

    def __repr__(self) -> str:
        return f"Captured({len(self)} layers)"


def _check_options(keep_rows: int, where: str) -> None:
    if isinstance(keep_rows, bool) or not isinstance(keep_rows, int):
        raise TypeError(f"keep_rows must be an integer, got {keep_rows!r}")
    if keep_rows < 1:
        raise ValueError(f"keep_rows must be at least 1, got {keep_rows}")
    if where != "input":
        raise ValueError(f"where must be 'input', got {where!r}")


def _first_parameter(module: "nn.Module") -> str | None:
    # The class's forward, for libraries that place a model on several devices replace the
    # instance's by one that takes anything.
    parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    named = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    return parameters[0].name if parameters and parameters[0].kind in named else None


def _hook_for(layer: CapturedLayer, parameter: str | None) -> Any:
    def keep_input(_: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args:
            layer.add(args[0])
        elif parameter is not None and parameter in kwargs:
            layer.add(kwargs[parameter])
        elif len(kwargs) == 1:
            layer.add(*kwargs.values())
        else:
            raise CaptureError(
                f"{layer.name} was called without {parameter or 'a first argument'!r}: "
                f"its arguments are {sorted(kwargs)}"
            )

    return keep_input


def _is_compiled(model: "nn.Module") -> bool:
    return any(
        type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def _never_called(names: list[str], *, compiled: bool) -> str:
    message = f"never called while capturing: {listed(names)}"
    if compiled:
        return f"{message}; {_COMPILED}"
    return (
        f"{message}; run the model inside the with block, or pick fewer modules. A model that "
        "torch.compile has compiled before does not fire hooks either"
    )
