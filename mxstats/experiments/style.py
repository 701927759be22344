"""One visual language for all figures: sizes in inches of the venues, palette with markers, fonts.

Colours are Okabe and Ito's, which the common colour deficiencies keep apart; each series has a
marker and a dash too, so that grey print keeps them apart as well.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

# Text widths of the venues' templates, inches.
NEURIPS_WIDTH = 5.5

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#E69F00", "#666666"

# Keyed by what the series is, so that a distribution or norm looks the same in every figure.
DISTRIBUTIONS: dict[str, dict[str, Any]] = {
    "gaussian": {"color": BLUE, "marker": "o", "label": "Gaussian"},
    "laplace": {"color": ORANGE, "marker": "s", "label": "Laplace"},
    "student-t:10": {"color": GREEN, "marker": "^", "label": "Student-t, 10 d.o.f."},
    "student-t:5": {"color": PURPLE, "marker": "D", "label": "Student-t, 5 d.o.f."},
}
NORMS: dict[str, dict[str, Any]] = {
    "rmsnorm": {"color": GREY, "linestyle": (0, (4, 2)), "label": "RMSNorm"},
    "mxnorm p=1": {"color": ORANGE, "linestyle": "-", "marker": "s", "label": "MXNorm, p = 1"},
    "mxnorm p=2": {"color": BLUE, "linestyle": "-", "marker": "o", "label": "MXNorm, p = 2"},
}
# Markers of the norm inputs of a model.
ROLES = {"pre-attention": "o", "pre-mlp": "^", "final": "*"}

_RC: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    # A light ground keeps grid and reference lines out of the text.
    "legend.frameon": True,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "legend.fancybox": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.linewidth": 0.3,
    "grid.color": "#dddddd",
    "lines.linewidth": 1.1,
    "lines.markersize": 3.2,
    "errorbar.capsize": 1.8,
    "figure.constrained_layout.use": True,
    "mathtext.fontset": "dejavusans",
    # Type 42 keeps text as text, in fonts that a publisher accepts.
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "savefig.dpi": 300,
}


@contextmanager
def style() -> Iterator[None]:
    """Hold the figures' rc settings while drawing or saving; the caller's own come back."""
    with mpl.rc_context(_RC):
        yield


def new_figure(height: float, *, width: float = NEURIPS_WIDTH) -> Figure:
    """Return a figure of ``width`` × ``height`` inches that no GUI knows of."""
    return Figure(figsize=(width, height), layout="constrained")


def powers_of_two(axis: Any, exponents: range) -> None:
    """Put log-2 ticks with plain numbers on an axis."""
    axis.set_major_locator(FixedLocator([2.0**e for e in exponents]))
    axis.set_major_formatter(
        FuncFormatter(
            lambda v, _: f"{v:.0f}" if v < 2**17 else f"$2^{{{int(v).bit_length() - 1}}}$"
        )
    )
    axis.set_minor_locator(NullLocator())


def layer_ticks(axis: Any, norms: pd.DataFrame, every: int = 3) -> None:
    """Number the layers at their first norm input.

    ``norms`` has a line a norm input in the model's order, with ``role`` and ``index``; they are
    drawn at 0, 1, 2 and so on. ``every`` how many layers there is a number.
    """
    starts = [i for i, role in enumerate(norms["role"]) if role == "pre-attention"][::every]
    index = norms["index"].to_numpy()
    axis.set_ticks(starts, [f"{int(index[i])}" for i in starts])
