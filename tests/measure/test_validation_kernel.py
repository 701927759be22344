"""Rows through the kernel: against the reference quantiser, the twin, and nn's own call."""

import os
import subprocess
import sys

import numpy as np
import pytest

import mxstats as mxs
from mxstats.activations import sample_store
from mxstats.formats import quantize
from tests.measure.stores import Layer, write

pytest.importorskip("torch")

LAYERS = ["model.layers.0.input_layernorm", "model.layers.12.input_layernorm"]


@pytest.mark.parametrize(("fmt", "rule"), [("mxfp8_e4m3", "floor"), ("mxfp4_e2m1", "rceil"),
                                           ("mxint8", "even")])  # fmt: skip
@pytest.mark.parametrize("p", [1.0, 2.0])
def test_columns_are_those_of_the_reference_quantiser(fmt, rule, p):
    line = mxs.validate(p=p, layers=LAYERS[1:], fmt=fmt, scale_rule=rule).iloc[0]
    x = sample_store().rows(LAYERS[1])
    m = np.abs(x).reshape(64, 18, 32).max(2).astype(np.float64)
    c = float(np.float32(mxs.constant(p=p, hidden_size=576)))
    mean = (m**p).mean(1) ** (1 / p)
    rho = ((mean / c) ** 2 + float(np.float32(1e-5))) ** -0.5
    y = rho.astype(np.float32)[:, None] * x
    made = quantize(y, fmt, scale_rule=rule)
    back = made.dequantize().astype(np.float64)
    # Medians of the very numbers that the kernel gave: equal to float64's rounding.
    rms = np.sqrt((back**2).mean(1))
    assert line["dequantised_rms_median"] == pytest.approx(np.median(rms), rel=1e-13)
    assert line["dequantised_rms_low"] == pytest.approx(rms.min(), rel=1e-13)
    assert line["dequantised_absmax"] == np.abs(back).max()
    noise, signal = ((y - back) ** 2).sum(), (y.astype(np.float64) ** 2).sum()
    assert line["snr_db"] == pytest.approx(10 * np.log10(signal / noise), abs=1e-9)
    assert line["flushed_share"] == np.mean((back == 0) & (y != 0))
    assert (line["format"], line["scale_rule"]) == (made.fmt.name, rule)
    ratio = rho.astype(np.float32) * np.sqrt((x.astype(np.float64) ** 2).mean(1) + 1e-5)
    assert line["kernel_r_median"] == pytest.approx(np.median(ratio), rel=1e-12)
    # ρ̃, c and ε rounded to float32, 2^-24 each, against the measure's float64.
    assert line["rho_error"] < 3 * 2**-24
    assert line["dequantised_inside"]
    rest = np.sqrt((back[1:] ** 2).mean(1))
    assert line["dequantised_rms_median_rest"] == pytest.approx(np.median(rest), rel=1e-13)


def test_clipping_is_counted(tmp_path):
    # Absmax 511 scales by 2^0 under FLOOR, where E4M3 ends at 448: c and K = 1 put y at ±1.99·2^8.
    rows = np.full((3, 32), 511.0, np.float32)
    rows[:, 1:] = 1.0
    store = write(tmp_path, Layer("a", rows), tokens=3)
    line = mxs.validate(store, p=2, constants=511.0, fmt="mxfp8_e4m3", eps=1e-12).iloc[0]
    assert line["clipped_share"] == 1 / 32
    assert line["dequantised_absmax"] == 448
    line = mxs.validate(store, p=2, constants=511.0, fmt="mxfp8_e4m3", scale_rule="rceil").iloc[0]
    assert line["clipped_share"] == 0


def test_nvfp4_has_its_own_blocks_and_no_rule():
    line = mxs.validate(p=2, layers=LAYERS[:1], fmt="nvfp4").iloc[0]
    assert (line["block_size"], line["scale_rule"]) == (16, None)
    assert line["dequantised_inside"]
    with pytest.raises(ValueError, match="NVFP4 has floating"):
        mxs.validate(fmt="nvfp4", scale_rule="floor")


def test_odd_rows_do_not_reach_the_measures(tmp_path):
    rows = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
    plain = mxs.validate(write(tmp_path, Layer("a", rows), tokens=6), p=2, kernel=True).iloc[0]
    odd = np.insert(rows, [2, 4], np.nan, axis=0)
    odd[5] = 0.0  # the inserted row of the second place
    folder = tmp_path / "odd"
    folder.mkdir()
    found = mxs.validate(write(folder, Layer("a", odd), tokens=8), p=2, kernel=True).iloc[0]
    assert (found["nonfinite_rows"], found["zero_rows"]) == (1, 1)
    for name in ("snr_db", "dequantised_rms_median", "kernel_r_low", "clipped_share"):
        assert found[name] == pytest.approx(plain[name], rel=1e-13), name


def test_pieces_change_nothing(monkeypatch):
    whole = mxs.validate(p=2, layers=LAYERS, kernel=True)
    monkeypatch.setattr("mxstats.measure.kernel_rows._PIECE", 7 * 576)
    pieces = mxs.validate(p=2, layers=LAYERS, kernel=True)
    assert whole.equals(pieces)


def test_a_calibration_serves_in_every_form(tmp_path):
    store = sample_store()
    for per in ("layer", "block"):
        found = mxs.calibrate(store, per=per, layers=LAYERS, resamples=10)
        path = found.save(tmp_path / "constants.json")
        known = found.weights or found.constants
        tables = [
            mxs.validate(store, constants=c, layers=LAYERS, kernel=True)
            for c in (found, path, known)
        ]
        for table in tables[1:]:
            # A file's weights come back as the kernel's float32: 2^-24 of each.
            np.testing.assert_allclose(table["ln_r"], tables[0]["ln_r"], atol=2**-24)
        table = tables[0]
        assert set(table["constant_from"]) == {"weights" if per == "block" else "constants"}
        # ln c is fitted to the mean of ln(M/RMS): its ℓ is 0 on average.
        if per == "layer":
            np.testing.assert_allclose(table["ln_r"], 0.0, atol=1e-12)
        np.testing.assert_allclose(
            table["ln_r"], table["ln_c"] - table["ln_crest"] - table["ln_spread"], atol=1e-12
        )
        assert table["inside_bounds"].all()
        assert table["dequantised_inside"].all()
        # Of ρ̃, ε, and c or the weights in float32.
        assert (table["rho_error"] < 3 * 2**-24).all()
    # A file that knows other layers too, and a layer that it does not know.
    one = mxs.validate(store, constants=path, layers=[LAYERS[0], "model.norm"])
    assert one["constant_from"].tolist() == ["weights", "distribution"]


def test_constants_that_do_not_fit(tmp_path):
    path = mxs.calibrate(sample_store(), p=1, layers=LAYERS, resamples=1).save(tmp_path / "c.json")
    with pytest.raises(mxs.MxstatsError, match=r"c\.json: made for p=1\.0, not 2\.0"):
        mxs.validate(constants=path)
    with pytest.raises(ValueError, match="constants are of one p"):
        mxs.validate(constants=path, p=[1, 2])
    with pytest.raises(mxs.MxstatsError, match="No such file"):
        mxs.validate(constants=tmp_path / "none.json")
    with pytest.raises(ValueError, match="fitted for block_size=32, not 16"):
        mxs.validate(
            constants=mxs.calibrate(sample_store(), layers=LAYERS, resamples=1), block_size=16
        )
    with pytest.raises(ValueError, match=r"constants\['model.norm'\]: weights have shape \(2,\)"):
        mxs.validate(constants={"model.norm": [0.1, 0.2]}, layers=["model.norm"])


def test_arguments_of_a_kernel_that_is_off():
    with pytest.raises(ValueError, match="kernel=False: fmt=nvfp4"):
        mxs.validate(kernel=False, fmt="nvfp4")
    with pytest.raises(ValueError, match="backend='cuda' is unknown"):
        mxs.validate(backend="cuda", layers=LAYERS)


def test_without_torch_what_is_missing_is_said(monkeypatch):
    monkeypatch.setattr("mxstats.measure.expectations.find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match=r"the kernel: needs torch: pip install"):
        mxs.validate(fmt="nvfp4")
    with pytest.raises(ModuleNotFoundError, match="constants: needs torch"):
        mxs.validate(constants=2.0)
    assert len(mxs.validate(p=2, layers=LAYERS)) == 2


def test_validate_and_nn_call_the_same_kernel(monkeypatch):
    import torch

    import mxstats.kernels.mxnorm  # noqa: F401
    from mxstats.nn import MXNorm

    module = sys.modules["mxstats.kernels.mxnorm"]
    calls = []
    real = module.mxnorm_op

    def counted(*arguments):
        calls.append(arguments[0].shape)
        return real(*arguments)

    monkeypatch.setattr(module, "mxnorm_op", counted)
    mxs.validate(p=2, layers=LAYERS[:1], kernel=True)
    MXNorm(64, p=2.0)(torch.ones(3, 64))
    assert calls == [(64, 576), (3, 64)]


def test_triton_equals_its_twin_on_the_sample():
    """In the interpreter, which is chosen before triton is first imported: a process of its own."""
    pytest.importorskip("triton")
    script = (
        "import mxstats as mxs\n"
        f"t = mxs.validate(layers={LAYERS!r}, p=2, backend='triton')\n"
        "assert t['backend'].tolist() == ['triton', 'triton'], t['backend']\n"
        "assert t['twin_differences'].tolist() == [0, 0], t['twin_differences']\n"
    )
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=600)


def test_a_difference_from_the_twin_is_counted():
    from mxstats.measure.kernel_rows import _differs

    codes, scales = np.zeros((4, 8), np.uint8), np.zeros((4, 2), np.uint8)
    rho = np.array([1, 2, np.nan, 4], np.float32)
    other = [codes.copy(), scales.copy(), rho.copy()]
    assert not _differs((codes, scales, rho), tuple(other)).any()
    other[0][0, 3], other[1][1, 1], other[2][3] = 1, 1, np.nextafter(np.float32(4), 5)
    assert _differs((codes, scales, rho), tuple(other)).tolist() == [True, True, False, True]
