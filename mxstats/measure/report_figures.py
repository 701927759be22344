"""The report's figures, as SVG to stand inside a page."""

import io
from collections.abc import Callable

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

_COLOURS = {"ln c": "#8c8c8c", "− ln crest": "#0072b2", "− ln spread": "#d55e00"}


def ratio_figure(table: pd.DataFrame) -> str:
    """R of each layer: median, 5 to 95 %, extremes; the noise of sampling as a band."""
    return _svg(_panels(table, _draw_ratio, "R = RMS/estimate"), name="ratio")


def parts_figure(table: pd.DataFrame) -> str:
    """The ln R of each layer as the sum of ln c, −ln crest and −ln spread."""
    return _svg(_panels(table, _draw_parts, "ln R and its parts"), name="parts")


def _panels(table: pd.DataFrame, draw: Callable[[Axes, pd.DataFrame], None], label: str) -> Figure:
    exponents = list(dict.fromkeys(table["p"]))
    figure = Figure(figsize=(10, 2.6 * len(exponents) + 0.5), layout="constrained")
    panels = figure.subplots(len(exponents), 1, sharex=True, squeeze=False)[:, 0]
    for panel, p in zip(panels, exponents, strict=True):
        here = table[table["p"] == p].reset_index(drop=True)
        draw(panel, here)
        panel.set_title(f"p = {p:g}", loc="left", fontsize=9)
        panel.set_ylabel(label, fontsize=9)
        panel.grid(axis="y", lw=0.4, alpha=0.5)
        panel.legend(fontsize=8, ncols=4, loc="best")
    panels[-1].set_xlabel("layer, in the order of the table", fontsize=9)
    return figure


def _draw_ratio(panel: Axes, here: pd.DataFrame) -> None:
    at = np.arange(len(here))
    panel.set_yscale("log")
    for axis in ("major", "minor"):
        getattr(panel.yaxis, f"set_{axis}_formatter")(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.tick_params(axis="y", which="both", labelsize=8)
    noise = here["r_std_theory"].to_numpy()
    if np.isfinite(noise).all():
        panel.fill_between(
            at, np.exp(-2 * noise), np.exp(2 * noise), color="#a9dcc8", lw=0, label="±2√(V/K)"
        )
    panel.vlines(at, here["r_low"], here["r_high"], lw=0.7, color="#0072b2", label="all rows")
    panel.vlines(at, here["r_q05"], here["r_q95"], lw=3, color="#0072b2", alpha=0.4, label="90 %")
    panel.plot(at, here["r_median"], "o", ms=3, color="black", label="median")
    panel.axhline(1.0, color="black", lw=0.7)


def _draw_parts(panel: Axes, here: pd.DataFrame) -> None:
    at = np.arange(len(here))
    parts = {
        "ln c": here["ln_c"],
        "− ln crest": -here["ln_crest"],
        "− ln spread": -here["ln_spread"],
    }
    up, down = np.zeros(len(here)), np.zeros(len(here))
    for name, values in parts.items():
        values = values.to_numpy()
        bottom = np.where(values >= 0, up, down)
        panel.bar(at, values, bottom=bottom, color=_COLOURS[name], width=0.8, label=name)
        up += np.maximum(values, 0)
        down += np.minimum(values, 0)
    panel.plot(at, here["ln_r"], "o", ms=3, color="black", label="ln R, their sum")
    panel.axhline(0.0, color="black", lw=0.7)


def _svg(figure: Figure, *, name: str) -> str:
    """The figure without a date, and with ids of its own, so that the same rows give one page."""
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
