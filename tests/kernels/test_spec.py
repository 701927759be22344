"""Formats and rules as a kernel's constants."""

import pickle

import pytest

from mxstats import formats
from mxstats.kernels import spec as specs
from mxstats.kernels.arguments import row_chunks
from mxstats.kernels.spec import cast_spec, from_key
from tests.kernels.cast_cases import CASES, case_name


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_the_key_makes_the_same_spec(case):
    spec = cast_spec(*case)
    assert from_key(spec.key) == spec
    assert hash(from_key(spec.key)) == hash(spec)
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_different_casts_have_different_keys_and_names():
    made = [cast_spec(*case) for case in CASES]
    assert len({spec.key for spec in made}) == len(made)
    # Triton names a compiled function by its constants' repr.
    assert len({repr(spec) for spec in made}) == len(made)


def test_the_numbers_are_those_of_the_published_formats():
    e4m3 = cast_spec("mxfp8_e4m3")
    assert (e4m3.largest, e4m3.emax, e4m3.emin, e4m3.top_code) == (448.0, 8, -6, 0x7E)
    assert (e4m3.bits, e4m3.smallest, e4m3.block_size, e4m3.rule) == (8, 2**-9, 32, specs.FLOOR)
    int8 = cast_spec(formats.MXINT8, "rceil")
    assert (int8.is_fixed_point, int8.bits, int8.top_code, int8.rule) == (True, 8, 127, specs.RCEIL)
    nvfp4 = cast_spec(formats.NVFP4)
    assert (nvfp4.is_floating_scale, nvfp4.has_tensor_scale, nvfp4.block_size) == (True, True, 16)
    assert (nvfp4.scale_largest, nvfp4.scale_nan, nvfp4.least_tensor_scale) == (448.0, 127, 2**-126)


def test_only_the_two_formats_of_the_hardware_take_its_cast():
    takes = {fmt.name for fmt, rule in CASES if cast_spec(fmt, rule).has_hardware_cast}
    # The last is E4M3 under E5M3 scales.
    assert takes == {"MXFP8_E4M3", "MXFP8_E5M2", "E4M3/32/E5M3"}
    other_bias = formats.BlockFormat(formats.ElementFormat(4, 3, bias=8, specials="nan"))
    assert not cast_spec(other_bias).has_hardware_cast
    no_nan = formats.BlockFormat(formats.ElementFormat(4, 3))
    assert not cast_spec(no_nan).has_hardware_cast


@pytest.mark.parametrize(
    ("fmt", "rule", "message"),
    [
        ("mxfp9", None, "fmt='mxfp9' is unknown; known are"),
        ("mxfp8_e4m3", "nearest", "scale_rule='nearest' is unknown; known are"),
        ("nvfp4", "floor", "scale_rule='floor': NVFP4 has floating E4M3 scales"),
    ],
)
def test_bad_formats_and_rules(fmt, rule, message):
    with pytest.raises(ValueError, match=message):
        cast_spec(fmt, rule)


def test_a_format_is_no_number():
    with pytest.raises(TypeError, match="fmt must be a BlockFormat or its name, got 8"):
        cast_spec(8)


@pytest.mark.parametrize("blocked", [False, True])
def test_chunks_cover_a_row_with_little_to_spare(blocked):
    for n_blocks in range(1, 2049):
        count, blocks = row_chunks(n_blocks, blocked)
        assert count <= 16
        assert blocks & (blocks - 1) == 0
        # No chunk is empty; 9 to 16 chunks always are to be had, and exceed a row by an eighth.
        excess = count * blocks - n_blocks
        assert 0 <= excess < min(blocks, max(4 if blocked else 1, n_blocks / 8))
        assert not blocked or count * blocks >= -(-n_blocks // 4) * 4


def test_hidden_sizes_of_models_are_covered_exactly():
    assert row_chunks(5120 // 32) == (5, 32)
    assert row_chunks(7168 // 32) == (7, 32)
    assert row_chunks(4096 // 32) == (1, 128)
