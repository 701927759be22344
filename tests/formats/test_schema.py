"""Formats as values: what follows from the fields, and formats that a user makes."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mxstats import formats
from mxstats.formats import E8M0, BlockFormat, ElementFormat, ScaleFormat, quantize
from mxstats.formats.blocks import FORMATS, block_formats, format_of_key
from tests.formats.byte_table import RULES
from tests.formats.scalar import magnitudes, magnitudes_of, quantize_block, to_float32

# OCP MX v1.0, section 5.3:
# bits, emax, largest, smallest normal, smallest, bias
OCP = {
    "E4M3": (8, 8, 448.0, 2.0**-6, 2.0**-9, 7),
    "E5M2": (8, 15, 57344.0, 2.0**-14, 2.0**-16, 15),
    "E3M2": (6, 4, 28.0, 0.25, 0.0625, 3),
    "E2M3": (6, 2, 7.5, 1.0, 0.125, 1),
    "E2M1": (4, 2, 6.0, 1.0, 0.5, 1),
    "INT8": (8, 0, 1.984375, 2.0**-6, 2.0**-6, 0),
}


@pytest.mark.parametrize("name", OCP)
def test_derived_values_are_those_of_the_standard(name):
    element = getattr(formats, name)
    assert element.name == name
    assert (
        element.bits,
        element.emax,
        element.largest,
        element.smallest_normal,
        element.smallest,
        element.exponent_bias,
    ) == OCP[name]


def test_special_codes():
    nan = {name: np.flatnonzero(np.isnan(getattr(formats, name).values)).tolist() for name in OCP}
    assert nan == {
        "E4M3": [0x7F, 0xFF],
        "E5M2": [0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF],
        "E3M2": [],
        "E2M3": [],
        "E2M1": [],
        "INT8": [],
    }
    assert formats.E5M2.values[[0x7C, 0xFC]].tolist() == [math.inf, -math.inf]
    assert formats.INT8.values[[0x7F, 0x81, 0x80]].tolist() == [127 / 64, -127 / 64, -2.0]
    assert formats.E2M1.values.tolist() == [
        *(0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0),
        *(-0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0),
    ]


def test_scale_formats():
    assert E8M0.values[[0, 1, 127, 254]].tolist() == [2.0**-127, 2.0**-126, 1.0, 2.0**127]
    assert np.isnan(E8M0.values[255])
    assert (E8M0.bits, E8M0.largest, E8M0.nan_code) == (8, 2.0**127, 255)
    scale = formats.E4M3_SCALE
    assert (scale.largest, scale.smallest_normal, scale.nan_code) == (448.0, 2.0**-6, 0x7F)
    assert np.array_equal(scale.values, formats.E4M3.values[:128], equal_nan=True)
    scale = formats.E5M3_SCALE
    assert (scale.largest, scale.smallest_normal, scale.nan_code) == (114688.0, 2.0**-14, 255)


def test_bits_an_element():
    bits = {name: fmt.bits_per_element for name, fmt in formats.FORMATS.items()}
    assert bits == {
        "MXFP8_E4M3": 8.25,
        "MXFP8_E5M2": 8.25,
        "MXFP6_E3M2": 6.25,
        "MXFP6_E2M3": 6.25,
        "MXFP4_E2M1": 4.25,
        "MXINT8": 8.25,
        # The E4M3 scale has no sign, but a byte all the same.
        "NVFP4": 4.5,
    }
    assert [fmt.block_size for fmt in formats.FORMATS.values()] == [32] * 6 + [16]


def test_formats_are_frozen_values():
    assert ElementFormat(4, 3, specials="nan") == formats.E4M3
    assert hash(ElementFormat(2, 1)) == hash(formats.E2M1)
    assert formats.block_format("mxfp8_e4m3") is formats.MXFP8_E4M3
    for value in (formats.E4M3, formats.E8M0, formats.NVFP4):
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.mantissa_bits = 4
    for table in (formats.E4M3.values, formats.E4M3.magnitudes, formats.E8M0.values):
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 1


def test_a_users_format_in_one_line():
    fmt = BlockFormat(ElementFormat(exponent_bits=3, mantissa_bits=4), block_size=24, scale=E8M0)
    assert fmt.name == "E3M4/24/E8M0"
    # emax 4; largest 2^4·(2 − 2^-4) = 31; spacing of the subnormals 2^(1−3−4)
    element = fmt.element
    assert (element.emax, element.largest, element.smallest) == (4, 31.0, 2.0**-6)
    assert fmt.bits_per_element == 8 + 8 / 24
    row = np.linspace(-31, 31, 50, dtype=np.float32)[None]
    for rule in RULES:
        found = quantize(row, fmt, scale_rule=rule)
        assert found.scales.shape == (1, 3)
        for k in range(3):
            block = row[0, 24 * k : 24 * (k + 1)].tolist()
            codes, byte = quantize_block(block, fmt, rule)
            assert found.codes[0, 24 * k : 24 * (k + 1)].tolist() == codes
            assert found.scales[0, k] == byte
        # Half a step of the largest binade, 2^0 (CEIL: of twice that) at this absmax.
        assert np.abs(found.dequantize() - row).max() <= (1.0 if rule == "ceil" else 0.5)


def test_other_block_sizes():
    fmt = formats.MXFP8_E4M3
    assert fmt.with_block_size(64).name == "MXFP8_E4M3/64"
    assert fmt.with_block_size(64).with_block_size(16).name == "MXFP8_E4M3/16"
    assert fmt.with_block_size(64).with_block_size(32) == fmt
    assert formats.NVFP4.with_block_size(64).with_block_size(16) == formats.NVFP4
    made = BlockFormat(formats.E2M1, 16)
    assert made.with_block_size(64) == BlockFormat(formats.E2M1, 64)
    assert made.with_block_size(64).name == "E2M1/64/E8M0"
    # A name that happens to be a known one's does not make the format that.
    own = BlockFormat(formats.E2M1, 16, name="MXFP8_E4M3")
    assert own.with_block_size(32).name == "MXFP8_E4M3/32"
    for size in (np.int64(32), np.uint8(32)):
        same = BlockFormat(formats.E4M3, block_size=size)
        assert same == BlockFormat(formats.E4M3)
        assert type(same.block_size) is int
        assert fmt.with_block_size(size) is fmt
    for size in (32.0, True, "32"):
        with pytest.raises(TypeError, match="block_size must be an integer"):
            fmt.with_block_size(size)


def test_several_formats():
    assert block_formats(formats.FORMATS) == list(formats.FORMATS.values())
    assert block_formats(["nvfp4", formats.MXINT8]) == [formats.NVFP4, formats.MXINT8]
    with pytest.raises(ValueError, match="formats: 2 are named 'NVFP4'"):
        block_formats([formats.NVFP4, "nvfp4"])


@st.composite
def elements(draw):
    exponent_bits = draw(st.integers(0, 7))
    mantissa_bits = draw(st.integers(0 if exponent_bits else 1, 7 - max(exponent_bits, 1)))
    fixed = exponent_bits == 0
    bias = None if fixed else draw(st.none() | st.integers(-100, 100))
    specials = "none" if fixed else draw(st.sampled_from(["none", "nan", "ieee"]))
    try:
        return ElementFormat(exponent_bits, mantissa_bits, bias, specials)
    except ValueError:  # no number left, or beyond float32: see test_bad_input
        assume(False)


float32s = st.floats(width=32)
rows = st.lists(float32s, min_size=1, max_size=7) | st.lists(
    # of one binade or two, where the elements matter
    st.floats(0.25, 1, width=32),
    min_size=1,
    max_size=7,
)


@settings(max_examples=200, deadline=None)
@given(elements())
def test_tables_of_any_format_are_those_of_the_specification(element):
    assert [Fraction(v) for v in element.magnitudes.tolist()] == list(magnitudes_of(element))
    n = element.magnitudes.size
    assert np.array_equal(element.values[:n], element.magnitudes)
    assert not np.isfinite(element.values[n : 2 ** (element.bits - 1)]).any()
    assert math.frexp(element.largest)[1] - 1 == element.emax


@settings(max_examples=800, deadline=None)
@given(elements(), rows, st.sampled_from(RULES), st.integers(1, 5), st.integers(-120, 120))
def test_any_format_quantises_by_the_specification(element, row, rule, block_size, exponent):
    fmt = BlockFormat(element, block_size)
    with np.errstate(all="ignore"):
        array = np.ldexp(np.array([row], dtype=np.float32), exponent)
    for values in (array, array.astype(np.float64)):
        found = quantize(values, fmt, scale_rule=rule)
        for k in range(found.scales.shape[1]):
            part = slice(k * block_size, (k + 1) * block_size)
            codes, byte = quantize_block(array[0, part].tolist(), fmt, rule)
            assert found.scales[0, k] == byte
            assert found.codes[0, part].tolist() == codes


@settings(max_examples=500, deadline=None)
@given(
    elements(),
    st.integers(2, 7),
    st.integers(1, 6),
    st.none() | st.integers(-60, 127),
    rows,
    st.integers(-60, 60),
)
def test_any_floating_scale_by_the_specification(element, e, m, bias, row, exponent):
    assume(e + m <= 8)
    try:
        scale = ScaleFormat(e, m, bias)
    except ValueError:
        assume(False)
    fmt = BlockFormat(element, len(row), scale)
    with np.errstate(all="ignore"):
        array = np.ldexp(np.array([row], dtype=np.float32), exponent)
    table = magnitudes(e, m, bias, "nan")
    assert np.array_equal(scale.values[:-1], [float(v) for v in table])
    # The NaN's code is where the next value would be; half-way to it is a tie.
    largest = (table[-1] + magnitudes(e, m, bias, "none")[-1]) / 2
    a = np.abs(array).max()
    if math.isfinite(a):
        ratio = to_float32(Fraction(float(a)) / magnitudes_of(element)[-1])
        # All bits set are the NaN, so the largest scale's code is even: the tie stays below.
        if ratio > largest:
            with pytest.raises(ValueError, match="holds at most"):
                quantize(array, fmt)
            return
    codes, code = quantize_block(array[0].tolist(), fmt, None)
    found = quantize(array, fmt)
    assert found.scales.tolist() == [[code]]
    assert found.codes[0].tolist() == codes


@pytest.mark.parametrize("fmt", [*FORMATS.values(), formats.NVFP4.with_block_size(24)])
def test_a_format_is_made_again_from_its_key(fmt):
    assert format_of_key(fmt.key) == fmt


def test_formats_that_differ_in_anything_have_different_keys():
    own = [
        BlockFormat(ElementFormat(3, 2)),
        BlockFormat(ElementFormat(3, 2, bias=5)),
        BlockFormat(ElementFormat(3, 2, specials="nan")),
        BlockFormat(ElementFormat(3, 2), block_size=16),
        BlockFormat(ElementFormat(3, 2), scale=ScaleFormat(5, 3)),
        BlockFormat(ElementFormat(3, 2), scale=ScaleFormat(5, 3), tensor_scale=True),
        BlockFormat(ElementFormat(3, 2), name="mine"),
    ]
    assert len({fmt.key for fmt in own}) == len(own)
    assert [format_of_key(fmt.key) for fmt in own] == own


@pytest.mark.parametrize("key", ["", "MXINT8", "(1, 2)", "((4, 3), (8, 0), 32, False)", "f(1)"])
def test_another_string_is_no_key(key):
    with pytest.raises(ValueError, match="is not that of a block format"):
        format_of_key(key)
