"""Figure ``format_error``: signal to noise against bits an element, all formats and rules."""

from collections.abc import Callable, Iterable, Mapping

import pandas as pd
from matplotlib.figure import Figure

from mxstats.experiments.style import BLUE, GREEN, GREY, ORANGE, PURPLE, new_figure
from mxstats.formats import FORMATS, BlockFormat, ScaleRule
from mxstats.formats.blocks import block_formats
from mxstats.theory import format_error

_RULES = {
    "floor": {"color": BLUE, "marker": "o", "label": "FLOOR (OCP)"},
    "ceil": {"color": GREY, "marker": "v", "label": "CEIL"},
    "even": {"color": ORANGE, "marker": "s", "label": "EVEN"},
    "rceil": {"color": GREEN, "marker": "^", "label": "RCEIL"},
}
# Of floating scales, which have no rule; one marker for each format of scale.
_FLOATING_COLOR, _FLOATING_MARKERS = PURPLE, "DPX*"


def compute(
    *,
    full: bool = False,
    progress: Callable[[str, float], None] | None = None,
    formats: Mapping[str, BlockFormat] | Iterable[BlockFormat | str] = FORMATS,
) -> pd.DataFrame:
    """Table: distribution, format, rule, bits, sqnr_db (mean over log2 σ), low, high.

    Exact for independent entries; low and high are the extremes over σ. ``full`` changes nothing.
    ``formats`` are drawn; all known ones when not given. A floating scale's name stands for a rule.
    """
    del full
    drawn = block_formats(formats)
    lines, names = [], ("gaussian", "laplace")
    for at, name in enumerate(names):
        for step, fmt in enumerate(drawn):
            if progress is not None:
                progress(f"{name}, {fmt.name}", (at + step / len(drawn)) / len(names))
            for rule in ScaleRule if fmt.scale.is_power_of_two else (None,):
                found = format_error(name, fmt, scale_rule=rule).sqnr_db
                lines.append(
                    {
                        "distribution": name,
                        "format": fmt.name,
                        "rule": fmt.scale.name.lower() if rule is None else str(rule),
                        "bits": fmt.bits_per_element,
                        "sqnr_db": found.mean,
                        "low": found.low,
                        "high": found.high,
                    }
                )
    return pd.DataFrame(lines)


def draw(table: pd.DataFrame) -> Figure:
    """One panel a distribution; the bar is the range over σ, rules side by side."""
    figure = new_figure(3.2)
    names = list(dict.fromkeys(table["distribution"]))
    looks = _looks(list(dict.fromkeys(table["rule"])))
    panels = figure.subplots(1, len(names), sharey=True)
    for panel, name in zip(panels, names, strict=True):
        here = table[table["distribution"] == name]
        for rule, look in looks.items():
            of_rule = here[here["rule"] == rule]
            shift = 0.11 * (list(_RULES).index(rule) - 1.5) if rule in _RULES else 0.0
            panel.errorbar(
                of_rule["bits"] + shift, of_rule["sqnr_db"],
                (of_rule["sqnr_db"] - of_rule["low"], of_rule["high"] - of_rule["sqnr_db"]),
                fmt=look["marker"], color=look["color"], mfc="white", mew=0.8, lw=0.8,
                label=look["label"],
            )  # fmt: skip
        for fmt, of_format in here.groupby("format"):
            panel.annotate(
                str(fmt), (of_format["bits"].iloc[0], of_format["sqnr_db"].median()),
                xytext=(-10, 0) if of_format["bits"].iloc[0] > 5 else (12, 0),
                textcoords="offset points", fontsize=6, va="center",
                ha="right" if of_format["bits"].iloc[0] > 5 else "left",
            )  # fmt: skip
        panel.set_title(name.capitalize())
        panel.set_xlabel("bits an element, scale included")
        # Room for a name on its side of the markers, whatever the formats.
        left, right = table["bits"].min(), table["bits"].max()
        panel.set_xlim(min(left - 0.35, right - 2.0), max(right + 0.55, left + 2.0))
    panels[0].set_ylabel("signal to quantisation noise (dB)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), columnspacing=1.2,
        handletextpad=0.3, title="scale rule; bar: range over σ", title_fontsize=7,
    )  # fmt: skip
    return figure


def _looks(rules: list[str]) -> dict[str, dict[str, str]]:
    """Colour, marker and label of each rule, in the order of the legend."""
    looks = {rule: look for rule, look in _RULES.items() if rule in rules}
    for at, rule in enumerate(rule for rule in rules if rule not in _RULES):
        marker = _FLOATING_MARKERS[at % len(_FLOATING_MARKERS)]
        looks[rule] = {
            "color": _FLOATING_COLOR, "marker": marker, "label": f"{rule.upper()} scale",
        }  # fmt: skip
    return looks
