"""What a norm costs a model: its loss on text with RMSNorm, with MXNorm, and with pure noise.

The models are those of :func:`mxstats.nn.convert`, every norm with a linear behind it and the last
one converted, on the kernels. Beside a measured penalty stands the one that sampling noise alone
would bring: RMSNorm whose output is multiplied by exp(σz), z normal, a number a row, σ = √(V/K) of
a Gaussian row (:func:`mxstats.rms_error`). It is what a constant that is right on average leaves.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mxstats.activations.models import losses
from mxstats.formats import BlockFormat, ScaleRule, block_format
from mxstats.theory import rms_error

if TYPE_CHECKING:
    from torch import nn

RMSNORM, GAUSSIAN, NOISE = "RMSNorm", "Gaussian constant", "noise √(V/K)"


def evaluate(
    model: "nn.Module",
    windows: Sequence[Sequence[int]],
    calibrations: Mapping[str, Any] | None = None,
    *,
    p: float = 2.0,
    fmt: BlockFormat | str | None = None,
    scale_rule: ScaleRule | str | None = None,
    block_size: int | None = None,
    noise: bool = True,
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> pd.DataFrame:
    """Return the loss of a model with its own norms and with MXNorm in their place.

    Parameters
    ----------
    model
        A causal language model of a family that :func:`mxstats.nn.convert` knows. It stays as it
        is.
    windows
        Token ids, one forward pass each; every window begins with its BOS, which is not scored.
    calibrations
        Constants by the name that the table is to have: a :class:`mxstats.measure.RowCalibration`,
        or what ``constants`` of :func:`mxstats.nn.convert` takes.
    p, fmt, scale_rule, block_size
        As for :func:`mxstats.nn.convert`; nothing is rounded where ``fmt`` is None.
    noise, seed
        Whether the penalty of pure noise is measured too, and its generator's seed.
    progress
        Called with a variant's name and the share done before each.

    Returns
    -------
    DataFrame
        A line a variant: ``variant``, ``p``, ``block_size``, ``format``, ``loss`` (nats a token),
        ``penalty`` (over RMSNorm unrounded) and its standard error ``penalty_error`` (from the
        differences token by token, taken as independent of each other), ``tokens`` scored.

    Raises
    ------
    TypeError, ValueError
        As :func:`mxstats.nn.convert`; a name of ours among those of the calibrations; no token to
        score.
    """
    from mxstats.nn import convert

    tokens = sum(max(0, len(window) - 1) for window in windows)
    if tokens < 1:
        raise ValueError(f"windows: {len(windows)} with no token to score")
    given = dict(calibrations or {})
    for name in (RMSNORM, GAUSSIAN, NOISE, f"{RMSNORM}, cast"):
        if name in given:
            raise ValueError(f"calibrations: {name!r} is the table's own name for another line")
    size = block_size or (32 if fmt is None else block_format(fmt).block_size)
    name_of_format = None if fmt is None else block_format(fmt).name
    common = {"fmt": fmt, "scale_rule": scale_rule, "block_size": block_size}
    mxnorm = {"norm": "mxnorm", "p": p, "final_norm": True, **common}

    def with_mxnorm(constants: Any) -> NDArray[np.float64]:
        return losses(convert(model, constants=_plain(constants), **mxnorm)[0], windows)

    variants: dict[str, Callable[[], NDArray[np.float64]]] = {
        RMSNORM: lambda: losses(model, windows)
    }
    if fmt is not None:
        variants[f"{RMSNORM}, cast"] = lambda: losses(
            convert(model, norm="rmsnorm", **common)[0], windows
        )
    variants[GAUSSIAN] = lambda: with_mxnorm(None)
    for name, constants in given.items():
        variants[name] = lambda constants=constants: with_mxnorm(constants)
    if noise:
        variants[NOISE] = lambda: _losses_with_noise(model, windows, p, size, seed)
    lines = []
    before = None
    for at, (name, measure) in enumerate(variants.items()):
        if progress is not None:
            progress(name, at / len(variants))
        rounded = name not in (RMSNORM, NOISE)
        found = measure()
        before = found if before is None else before
        more = found - before
        lines.append(
            {
                "variant": name,
                "p": p,
                "block_size": size,
                "format": name_of_format if rounded else None,
                "loss": float(found.mean()),
                "penalty": float(more.mean()),
                "penalty_error": float(more.std(ddof=min(1, tokens - 1))) / tokens**0.5,
                "tokens": tokens,
            }
        )
    return pd.DataFrame(lines)


def _plain(constants: Any) -> Any:
    """A calibration as what ``convert`` takes."""
    weights = getattr(constants, "weights", None)
    if weights:
        return weights
    return getattr(constants, "constants", constants)


def _losses_with_noise(
    model: "nn.Module", windows: Sequence[Sequence[int]], p: float, block_size: int, seed: int
) -> NDArray[np.float64]:
    with _noisy(model, p, block_size, seed):
        return losses(model, windows)


@contextmanager
def _noisy(model: "nn.Module", p: float, block_size: int, seed: int) -> Iterator[None]:
    """Multiply the output of every norm that is converted by exp(σz) while the block lasts."""
    import torch

    from mxstats.nn.families import replaced_norms

    generator = torch.Generator().manual_seed(seed)
    error = rms_error("gaussian", p=p, block_size=block_size)

    def hook(_: Any, __: Any, output: Any) -> Any:
        sigma = float(error.std(-(-output.shape[-1] // block_size)))
        z = torch.randn(output.shape[:-1], generator=generator, dtype=torch.float64)
        return output * (sigma * z).exp()[..., None].to(output)

    with ExitStack() as hooks:
        for module in replaced_norms(model).values():
            hooks.callback(module.register_forward_hook(hook).remove)
        yield
