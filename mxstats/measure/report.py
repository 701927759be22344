"""``mxstats validate --report``: one HTML file that says what holds, what does not, and why."""

import os
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from mxstats.activations import ActivationStore
from mxstats.measure.calibrated import write_atomically
from mxstats.measure.expectations import Expectations
from mxstats.measure.explanations import Explanation, explain
from mxstats.measure.report_page import page, paragraph, signed, visible
from mxstats.measure.report_page import table as html_table
from mxstats.measure.summaries import MASSIVE_ABS, MASSIVE_RATIO
from mxstats.measure.validation import open_store
from mxstats.measure.verdicts import BIAS, BIASED, DEPENDS, HOLDS, STEADY, shares

_CLASSES = {HOLDS: "holds", BIASED: "biased", DEPENDS: "depends"}
_COLUMNS = (
    ("number", "#", "d"),
    ("layer", "layer", ""),
    ("role", "role", ""),
    ("p", "p", "g"),
    ("verdict", "verdict", ""),
    ("r_median", "R", ".3f"),
    ("r_low", "low", ".3f"),
    ("r_high", "high", ".3f"),
    ("ln_r", "ln R", "+.4f"),
    ("ln_c", "ln c", "+.4f"),
    ("minus_crest", "− ln crest", "+.4f"),
    ("minus_spread", "− ln spread", "+.4f"),
    ("ln_r_std", "scatter", ".3f"),
    ("r_std_theory", "√(V/K)", ".3f"),
    ("ln_r_std_rest", "scatter without first token", ".3f"),
    ("absmax", "largest |x|", ".4g"),
    ("massive_ratio", "over median", ".3g"),
    ("massive_channel", "in channel", "d"),
    ("channel_kurtosis", "kurtosis of a row", ".3g"),
    ("kurtosis_pooled", "of all entries", ".3g"),
    ("kurtosis_feature_rms", "of channel RMS", ".3g"),
    ("output_absmax", "largest |y|", ".3f"),
    ("bound_max_abs", "bound", ".3f"),
)
_KERNEL_COLUMNS = (
    ("kernel_r_median", "R by ρ̃", ".3f"),
    ("dequantised_rms_median", "RMS of output", ".3f"),
    ("clipped_percent", "clipped %", ".3f"),
    ("flushed_percent", "flushed %", ".3f"),
    ("snr_db", "SNR dB", ".2f"),
)
_CHANNEL_COLUMNS = (
    ("channel", "channel", "d"),
    ("percent", "% of Σx²", ".1f"),
    ("ln_r", "ln R", "+.4f"),
    ("ln_r_without", "= without the channel", "+.4f"),
    ("effect", "+ by the channel", "+.4f"),
)
_TOKEN_COLUMNS = (
    ("row", "row", "d"),
    ("position", "position", "d"),
    ("text", "token", ""),
    ("log_ratio", "ℓ", "+.4f"),
    ("ln_c", "= ln c", "+.4f"),
    ("minus_crest", "− ln crest", "+.4f"),
    ("minus_spread", "− ln spread", "+.4f"),
    ("absmax", "largest |x|", ".4g"),
    ("absmax_channel", "in channel", "d"),
)


def write_report(
    table: pd.DataFrame,
    path: str | os.PathLike[str],
    store: ActivationStore | str | Path | None = None,
    *,
    block_size: int = 32,
    distribution: Any = "gaussian",
    constants: Any = None,
    progress: Callable[[str, float], None] | None = None,
) -> Path:
    """Write a table of :func:`mxstats.validate` as one self-contained HTML file, whole or not.

    Parameters
    ----------
    table, store, block_size, distribution, constants
        What :func:`mxstats.validate` returned and was given: the store is read again, a layer at a
        time, for its channels and tokens.
    path
        File to write; one that is there is replaced.
    progress
        Called with a layer's name and the share done before each layer.

    Raises
    ------
    StoreError
        The store is damaged.
    OSError
        The file cannot be written.
    """
    # matplotlib takes a good half second, which measuring alone does not need.
    from mxstats.measure.report_figures import parts_figure, ratio_figure

    source = open_store(store)
    names = [layer.name for layer in source.layers]
    expectations = Expectations(distribution, block_size, constants, names, table["p"].iloc[0])
    tokens = source.tokens()
    details = []
    lines = _shown(table)
    for at, (name, here) in enumerate(lines.groupby("layer", sort=False)):
        if progress is not None:
            progress(str(name), at / table["layer"].nunique())
        layer, rows = source.layer(str(name)), source.rows(str(name))
        for line in here.to_dict("records"):
            bounds = expectations.of(line["p"], layer).bounds
            details.append(_details(line, explain(rows, bounds, tokens)))
    about = source.manifest
    columns = _COLUMNS
    if "backend" in table:
        columns += _KERNEL_COLUMNS
    body = [
        paragraph(
            f"{about.tokens} tokens of {about.text}, windows of {about.window}, revision "
            f"{about.revision or 'unknown'}. Blocks of {block_size}, {_of_constant(table)}."
        ),
        *_kernel_lines(table),
        "<h2>Verdicts</h2>",
        html_table(
            (("p", "p", "g"), ("verdict", "verdict", ""), ("layers", "layers", "d")),
            _counts(table),
            classes=_CLASSES,
        ),
        paragraph(
            f"“{HOLDS}”: mean ln R within ±{BIAS:g} of what theory expects, and rows scatter by no "
            f"more than {STEADY:g}√(V/K). “{BIASED}”: the scatter alone is. “{DEPENDS}”: not even "
            f"that, and no one constant serves all tokens.",
            "note",
        ),
        "<h2>Every layer</h2>",
        paragraph(
            "R = RMS/estimate. ln R = ln c − ln crest − ln spread, means over rows: crest is the "
            "shape inside the blocks, spread how unequal the blocks are. Click a head to sort.",
            "note",
        ),
        ratio_figure(table),
        parts_figure(table),
        html_table(columns, lines.to_dict("records"), sorts=True, classes=_CLASSES),
        *_massive(table),
        "<h2>Why</h2>",
        *details,
    ]
    return write_atomically(path, page(f"{about.model}: does the RMS estimate hold?", body))


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    shown = table.copy()
    shown["number"] = pd.factorize(shown["layer"])[0]
    shown["minus_crest"], shown["minus_spread"] = -shown["ln_crest"], -shown["ln_spread"]
    for name in ("clipped", "flushed"):
        if f"{name}_share" in shown:
            shown[f"{name}_percent"] = 100 * shown[f"{name}_share"]
    return shown


def _of_constant(table: pd.DataFrame) -> str:
    kinds = {
        "distribution": "the constant of the distribution",
        "constants": "constants that came",
        "weights": "a weight for each block",
    }
    return " and ".join(kinds[kind] for kind in dict.fromkeys(table["constant_from"]))


def _kernel_lines(table: pd.DataFrame) -> list[str]:
    if "backend" not in table:
        return []
    first = table.iloc[0]
    text = f"Kernel: {first['backend']} on {first['device']}, {first['format']}"
    if first["scale_rule"] is not None:
        text += f", {first['scale_rule']} scales"
    differ = table["twin_differences"]
    if differ.notna().all():
        text += f"; rows that differ from the torch twin in any bit: {int(differ.sum())}"
    return [paragraph(text + ".")]


def _counts(table: pd.DataFrame) -> list[dict[Any, Any]]:
    counts = table.groupby(["p", "verdict"], sort=True).size().rename("layers")
    return counts.reset_index().to_dict("records")


def _massive(table: pd.DataFrame) -> list[str]:
    found = table[table["massive"].astype(bool)].drop_duplicates("layer")
    found = found.assign(massive_text=found["massive_text"].map(visible))
    head = "<h2>Massive activations</h2>"
    rule = f"magnitudes above {MASSIVE_ABS:g} and {MASSIVE_RATIO:g} times the layer's median"
    if found.empty:
        return [head, paragraph(f"None: no {rule}.")]
    columns = (
        ("layer", "layer", ""),
        ("absmax", "largest |x|", ".5g"),
        ("massive_ratio", "over median", ".4g"),
        ("massive_channel", "channel", "d"),
        ("massive_text", "token", ""),
        ("massive_position", "position", ".0f"),
        ("absmax_rest", "without first tokens", ".5g"),
        ("massive_ratio_rest", "over median", ".4g"),
    )
    return [head, paragraph(f"Layers with {rule}."), html_table(columns, found.to_dict("records"))]


def _details(line: dict[Any, Any], why: Explanation) -> str:
    channels = why.channels.assign(percent=100 * why.channels["share"])
    tokens = why.tokens.assign(
        minus_crest=-why.tokens["ln_crest"],
        minus_spread=-why.tokens["ln_spread"],
        text=why.tokens["text"].map(visible),
    )
    sums = (
        f"ln R {signed(line['ln_r'])} = ln c {signed(line['ln_c'])} − ln crest "
        f"{signed(line['ln_crest'])} − ln spread {signed(line['ln_spread'])}; {shares(line)}."
    )
    return "".join(
        [
            f"<details><summary>{escape(line['layer'])}, p = {line['p']:g}: ",
            f"{escape(line['verdict'])}</summary>",
            paragraph(line["why"] + "."),
            paragraph(sums),
            paragraph("Channels that have most of Σx², and ln R with each set to zero:", "note"),
            html_table(_CHANNEL_COLUMNS, channels.to_dict("records")),
            paragraph("Tokens furthest from the layer's median:", "note"),
            html_table(_TOKEN_COLUMNS, tokens.astype(object).to_dict("records")),
            "</details>",
        ]
    )
