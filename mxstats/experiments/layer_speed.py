"""Figure ``layer_speed``: a Llama 3 8B layer's forward pass, and what MXNorm gains it.

Drawn from a recorded run, ``figures/data/layer_speed.parquet``: the parts were timed on the GPU
that the figure names. What is shown for the B200 is those times scaled by ratios of datasheet rates
(:mod:`mxstats.measure.speed.projection` has them with their sources), not a measurement. Forward
only: MXNorm's backward moves the bytes of RMSNorm's without dγ.
"""

from collections.abc import Callable

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mxstats.experiments.recorded import recorded
from mxstats.experiments.style import BLUE, GREY, ORANGE, SKY, new_figure
from mxstats.measure.speed.projection import GROUPS, MEASURED, gains, project

COMMAND = "mxstats bench --what layer --out figures/data/layer_speed.parquet"

_GROUPS = {
    "matmul": {"color": GREY, "label": "matmuls"},
    "attention": {"color": "#aaaaaa", "label": "attention"},
    "elementwise": {"color": SKY, "label": "residual, rotary, SwiGLU, casts"},
    "norm": {"color": ORANGE, "label": "2 × (norm + cast)"},
}


def compute(
    *, full: bool = False, progress: Callable[[str, float], None] | None = None
) -> pd.DataFrame:
    """Table: target, norm, group, time_us, device, of the recorded run; see ``projection``.

    ``full`` changes nothing. Raises NoRecordingError where there is no recorded run.
    """
    del full, progress
    return project(recorded("layer_speed", COMMAND)[0])


def draw(table: pd.DataFrame) -> Figure:
    """One panel a target, a bar a way of normalising; at its end what MXNorm gains over it."""
    figure = new_figure(2.6)
    targets, norms = (list(dict.fromkeys(table[name])) for name in ("target", "norm"))
    panels = figure.subplots(1, len(targets), sharey=True)
    device, gain = table["device"].iloc[0], gains(table)
    for panel, target in zip(panels, targets, strict=True):
        here = table[table["target"] == target].pivot(
            index="norm", columns="group", values="time_us"
        )
        here = here.loc[norms] / 1e3
        left = pd.Series(0.0, index=norms)
        for group in GROUPS:
            panel.barh(norms, here[group], left=left, height=0.6, **_GROUPS[group])
            left = left + here[group]
        for norm in norms:
            if norm in gain.columns:
                panel.annotate(
                    f"{gain.loc[target, norm]:+.1%}", (left[norm], norm), xytext=(2, 0),
                    textcoords="offset points", fontsize=6.5, va="center", color=BLUE,
                )  # fmt: skip
        panel.set_title(
            f"{device.split()[-1]}: measured" if target == MEASURED else f"{target}: scaled"
        )
        panel.set_xlabel("ms a layer, forward")
        # Room for the gain.
        panel.set_xlim(0, 1.32 * left.max())
        panel.xaxis.set_major_locator(MaxNLocator(3))
        panel.grid(axis="y", visible=False)
        panel.set_axisbelow(True)
    panels[0].invert_yaxis()
    figure.suptitle(
        "Llama 3 8B layer, forward, one sequence of 8192 tokens: fp8 matmuls and bf16 attention.\n"
        "B200: the measured times scaled by datasheet rates. In blue: the gain by MXNorm.",
        fontsize=7,
    )
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
