"""Figure ``constant``: c̃ against block size, exact, asymptotic and simulated."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mxstats.experiments.style import DISTRIBUTIONS, new_figure, powers_of_two
from mxstats.simulation import simulate
from mxstats.theory import constant, constant_asymptotic

_NAMES = ("gaussian", "laplace", "student-t:10")
_P = (1.0, 2.0)
_EXPONENTS = range(13)
_SIMULATED = (1, 3, 5, 7, 9, 11)


def compute(
    *, full: bool = False, progress: Callable[[str, float], None] | None = None
) -> pd.DataFrame:
    """Table: distribution, p, block_size, kind (exact, asymptotic, simulated), value, stderr.

    c̃ at rms = 1. Simulated: 2^22 values a cell (2^26 when ``full``), standard error 1 σ.
    """
    values = 2**26 if full else 2**22
    sizes = 2 ** np.arange(_EXPONENTS.stop)
    frames = []
    for at, name in enumerate(_NAMES):
        for p in _P:
            exact = constant(name, p=p, block_size=sizes)
            asymptotic = constant_asymptotic(name, p=p, block_size=sizes[1:])
            frames.append(_lines(name, p, sizes, "exact", exact))
            frames.append(_lines(name, p, sizes[1:], "asymptotic", asymptotic))
        for step, exponent in enumerate(_SIMULATED):
            if progress is not None:
                progress(name, (at + step / len(_SIMULATED)) / len(_NAMES))
            frames.append(_simulated(name, 2**exponent, values))
    return pd.concat(frames, ignore_index=True)


def _lines(name: str, p: float, sizes: np.ndarray, kind: str, values: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(
        {"distribution": name, "p": p, "block_size": sizes, "kind": kind, "value": values,
         "stderr": 0.0}
    )  # fmt: skip


def _simulated(name: str, block_size: int, values: int) -> pd.DataFrame:
    hidden_size = max(4096, block_size)
    # A seed of its own, for runs of one seed share their random numbers.
    found = simulate(
        name,
        p=_P,
        block_size=block_size,
        hidden_size=hidden_size,
        rows=values // hidden_size,
        seed=block_size + _NAMES.index(name),
    )
    found = found[found["quantity"] == "constant"]
    return pd.DataFrame(
        {
            "distribution": name,
            "p": found["p"],
            "block_size": block_size,
            "kind": "simulated",
            "value": found["value"],
            "stderr": found["stderr"],
        }
    )


def draw(table: pd.DataFrame) -> Figure:
    """One column a p: above c̃, below how far simulation is from exact, with ±2 σ."""
    figure = new_figure(3.3)
    panels = figure.subplots(2, len(_P), sharex=True, sharey="row", height_ratios=(2.2, 1))
    for column, p in enumerate(_P):
        above, below = panels[:, column]
        for at, name in enumerate(_NAMES):
            here = table[(table["p"] == p) & (table["distribution"] == name)]
            _draw_series(above, below, here, DISTRIBUTIONS[name], shift=1.12 ** (at - 1))
        above.set_xscale("log", base=2)
        powers_of_two(above.xaxis, range(0, _EXPONENTS.stop, 3))
        for panel in (above, below):
            panel.axvline(32, color="#bbbbbb", lw=0.6, zorder=0)
        above.set_title(f"p = {p:g}")
        above.set_ylim(0, 7)
        below.axhline(0.0, color="black", lw=0.8)
        below.set_xlabel("block size B (elements)")
    panels[0, 0].annotate("MX: 32", (32, 0.15), xytext=(3, 0), textcoords="offset points",
                          fontsize=6, color="#888888")  # fmt: skip
    panels[0, 0].set_ylabel(r"constant $\tilde c(p, B)$   (rms = 1)")
    panels[1, 0].set_ylabel("vs. exact (%)")
    panels[0, 0].legend(loc="upper left")
    handles = [
        panels[0, 1].plot([], [], "k-", label="exact")[0],
        panels[0, 1].plot([], [], "k:", lw=0.9, label="asymptotic form")[0],
        panels[0, 1].plot([], [], "ko", mfc="white", mew=0.8, label="simulation, ±2 σ")[0],
    ]
    panels[0, 1].legend(handles=handles, loc="upper left")
    return figure


def _draw_series(
    above: Axes, below: Axes, here: pd.DataFrame, look: dict[str, Any], shift: float
) -> None:
    exact, asymptotic, simulated = (
        here[here["kind"] == kind].set_index("block_size")
        for kind in ("exact", "asymptotic", "simulated")
    )
    color = look["color"]
    points = {"fmt": look["marker"], "color": color, "mfc": "white", "mew": 0.8, "lw": 0.8}
    above.plot(exact.index, exact["value"], color=color)
    above.plot(asymptotic.index, asymptotic["value"], color=color, ls=":", lw=0.9)
    error = 2 * simulated["stderr"]
    above.errorbar(simulated.index, simulated["value"], error, label=look["label"], **points)
    # A small shift keeps the three error bars of one block size apart.
    truth = exact["value"].loc[simulated.index]
    gap, error = simulated["value"] / truth - 1, 2 * simulated["stderr"] / truth
    below.errorbar(simulated.index * shift, 100 * gap, 100 * error, **points)
