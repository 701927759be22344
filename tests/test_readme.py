"""Every Python block of the README runs and prints what stands below it."""

import contextlib
import io
import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL)


def test_there_are_examples():
    assert len(EXAMPLES) == README.count("```python")


@pytest.mark.parametrize(
    ("code", "printed"),
    EXAMPLES,
    ids=["library", "samples", "format", "kernels", "modules", "models"],
)
def test_example_prints_what_it_says(code, printed):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {})
    number = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
    assert number.sub("#", out.getvalue()) == number.sub("#", printed)
    shown = [float(n) for n in number.findall(printed)]
    # The last digits may differ between versions of numpy and scipy; 1e-9 is what is promised.
    assert [float(n) for n in number.findall(out.getvalue())] == pytest.approx(shown, rel=1e-9)


def test_the_caption_of_the_first_figure():
    from mxstats.measure import validate

    # "too large by": r̂/RMS at the median, the smallest and largest over the 61 norms.
    excess = 1 / validate().groupby("p")["r_median"].agg(["max", "min"])
    assert "1.1 to 1.5 times for p = 1 and 1.15 to 2 times for p = 2" in README
    assert [round(v, 1) for v in excess.loc[1.0]] == [1.1, 1.5]
    assert [round(v * 20) / 20 for v in excess.loc[2.0]] == [1.15, 2.0]


def test_the_table_of_penalties_is_the_recorded_run():
    from mxstats.measure import recording

    path = Path(__file__).parent.parent / "figures" / "data" / "calibration.parquet"
    found = recording.read(path)[0].dropna(subset=["loss"])
    columns = {
        "Gaussian": "Gaussian constant",
        "model": "per model",
        "layer": "per layer",
        "block": "per block",
        "trained": "per block, trained",
        "noise": "noise √(V/K)",
    }
    start = README.index("| penalty, nats |")
    lines = README[start : README.index("\n\n", start)].split("\n")[2:]
    assert len(lines) == 8
    for line in lines:
        head, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if "," in head:
            text = head.split(",")[0]
        block_size = int(head.split("=")[1])
        of_line = found[(found["text"].str.startswith(text)) & (found["block_size"] == block_size)]
        shown = of_line.set_index("variant").loc[list(columns.values())]
        penalties = shown[["penalty", "penalty_error"]].to_numpy()
        for cell, (penalty, error) in zip(cells, penalties, strict=True):
            assert cell in (f"{penalty:.3f} ± {error:.3f}", f"{penalty:.3f}")
