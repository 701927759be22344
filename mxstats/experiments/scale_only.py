"""Figure ``scale_only``: the constant when only rounded scales are kept, against log2 σ."""

from collections.abc import Callable, Iterable, Mapping
from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator, PercentFormatter

from mxstats.experiments.style import BLUE, GREEN, ORANGE, PURPLE, new_figure
from mxstats.formats import E8M0, MXFP8_E4M3, NVFP4, BlockFormat, ScaleRule
from mxstats.formats.blocks import block_formats
from mxstats.formats.scales import e8m0_bytes, floating_bytes
from mxstats.theory import constant, distribution, scale_only_constant

_P = 2.0
# CEIL is FLOOR, twice as large.
_RULES = {
    "floor": {"color": BLUE, "marker": "o", "label": "FLOOR (OCP)"},
    "even": {"color": ORANGE, "marker": "s", "label": "EVEN"},
    "rceil": {"color": GREEN, "marker": "^", "label": "RCEIL"},
}
_FLOATING = {"color": PURPLE, "marker": "D"}
_DASHES = ("-", "--", ":", "-.")
_POINTS = 16


def compute(
    *,
    full: bool = False,
    progress: Callable[[str, float], None] | None = None,
    formats: Mapping[str, BlockFormat] | Iterable[BlockFormat | str] = (MXFP8_E4M3, NVFP4),
) -> pd.DataFrame:
    """Table: distribution, format, scale, block_size, log2_sigma, kind, value, stderr, geomean.

    value is the constant over its geometric mean; scale is a rule or a floating scale's name. Exact
    at 129 points of two periods; simulated at 16 by drawing 2^17 block maxima (2^21 when ``full``)
    and rounding their scales with the reference quantiser, standard error 1 σ. A floating scale
    counts σ at a tensor scale g for which no block leaves its normal range. ``formats`` are drawn,
    by default one of MX, since all of B = 32 differ little, and NVFP4.
    """
    blocks = 2**21 if full else 2**17
    series = [
        (fmt, rule)
        for fmt in block_formats(formats)
        for rule in (map(ScaleRule, _RULES) if fmt.scale.is_power_of_two else (None,))
    ]
    frames = []
    for at, name in enumerate(("gaussian", "laplace")):
        for step, (fmt, rule) in enumerate(series):
            if progress is not None:
                what = f"{name}, {fmt.name} {rule or ''}".rstrip()
                progress(what, (at + step / len(series)) / 2)
            frames.append(_series(name, fmt, rule, blocks, seed=10 * at + step))
    return pd.concat(frames, ignore_index=True)


def _series(
    name: str, fmt: BlockFormat, rule: ScaleRule | None, blocks: int, seed: int
) -> pd.DataFrame:
    element, block_size = fmt.element, fmt.block_size
    found = scale_only_constant(
        name, p=_P, block_size=block_size, scale_rule=rule or fmt.scale, element=element
    )
    where = np.linspace(0.0, 2.0, 129)
    exact = pd.DataFrame({"log2_sigma": where, "kind": "exact", "value": found.at(where)})
    draws = distribution(name).sample(np.random.default_rng(seed), (blocks, block_size))
    maxima = np.abs(draws).max(axis=1)
    points = []
    for log2_sigma in (np.arange(_POINTS) + 0.5) * (2.0 / _POINTS):
        absmax = (maxima * 2.0**log2_sigma).astype(np.float32)
        if rule is None:
            # σ counts in units of the element's largest value, times a g of 1.
            absmax *= np.float32(element.largest)
            scales = fmt.scale.values[floating_bytes(absmax, element, fmt.scale)]
        else:
            scales = E8M0.values[e8m0_bytes(absmax, element, rule)]
        power = (scales.astype(np.float64) * found.unit / 2.0**log2_sigma) ** _P
        if rule is None:
            power /= element.largest**_P
        value = float(power.mean() ** (1.0 / _P))
        stderr = float(power.std() / np.sqrt(blocks) * value / (_P * power.mean()))
        points.append((log2_sigma, "simulated", value, stderr))
    simulated = pd.DataFrame(points, columns=["log2_sigma", "kind", "value", "stderr"])
    both = pd.concat([exact.assign(stderr=0.0), simulated], ignore_index=True)
    both = both.assign(
        distribution=name,
        format=fmt.name,
        scale=fmt.scale.name.lower() if rule is None else str(rule),
        block_size=block_size,
        geomean=found.geomean,
        constant=constant(name, p=_P, block_size=block_size),
    )
    both[["value", "stderr"]] = both[["value", "stderr"]].div(found.geomean)
    return both


def draw(table: pd.DataFrame) -> Figure:
    """One panel a distribution: lines exact, markers simulated ±2 σ, against the geometric mean."""
    figure = new_figure(2.9)
    names = list(dict.fromkeys(table["distribution"]))
    panels = figure.subplots(1, len(names), sharey=True)
    # A colour a rule, a dash a format.
    dashes = dict(zip(dict.fromkeys(table["format"]), cycle(_DASHES), strict=False))
    sizes = table.drop_duplicates("format")[["format", "block_size"]].itertuples(index=False)
    # A made name says its block size; a short title serves many formats.
    blocks = "B: " + ", ".join(f"{fmt} {size}" for fmt, size in sizes)
    blocks = blocks if len(dashes) <= 2 else f"{len(dashes)} formats"
    # The legend stands above the curves, which swing by 5 % at B = 32 and by more above.
    low, high = min(-0.05, table["value"].min() - 1), max(0.05, table["value"].max() - 1)
    series = len(table[["format", "scale"]].drop_duplicates())
    with_rules = table.loc[table["scale"].isin(_RULES.keys()), "format"].nunique()
    for panel, name in zip(panels, names, strict=True):
        of_name = table[table["distribution"] == name]
        for (fmt, scale), here in of_name.groupby(["format", "scale"], sort=False):
            look = _RULES.get(str(scale), _FLOATING | {"label": f"{fmt}, g fixed"})
            exact, simulated = (here[here["kind"] == kind] for kind in ("exact", "simulated"))
            geomean = here["geomean"].iloc[0]
            of_format = f"{fmt} " if scale in _RULES and with_rules > 1 else ""
            dash = dashes[fmt] if scale in _RULES else "-"
            panel.plot(
                exact["log2_sigma"], exact["value"] - 1, color=look["color"], linestyle=dash,
                label=f"{of_format}{look['label']}: {geomean:.4f}",
                # In the legend alone; on the line the markers are the simulated values.
                marker=look["marker"], mfc="white", mew=0.8, markevery=[],
            )  # fmt: skip
            panel.errorbar(
                simulated["log2_sigma"], simulated["value"] - 1, 2 * simulated["stderr"],
                fmt=look["marker"], color=look["color"], mfc="white", mew=0.8, lw=0.8,
            )  # fmt: skip
        panel.axhline(0.0, color="black", lw=0.6)
        panel.set_title(f"{name.capitalize()}, p = {_P:g}; {blocks}", fontsize=7)
        panel.set_xlabel(r"$\log_2\sigma$   (σ = RMS of the row)")
        panel.set_ylim(1.3 * low, high + 0.275 * series * (high - low))
        panel.legend(
            loc="upper left", title="geometric mean of the constant", title_fontsize=7,
            handlelength=1.2, alignment="left",
        )  # fmt: skip
    panels[0].yaxis.set_major_locator(MultipleLocator(0.05))
    panels[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    panels[0].set_ylabel("constant against its mean")
    return figure
