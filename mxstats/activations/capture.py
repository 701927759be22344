"""Statistics and a sample of the rows that enter a model's norms, taken while the model runs.

A forward pre-hook on each picked module sees the module's input, flattened to rows of
``hidden_size``; one on the model itself sees which tokens are read. The hooks live exactly as long
as the ``with`` block.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxstats.activations.captured import Captured, CapturedLayer
from mxstats.activations.passes import Pass, is_recomputation, read_arguments
from mxstats.activations.pick import Modules, listed, named_modules, pick_modules
from mxstats.activations.roles import role_of
from mxstats.errors import CaptureError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Captured", "CapturedLayer", "capture", "listening"]

_COMPILED = (
    "the model is compiled, and code that torch.compile made before the hooks were placed does "
    "not run them: capture and run the uncompiled module (compiled._orig_mod) instead"
)


@contextmanager
def capture(
    model: "nn.Module",
    modules: Modules = None,
    *,
    out: str | Path | None = None,
    keep_rows: int = 4096,
    where: str = "input",
    statistics: bool = True,
    block_size: int = 32,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    dtype: str = "bfloat16",
) -> Iterator["Captured"]:
    """Take statistics, and keep a sample, of what enters the RMSNorms of ``model``.

    >>> with capture(model) as seen:  # doctest: +SKIP
    ...     model(ids)
    >>> seen["model.norm"].rows.shape  # doctest: +SKIP
    torch.Size([64, 576])

    Memory does not grow with the tokens: statistics have a fixed size, and rows are kept of a
    uniform sample of at most ``keep_rows`` tokens, the same in every layer. A forward that
    activation checkpointing repeats in the backward pass is not counted again. Padding is not
    counted at all: where the model is called with an ``attention_mask``, what it masks has no rows
    and no number, and ``padding_tokens`` of what the block yields says how much there was.

    Parameters
    ----------
    model
        Any ``torch.nn.Module``. Run it uncompiled, or compile it inside the block: code that
        ``torch.compile`` made before knows nothing of the hooks.
    modules
        None for every RMSNorm; or a module class, a glob over qualified names, or a function
        ``(name, module) -> bool``.
    out
        Folder or URL (``"s3://bucket/store"``, a string) of a store to make; rows go there while
        the model runs, in ``dtype``, and what the block yields holds none. For a URL they go to
        the working directory, and the complete store is uploaded at the end. None keeps them in
        memory.
    keep_rows
        Most tokens whose rows are kept; a norm on heads has several rows a token. All rows in
        order where the model reads no more; 0 for statistics alone.
    where
        ``"input"``, the only place there is: what the module is called with, its first argument,
        positional or by keyword.
    statistics
        Whether to take :class:`mxstats.activations.statistics.Statistics`, on the rows' device.
    block_size
        B of the statistics.
    seed
        Which sample. It does not depend on how tokens are split into passes.
    resume
        Continue an interrupted capture into ``out`` at its last complete shard. The block's
        ``tokens_read`` says how many tokens are in it: go on behind them. For a URL, run in the
        same working directory; what was complete and only failed to upload is only uploaded.
    overwrite
        Replace a store, or discard an interrupted capture, that is at ``out``.
    dtype
        Dtype of the store, ``"bfloat16"`` or ``"float32"``.

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
    StoreError
        ``out`` is taken or cannot be written, its disk is full, or the upload failed: what is
        complete is kept, and the message says where. An interrupted capture there, or, with
        ``resume``, one of other settings.
    TypeError
        ``model``, ``modules``, ``keep_rows`` or ``block_size`` is of the wrong kind.
    ValueError
        ``keep_rows`` below 0, ``block_size`` below 1, or another ``where``.
    """
    check_options(keep_rows, where, block_size)
    with ExitStack() as stack:
        seen = stack.enter_context(
            listening(
                model,
                modules,
                keep_rows=keep_rows,
                block_size=block_size if statistics else None,
                seed=seed,
            )
        )
        if out is not None:
            from mxstats.activations.stream import streaming

            name = getattr(getattr(model, "config", None), "name_or_path", "")
            about = {"model": name or type(model).__name__, "revision": None, "text": "not said"}
            stack.enter_context(
                streaming(
                    seen,
                    out,
                    about=about,
                    dtype=dtype,
                    resume=resume,
                    overwrite=overwrite,
                    most_tokens=keep_rows,
                )
            )
        yield seen


@contextmanager
def listening(
    model: "nn.Module",
    modules: Modules = None,
    *,
    keep_rows: int,
    block_size: int | None = 32,
    seed: int = 0,
    active: Callable[[int], bool] | None = None,
) -> Iterator[Captured]:
    """The hooks of :func:`capture`, and nothing else; ``active(pass number)`` picks passes."""
    picked = pick_modules(model, modules)
    all_names = set(named_modules(model))
    first = _first_number()
    seen = Captured(
        {
            name: CapturedLayer(
                name,
                role_of(name, all_names),
                keep_rows,
                seed=seed,
                block_size=block_size,
                first_token=first,
            )
            for name in picked
        },
        keep_rows=keep_rows,
        seed=seed,
        first_token=first,
    )
    whole = _Whole(seen, active)
    before = seen.passes
    with ExitStack() as hooks:
        for handle in (
            model.register_forward_pre_hook(whole.begin, with_kwargs=True),
            model.register_forward_hook(whole.end),
        ):
            hooks.callback(handle.remove)
        for name, module in picked.items():
            hook = _hook_for(seen[name], _first_parameter(module), whole)
            # Bound methods and closures over them live as long as the handle, not longer.
            handle = module.register_forward_pre_hook(hook, with_kwargs=True)
            hooks.callback(handle.remove)
        yield seen
    if active is None:
        _check_calls(seen, seen.passes - before, compiled=_is_compiled(model))


class _Whole:
    """What goes on in the model as a whole: the pass that is running."""

    def __init__(self, seen: Captured, active: Callable[[int], bool] | None):
        self._seen, self._active = seen, active
        self.reading: Pass | None = None
        self.listens = True
        self._calls = 0

    def begin(self, model: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_recomputation():
            return
        self.listens = self._active is None or self._active(self._calls)
        self._calls += 1
        if not self.listens:
            return
        seen = self._seen
        self.reading = read_arguments(model, args, kwargs, seen.passes, seen.next_token)
        seen.passes += 1
        if self.reading is not None:
            seen.begin(self.reading)

    def end(self, *_: Any) -> None:
        if not is_recomputation():
            self.reading = None
            if self.listens and self._seen.after_pass is not None:
                self._seen.after_pass()


def _check_calls(seen: Captured, passes: int, *, compiled: bool) -> None:
    silent = [layer.name for layer in seen if layer.calls == 0]
    if silent:
        raise CaptureError(_never_called(silent, compiled=compiled))
    partly = [layer.name for layer in seen if layer.calls < passes]
    if partly and compiled:
        # A new input shape compiles again, hooks included, while older shapes go without them.
        raise CaptureError(
            f"missing from some of the {passes} passes: {listed(partly)}; {_COMPILED}"
        )


def check_options(keep_rows: int, where: str, block_size: int) -> None:
    """Raise TypeError or ValueError for options that :func:`capture` does not take."""
    for name, value, least in (("keep_rows", keep_rows, 0), ("block_size", block_size, 1)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an integer, got {value!r}")
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    if where != "input":
        raise ValueError(f"where must be 'input', got {where!r}")


def _first_number() -> int:
    # Processes that read different tokens number them apart, unless they are told better.
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank() << 40
    return 0


def _first_parameter(module: "nn.Module") -> str | None:
    # The class's forward, for libraries that place a model on several devices replace the
    # instance's by one that takes anything.
    parameters = list(inspect.signature(type(module).forward).parameters.values())[1:]
    named = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    return parameters[0].name if parameters and parameters[0].kind in named else None


def _hook_for(layer: CapturedLayer, parameter: str | None, whole: _Whole) -> Any:
    def keep_input(_: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not whole.listens or is_recomputation():
            return
        if args:
            layer.add(args[0], whole.reading)
        elif parameter is not None and parameter in kwargs:
            layer.add(kwargs[parameter], whole.reading)
        elif len(kwargs) == 1:
            layer.add(next(iter(kwargs.values())), whole.reading)
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
