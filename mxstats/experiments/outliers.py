"""Figure ``outliers``: where the large magnitudes of a real model sit, by token, channel, layer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure, SubFigure

from mxstats.activations import sample_store
from mxstats.experiments.style import BLUE, GREEN, GREY, ORANGE, layer_ticks, new_figure
from mxstats.measure import validate

_KURTOSES = ("kurtosis_pooled", "kurtosis_feature_rms", "channel_kurtosis")
_REST = "_rest"
_MARKED = 5

_MAGNITUDES = {
    "top_1": {"color": ORANGE, "ls": "-", "label": "largest"},
    "top_10": {"color": BLUE, "ls": (0, (4, 1.5)), "label": "10th largest"},
    "median": {"color": GREY, "ls": (0, (4, 1, 1, 1)), "label": "median"},
}
_LOOKS = {
    "kurtosis_pooled": {"color": ORANGE, "ls": "-"},
    "kurtosis_feature_rms": {"color": BLUE, "ls": (0, (4, 1.5))},
    "channel_kurtosis": {"color": GREEN, "ls": (0, (4, 1, 1, 1))},
}


def compute(
    *, full: bool = False, progress: Callable[[str, float], None] | None = None
) -> pd.DataFrame:
    """Table: kind, layer, role, index, token, text, channel, value; the bundled sample.

    kind ``magnitude``: |x| of each token and channel at the norm input whose largest magnitude is
    the most times its median one, in the model's unit. A line a norm input has each of ``top_1``,
    ``top_10``, ``median``: the largest, the 10th largest and the median |x| of all tokens and
    channels; and ``kurtosis_pooled``, ``kurtosis_feature_rms``, ``channel_kurtosis``, without
    unit, as :func:`mxstats.validate` has them. Kinds ending in ``_rest`` are without the first
    token. ``full`` changes nothing: the sample is what it is.
    """
    del full
    found = validate(p=2.0, progress=progress)
    store = sample_store()
    lines = []
    for norm in found.to_dict("records"):
        magnitudes = np.abs(store.rows(norm["layer"]))
        ranked = np.sort(magnitudes, axis=None)
        values = {
            "top_1": ranked[-1],
            "top_10": ranked[-10],
            "median": np.median(ranked),
            f"top_1{_REST}": norm[f"absmax{_REST}"],
        }
        values |= {name + end: norm[name + end] for name in _KURTOSES for end in ("", _REST)}
        where = {name: norm[name] for name in ("layer", "role", "index")}
        lines += [{"kind": kind} | where | {"value": float(v)} for kind, v in values.items()]
    chosen = found.iloc[int(found["massive_ratio"].to_numpy().argmax())]
    magnitudes = np.abs(store.rows(chosen["layer"]))
    token, channel = np.indices(magnitudes.shape)
    heat = pd.DataFrame(
        {
            "kind": "magnitude",
            "layer": chosen["layer"],
            "role": chosen["role"],
            "index": chosen["index"],
            "token": token.ravel(),
            "text": store.tokens()["text"].to_numpy()[token.ravel()],
            "channel": channel.ravel(),
            "value": magnitudes.ravel().astype(np.float64),
        }
    )
    table = pd.concat([heat, pd.DataFrame(lines)], ignore_index=True)
    return table.astype({"token": "Int64", "channel": "Int64"})


def draw(table: pd.DataFrame) -> Figure:
    """Above a heat map of one norm input; below magnitudes and kurtosis of each, on log axes."""
    figure = new_figure(4.9)
    grid = figure.add_gridspec(2, 1, height_ratios=(1.1, 1))
    above, below = (figure.add_subfigure(grid[i]) for i in range(2))
    _heat(above, table[table["kind"] == "magnitude"])
    magnitudes, kurtoses = below.subplots(1, 2)
    for kind, look in _MAGNITUDES.items():
        _line(magnitudes, table, kind, look)
    magnitudes.set_ylabel("|x| of all tokens, channels")
    for kind, look in _LOOKS.items():
        _line(kurtoses, table, kind, look | {"label": kind})
    kurtoses.set_ylabel("kurtosis (no unit)")
    for panel in (magnitudes, kurtoses):
        panel.set_xlabel("layer (two norm inputs each, then final)")
        layer_ticks(panel.xaxis, table[table["kind"] == "median"], every=5)
        panel.plot([], [], color="black", lw=0.8, ls=":", label="without token 0")
        panel.legend(
            loc="lower left", bbox_to_anchor=(-0.12, 1.0), ncols=2, columnspacing=0.7,
            handlelength=1.6, handletextpad=0.4, borderpad=0.1,
        )  # fmt: skip

    return figure


def _line(panel: Axes, table: pd.DataFrame, kind: str, look: dict[str, Any]) -> None:
    for end, extra in (("", look), (_REST, look | {"lw": 0.8, "ls": ":", "label": None})):
        values = table.loc[table["kind"] == kind + end, "value"].to_numpy()
        if len(values):
            panel.semilogy(np.arange(len(values)), values, **extra)
    panel.grid(visible=False, axis="x")


def _heat(figure: SubFigure, heat: pd.DataFrame) -> None:
    panel = figure.subplots()
    values = heat.pivot(index="token", columns="channel", values="value")
    tokens, channels = values.shape
    # From the decade of the median: the bulk stays pale, and what stands out is dark.
    low = 10.0 ** np.floor(np.log10(heat["value"].median()))
    image = panel.imshow(
        values.clip(lower=low), norm=LogNorm(low, heat["value"].max()), aspect="auto",
        cmap="magma_r", interpolation="nearest",
    )  # fmt: skip
    bar = figure.colorbar(image, ax=panel, pad=0.01, extend="min", aspect=14)
    bar.set_label("|x| (the model's unit)")
    panel.grid(visible=False)
    panel.set_yticks([*range(0, tokens, 16)])
    panel.set_ylabel(f"token (0: {heat['text'].iloc[0]})")
    top = values.max().nlargest(_MARKED)
    marked = sorted(int(str(channel)) for channel in top.index)
    for channel, at in zip(marked, apart(marked, 0.05 * channels, channels), strict=True):
        panel.annotate(
            f"{channel}", (channel, -0.5), (at, -0.08 * tokens), fontsize=6.5, ha="center",
            va="bottom", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "lw": 0.5, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip
    panel.set_xlabel(f"channel (numbered above: the {_MARKED} with the largest magnitudes)")
    largest = heat.iloc[int(heat["value"].to_numpy().argmax())]
    panel.plot(
        largest["channel"], largest["token"], "o", ms=5, mfc="none", mec="black", mew=0.7,
        clip_on=False,
    )  # fmt: skip
    panel.set_title(
        f"{largest['layer']} of SmolLM2-135M (circle: the largest, {largest['value']:,.0f})",
        loc="left", pad=20,
    )  # fmt: skip


def apart(wanted: list[int], gap: float, end: float) -> list[float]:
    """Places for labels wanted at ascending places: in order, ``gap`` from each other, below end.

    They move right from each other, then left from the end.
    """
    places = [float(place) for place in wanted]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    limit = end
    for i in reversed(range(len(places))):
        places[i] = min(places[i], limit)
        limit = places[i] - gap
    return places
