"""Figure ``scale_only``: the constant when only rounded scales are kept, against log2 σ."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator, PercentFormatter

from mxstats.experiments.style import BLUE, GREEN, ORANGE, PURPLE, new_figure
from mxstats.formats import E2M1, E4M3, E4M3_SCALE, E8M0, ScaleFormat, ScaleRule
from mxstats.formats.scales import e8m0_bytes, floating_bytes
from mxstats.theory import constant, distribution, scale_only_constant

_P = 2.0
_SERIES = {
    "floor": {"color": BLUE, "marker": "o", "label": "FLOOR (OCP)"},
    "even": {"color": ORANGE, "marker": "s", "label": "EVEN"},
    "rceil": {"color": GREEN, "marker": "^", "label": "RCEIL"},
    "nvfp4": {"color": PURPLE, "marker": "D", "label": "NVFP4, g fixed"},
}
_POINTS = 16


def compute(
    *, full: bool = False, progress: Callable[[str, float], None] | None = None
) -> pd.DataFrame:
    """Table: distribution, scale, block_size, log2_sigma, kind, value, stderr, geomean.

    value is the constant over its geometric mean. Exact at 129 points of two periods; simulated at
    16 by drawing 2^17 block maxima (2^21 when ``full``) and rounding their scales with the
    reference quantiser, standard error 1 σ. MX: E4M3 elements, B = 32; NVFP4: B = 16, at a tensor
    scale g for which no block leaves E4M3's normal range.
    """
    blocks = 2**21 if full else 2**17
    frames = []
    for at, name in enumerate(("gaussian", "laplace")):
        for step, scale in enumerate(_SERIES):
            if progress is not None:
                progress(f"{name}, {scale}", (at + step / len(_SERIES)) / 2)
            frames.append(_series(name, scale, blocks, seed=10 * at + step))
    return pd.concat(frames, ignore_index=True)


def _series(name: str, scale: str, blocks: int, seed: int) -> pd.DataFrame:
    rule: ScaleRule | ScaleFormat = E4M3_SCALE if scale == "nvfp4" else ScaleRule(scale)
    element, block_size = (E2M1, 16) if scale == "nvfp4" else (E4M3, 32)
    found = scale_only_constant(name, p=_P, block_size=block_size, scale_rule=rule, element=element)
    where = np.linspace(0.0, 2.0, 129)
    exact = pd.DataFrame({"log2_sigma": where, "kind": "exact", "value": found.at(where)})
    draws = distribution(name).sample(np.random.default_rng(seed), (blocks, block_size))
    maxima = np.abs(draws).max(axis=1)
    points = []
    for log2_sigma in (np.arange(_POINTS) + 0.5) * (2.0 / _POINTS):
        absmax = (maxima * 2.0**log2_sigma).astype(np.float32)
        if isinstance(rule, ScaleFormat):
            # σ counts in units of the element's largest value, times a g of 1.
            absmax *= np.float32(element.largest)
            scales = rule.values[floating_bytes(absmax, element, rule)]
        else:
            scales = E8M0.values[e8m0_bytes(absmax, element, rule)]
        power = (scales.astype(np.float64) * found.unit / 2.0**log2_sigma) ** _P
        if isinstance(rule, ScaleFormat):
            power /= element.largest**_P
        value = float(power.mean() ** (1.0 / _P))
        stderr = float(power.std() / np.sqrt(blocks) * value / (_P * power.mean()))
        points.append((log2_sigma, "simulated", value, stderr))
    simulated = pd.DataFrame(points, columns=["log2_sigma", "kind", "value", "stderr"])
    both = pd.concat([exact.assign(stderr=0.0), simulated], ignore_index=True)
    both = both.assign(
        distribution=name,
        scale=scale,
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
    for panel, name in zip(panels, names, strict=True):
        for scale, look in _SERIES.items():
            here = table[(table["distribution"] == name) & (table["scale"] == scale)]
            exact, simulated = (here[here["kind"] == kind] for kind in ("exact", "simulated"))
            geomean = here["geomean"].iloc[0]
            label = f"{look['label']}: {geomean:.4f}"
            panel.plot(exact["log2_sigma"], exact["value"] - 1, color=look["color"], label=label)
            panel.errorbar(
                simulated["log2_sigma"], simulated["value"] - 1, 2 * simulated["stderr"],
                fmt=look["marker"], color=look["color"], mfc="white", mew=0.8, lw=0.8,
            )  # fmt: skip
        panel.axhline(0.0, color="black", lw=0.6)
        panel.set_title(f"{name.capitalize()}, p = {_P:g}; B = 32, NVFP4 16")
        panel.set_xlabel(r"$\log_2\sigma$   (σ = RMS of the row)")
        panel.set_ylim(-0.065, 0.16)
        panel.legend(
            loc="upper left", title="geometric mean of the constant", title_fontsize=7,
            handlelength=1.2, alignment="left",
        )  # fmt: skip
    panels[0].yaxis.set_major_locator(MultipleLocator(0.05))
    panels[0].yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    panels[0].set_ylabel("constant against its mean")
    return figure
