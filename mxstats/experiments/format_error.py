"""Figure ``format_error``: signal to noise against bits an element, all formats and rules."""

from collections.abc import Callable

import pandas as pd
from matplotlib.figure import Figure

from mxstats.experiments.style import BLUE, GREEN, GREY, ORANGE, PURPLE, new_figure
from mxstats.formats import FORMATS, ScaleRule
from mxstats.theory import format_error

_RULES = {
    "floor": {"color": BLUE, "marker": "o", "label": "FLOOR (OCP)"},
    "ceil": {"color": GREY, "marker": "v", "label": "CEIL"},
    "even": {"color": ORANGE, "marker": "s", "label": "EVEN"},
    "rceil": {"color": GREEN, "marker": "^", "label": "RCEIL"},
    "e4m3": {"color": PURPLE, "marker": "D", "label": "E4M3 scale"},
}


def compute(
    *, full: bool = False, progress: Callable[[str, float], None] | None = None
) -> pd.DataFrame:
    """Table: distribution, format, rule, bits, sqnr_db (mean over log2 σ), low, high.

    Exact for independent entries; low and high are the extremes over σ. ``full`` changes nothing.
    """
    del full
    lines, names = [], ("gaussian", "laplace")
    for at, name in enumerate(names):
        for step, fmt in enumerate(FORMATS.values()):
            if progress is not None:
                progress(f"{name}, {fmt.name}", (at + step / len(FORMATS)) / len(names))
            for rule in ScaleRule if fmt.scale.is_power_of_two else (None,):
                found = format_error(name, fmt, scale_rule=rule).sqnr_db
                lines.append(
                    {
                        "distribution": name,
                        "format": fmt.name,
                        "rule": "e4m3" if rule is None else str(rule),
                        "bits": fmt.bits_per_element,
                        "sqnr_db": found.mean,
                        "low": found.low,
                        "high": found.high,
                    }
                )
    return pd.DataFrame(lines)


def draw(table: pd.DataFrame) -> Figure:
    """One panel a distribution; the bar is the range over σ, rules side by side."""
    figure = new_figure(3.0)
    names = list(dict.fromkeys(table["distribution"]))
    panels = figure.subplots(1, len(names), sharey=True)
    for panel, name in zip(panels, names, strict=True):
        here = table[table["distribution"] == name]
        for at, (rule, look) in enumerate(_RULES.items()):
            of_rule = here[here["rule"] == rule]
            shift = 0.0 if rule == "e4m3" else 0.11 * (at - 1.5)
            panel.errorbar(
                of_rule["bits"] + shift, of_rule["sqnr_db"],
                (of_rule["sqnr_db"] - of_rule["low"], of_rule["high"] - of_rule["sqnr_db"]),
                fmt=look["marker"], color=look["color"], mfc="white", mew=0.8, lw=0.8,
                label=look["label"],
            )  # fmt: skip
        for fmt, of_format in here.groupby("format"):
            panel.annotate(
                str(fmt), (of_format["bits"].iloc[0], of_format["sqnr_db"].mean()),
                xytext=(-10, 0) if of_format["bits"].iloc[0] > 5 else (12, 0),
                textcoords="offset points", fontsize=6, va="center",
                ha="right" if of_format["bits"].iloc[0] > 5 else "left",
            )  # fmt: skip
        panel.set_title(name.capitalize())
        panel.set_xlabel("bits an element, scale included")
        panel.set_xlim(3.9, 8.8)
    panels[0].set_ylabel("signal to quantisation noise (dB)")
    panels[0].legend(loc="upper left", title="scale rule; bar: range over σ", title_fontsize=7)
    return figure
