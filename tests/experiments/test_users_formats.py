"""Figures of formats: a user's own is computed and drawn as a built-in one is."""

import pytest

from mxstats.experiments import format_error, scale_only
from mxstats.experiments.style import style
from mxstats.formats import E4M3, E5M3_SCALE, E8M0, MXFP4_E2M1, BlockFormat, ElementFormat
from mxstats.theory import scale_only_constant
from mxstats.theory.format_error import format_error as exact_error

USERS = BlockFormat(ElementFormat(exponent_bits=3, mantissa_bits=4), block_size=24, scale=E8M0)
FLOATING = BlockFormat(E4M3, scale=E5M3_SCALE)


def labels(panel):
    return [text.get_text() for text in panel.get_legend().get_texts()]


@pytest.mark.parametrize("formats", [[USERS, FLOATING], {"mine": USERS, "other": FLOATING}])
def test_format_error_of_users_formats(formats):
    table = format_error.compute(formats=formats)
    assert list(table["format"]) == 2 * (4 * [USERS.name] + [FLOATING.name])
    assert list(table["rule"]) == 2 * ["floor", "ceil", "even", "rceil", "e5m3"]
    assert set(table["bits"]) == {8 + 8 / 24, 8.25}
    first = table.iloc[0]
    assert first["sqnr_db"] == exact_error("gaussian", USERS, scale_rule="floor").sqnr_db.mean
    figure = format_error.draw(table)
    (legend,) = figure.legends
    named = [text.get_text() for text in legend.get_texts()]
    assert named == ["FLOOR (OCP)", "CEIL", "EVEN", "RCEIL", "E5M3 scale"]
    for panel in figure.axes:
        assert {text.get_text() for text in panel.texts} == {USERS.name, FLOATING.name}
        low, high = panel.get_xlim()
        assert low < 8.25
        assert high > 8 + 8 / 24
    with style():
        figure.canvas.draw()


def test_scale_only_of_users_formats():
    table = scale_only.compute(formats=[USERS, MXFP4_E2M1, FLOATING])
    geomeans = table.groupby(["distribution", "format", "scale"])["geomean"].first()
    assert len(geomeans) == 2 * (3 + 3 + 1)
    exact = scale_only_constant(
        "laplace", p=2.0, block_size=24, scale_rule="even", element=USERS.element
    )
    assert geomeans["laplace", USERS.name, "even"] == exact.geomean
    assert set(table.loc[table["format"] == USERS.name, "block_size"]) == {24}
    figure = scale_only.draw(table)
    for panel, name in zip(figure.axes, ("gaussian", "laplace"), strict=True):
        assert labels(panel) == [
            *(f"{fmt.name} {rule}: {geomeans[name, fmt.name, rule.split()[0].lower()]:.4f}"
              for fmt in (USERS, MXFP4_E2M1) for rule in ("FLOOR (OCP)", "EVEN", "RCEIL")),
            f"{FLOATING.name}, g fixed: {geomeans[name, FLOATING.name, 'e5m3']:.4f}",
        ]  # fmt: skip
        # Formats are told apart by their dashes, one line a series and the axis.
        assert [line.get_linestyle() for line in panel.lines if len(line.get_xdata()) == 129] == [
            *("-", "-", "-", "--", "--", "--", "-"),
        ]
    with style():
        figure.canvas.draw()


def test_formats_of_one_name_are_refused():
    other = BlockFormat(E4M3, block_size=24, name=USERS.name)
    for compute in (format_error.compute, scale_only.compute):
        with pytest.raises(ValueError, match="formats: 2 are named 'E3M4/24/E8M0'"):
            compute(formats=[USERS, other])
