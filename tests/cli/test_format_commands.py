"""``mxstats formats`` and ``mxstats quantize`` as a person or a script uses them."""

import json
import pickle
import stat

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import mxstats
from mxstats.formats import FORMATS, quantize


@pytest.fixture
def run(run, monkeypatch):
    """Run a command line on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    return run


@pytest.fixture
def x():
    return np.random.default_rng(0).standard_normal((6, 75)).astype(np.float32)


@pytest.fixture
def npy(tmp_path, x):
    np.save(tmp_path / "x.npy", x)
    return tmp_path / "x.npy"


@pytest.fixture
def model(tmp_path, x):
    tensors = {
        "wide": x.astype(np.float64), "half": x.astype(np.float16),
        "brain": x.astype(ml_dtypes.bfloat16), "ids": np.arange(4),
    }  # fmt: skip
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_formats_as_the_specifications_have_them(run):
    code, out, err = run("formats", "--json")
    assert (code, err) == (0, "")
    keys = ("format", "bits_per_element", "element", "block_size", "scale", "largest",
            "smallest_normal", "smallest_subnormal")  # fmt: skip
    rows = [tuple(line[key] for key in keys) for line in json.loads(out)]
    # OCP MX v1.0, tables 1 to 6; NVFP4 as NVIDIA gives it.
    assert rows == [
        ("MXFP8_E4M3", 8.25, "E4M3", 32, "E8M0", 448.0, 2.0**-6, 2.0**-9),
        ("MXFP8_E5M2", 8.25, "E5M2", 32, "E8M0", 57344.0, 2.0**-14, 2.0**-16),
        ("MXFP6_E3M2", 6.25, "E3M2", 32, "E8M0", 28.0, 0.25, 0.0625),
        ("MXFP6_E2M3", 6.25, "E2M3", 32, "E8M0", 7.5, 1.0, 0.125),
        ("MXFP4_E2M1", 4.25, "E2M1", 32, "E8M0", 6.0, 1.0, 0.5),
        ("MXINT8", 8.25, "INT8", 32, "E8M0", 127 / 64, 1 / 64, None),
        ("NVFP4", 4.5, "E2M1", 16, "E4M3", 6.0, 1.0, 0.5),
    ]
    for line in json.loads(out):
        floating = line["format"] == "NVFP4"
        assert line["default_scale_rule"] == (None if floating else "floor")
        assert line["scale_rules"] == ([] if floating else ["floor", "ceil", "even", "rceil"])
        assert line["tensor_scale"] is floating


def test_formats_fit_eighty_columns(run):
    code, out, err = run("formats")
    assert (code, err) == (0, "")
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
    assert "…" not in out
    for name in FORMATS:
        assert name in out
    for cell in ("57344", "1.984375", "2^-14", "2^-16", "E4M3·g", "rceil", "none"):
        assert cell in out


def measures(run, *arguments):
    code, out, err = run("quantize", *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize("rule", [None, "floor", "CEIL", "even", "rceil"])
def test_npy_measures_are_those_of_the_plain_formulas(run, npy, x, rule):
    given = () if rule is None else ("--scale-rule", rule)
    found = measures(run, npy, "--fmt", "mxfp4_e2m1", *given)
    quantized = quantize(x, "MXFP4_E2M1", scale_rule=None if rule is None else rule.lower())
    error = x.astype(np.float64) - quantized.dequantize()
    ratio = np.sum(error**2) / np.sum(x.astype(np.float64) ** 2)
    # Two orders of summing 450 terms differ by less than 450 · 2^−53 = 5e-14.
    assert found["relative_rms_error"] == pytest.approx(np.sqrt(ratio), rel=1e-13)
    assert found["snr_db"] == pytest.approx(-10 * np.log10(ratio), rel=1e-13)
    assert found["max_abs_error"] == np.abs(error).max()
    wide = np.exp2(np.repeat(quantized.scales, 32, axis=1)[:, :75].astype(float) - 127)
    assert found["clipped"] == np.sum(np.abs(x) > 6 * wide)
    assert found["flushed"] == np.sum((quantized.codes & 7 == 0) & (x != 0))
    assert found["flushed_share"] == found["flushed"] / 450
    assert (found["elements"], found["blocks"], found["nan_blocks"]) == (450, 18, 0)
    assert found["bits_per_element"] == (450 * 4 + 18 * 8) / 450
    assert found["scale_rule"] == ("floor" if rule is None else rule.lower())
    assert (found["shape"], found["dtype"], found["axis"]) == ([6, 75], "float32", 1)
    assert found["tensor"] is None


def test_the_screen(run, npy):
    code, out, err = run("quantize", npy, "--fmt", "MXFP4_E2M1", "--axis", 0)
    assert (code, err) == (0, "")
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
    for cell in ("x.npy", "6 × 75 float32", "MXFP4_E2M1, floor, axis 0", " dB", "450"):
        assert cell in out
    assert f"{measures(run, npy, '--fmt', 'mxfp4_e2m1', '--axis', -2)['snr_db']:.4f} dB" in out


def test_nan_blocks_are_told_and_left_out(run, tmp_path, x):
    x[1, 2] = np.nan
    np.save(tmp_path / "nan.npy", x)
    found = measures(run, tmp_path / "nan.npy")
    assert (found["nan_blocks"], found["nan_elements"]) == (1, 32)
    assert 20.0 < found["snr_db"] < 40.0
    assert "32 elements in NaN blocks are left out" in run("quantize", tmp_path / "nan.npy")[1]


def test_a_tensor_of_zeros_has_no_ratio(run, tmp_path):
    np.save(tmp_path / "zeros.npy", np.zeros((2, 40), dtype=np.float16))
    assert measures(run, tmp_path / "zeros.npy")["snr_db"] is None
    _, out, _ = run("quantize", tmp_path / "zeros.npy")
    assert "nan" not in out
    np.save(tmp_path / "empty.npy", np.zeros((0, 40), dtype=np.float16))
    assert measures(run, tmp_path / "empty.npy")["elements"] == 0


def test_the_other_byte_order_and_columns_first(run, tmp_path, npy, x):
    expected = measures(run, npy)
    np.save(tmp_path / "big.npy", x.astype(">f4"))
    np.save(tmp_path / "fortran.npy", np.asfortranarray(x))
    for name in ("big.npy", "fortran.npy"):
        found = measures(run, tmp_path / name)
        # The order of summing may differ; 450 · 2^−53.
        assert found["snr_db"] == pytest.approx(expected["snr_db"], rel=1e-13)
        assert found["max_abs_error"] == expected["max_abs_error"]
    # 1/3 in float64 is not its float32: the elements are rounded once, from what is stored.
    np.save(tmp_path / "third.npy", np.array([1 / 3], dtype=">f8"))
    assert measures(run, tmp_path / "third.npy")["max_abs_error"] == 0.34375 - 1 / 3


@pytest.mark.parametrize(
    ("name", "dtype"), [("wide", "float64"), ("half", "float16"), ("brain", "bfloat16")]
)
def test_safetensors_by_name(run, model, x, name, dtype):
    found = measures(run, model, "--tensor", name, "--fmt", "mxfp8_e5m2")
    assert (found["tensor"], found["dtype"]) == (name, dtype)
    values = x.astype(ml_dtypes.bfloat16 if name == "brain" else dtype)
    error = values.astype(np.float64) - quantize(values, "mxfp8_e5m2").dequantize()
    assert found["max_abs_error"] == np.abs(error).max()


def test_safetensors_with_one_tensor_needs_no_name(run, tmp_path, x):
    save_file({"only": x}, tmp_path / "one.safetensors")
    assert measures(run, tmp_path / "one.safetensors")["tensor"] == "only"


@pytest.mark.parametrize("fmt", FORMATS)
def test_out_holds_codes_scales_and_what_they_are(run, model, tmp_path, x, fmt):
    out = tmp_path / "out.safetensors"
    rule = () if fmt == "NVFP4" else ("--scale-rule", "even")
    found = measures(run, model, "--tensor", "half", "--fmt", fmt, *rule, "--out", out)
    assert found["out"] == str(out)
    expected = quantize(x.astype(np.float16), fmt, scale_rule=rule[1] if rule else None)
    stored = load_file(out)
    assert set(stored) == {"codes", "scales"} | ({"tensor_scale"} if fmt == "NVFP4" else set())
    assert stored["codes"].dtype == stored["scales"].dtype == np.uint8
    assert np.array_equal(stored["codes"], expected.codes)
    assert np.array_equal(stored["scales"], expected.scales)
    if fmt == "NVFP4":
        assert stored["tensor_scale"].tolist() == [expected.tensor_scale] == [found["tensor_scale"]]
    with safe_open(out, framework="numpy") as opened:
        assert opened.metadata() == {
            "format": fmt,
            "scale_rule": rule[1] if rule else "none",
            "axis": "1",
            "block_size": str(FORMATS[fmt].block_size),
            "dtype": "float16",
            "mxstats_version": mxstats.__version__,
        }
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.safetensors", "out.safetensors",
    ]  # fmt: skip


def test_out_is_readable_as_other_files_are_and_replaced_whole(run, npy, tmp_path):
    out = tmp_path / "out.safetensors"
    out.write_text("old")
    code, printed, _ = run("quantize", npy, "--out", out)
    assert code == 0
    assert "out.safetensors" in printed
    assert stat.S_IMODE(out.stat().st_mode) == stat.S_IMODE(npy.stat().st_mode)
    assert load_file(out)["codes"].shape == (6, 75)


def test_a_failed_write_leaves_nothing_behind(run, npy, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError("No space left on device")

    out = tmp_path / "out.safetensors"
    out.write_text("old")
    monkeypatch.setattr("pathlib.Path.replace", full)
    code, _, err = run("quantize", npy, "--out", out)
    assert (code, err) == (2, "mxstats: No space left on device\n")
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.safetensors", "x.npy"]


@pytest.fixture
def folder(tmp_path, npy, model):
    """The files above beside broken and unsuitable ones."""
    whole = npy.read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:-10])
    (tmp_path / "head.npy").write_bytes(whole[:20])
    (tmp_path / "empty_file.npy").write_bytes(b"")
    (tmp_path / "noise.npy").write_bytes(b"noise" * 100)
    (tmp_path / "pickle.npy").write_bytes(pickle.dumps([1, 2]))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "integers.npy", np.arange(40))
    np.save(tmp_path / "complex.npy", np.ones(4, dtype=complex))
    np.save(tmp_path / "brain.npy", np.ones(4, dtype=ml_dtypes.bfloat16))
    np.save(tmp_path / "number.npy", np.float32(1))
    np.savez(tmp_path / "x.npz", a=np.ones(3))
    (tmp_path / "cut.safetensors").write_bytes(model.read_bytes()[:-10])
    (tmp_path / "noise.safetensors").write_bytes(b"noise" * 100)
    save_file({}, tmp_path / "none.safetensors")
    save_file({f"t{i:02}": np.ones(1) for i in range(30)}, tmp_path / "many.safetensors")
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "link.safetensors").symlink_to(model)
    return tmp_path


bad = [
    ("nonesuch.npy", "nonesuch.npy: there is no such file"),
    ("nonesuch.safetensors", "nonesuch.safetensors: there is no such file"),
    ("folder.npy", "folder.npy: there is no such file"),
    ("x.npz", "x.npz': a .npy or a .safetensors file is needed"),
    ("cut.npy", "cut.npy cannot be read: "),
    ("head.npy", "head.npy cannot be read: "),
    ("empty_file.npy", "empty_file.npy cannot be read: "),
    ("noise.npy", "noise.npy cannot be read: "),
    ("pickle.npy", "pickle.npy cannot be read: "),
    ("objects.npy", "objects.npy cannot be read: "),
    ("integers.npy", "integers.npy has dtype int64; float16, float32 or float64"),
    ("complex.npy", "complex.npy has dtype complex128"),
    ("brain.npy", ".npy has no bfloat16; a .safetensors file has"),
    ("number.npy", "x is a single number; at least one axis is needed"),
    ("cut.safetensors --tensor half", "cut.safetensors cannot be read: "),
    ("noise.safetensors", "noise.safetensors cannot be read: "),
    ("none.safetensors", "none.safetensors holds 0 tensors, which tensor is meant: it is empty"),
    ("model.safetensors", "holds 4 tensors, which tensor is meant: brain, half, ids, wide"),
    ("model.safetensors --tensor hal", "tensor='hal' is none: brain, half, ids, wide"),
    ("many.safetensors", "t18, t19 and 10 more"),
    ("model.safetensors --tensor ids", "tensor 'ids' of"),
    ("model.safetensors --tensor ids", "has dtype I64; one of F16, BF16, F32, F64"),
    ("x.npy --tensor a", "tensor='a': a .npy file holds one tensor"),
    ("x.npy --fmt mxfp7", "fmt='mxfp7' is unknown; known are MXFP8_E4M3, MXFP8_E5M2, MXFP6"),
    ("x.npy --scale-rule round", "scale_rule='round' is unknown; known are floor, ceil, even, r"),
    ("x.npy --fmt nvfp4 --scale-rule floor", "scale_rule='floor': NVFP4 has floating E4M3"),
    ("x.npy --axis 2", "axis=2: out of range for 2 axes"),
    ("x.npy --axis -3", "axis=-3: out of range for 2 axes"),
    ("x.npy --axis 0.5", "--axis"),
    ("x.npy --out nonesuch/out.safetensors", "out.safetensors': there is no folder"),
    ("x.npy --out out.npz", "out.npz': a .safetensors file is needed"),
    ("x.npy --out folder.safetensors", "folder.safetensors' is a folder"),
    ("model.safetensors --tensor half --out model.safetensors", "is the input, which is never"),
    ("model.safetensors --tensor half --out link.safetensors", "is the input, which is never"),
    ("link.safetensors --tensor half --out model.safetensors", "is the input, which is never"),
]


@pytest.mark.parametrize(("line", "message"), bad, ids=[line for line, _ in bad])
def test_errors_are_one_line_on_stderr_with_code_two(run, folder, monkeypatch, line, message):
    monkeypatch.chdir(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    code, out, err = run("quantize", *line.split())
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("mxstats: ")
    assert message in err
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
