"""The report: one file, nothing from elsewhere, every text escaped, numbers that add up."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

import mxstats as mxs
from mxstats.measure import write_report
from mxstats.measure.explanations import explain
from mxstats.theory import output_bounds
from tests.measure.stores import Layer, write

HOSTILE = "<script>alert('x')</script>\"&"
_VOID = {"meta", "path", "use", "rect", "image"}


class Page(HTMLParser):
    """Tags in order, texts, and whether each tag is closed by its own."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.open, self.cells = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "td":
            self.cells.append("")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in _VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if self.open and self.open[-1] == "td":
            self.cells[-1] += data


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(0)
    steady = rng.standard_normal((40, 128)).astype(np.float32)
    massive = steady.copy()
    massive[::10, 77] = 4000.0
    return write(
        tmp_path, Layer("steady", steady), Layer(f"massive{HOSTILE}", massive),
        tokens=40, window=20, texts=[HOSTILE] * 40,
    )  # fmt: skip


def report_of(store, folder, **arguments):
    table = mxs.validate(store, **arguments)
    return write_report(table, folder / "report.html", store).read_text(encoding="utf-8")


def test_it_is_one_whole_file_of_its_own(store, tmp_path):
    text = report_of(store, tmp_path)
    page = Page(text)
    names = [tag for tag, _ in page.tags]
    # The one script is ours, and nothing is fetched.
    assert names.count("script") == 1
    assert "link" not in names
    assert "img" not in names
    for _, attributes in page.tags:
        for name in ("src", "href", "xlink:href", "action"):
            assert attributes.get(name, "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"url\((?!#)|@import", text)
    assert names.count("svg") == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "store"]


def test_texts_of_a_model_are_text(store, tmp_path):
    text = report_of(store, tmp_path)
    assert "<script>alert" not in text
    # The token in the tables, the layer in its line and summary: as text, and whole.
    assert HOSTILE in Page(text).cells
    assert "massive" + HOSTILE in Page(text).cells


def test_it_names_the_channel_the_tokens_and_the_factor(store, tmp_path):
    text = "".join(Page(report_of(store, tmp_path, p=2)).text)
    assert "Massive activations" in text
    assert "4000" in text
    assert "crest (the shape inside the blocks) changes from token to token" in text
    assert "of the variance of ln R crest has 100 %, spread 0 %" in text


def test_the_table_sorts_by_value(store, tmp_path):
    page = Page(report_of(store, tmp_path, p=2))
    assert ("table", {"class": "sorts"}) in page.tags
    values = [a["data-value"] for tag, a in page.tags if tag == "td" and "data-value" in a]
    table = mxs.validate(store, p=2)
    assert str(table["ln_r"][1]) in values


def test_the_same_rows_give_the_same_page(store, tmp_path):
    assert report_of(store, tmp_path) == report_of(store, tmp_path)


def test_a_page_that_cannot_be_written_leaves_nothing(store, tmp_path):
    table = mxs.validate(store, p=2)
    with pytest.raises(FileNotFoundError, match=r"the folder .* does not exist"):
        write_report(table, tmp_path / "none" / "report.html", store)


def test_explanations_add_up(store):
    rows = store.rows(store.layers[1].name)
    for p in (1.0, 2.0):
        bounds = output_bounds(p=p, hidden_size=128)
        found = explain(rows, bounds, store.tokens())
        tokens = found.tokens
        assert sorted(tokens["row"][:4]) == [0, 10, 20, 30]
        assert (tokens["absmax_channel"][:4] == 77).all()
        assert set(tokens["position"][:4]) == {0, 10}
        total = tokens["ln_c"] - tokens["ln_crest"] - tokens["ln_spread"]
        # The bar of the identity; logarithms below 10.
        np.testing.assert_allclose(tokens["log_ratio"], total, atol=1e-12)
        top = found.channels.iloc[0]
        assert top["channel"] == 77
        assert top["share"] == pytest.approx(np.mean(rows[:, 77] ** 2 / (rows**2).sum(1)), rel=1e-5)
        calm = rows.copy()
        calm[:, 77] = 0.0
        # By plain arithmetic: RMS·c̃/M_p of the rows without the channel.
        m = np.abs(calm).reshape(40, 4, 32).max(2).astype(np.float64)
        rms = np.sqrt((calm.astype(np.float64) ** 2).mean(1))
        ln_r = np.log(rms * bounds.constant / (m**p).mean(1) ** (1 / p)).mean()
        assert top["ln_r_without"] == pytest.approx(ln_r, abs=1e-12)
        assert top["ln_r"] == pytest.approx(top["ln_r_without"] + top["effect"], abs=1e-12)


def test_rows_of_no_tokens_are_reported_too(tmp_path):
    rows = np.random.default_rng(1).standard_normal((7, 64)).astype(np.float32)
    store = write(tmp_path, Layer("a", rows), tokens=4)
    assert "<details>" in report_of(store, tmp_path)


def test_blanks_are_shown_and_zeros_have_no_minus():
    from mxstats.measure.report_page import signed, table, visible

    assert [visible(t) for t in ("a", " a", "\n", "", "é")] == ["a", "' a'", r"'\n'", "''", "é"]
    assert [signed(v) for v in (-1e-17, 0.0, -0.5)] == ["+0.0000", "+0.0000", "-0.5000"]
    cells = Page(table((("n", "n", ".2f"), ("t", "t", "")), [{"n": -1e-9, "t": "-"}])).cells
    assert cells == ["0.00", "-"]
