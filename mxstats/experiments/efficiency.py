"""Figure ``efficiency``: √V against p, that is, which exponent estimates best for which rows."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mxstats.experiments.style import DISTRIBUTIONS, new_figure
from mxstats.theory import distribution, rms_error

_NAMES = ("gaussian", "laplace", "student-t:10", "student-t:5")
_BLOCK_SIZES = (16, 32, 128)


def compute(
    *, full: bool = False, progress: Callable[[str, float], None] | None = None
) -> pd.DataFrame:
    """Table: distribution, block_size, p, sqrt_v; exact. 33 exponents, 129 when ``full``.

    √V is the standard deviation of √K·ln R. Exponents at which V is infinite are left out.
    """
    exponents = np.linspace(0.05, 4.0, 129 if full else 33)
    frames = []
    for at, name in enumerate(_NAMES):
        for step, block_size in enumerate(_BLOCK_SIZES):
            if progress is not None:
                progress(f"{name}, B = {block_size}", (at + step / 3) / len(_NAMES))
            finite = exponents[2 * exponents < distribution(name).tail_index]
            variance = rms_error(name, p=finite, block_size=block_size).variance
            frames.append(
                pd.DataFrame(
                    {
                        "distribution": name,
                        "block_size": block_size,
                        "p": finite,
                        "sqrt_v": np.sqrt(variance),
                    }
                )
            )
    return pd.concat(frames, ignore_index=True)


def draw(table: pd.DataFrame) -> Figure:
    """One panel a block size; a marker at each curve's least, where that exponent is best."""
    figure = new_figure(2.7)
    panels = figure.subplots(1, len(_BLOCK_SIZES), sharey=True)
    for panel, block_size in zip(panels, _BLOCK_SIZES, strict=True):
        for name in _NAMES:
            look = DISTRIBUTIONS[name]
            here = table[(table["distribution"] == name) & (table["block_size"] == block_size)]
            panel.plot(here["p"], here["sqrt_v"], color=look["color"], label=look["label"])
            best = here.iloc[int(here["sqrt_v"].argmin())]
            panel.plot(best["p"], best["sqrt_v"], look["marker"], color=look["color"], mfc="white")
        for p in (1, 2):
            panel.axvline(p, color="#bbbbbb", lw=0.6, zorder=0)
        panel.set_title(f"B = {block_size}")
        panel.set_xlabel("exponent p")
        panel.set_xlim(0, 4)
        panel.set_ylim(0, 0.5)
    panels[0].set_ylabel(r"$\sqrt{V}$ = std of $\sqrt{K}\,\ln R$")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    panels[0].annotate("marker: best p", (0.15, 0.03), fontsize=7, color="#555555")
    return figure
