"""Weights of blocks trained on what a model says, not on what its norms see.

A fit of rows (:mod:`mxstats.measure.row_calibration`) makes the error of each norm small. What is
left of it is the same from norm to norm, for the residual stream hardly changes between two, so
that errors add up; and a model minds the errors of some tokens and layers more than of others.
Both are in

    minimise  mean over tokens of KL(p ‖ p_w)   over  low_k <= w_k <= high_k in every layer

with p the model's next-token probabilities under RMSNorm and p_w those under MXNorm of weights w,
nothing rounded. By Adam on ln w, from the fit of rows, each step clipped to the limits that keep
RMSNorm's output bound (:mod:`mxstats.measure.block_weights`). The model's own parameters stay.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mxstats.measure.block_weights import weight_limits
from mxstats.measure.blocks import block_lengths
from mxstats.measure.calibrated import RowCalibration

if TYPE_CHECKING:
    import torch
    from torch import nn

# Steps over which the rate rises to learning_rate; it falls to 0 by half a cosine after them.
_WARM_UP = 5
_BETAS = (0.9, 0.95)


@dataclass(frozen=True, eq=False)
class Distilled:
    """Trained weights, and how the training went."""

    calibration: RowCalibration
    """The weights, to save or convert with; without intervals."""
    steps: pd.DataFrame
    """A line a step: ``step``, ``window``, ``kl`` (nats a token, before the step)."""
    held_out: pd.DataFrame
    """A line a pass, and one before the first: ``passes`` done, ``kl`` of the windows held out."""


def distil(
    model: "nn.Module",
    windows: Sequence[Sequence[int]],
    calibration: RowCalibration,
    *,
    held_out: Sequence[Sequence[int]] = (),
    passes: int = 2,
    learning_rate: float = 0.03,
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> Distilled:
    """Train the weights of blocks so that a model with MXNorm says what it says with RMSNorm.

    Parameters
    ----------
    model
        The causal language model that the calibration is of, of a family that
        :func:`mxstats.nn.convert` knows. Its parameters and hooks are afterwards what they were.
    windows
        Token ids, one forward pass and one step each; every token's prediction counts alike.
    calibration
        Where the training begins: weights (``per="block"``, p = 2) of every norm that
        :func:`mxstats.nn.convert` replaces, the last one too.
    held_out
        Token ids of other windows. With them, what is returned are the weights with which the
        divergence was smallest there: those of the start, or those after one of the passes.
    passes
        How often each window is read, in an order of its own each time; at least 1.
    learning_rate
        Largest step of Adam on ln w, above 0.
    seed
        Of the order of the windows.
    progress
        Called with the KL divergence of the last step and the share done before each step.

    Returns
    -------
    Distilled
        In the table of its calibration ``moved`` is the RMS of ln(w/w₀) over a layer's blocks, and
        the errors and intervals of the fit, which are not those of these weights, are not there.

    Raises
    ------
    ValueError
        Constants instead of weights, p other than 2, or weights that are not those of the model's
        norms; no window, or an empty one; ``passes`` or ``learning_rate`` out of range; a model
        that :func:`mxstats.nn.convert` does not know.
    """
    import torch

    norms = _norms(model, calibration)
    if not len(windows):
        raise ValueError("windows: none; token ids are needed")
    for name, given in (("windows", windows), ("held_out", held_out)):
        if not all(len(window) for window in given):
            raise ValueError(f"{name}: {len(given)}, and none may be empty; token ids are needed")
    if passes < 1:
        raise ValueError(f"passes={passes}: must be at least 1")
    if not 0.0 < learning_rate < math.inf:
        raise ValueError(f"learning_rate={learning_rate:g}: must be above 0 and finite")
    device, size = next(model.parameters()).device, calibration.block_size
    start = {name: calibration.weights[name] for name in norms}
    logs = {
        name: torch.tensor(np.log(w), dtype=torch.float32, device=device, requires_grad=True)
        for name, w in start.items()
    }
    outer = {name: _limits(calibration, name, norm) for name, norm in norms.items()}
    limits = {
        name: tuple(torch.tensor(np.log(end), dtype=torch.float32, device=device) for end in ends)
        for name, ends in outer.items()
    }
    adam = torch.optim.Adam(logs.values(), lr=learning_rate, betas=_BETAS)
    order = np.random.default_rng(seed)
    total = passes * len(windows)
    steps: list[dict[str, float]] = []
    judged: list[dict[str, float]] = []
    best = {name: log.detach().clone() for name, log in logs.items()}

    def judge(done: int) -> None:
        """Keep the weights as they are now, unless others did better on the windows held out."""
        if held_out:
            with torch.no_grad():
                apart = [_divergence(model, one, norms, logs, size) * len(one) for one in held_out]
            mean = float(sum(apart)) / sum(len(one) for one in held_out)
            judged.append({"passes": done, "kl": mean})
            if mean > min(line["kl"] for line in judged):
                return
        best.update({name: log.detach().clone() for name, log in logs.items()})

    with _frozen(model):
        judge(0)
        for turns in (order.permutation(len(windows)) for _ in range(passes)):
            for turn in turns:
                if progress is not None:
                    said = f"KL {steps[-1]['kl']:.4f} nats a token" if steps else "first window"
                    progress(said, len(steps) / total)
                for group in adam.param_groups:
                    group["lr"] = learning_rate * _schedule(len(steps), total)
                kl = _divergence(model, windows[turn], norms, logs, size)
                adam.zero_grad()
                kl.backward()
                adam.step()
                with torch.no_grad():
                    for name, log in logs.items():
                        log.clamp_(*limits[name])
                steps.append({"step": len(steps), "window": int(turn), "kl": float(kl.detach())})
            judge(len(steps) // len(windows))
    trained = {
        # float32 may end a rounding outside of the limits.
        name: np.clip(log.double().exp().cpu().numpy(), *outer[name])
        for name, log in best.items()
    }
    return Distilled(
        replace(
            calibration,
            weights=trained,
            intervals={},
            table=_table(calibration, start, trained, outer),
        ),
        pd.DataFrame(steps),
        pd.DataFrame(judged, columns=["passes", "kl"]),
    )


def _divergence(
    model: "nn.Module",
    window: Sequence[int],
    norms: "dict[str, nn.Module]",
    logs: "dict[str, torch.Tensor]",
    block_size: int,
) -> "torch.Tensor":
    """KL(model with its own norms ‖ model with MXNorms), the mean over a window's tokens."""
    import torch
    from torch.nn.functional import kl_div, log_softmax

    ids = torch.tensor([list(window)], device=next(model.parameters()).device)
    with torch.no_grad():
        aim = log_softmax(model(input_ids=ids).logits[0].float(), -1)
    with _weighted(norms, logs, block_size):
        said = log_softmax(model(input_ids=ids).logits[0].float(), -1)
    return kl_div(said, aim, log_target=True, reduction="batchmean")


def _norms(model: "nn.Module", calibration: RowCalibration) -> "dict[str, nn.Module]":
    """The norms that a converted model replaces, which the weights must be of."""
    if calibration.per != "block" or calibration.p != 2.0:
        raise ValueError(
            f"calibration is per {calibration.per} and p={calibration.p:g}; weights of blocks are "
            f"trained, which per='block' gives"
        )
    from mxstats.nn.families import replaced_norms

    norms = replaced_norms(model)
    lost = [name for name in norms if name not in calibration.weights]
    if lost:
        raise ValueError(
            f"calibration has no weights of {lost[0]} and {len(lost) - 1} more of the model's "
            f"{len(norms)} norms; it is of {calibration.model}"
        )
    return norms


def _limits(calibration: RowCalibration, name: str, norm: "nn.Module") -> tuple[Any, Any]:
    """Ends of what a norm's weights may be; ValueError where they are not between them."""
    hidden_size = next(norm.parameters()).shape[0]
    low, high = weight_limits(calibration.block_size, hidden_size)
    w = calibration.weights[name]
    if w.shape != low.shape:
        raise ValueError(
            f"calibration has {w.size} weights of {name}, which has {low.size} blocks of "
            f"{calibration.block_size} at hidden size {hidden_size}"
        )
    # A rounding apart is what a file may have of another library's arithmetic.
    if not ((w >= low * (1 - 1e-9)) & (w <= high * (1 + 1e-9))).all():
        raise ValueError(
            f"calibration has weights of {name} from {w.min():g} to {w.max():g}; from "
            f"{low.min():g} to {high.max():g} the output keeps RMSNorm's bound"
        )
    return low, high


def _schedule(step: int, total: int) -> float:
    return min(1.0, (step + 1) / _WARM_UP) * 0.5 * (1.0 + math.cos(math.pi * step / total))


@contextmanager
def _frozen(model: "nn.Module") -> Iterator[None]:
    """No parameter asks for a gradient, and nothing drops out, while the block lasts."""
    wanted = [one for one in model.parameters() if one.requires_grad]
    training = [one for one in model.modules() if one.training]
    for one in wanted:
        one.requires_grad_(False)
    model.eval()
    try:
        yield
    finally:
        for one in wanted:
            one.requires_grad_(True)
        for one in training:
            one.training = True


@contextmanager
def _weighted(
    norms: "dict[str, nn.Module]", logs: "dict[str, torch.Tensor]", block_size: int
) -> Iterator[None]:
    """Give each norm MXNorm's output, √((RMS² + ε)/(r̂² + ε)) times its own."""
    from torch.nn.functional import pad

    from mxstats.nn.families import eps_of

    def hook_for(name: str) -> Callable[..., Any]:
        def hook(norm: Any, args: tuple[Any, ...], output: Any) -> Any:
            x = args[0].float()
            hidden_size = x.shape[-1]
            lengths = block_lengths(block_size, hidden_size)
            blocks = pad(x.abs(), (0, len(lengths) * block_size - hidden_size))
            maxima = blocks.unflatten(-1, (len(lengths), block_size)).amax(-1)
            estimate = (maxima.square() * logs[name].exp()).mean(-1, keepdim=True)
            eps = eps_of(norm)
            ratio = ((x.square().mean(-1, keepdim=True) + eps) / (estimate + eps)).sqrt()
            return output * ratio.to(output.dtype)

        return hook

    with ExitStack() as hooks:
        for name, norm in norms.items():
            hooks.callback(norm.register_forward_hook(hook_for(name)).remove)
        yield


def _table(
    calibration: RowCalibration,
    start: dict[str, Any],
    end: dict[str, Any],
    limits: dict[str, tuple[Any, Any]],
) -> pd.DataFrame:
    """What remains true of the calibration's table, and what the weights are now."""
    keep = ["layer", "role", "index", "hidden_size", "p", "block_size", "per", "rows"]
    table = calibration.table
    table = table.loc[table["layer"].isin(list(end)), table.columns.intersection(keep, sort=False)]
    lines = []
    for name in table["layer"]:
        w = end[name]
        low, high = limits[name]
        lines.append(
            {
                "w_low": w.min(),
                "w_median": float(np.median(w)),
                "w_high": w.max(),
                "at_low": int((w <= low).sum()),
                "at_high": int((w >= high).sum()),
                "moved": float(np.sqrt(np.mean(np.log(w / start[name]) ** 2))),
                "bound_max_abs": float(np.sqrt(w.size / w.min())),
                "bound_rmsnorm": float(np.sqrt(low.size / low.min())),
            }
        )
    return pd.concat([table.reset_index(drop=True), pd.DataFrame(lines)], axis=1)
