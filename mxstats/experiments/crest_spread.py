"""Figure ``crest_spread``: why R deviates at the norms of a real model.

ln R = ln c̃ − ln crest − ln spread, where crest = M_p(m)/M_p(√q) is the shape inside the blocks and
spread = M_p(√q)/RMS how unequal the blocks are, which for p = 2 is 1 whatever the row.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from mxstats.activations import sample_store
from mxstats.experiments.style import BLUE, ORANGE, ROLES, layer_ticks, new_figure
from mxstats.measure import measure_rows, validate
from mxstats.theory import output_bounds

_P = (1.0, 2.0)
_BLOCK_SIZE = 32
_MEANS = ["ln_c", "ln_crest", "ln_spread", "ln_r"]
_PARTS = {
    "ln_crest": {"color": ORANGE, "label": "ln crest"},
    "ln_spread": {"color": BLUE, "label": "ln spread"},
}
# Of areas: far enough from each other in grey print.
_ALPHA = {"ln_crest": 0.5, "ln_spread": 0.9}


def compute(
    *, full: bool = False, progress: Callable[[str, float], None] | None = None
) -> pd.DataFrame:
    """Table: a line a (norm input, p) of the bundled sample; B = 32, Gaussian c̃, no unit.

    ``layer``, ``role``, ``index``, ``p``, ``rows``; the means over rows ``ln_c``, ``ln_crest``,
    ``ln_spread`` and ``ln_r`` of :func:`mxstats.validate`; and 5 and 95 % of rows,
    ``ln_crest_q05``, ``ln_crest_q95``, ``ln_spread_q05``, ``ln_spread_q95``. ``full`` changes
    nothing: the sample is what it is.
    """
    del full
    table = validate(p=_P, block_size=_BLOCK_SIZE, progress=progress)
    store = sample_store()
    bounds = {
        (p, size): output_bounds(p=p, block_size=_BLOCK_SIZE, hidden_size=size)
        for p in _P
        for size in set(table["hidden_size"])
    }
    ranges = []
    for line in table.to_dict("records"):
        at = bounds[line["p"], line["hidden_size"]]
        of_rows = measure_rows(store.rows(line["layer"]), at).table
        ranges.append(
            {
                f"{part}_{name}": of_rows[part].quantile(share)
                for part in _PARTS
                for name, share in (("q05", 0.05), ("q95", 0.95))
            }
        )
    shown = table[["layer", "role", "index", "p", "rows", *_MEANS]]
    return pd.concat([shown, pd.DataFrame(ranges)], axis=1)


def draw(table: pd.DataFrame) -> Figure:
    """One column a p: above ln crest and ln spread with their ranges, below what they sum to."""
    figure = new_figure(4.2)
    panels = figure.subplots(2, len(_P), sharex=True, sharey="row")
    for column, p in enumerate(_P):
        here = table[table["p"] == p].reset_index(drop=True)
        _parts(panels[0, column], here)
        _sum(panels[1, column], here)
        panels[0, column].set_title(f"p = {p:g}, B = {_BLOCK_SIZE}", loc="left")
        layer_ticks(panels[1, column].xaxis, here, every=5)
    # Room for the legends.
    lowest = min(0.0, table["ln_spread_q05"].min(), table["ln_crest_q05"].min())
    panels[0, 0].set_ylim(lowest - 0.1, table["ln_crest_q95"].max() + 0.75)
    panels[1, 0].set_ylim(table["ln_r"].min() - 0.1, 0.65 - table["ln_spread"].min())
    panels[0, 0].set_ylabel("mean over tokens")
    panels[1, 0].set_ylabel("contribution to mean ln R")
    figure.supxlabel(
        "layer of SmolLM2-135M (two norm inputs each, then the final norm)", fontsize=8
    )
    _legends(panels, int(table["rows"].max()))
    return figure


def _parts(panel: Axes, here: pd.DataFrame) -> None:
    at = np.arange(len(here))
    c = here["ln_c"].iloc[0]
    panel.axhline(0.0, color="black", lw=0.7)
    panel.axhline(c, color="black", lw=0.9, ls=(0, (4, 2)))
    panel.annotate(
        f"ln c̃ = {c:.3f}", (0.99, c), (0, -2), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="right", va="top", fontsize=6.5,
    )  # fmt: skip
    for part, look in _PARTS.items():
        color = look["color"]
        panel.vlines(at, here[f"{part}_q05"], here[f"{part}_q95"], color=color, lw=1.4, alpha=0.45)
        for role, marker in ROLES.items():
            chosen = here["role"] == role
            panel.plot(
                at[chosen], here[part][chosen], ls="", marker=marker, color=color, mfc="white",
                mew=0.7, ms=4.5 if marker == "*" else 2.6, zorder=3,
            )  # fmt: skip
    panel.yaxis.set_major_locator(MultipleLocator(0.5))
    panel.grid(visible=False, axis="x")


def _sum(panel: Axes, here: pd.DataFrame) -> None:
    at = np.arange(len(here))
    crest, spread = here["ln_c"] - here["ln_crest"], -here["ln_spread"]
    # Spread is at most 1 for p ≤ 2: its bar goes up, from where one of crest that goes up ends.
    panel.bar(
        at, crest, width=0.8, color=ORANGE, alpha=_ALPHA["ln_crest"], lw=0, label="ln c̃ − ln crest"
    )
    panel.bar(
        at, spread, bottom=crest.clip(lower=0.0), width=0.8, color=BLUE, lw=0,
        alpha=_ALPHA["ln_spread"], label="− ln spread",
    )  # fmt: skip
    panel.set_axisbelow(True)
    panel.axhline(0.0, color="black", lw=0.7)
    for role, marker in ROLES.items():
        chosen = here["role"] == role
        panel.plot(
            at[chosen], here["ln_r"][chosen], ls="", marker=marker, color="black", mfc="white",
            mew=0.7, ms=4.5 if marker == "*" else 2.6, zorder=3,
        )  # fmt: skip
    panel.yaxis.set_major_locator(MultipleLocator(0.2))
    panel.grid(visible=False, axis="x")


def _legends(panels: np.ndarray, tokens: int) -> None:
    above, below = panels[0, 0], panels[1, 0]
    marks = {"ls": "", "mfc": "white", "mew": 0.7, "color": "black"}
    roles = [
        above.plot([], [], marker=marker, ms=4.5 if marker == "*" else 2.6, label=role, **marks)[0]
        for role, marker in ROLES.items()
    ]
    parts = [
        above.plot([], [], lw=3, alpha=_ALPHA[part], color=look["color"], label=look["label"])[0]
        for part, look in _PARTS.items()
    ]
    panels[0, 0].legend(handles=parts, loc="upper left", ncols=2)
    panels[0, 1].legend(
        handles=roles, loc="upper left", ncols=3, title=f"{tokens} tokens, bar: 5 to 95 %",
        title_fontsize=7, alignment="left", columnspacing=1.0, handletextpad=0.3,
    )  # fmt: skip
    bars = below.get_legend_handles_labels()
    sums = below.plot([], [], marker="o", ms=2.6, label="their sum, ln R", **marks)
    below.legend([*bars[0], *sums], [*bars[1], "their sum, ln R"], loc="upper left", ncols=2)
