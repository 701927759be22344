"""Figure ``calibration``: what constants fitted to a model bring, in the estimate and in its loss.

Drawn from a recorded run, ``figures/data/calibration.parquet``: errors on parts of the text that
the constants were not fitted on, and the model's loss on other texts.
"""

from collections.abc import Callable, Iterable
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import CARETDOWN
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from mxstats.experiments.recorded import recorded
from mxstats.experiments.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    YELLOW,
    layer_ticks,
    new_figure,
    powers_of_two,
)
from mxstats.measure.evaluation import GAUSSIAN, NOISE, RMSNORM
from mxstats.theory import constant

COMMAND = "python benchmarks/calibration.py --out figures/data"

_BLOCK_SIZE = 32
_HEAD = [
    "kind", "text", "variant", "layer", "role", "index", "p", "block_size", "value", "value_error",
    "tokens",
]  # fmt: skip
_LOOKS: dict[str, dict[str, Any]] = {
    GAUSSIAN: {"color": GREY, "marker": "v"},
    "per model": {"color": ORANGE, "marker": "s"},
    "per layer": {"color": GREEN, "marker": "^"},
    "per block": {"color": BLUE, "marker": "o"},
    NOISE: {"color": "black", "marker": "", "ls": (0, (4, 2)), "lw": 0.9},
}
# For variants that are not known here.
_COLORS, _MARKERS = (PURPLE, SKY, YELLOW), "DP*Xh"


def compute(
    *, full: bool = False, progress: Callable[[str, float], None] | None = None
) -> pd.DataFrame:
    """Table: kind, text, variant, layer, role, index, p, block_size, value, value_error, tokens.

    kind ``error``: RMS over tokens of ln r̂ − ln RMS at a norm input, B = 32, each variant on
    tokens that it was not fitted on; ``limit``: √(V/K) there, what is left of Gaussian rows.
    ``penalty``: nats a token over the loss with RMSNorm, its standard error ``value_error``.
    ``tokens``: measured, or scored.

    The error of the Gaussian constant follows from that of the constant c of the layer, of which
    the mean is zero on the tokens that it was fitted on: its square and that of ln(c/c̃) add up. It
    is left out where first tokens were weighted, which moves c. ``full`` changes nothing. Raises
    NoRecordingError where there is no recorded run.
    """
    del full, progress
    run, facts = recorded(
        "calibration", COMMAND, where="where the model is installed, in an hour on a CPU,"
    )
    fits = run[(run["kind"] == "error") & (run["block_size"] == _BLOCK_SIZE)]
    fits = fits.assign(variant="per " + fits["per"].astype(str), tokens=fits["rows"])
    parts = [fits.assign(value=fits["held_out_rms"])]
    of_layers = fits[fits["per"] == "layer"]
    if float(facts.get("first_token_weight", "1")) == 1.0:
        c = [
            float(constant(p=p, block_size=_BLOCK_SIZE, hidden_size=int(size)))
            for p, size in zip(of_layers["p"], of_layers["hidden_size"], strict=True)
        ]
        before = np.hypot(of_layers["in_sample_rms"], np.log(of_layers["c"] / c))
        parts.insert(0, of_layers.assign(variant=GAUSSIAN, value=before))
    limit = of_layers.assign(kind="limit", variant=NOISE, value=of_layers["sampling_limit"])
    losses = run[(run["kind"] == "loss") & (run["variant"] != RMSNORM)]
    losses = losses.assign(
        kind="penalty", value=losses["penalty"], value_error=losses["penalty_error"]
    )
    table = pd.concat([*parts, limit, losses], ignore_index=True).reindex(columns=_HEAD)
    return table.astype({"block_size": "int64", "tokens": "int64"})


def draw(table: pd.DataFrame) -> Figure:
    """Above the errors along the model's norms; below the penalty against B, a panel a text."""
    looks = _looks(table["variant"])
    losses = table[table["kind"] == "penalty"]
    texts = list(dict.fromkeys(losses["text"]))
    figure = new_figure(4.7)
    grid = figure.add_gridspec(2, 1, height_ratios=(1, 1.25))
    above, below = (figure.add_subfigure(grid[i]) for i in range(2))
    _errors(above.subplots(), table, looks)
    panels = below.subplots(1, len(texts), sharey=True, squeeze=False)[0]
    for panel, text in zip(panels, texts, strict=True):
        _penalties(panel, losses[losses["text"] == text], looks)
        panel.set_title(f"{text}: {losses.loc[losses['text'] == text, 'tokens'].max():,} tokens")
    panels[0].set_ylabel("loss penalty (nats a token)")
    handles, names = panels[0].get_legend_handles_labels()
    below.legend(handles, names, loc="outside lower center", ncols=4)
    return figure


def _errors(panel: Axes, table: pd.DataFrame, looks: dict[str, dict[str, Any]]) -> None:
    errors = table[table["kind"] == "error"]
    norms = errors[errors["variant"] == errors["variant"].iloc[0]]
    for variant, here in errors.groupby("variant", sort=False):
        panel.plot(
            np.arange(len(here)), here["value"], ms=2.4, lw=0.8, mfc="white", mew=0.6,
            **looks[str(variant)],
        )  # fmt: skip
    limit = table.loc[table["kind"] == "limit", "value"]
    panel.plot(np.arange(len(limit)), limit, **looks[NOISE])
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_locator(NullLocator())
    layer_ticks(panel.xaxis, norms)
    panel.grid(visible=False, axis="x")
    panel.set_xlabel("layer of SmolLM2-135M (two norm inputs each, then the final norm)")
    panel.set_ylabel("RMS error of ln r̂, held out")
    panel.set_title(
        f"B = {_BLOCK_SIZE}, {len(norms)} norm inputs, cross-validated on "
        f"{norms['tokens'].max():,} tokens",
        loc="left",
    )


def _penalties(panel: Axes, losses: pd.DataFrame, looks: dict[str, dict[str, Any]]) -> None:
    for variant, here in losses.groupby("variant", sort=False):
        here = here.sort_values("block_size")
        shown = here["value"].where(here["value"] > 0.0)
        look = looks[str(variant)]
        panel.plot(here["block_size"], shown, mfc="white", mew=0.8, label=variant, **look)
        # Down to a tenth of it, where an error is as large as what it is of.
        low = (shown - here["value_error"]).clip(lower=0.1 * shown)
        high = shown + here["value_error"]
        panel.vlines(here["block_size"], low, high, color=look["color"], lw=1.2, alpha=0.6)
    # A penalty that is none has no place on a log axis: it is marked at its lower end.
    none = losses[losses["value"] <= 0.0]
    for line in none.to_dict("records"):
        panel.plot(
            line["block_size"], 0.03, ls="", marker=CARETDOWN, ms=4.5,
            color=looks[line["variant"]]["color"], transform=panel.get_xaxis_transform(),
        )  # fmt: skip
    if len(none):
        panel.annotate(
            "▾ at the edge: zero or less", (0.02, 0.07), xycoords="axes fraction", fontsize=6.5
        )
    panel.set_xlabel("block size B (elements)")
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    sizes = sorted(set(losses["block_size"]))
    powers_of_two(panel.xaxis, range(sizes[0].bit_length() - 1, sizes[-1].bit_length()))


def _looks(variants: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The look of each variant: its own, or the next of the others'."""
    others = zip(cycle(_COLORS), cycle(_MARKERS), strict=True)
    found = dict(_LOOKS)
    for variant in dict.fromkeys(variants):
        if variant not in found:
            color, marker = next(others)
            found[variant] = {"color": color, "marker": marker}
    return found
