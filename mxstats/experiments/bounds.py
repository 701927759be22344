"""Figure ``bounds``: the largest output that each norm can give, and what rows really give."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mxstats.experiments.style import NORMS, new_figure, powers_of_two
from mxstats.measure import measure_rows, validate
from mxstats.simulation import simulate
from mxstats.theory import output_bounds

_P = (1.0, 2.0)
_BLOCK_SIZE = 32
_EXPONENTS = range(7, 15)


def compute(
    *, full: bool = False, progress: Callable[[str, float], None] | None = None
) -> pd.DataFrame:
    """Table: norm, kind, hidden_size, value; Gaussian constants, B = 32, outputs without unit.

    kind ``bound``: the largest |y| possible. ``witness``: |y| of a row built to reach it.
    ``gaussian``: largest |y| over 1,000 Gaussian rows (20,000 when ``full``). ``model``: largest
    |y| in each norm input of the bundled SmolLM2 sample.
    """
    rows = 20_000 if full else 1_000
    lines = []
    for at, exponent in enumerate(_EXPONENTS):
        hidden_size = 2**exponent
        if progress is not None:
            progress(f"D = {hidden_size}", at / len(_EXPONENTS))
        lines.append(("rmsnorm", "bound", hidden_size, float(np.sqrt(hidden_size))))
        for p in _P:
            bounds = output_bounds(p=p, block_size=_BLOCK_SIZE, hidden_size=hidden_size)
            witness = measure_rows(bounds.witness("max_abs")[None], bounds).table
            norm = f"mxnorm p={p:g}"
            lines.append((norm, "bound", hidden_size, bounds.max_abs))
            lines.append((norm, "witness", hidden_size, float(witness["output_absmax"].iloc[0])))
        given = {"p": _P, "block_size": _BLOCK_SIZE, "hidden_size": hidden_size}
        found = simulate(**given, rows=rows, seed=exponent)
        for _, line in found[found["quantity"] == "max_abs"].iterrows():
            lines.append((f"mxnorm p={line['p']:g}", "gaussian", hidden_size, line["value"]))
    for _, line in validate(p=_P, block_size=_BLOCK_SIZE).iterrows():
        norm = f"mxnorm p={line['p']:g}"
        lines.append((norm, "model", line["hidden_size"], line["output_absmax"]))
    return pd.DataFrame(lines, columns=["norm", "kind", "hidden_size", "value"])


def draw(table: pd.DataFrame) -> Figure:
    """Lines are bounds, crosses witnesses, dashes Gaussian rows, small marks a real model."""
    figure = new_figure(3.0)
    panel = figure.subplots()
    for norm, look in NORMS.items():
        here = table[table["norm"] == norm]
        color, line = look["color"], look["linestyle"]
        bound = here[here["kind"] == "bound"]
        panel.plot(bound["hidden_size"], bound["value"], color=color, ls=line, label=look["label"])
        if norm == "rmsnorm":
            continue
        witness, gaussian, model = (
            here[here["kind"] == kind] for kind in ("witness", "gaussian", "model")
        )
        panel.plot(witness["hidden_size"], witness["value"], "x", color=color, ms=4.5, mew=1.1)
        panel.plot(
            gaussian["hidden_size"], gaussian["value"], ls=":", color=color, marker=look["marker"],
            ms=2.2, lw=0.9,
        )  # fmt: skip
        # Side by side: both exponents meet the same hidden size.
        shift = 0.96 if norm.endswith("1") else 1.04
        panel.plot(
            model["hidden_size"] * shift, model["value"], ls="", marker=look["marker"], color=color,
            mfc="none", mew=0.5, ms=2.8, alpha=0.8,
        )  # fmt: skip
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_ylim(top=8000)  # room for the legends
    powers_of_two(panel.xaxis, _EXPONENTS)
    panel.set_xlabel(f"hidden size D (elements), B = {_BLOCK_SIZE}")
    panel.set_ylabel("largest output |y|   (RMSNorm: rms = 1)")
    first = panel.legend(loc="upper left", title="bound", title_fontsize=7)
    panel.add_artist(first)
    kinds = [
        panel.plot([], [], "kx", ms=4.5, mew=1.1, label="witness row")[0],
        panel.plot([], [], "k:", lw=0.9, marker="o", ms=2.2, label="Gaussian rows, largest")[0],
        panel.plot(
            [],
            [],
            "ko",
            mfc="none",
            mew=0.5,
            ms=2.8,
            label="SmolLM2-135M, each norm (at 576, set apart)",
        )[0],
    ]
    panel.legend(handles=kinds, loc="upper left", bbox_to_anchor=(0.27, 1.0))
    return figure
