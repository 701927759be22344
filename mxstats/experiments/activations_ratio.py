"""Figure ``activations_ratio``: R at every norm of a real model, between its bounds."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from mxstats.experiments.style import NORMS, ROLES, layer_ticks, new_figure
from mxstats.measure import validate

_P = (1.0, 2.0)
_NOISE = "#a9dcc8"


def compute(
    *, full: bool = False, progress: Callable[[str, float], None] | None = None
) -> pd.DataFrame:
    """Table of :func:`mxstats.validate` on the bundled sample, p = 1 and 2, B = 32, Gaussian c̃.

    R = RMS/r̂ is 1 where the estimate is right. ``full`` changes nothing: the sample is what it is.
    """
    del full
    if progress is not None:
        progress("SmolLM2-135M, bundled sample", 0.0)
    return validate(p=_P)


def draw(table: pd.DataFrame) -> Figure:
    """One panel a p: median, 5 to 95 % and extremes of R a norm; the bounds as the grey edge."""
    figure = new_figure(4.0)
    panels = figure.subplots(len(_P), 1, sharex=True, sharey=True)
    for panel, p in zip(panels, _P, strict=True):
        here = table[table["p"] == p].reset_index(drop=True)
        at = np.arange(len(here))
        look = NORMS[f"mxnorm p={p:g}"]
        low, high = here["bound_rms_low"].iloc[0], here["bound_rms_high"].iloc[0]
        spread = here["r_std_theory"].iloc[0]
        panel.set_yscale("log")
        panel.set_ylim(0.3, 16)
        panel.axhspan(high, 100, color="#e4e4e4", lw=0, zorder=0)
        panel.axhspan(0.01, low, color="#e4e4e4", lw=0, zorder=0)
        panel.axhspan(1 - 2 * spread, 1 + 2 * spread, color=_NOISE, lw=0, zorder=1)
        panel.axhline(1.0, color="black", lw=0.7)
        panel.vlines(at, here["r_low"], here["r_high"], color=look["color"], lw=0.6, alpha=0.6)
        panel.vlines(at, here["r_q05"], here["r_q95"], color=look["color"], lw=2.0, alpha=0.5)
        for role, marker in ROLES.items():
            chosen = here["role"] == role
            panel.plot(
                at[chosen], here["r_median"][chosen], ls="", marker=marker, color=look["color"],
                mfc="white", mew=0.8, label=role, ms=5 if marker == "*" else 3.2, zorder=3,
            )  # fmt: skip
        edge = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right",
                "fontsize": 6.5, "color": "#555555"}  # fmt: skip
        panel.annotate(f"out of reach: R > {high:.3g}", (0.995, high), (0, 2), va="bottom", **edge)
        panel.annotate(f"out of reach: R < {low:.3g}", (0.995, low), (0, -2), va="top", **edge)
        panel.set_title(f"p = {p:g}, B = 32, Gaussian constant", loc="left")
        panel.yaxis.set_major_locator(FixedLocator([0.5, 1, 2, 5, 10]))
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        panel.set_ylabel("R = RMS / estimate")
        panel.grid(visible=False, axis="x")
    tokens = int(table["rows"].max())
    panels[0].legend(
        loc="upper left", ncols=3, title=f"median over {tokens} tokens, input of", title_fontsize=7,
        alignment="left", bbox_to_anchor=(0.0, 0.9),
    )  # fmt: skip
    panels[0].add_artist(panels[0].get_legend())
    ranges = [
        panels[0].plot([], [], color="#666666", lw=3, alpha=0.6, label="5 to 95 % of tokens")[0],
        panels[0].plot([], [], color="#666666", lw=0.8, label="all tokens")[0],
        panels[0].fill_between([], [], color=_NOISE, lw=0, label="±2√(V/K), Gaussian rows"),
    ]
    panels[0].legend(handles=ranges, loc="upper left", ncols=3, bbox_to_anchor=(0.0, 0.64))
    layer_ticks(panels[-1].xaxis, table[table["p"] == _P[0]])
    panels[-1].set_xlabel("layer of SmolLM2-135M (two norm inputs each, then the final norm)")
    return figure
