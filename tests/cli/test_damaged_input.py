"""Damaged .npy headers, rules and sizes that are none: one line on stderr, exit code 2."""

import json
import struct
import warnings

import numpy as np
import pytest


def header(text, version):
    """A .npy file of 256 zero bytes under this header."""
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + bytes(256)


def shaped(shape):
    return f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()


DAMAGED = {
    "beyond 64 bits": shaped("(1000000000000000000000000000000,)"),
    "an expression": shaped("(10**30,)"),
    "bytes beyond 64 bits": shaped("(4000000000000000000,)"),
    "a product beyond 64 bits": shaped("(4294967296, 4294967296)"),
    "negative": shaped("(4, -16)"),
    "bool": shaped("(True, 64)"),
    "float": shaped("(2.0,)"),
    "open string": b"'''",
    "open parentheses": b"((((",
    "deep": b"(" * 5000 + b")" * 5000,
    "indented": b"{\n   1\n 2",
    "unhashable": b"{[]: 1}\n",
    "keys that do not compare": b"{1: 2, 'a': 3}\n",
    "nul": b"\0\0\0",
    "no utf-8": b"\xff\xfe",
    "digits": b"9" * 5000,
    "escape": b"'\\d'\n",
}


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_header_is_one_line_that_names_the_file(run, tmp_path, case, version):
    file = tmp_path / "damaged.npy"
    file.write_bytes(header(DAMAGED[case], version))
    for fmt in ("mxfp8_e4m3", "nvfp4"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            code, out, err = run("quantize", file, "--fmt", fmt)
        assert (code, out) == (2, "")
        assert err.startswith(f"mxstats: {file} cannot be read: ")
        assert err.count("\n") == 1


def test_empty_rows_take_no_time(run, tmp_path):
    (tmp_path / "rows.npy").write_bytes(header(shaped("(100000000000000, 0)"), 1))
    code, out, err = run("quantize", tmp_path / "rows.npy", "--fmt", "nvfp4", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["elements"] == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (("calibrate", "--scale-rule", ""), "scale_rule='' is unknown; known are floor, ceil"),
        (("calibrate", "-B", 10**400), "block_size must be an integer, got one beyond 64 bits"),
        (("calibrate", "-B", 10**9), "block_size=1000000000: must be from 1 to 1048576"),
        (("quantize", "x.npy", "--scale-rule", ""), "scale_rule='' is unknown; known are floor"),
    ],
    ids=["calibrate rule", "calibrate 10^400", "calibrate 10^9", "quantize rule"],
)
def test_rules_and_sizes_that_are_none(run, tmp_path, monkeypatch, line, message):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones(64, dtype=np.float32))
    code, out, err = run(*line)
    assert (code, out) == (2, "")
    assert err.startswith(f"mxstats: {message}")
    assert err.count("\n") == 1
