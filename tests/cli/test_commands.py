"""The commands as a person or a script uses them: what they print, and where errors go."""

import io
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import special


def test_constant_prints_twelve_digits_and_the_noise(run):
    code, out, err = run("constant", "--dist", "gaussian", "-p", 2, "-B", 32, "-D", 4096)
    assert (code, err) == (0, "")
    # The first 13 digits of the mpmath value in tests/data.
    assert "2.389457114757" in out
    assert "0.152562" in out  # √V as the theory's tests check it
    assert "0.0134847" in out  # √V/√128 by hand: 0.1525620165/11.3137085
    assert "K = 128" in out


def test_constant_as_json(run):
    code, out, _ = run("constant", "-p", 1, "--dist", "laplace", "--json")
    found = json.loads(out)
    harmonic = sum(1 / k for k in range(1, 33))
    assert code == 0
    assert found["constant"] == pytest.approx(harmonic / np.sqrt(2), rel=1e-14)
    assert found["distribution"] == "laplace"
    assert found["hidden_size"] is None


def test_constant_of_a_short_last_block(run):
    # D below B: one block of D entries, whose constant at B = D is the same number.
    _, whole, _ = run("constant", "-B", 8, "--json")
    _, short, _ = run("constant", "-B", 32, "-D", 8, "--json")
    assert json.loads(short)["constant"] == json.loads(whole)["constant"]


def test_infinite_v_is_said_and_never_a_number(run):
    _, out, _ = run("constant", "--dist", "student-t:3", "-p", 1)
    assert "inf" in out
    assert "is infinite" in out
    _, out, _ = run("table", "--dist", "student-t:3", "-p", 1, "-B", 32, "--format", "json")
    (line,) = json.loads(out)
    assert line["sqrt_v"] is None
    assert "V is infinite" in line["note"]


def test_few_blocks_warn_of_the_noise(run):
    code, _, err = run("constant", "-D", 64)
    assert code == 0
    assert "only K = 2 blocks a row" in err
    assert "10.8 %" in err  # 0.152562/√2
    assert run("constant", "-D", 512)[2] == ""


@pytest.mark.parametrize("how", ["markdown", "csv", "json"])
def test_table_in_each_format_holds_the_same_values(run, how):
    code, out, _ = run("table", "--dist", "laplace", "-p", 1, "-B", 1, "-B", 2, "--format", how)
    assert code == 0
    if how == "markdown":
        cells = [line.strip("| ").split(" | ") for line in out.strip().splitlines()]
        values = [float(row[3]) for row in cells[2:]]
    elif how == "csv":
        values = list(pd.read_csv(io.StringIO(out))["constant"])
    else:
        values = [line["constant"] for line in json.loads(out)]
    # H_1/√2 and H_2/√2; Markdown shows 12 decimals.
    assert values == pytest.approx([1 / np.sqrt(2), 1.5 / np.sqrt(2)], abs=1e-12)


def test_error_lists_hidden_sizes(run):
    code, out, _ = run("error", "-p", 2, "-D", 4096, "--json")
    (line,) = json.loads(out)
    assert code == 0
    assert line["ratio_std"] == pytest.approx(line["sqrt_v"] / np.sqrt(128), rel=1e-14)
    assert "0.013485" in run("error", "-p", 2, "-D", 4096)[1]


def test_bounds_print_the_checked_values(run):
    _, out, _ = run("bounds", "-D", 4096)
    assert "300.426" in out
    assert "27.0336" in out
    rms, one, two = json.loads(run("bounds", "-D", 4096, "--json")[1])
    assert rms["max_abs"] == 64.0
    # Largest output c̃ K^(1/p): p = 1 has K = 128 once, p = 2 its root.
    assert one["max_abs"] / one["rms_high"] == pytest.approx(np.sqrt(128), rel=1e-14)
    assert two["max_abs"] / two["rms_high"] == pytest.approx(np.sqrt(128), rel=1e-14)


def test_bounds_as_json_are_the_closed_forms(run):
    rms, *lines = json.loads(run("bounds", "-D", 4096, "--json")[1])
    assert (rms["rms_low"], rms["rms_high"]) == (1.0, 1.0)
    # c̃ by another route: E max of 32 |N(0, 1)| is ∫ 1 − (2Φ(x) − 1)^32 dx, E max² is ∫ 2x(…) dx.
    x = np.linspace(0.0, 12.0, 120_001)
    tail = 1.0 - special.erf(x / np.sqrt(2)) ** 32
    c = [np.trapezoid(tail, x), np.sqrt(np.trapezoid(2 * x * tail, x))]
    for line, p, constant in zip(lines, (1.0, 2.0), c, strict=True):
        assert line["p"] == p
        # The trapezium rule at steps of 1e-4.
        assert line["rms_low"] == pytest.approx(constant / np.sqrt(32), rel=1e-7)
        assert line["rms_high"] == pytest.approx(constant * 128 ** (1 / p - 1 / 2), rel=1e-7)


def test_simulate_is_seeded(run):
    given = ("simulate", "-D", 256, "--rows", 200, "--json")
    assert run(*given)[1] == run(*given)[1]
    assert run(*given)[1] != run(*given, "--seed", 1)[1]
    code, out, _ = run(*given[:-1])
    assert code == 0
    assert "log_ratio_std" in out


def test_validate_uses_the_bundled_sample(run):
    code, out, _ = run("validate", "--json")
    found = pd.DataFrame(json.loads(out))
    assert code == 0
    assert len(found) == 61 * 2
    wanted = ["layer", "role", "p", "rows", "r_median", "r_low", "r_high", "ln_c", "ln_crest",
              "ln_spread", "absmax", "inside_bounds"]  # fmt: skip
    assert set(wanted) <= set(found.columns)
    assert found["inside_bounds"].all()
    code, out, _ = run("validate", "-p", 2)
    assert code == 0
    assert "61 lines, 0 outside the bounds, 0 rows excluded." in out


def test_info_names_versions(run):
    found = json.loads(run("info", "--json")[1])
    assert found["numpy"] == np.__version__
    assert "61 norm inputs" in found["bundled sample"]


bad = [
    (("constant", "--dist", "cauchy"), "distribution 'cauchy' is unknown; known are gaussian"),
    (("constant", "--dist", "student-t:2"), "df=2: Student-t needs 2 < df"),
    (("constant", "--dist", "student-t:3", "-p", "3"), "p=3: E[m^p] is infinite for student-t:3"),
    (("constant", "-p", "0"), "p=0: p must be a finite real number above 0"),
    (("constant", "-p", "nan"), "p=nan: p must be a finite real number above 0"),
    (("constant", "-B", "0"), "block_size=0: must be from 1 to 1048576"),
    (("constant", "-B", "2.5"), "'--block-size'"),
    (("constant", "-D", "0"), "hidden_size=0: must be at least 1"),
    (("bounds", "-D", "-1"), "hidden_size=-1: must be at least 1"),
    (("error", "-D", "0"), "hidden_size=0: must be at least 1"),
    (("table", "--format", "html"), "--format"),
    (("simulate", "--rows", "0"), "rows=0"),
    (("simulate", "--seed", "-1"), "seed=-1"),
    (("figures", "nonesuch"), "figure 'nonesuch' is unknown; known are constant"),
    (("validate", "/nonexistent"), "/nonexistent"),
    (("capture", "/nonexistent/out", "--tokens", "0"), "tokens"),
    (("nonesuch",), "nonesuch"),
    (("constant", "--nonesuch"), "--nonesuch"),
]


@pytest.mark.parametrize(("arguments", "message"), bad, ids=[" ".join(a) for a, _ in bad])
def test_errors_are_one_line_on_stderr_with_code_two(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("mxstats: ")
    assert message in err


def test_interrupt_gives_130(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("mxstats.theory.constant", interrupted)
    code, _, err = run("constant")
    assert code == 130
    assert err == "mxstats: interrupted\n"


def test_module_and_script_are_the_same_program():
    module = subprocess.run(
        [sys.executable, "-m", "mxstats", "constant", "--dist", "nope"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert module.returncode == 2
    assert module.stderr.startswith("mxstats: distribution 'nope' is unknown")
    assert module.stdout == ""


def test_help_names_every_command(run):
    code, out, _ = run("--help")
    assert code == 0
    for name in ("constant", "table", "error", "bounds", "simulate", "capture", "validate",
                 "figures", "info"):  # fmt: skip
        assert name in out
