"""A format's calibration is put together from parts that have tests of their own."""

import numpy as np
import pytest

import mxstats as mxs
from mxstats.formats import E2M1, E4M3_SCALE, E8M0, BlockFormat, ElementFormat
from mxstats.theory import scale_only_constant

USERS = BlockFormat(ElementFormat(exponent_bits=3, mantissa_bits=4), block_size=24, scale=E8M0)


def test_the_parts_are_of_the_format_asked_for():
    found = mxs.calibrate("laplace", p=1.0, fmt="mxfp4_e2m1", scale_rule="rceil", block_size=64)
    assert found.fmt.block_size == 64
    assert found.constant == mxs.constant("laplace", p=1.0, block_size=64)
    assert found.rms_error == mxs.rms_error("laplace", p=1.0, block_size=64)
    alone = scale_only_constant("laplace", p=1.0, block_size=64, scale_rule="rceil", element=E2M1)
    assert found.scale_only.geomean == alone.geomean
    assert found.format_error.clipped.high == pytest.approx(0.0, abs=1e-15)


def test_nvfp4_takes_its_floating_scale():
    found = mxs.calibrate(fmt="NVFP4")
    alone = scale_only_constant(block_size=16, scale_rule=E4M3_SCALE, element=E2M1)
    assert found.scale_rule is None
    assert found.scale_only.geomean == alone.geomean


def test_a_users_format_is_calibrated():
    found = mxs.calibrate(fmt=USERS)
    assert found.constant == mxs.constant(block_size=24)
    # 31 = 1.9375·2^4 is E3M4's largest: FLOOR clips where m is above 1.9375 of its octave.
    assert found.scale_only.unit == 16.0
    assert found.format_error.sqnr_db.mean > 30


def test_samples_carry_their_error():
    values = np.random.default_rng(0).laplace(size=4000)
    found = mxs.calibrate(values, fmt=USERS)
    exact = mxs.constant("laplace", block_size=24)
    assert abs(found.constant.value - exact) < 4 * found.constant.stderr
    assert found.scale_only.geomean_stderr > 0


def test_bad_input():
    with pytest.raises(ValueError, match="fmt='fp3' is unknown; known are MXFP8_E4M3"):
        mxs.calibrate(fmt="fp3")
    with pytest.raises(ValueError, match="block_size=0: must be at least 1"):
        mxs.calibrate(block_size=0)
    with pytest.raises(ValueError, match="scale_rule='up' is unknown; known are floor, ceil"):
        mxs.calibrate(scale_rule="up")
    for rule in ("", 0):
        with pytest.raises(ValueError, match=f"scale_rule={rule!r} is unknown"):
            mxs.calibrate(scale_rule=rule)
    for size, error in ((2**20 + 1, ValueError), (10**400, TypeError)):
        with pytest.raises(error, match="block_size"):
            mxs.calibrate(block_size=size)
