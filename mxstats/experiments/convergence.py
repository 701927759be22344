"""Figure ``convergence``: how the spread of R shrinks with hidden size, against √(V/K)."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from mxstats.experiments.style import DISTRIBUTIONS, new_figure, powers_of_two
from mxstats.simulation import simulate
from mxstats.theory import rms_error

_NAMES = ("gaussian", "laplace", "student-t:10")
_P = (1.0, 2.0)
_BLOCK_SIZE = 32
_EXPONENTS = range(8, 14)
_FULL_EXPONENTS = range(8, 16)


def compute(
    *, full: bool = False, progress: Callable[[str, float], None] | None = None
) -> pd.DataFrame:
    """Table: distribution, p, block_size, hidden_size, rows, std, stderr, clt.

    std is the standard deviation of R = RMS/r̂ (1 when right) over simulated rows, stderr its
    standard error (1 σ), clt = √(V/K). 4,000 rows a cell, 40,000 when ``full``.
    """
    exponents, rows = (_FULL_EXPONENTS, 40_000) if full else (_EXPONENTS, 4_000)
    work = float(sum(2**e for e in exponents) * len(_NAMES))
    frames, done = [], 0.0
    for name in _NAMES:
        error = rms_error(name, p=_P, block_size=_BLOCK_SIZE)
        for exponent in exponents:
            if progress is not None:
                progress(f"{name}, D = {2**exponent}", done / work)
            hidden_size = 2**exponent
            # A seed of its own, for runs of one seed share their random numbers.
            found = simulate(
                name,
                p=_P,
                block_size=_BLOCK_SIZE,
                hidden_size=hidden_size,
                rows=rows,
                seed=exponent + 100 * _NAMES.index(name),
            )
            found = found[found["quantity"] == "ratio_std"]
            frames.append(
                pd.DataFrame(
                    {
                        "distribution": name,
                        "p": found["p"].to_numpy(),
                        "block_size": _BLOCK_SIZE,
                        "hidden_size": hidden_size,
                        "rows": rows,
                        "std": found["value"].to_numpy(),
                        "stderr": found["stderr"].to_numpy(),
                        "clt": error.std(hidden_size // _BLOCK_SIZE),
                    }
                )
            )
            done += hidden_size
    return pd.concat(frames, ignore_index=True)


def draw(table: pd.DataFrame) -> Figure:
    """Above, the spread in per cent over the CLT's line; below, simulation over CLT, ±2 σ."""
    figure = new_figure(3.1)
    panels = figure.subplots(2, len(_P), sharex=True, sharey="row", height_ratios=(2, 1))
    sizes = np.unique(table["hidden_size"])
    for column, p in enumerate(_P):
        above, below = panels[:, column]
        for at, name in enumerate(_NAMES):
            series = dict(DISTRIBUTIONS[name])
            marker, color, label = series["marker"], series["color"], series["label"]
            here = table[(table["p"] == p) & (table["distribution"] == name)]
            size = here["hidden_size"]
            above.plot(size, 100 * here["clt"], color=color)
            points = {"fmt": marker, "color": color, "mfc": "white", "mew": 0.8, "lw": 0.8}
            above.errorbar(size, 100 * here["std"], 200 * here["stderr"], label=label, **points)
            # A small shift keeps the three error bars of one size apart.
            ratio, error = here["std"] / here["clt"], 2 * here["stderr"] / here["clt"]
            below.errorbar(size * 1.06 ** (at - 1), ratio, error, **points)
        below.axhline(1.0, color="black", lw=0.8)
        above.set_title(f"p = {p:g}, B = {_BLOCK_SIZE}")
        above.set_xscale("log", base=2)
        above.set_yscale("log")
        above.set_ylim(0.45, 10)  # room for the legends
        above.yaxis.set_major_locator(FixedLocator([0.5, 1, 2, 3, 5, 7, 10]))
        above.yaxis.set_minor_locator(NullLocator())
        above.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g} %"))
        powers_of_two(below.xaxis, range(int(np.log2(sizes[0])), int(np.log2(sizes[-1])) + 1))
        below.set_xlabel("hidden size D (elements)")
    panels[0, 0].set_ylabel("standard deviation of R")
    panels[1, 0].set_ylabel(r"simulation / $\sqrt{V/K}$")
    panels[0, 0].legend(loc="lower left", title="simulation, ±2 σ", title_fontsize=7)
    line = panels[0, 1].plot([], [], "k-", label=r"$\sqrt{V/K}$, exact V")
    panels[0, 1].legend(handles=line, loc="lower left")
    return figure
