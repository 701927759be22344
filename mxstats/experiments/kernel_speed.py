"""Figure ``kernel_speed``: the kernels against a copy of the same bytes, and against torch.compile.

Drawn from a recorded run, ``figures/data/kernel_speed.parquet``.
"""

from collections.abc import Callable

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from mxstats.experiments.recorded import recorded
from mxstats.experiments.style import BLUE, GREEN, GREY, ORANGE, PURPLE, new_figure
from mxstats.measure.speed.comparison import compare

COMMAND = (
    "mxstats bench --shapes 16384x2048,16384x4096,16384x5120,16384x7168,16384x8192,16384x11008,"
    "8192x16384 --out figures/data/kernel_speed.parquet"
)
# Many rows, so that a launch fills the GPU; the rest of a run is in its table.
_FEWEST_ROWS = 8192

_OURS = {"forward": "mxnorm p=2", "backward": "mxnorm_backward p=2"}
_RATIOS = {
    "forward": {
        "vs_compiled_in_two": {
            "color": GREY,
            "marker": "v",
            "label": "compiled RMSNorm, then cast",
        },
        "vs_compiled": {"color": ORANGE, "marker": "s", "label": "compiled RMSNorm + cast"},
        "vs_liger": {"color": PURPLE, "marker": "D", "label": "Liger RMSNorm, then our cast"},
        "vs_rmsnorm_mx": {"color": GREEN, "marker": "^", "label": "our fused RMSNorm + cast"},
    },
    "backward": {
        "vs_compiled": {"color": ORANGE, "marker": "s", "label": "compiled RMSNorm"},
        "vs_rmsnorm_mx": {"color": GREEN, "marker": "^", "label": "our RMSNorm"},
    },
}
_SHARES = {
    "forward": {
        "mxnorm p=2": {"color": BLUE, "marker": "o", "label": "MXNorm"},
        "rmsnorm_mx": {"color": GREEN, "marker": "^", "label": "our fused RMSNorm + cast"},
        "compiled": {"color": ORANGE, "marker": "s", "label": "compiled RMSNorm + cast"},
    },
    "backward": {
        "mxnorm_backward p=2": {"color": BLUE, "marker": "o", "label": "MXNorm"},
        "rmsnorm_mx_backward": {"color": GREEN, "marker": "^", "label": "our RMSNorm"},
        "compiled backward": {"color": ORANGE, "marker": "s", "label": "compiled RMSNorm"},
    },
}


def compute(
    *, full: bool = False, progress: Callable[[str, float], None] | None = None
) -> pd.DataFrame:
    """Table: the recorded run with bandwidth, share of the copy and ratios; see ``comparison``.

    ``full`` changes nothing. Raises NoRecordingError where there is no recorded run.
    """
    del full, progress
    return compare(recorded("kernel_speed", COMMAND)[0])


def draw(table: pd.DataFrame) -> Figure:
    """Speed-up over each baseline above, share of the copy's speed below; forward and backward."""
    figure = new_figure(4.3)
    panels = figure.subplots(2, 2, sharex=True, sharey="row")
    wide = table[table["rows"] >= _FEWEST_ROWS].sort_values("hidden_size")
    for column, (direction, ours) in enumerate(_OURS.items()):
        above, below = panels[0, column], panels[1, column]
        of_ours = wide[wide["case"] == ours]
        for name, look in _RATIOS[direction].items():
            if of_ours[name].notna().any():
                above.plot(of_ours["hidden_size"], of_ours[name], mfc="white", mew=0.8, **look)
        above.axhline(1.0, color="#999999", lw=0.6, zorder=0)
        for name, look in _SHARES[direction].items():
            here = wide[wide["case"] == name]
            below.errorbar(
                here["hidden_size"], here["share_of_copy"],
                (
                    here["share_of_copy"] - here["copy_us"] / here["high_us"],
                    here["copy_us"] / here["low_us"] - here["share_of_copy"],
                ),
                mfc="white", mew=0.8, **look,
            )  # fmt: skip
        below.axhline(1.0, color="#999999", lw=0.6, zorder=0)
        above.set_title(direction)
        below.set_xlabel("hidden size")
        _hidden_sizes(below, sorted(set(wide["hidden_size"])))
    panels[0, 0].set_ylabel("speed-up by MXNorm over")
    panels[1, 0].set_ylabel("share of a copy's speed")
    # Room for the legend above the lines.
    panels[0, 0].set_ylim(0, 1.9 * panels[0, 0].get_ylim()[1])
    panels[1, 0].set_ylim(0, 1.1)
    panels[1, 0].yaxis.set_major_formatter(PercentFormatter(1.0))
    for panel in panels.flat:
        panel.legend(loc="lower left" if panel in panels[1] else "upper right")
    rows = "; ".join(
        f"{count} rows at {', '.join(str(size) for size in sorted(set(here['hidden_size'])))}"
        if count != wide["rows"].mode().iloc[0]
        else f"{count} rows"
        for count, here in wide.groupby("rows", sort=False)
    )
    figure.suptitle(
        f"{table['device'].iloc[0]}, bfloat16 to E4M3 + E8M0, {rows}; medians, "
        "bar: 5–95 % of passes",
        fontsize=7,
    )
    return figure


def _hidden_sizes(panel, sizes: list[int]) -> None:
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_locator(FixedLocator(sizes))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.tick_params(axis="x", labelrotation=45)
