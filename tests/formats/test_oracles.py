"""Three independent implementations, and the list of the places where they differ from ours.

What is expected of each is our own result changed in the listed ways and in no others, so equality
is exact: a difference that docs/divergences.md does not list fails here.
"""

from pathlib import Path

import gfloat
import ml_dtypes
import numpy as np
import pytest
from gfloat import formats as gformats

from mxstats import formats
from mxstats.formats import BlockFormat, quantize
from mxstats.formats.rounding import encode
from tests.formats.byte_table import RULES
from tests.formats.inputs import MX, around, binade_borders, fuzz

DOCUMENT = Path(__file__).parents[2] / "docs" / "divergences.md"
FLOAT = [fmt for fmt in MX if fmt.element.exponent_bits]

ML_DTYPES = {
    "E4M3": ml_dtypes.float8_e4m3fn,
    "E5M2": ml_dtypes.float8_e5m2,
    "E3M2": ml_dtypes.float6_e3m2fn,
    "E2M3": ml_dtypes.float6_e2m3fn,
    "E2M1": ml_dtypes.float4_e2m1fn,
}
GFLOAT = {
    "E4M3": gformats.format_info_mxfp8_e4m3,
    "E5M2": gformats.format_info_mxfp8_e5m2,
    "E3M2": gformats.format_info_mxfp6_e3m2,
    "E2M3": gformats.format_info_mxfp6_e2m3,
    "E2M1": gformats.format_info_mxfp4_e2m1,
    "INT8": gformats.format_info_mxint8,
}
ALL = {
    name: np.arange(2**16, dtype=np.uint16).view(dtype)
    for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16))
}
# Numbers from one of a block of 32 to the next: half a binade, so that a block spans 16 of them.
STRIDE = {"float16": 512, "bfloat16": 64}


def mixed(name):
    """All numbers of a type in blocks of 32: neighbours, and spread over 16 binades."""
    x = ALL[name]
    spread = x.reshape(-1, 32, STRIDE[name]).swapaxes(1, 2).reshape(-1, 32)
    return np.concatenate([x.reshape(-1, 32), spread])


def float32_rows():
    """Random blocks, and blocks under every border of a binade ± 3 units in the last place."""
    borders = binade_borders(np.float32)
    below = fuzz(np.float32, borders.size * 31, seed=1).reshape(-1, 31)
    scale = np.abs(below).max(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        under = np.where(scale > 0, below / scale, 0).astype(np.float32) * borders[:, None]
    return np.concatenate(
        [
            fuzz(np.float32, 2000 * 32, seed=2).reshape(-1, 32),
            np.concatenate([borders[:, None], under.astype(np.float32)], axis=1),
        ]
    )


def finite_only(rows):
    return np.where(np.isfinite(rows.astype(np.float32)), rows, np.zeros(1, dtype=rows.dtype))


# ml_dtypes: casts, after clamping


@pytest.mark.parametrize("element", ML_DTYPES)
def test_ml_dtypes_casts(element):
    ours, theirs = getattr(formats, element), ML_DTYPES[element]
    borders = (ours.magnitudes[:-1] + ours.magnitudes[1:]) / 2
    near = around(borders.astype(np.float32), np.float32)
    for x in (*ALL.values(), near, -near, fuzz(np.float32, 20_000, seed=3)):
        values = x[np.isfinite(x.astype(np.float32))]
        wide = values.astype(np.float32)
        top = values.dtype.type(ours.largest)
        assert float(top) == ours.largest  # float16 and bfloat16 hold all five
        clamped = np.clip(values, -top, top)
        assert np.array_equal(encode(wide, ours), clamped.astype(theirs).view(np.uint8))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("fmt", FLOAT, ids=lambda fmt: fmt.name)
def test_ml_dtypes_casts_of_blocks(fmt, name):
    element = fmt.element
    for rows in (ALL[name][:, None], mixed(name)):
        rows = finite_only(rows)
        for rule in RULES:
            found = quantize(rows, fmt, scale_rule=rule)
            # In float64, where the division by a power of two is exact.
            scaled = rows.astype(np.float64) / np.ldexp(1.0, found.scales.astype(int) - 127)
            clamped = np.clip(scaled, -element.largest, element.largest).astype(np.float32)
            assert np.array_equal(found.codes, clamped.astype(ML_DTYPES[element.name]).view("u1"))
            decoded = found.codes.view(ML_DTYPES[element.name]).astype(np.float32)
            scale = found.scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
            with np.errstate(over="ignore"):
                assert np.array_equal(found.dequantize(), decoded * scale)


def test_ml_dtypes_tables():
    for element, theirs in ML_DTYPES.items():
        ours = getattr(formats, element)
        codes = np.arange(2**ours.bits, dtype=np.uint8)
        values = codes.view(theirs).astype(np.float32)
        assert np.array_equal(ours.values, values, equal_nan=True)
        assert np.array_equal(np.signbit(ours.values), np.signbit(values) & ~np.isnan(values) | (
            np.signbit(ours.values) & np.isnan(values)
        ))  # fmt: skip
    codes = np.arange(256, dtype=np.uint8)
    scales = codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    assert np.array_equal(formats.E8M0.values, scales, equal_nan=True)
    assert np.array_equal(scales.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8), codes)


# gfloat: round_float and quantize_block


def as_gfloat_rounds(values, element):
    """Our element values, with the code −128 where INT8 saturates below (gfloat-int8)."""
    ours = element.values[encode(values, element)]
    if element.name == "INT8":
        # The tie at −127.5/64 goes to the even −128.
        ours = np.where(values <= -127.5 / 64, np.float32(-2), ours)
    return ours


@pytest.mark.parametrize("element", GFLOAT)
def test_gfloat_round_float(element):
    ours, theirs = getattr(formats, element), GFLOAT[element].etype
    near = around(((ours.magnitudes[:-1] + ours.magnitudes[1:]) / 2), np.float32)
    for x in (*ALL.values(), near, -near, fuzz(np.float32, 5000, seed=4)):
        values = x[np.isfinite(x.astype(np.float32))].astype(np.float32)
        rounded = np.array([gfloat.round_float(theirs, v, sat=True) for v in values.tolist()])
        wanted = as_gfloat_rounds(values, ours)
        assert np.array_equal(rounded, wanted)
        assert np.array_equal(np.signbit(rounded), np.signbit(wanted))


def as_gfloat_quantises(rows, fmt):
    found = quantize(rows, fmt, scale_rule="floor")
    scale = np.ldexp(1.0, found.scales.astype(int) - 127)
    scale = np.repeat(scale, fmt.block_size, axis=1)[:, : rows.shape[1]]
    return as_gfloat_rounds(rows / scale, fmt.element) * scale


def gfloat_blocks(rows, fmt):
    info = GFLOAT[fmt.element.name]
    # float64, in which log2 tells 2^k from its float32 neighbours (gfloat-log2).
    blocks = rows.astype(np.float64)
    return np.stack([gfloat.quantize_block(info, b, gfloat.compute_scale_amax) for b in blocks])


@pytest.mark.parametrize("fmt", MX, ids=lambda fmt: fmt.name)
def test_gfloat_quantize_block(fmt):
    # The spread halves of the mixed blocks: each of the 65,536 numbers once.
    rows = [finite_only(mixed(name)[2**11 :]).astype(np.float64) for name in ALL]
    rows.append(float32_rows()[::8].astype(np.float64))
    for values in rows:
        wanted = as_gfloat_quantises(values, fmt)
        assert np.array_equal(gfloat_blocks(values, fmt), wanted)
        if fmt.element.name != "INT8":
            # Then the change is none, and this is our dequantised tensor.
            ours = quantize(values, fmt, scale_rule="floor").dequantize()
            assert np.array_equal(wanted, ours)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("fmt", [formats.MXFP8_E4M3, formats.MXINT8], ids=lambda fmt: fmt.name)
def test_gfloat_quantize_block_of_one_value(fmt, name):
    # The scale does not see the sign, so the upper half is left to the mixed blocks.
    alone = ALL[name][: 2**15, None]
    values = alone[np.isfinite(alone[:, 0].astype(np.float32))].astype(np.float64)
    assert np.array_equal(gfloat_blocks(values, fmt), as_gfloat_quantises(values, fmt))


def test_gfloat_tables():
    for element, info in GFLOAT.items():
        ours, theirs = getattr(formats, element), info.etype
        values = [gfloat.decode_float(theirs, code).fval for code in range(2**ours.bits)]
        assert np.array_equal(ours.values, values, equal_nan=True)
        assert (ours.bits, ours.emax) == (theirs.k, theirs.emax)
        assert ours.largest == min(theirs.max, 127 / 64 if element == "INT8" else np.inf)
        assert ours.smallest == theirs.smallest
        assert getattr(formats, f"MX{'' if element == 'INT8' else f'FP{theirs.k}_'}{element}")
    values = [gfloat.decode_float(gformats.format_info_ocp_e8m0, c).fval for c in range(256)]
    assert np.array_equal(formats.E8M0.values, values, equal_nan=True)


# torchao: to_mx and nvfp4_quantize


@pytest.fixture(scope="session")
def torchao():
    reason = "torchao, a third opinion on the casts, is an extra of the tests alone"
    pytest.importorskip("torch", reason=reason)
    pytest.importorskip("torchao.prototype.mx_formats.mx_tensor", reason=reason)
    return TorchAO()


class TorchAO:
    """torchao's casts on NumPy arrays: (scale bytes [R, K], codes [R, n])."""

    def __init__(self):
        import torch
        from torchao.prototype.mx_formats import config, kernels, mx_tensor, nvfp4_tensor

        self.torch, self.unpack = torch, kernels.unpack_uint4
        self.to_mx, self.nvfp4 = mx_tensor.to_mx, nvfp4_tensor
        self.modes = {mode.value: mode for mode in config.ScaleCalculationMode}
        self.dtypes = {
            "E4M3": torch.float8_e4m3fn,
            "E5M2": torch.float8_e5m2,
            "E3M2": "fp6_e3m2",
            "E2M3": "fp6_e2m3",
            "E2M1": torch.float4_e2m1fn_x2,
        }

    def tensor(self, rows):
        if rows.dtype == ml_dtypes.bfloat16:
            return self.torch.from_numpy(rows.view(np.int16).copy()).view(self.torch.bfloat16)
        # It takes no float16; float32 holds the same numbers.
        return self.torch.from_numpy(rows.astype(np.float32))

    def mx(self, rows, fmt, rule):
        dtype = self.dtypes[fmt.element.name]
        scales, codes = self.to_mx(self.tensor(rows), dtype, fmt.block_size, self.modes[rule])
        if fmt.element.name == "E2M1":
            codes = self.unpack(codes)
        return (part.view(self.torch.uint8).numpy() for part in (scales, codes))

    def nvfp4_quantize(self, rows, g=None):
        g = None if g is None else self.torch.tensor(g)
        scales, codes = self.nvfp4.nvfp4_quantize(self.tensor(rows), 16, g)
        return scales.view(self.torch.uint8).numpy(), self.unpack(codes).numpy()


def as_torchao_quantises(rows, fmt, rule):
    """Our scales and codes of rows of one block each, changed in the listed ways.

    Codes of blocks with NaN are not told: their byte is 255 in both (ao-nan-codes).
    """
    rows = rows.astype(np.float32)
    found = quantize(rows, fmt, scale_rule=rule)
    scales, codes = found.scales.copy(), found.codes.copy()
    nan = np.isnan(rows).any(axis=1)
    # ao-smallest-scale, ao-smallest-scale-rceil
    smallest = scales[:, 0] == 0
    factor = np.float32(1) if rule == "rceil" else np.float32(2.0**126)
    codes[smallest] = encode(rows[smallest] * factor, fmt.element)
    # ao-inf-floor, ao-inf-rceil
    infinite = np.isinf(rows).any(axis=1) & ~nan
    scales[infinite] = 254 if rule == "rceil" else 255 - fmt.element.emax
    top = np.float32(fmt.element.largest)
    inverse = np.ldexp(np.float32(1), 127 - scales[infinite].astype(np.int32))
    codes[infinite] = encode(np.clip(rows[infinite] * inverse, -top, top), fmt.element)
    return scales, codes, ~nan


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fmt", FLOAT, ids=lambda fmt: fmt.name)
def test_torchao_to_mx(torchao, fmt, rule):
    for name in ALL:
        # It packs 4-bit codes in pairs, so a lone number comes twice.
        for rows in (mixed(name), np.repeat(ALL[name][:, None], 2, axis=1)):
            blocks = BlockFormat(fmt.element, rows.shape[1])
            scales, codes = torchao.mx(rows, blocks, rule)
            wanted_scales, wanted_codes, told = as_torchao_quantises(rows, blocks, rule)
            assert np.array_equal(scales, wanted_scales)
            assert np.array_equal(codes[told], wanted_codes[told])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fmt", FLOAT, ids=lambda fmt: fmt.name)
def test_torchao_to_mx_of_float32(torchao, fmt, rule):
    rows = float32_rows()
    if rule == "rceil":
        # Blocks at the ratios absmax/largest that its rule has to tell from powers of two.
        edge = around(np.ldexp(np.float32(fmt.element.largest), np.arange(-110, 100)), np.float32)
        rows = np.concatenate([rows, np.repeat(edge[:, None], 32, axis=1)])
    scales, codes = torchao.mx(rows, fmt, rule)
    wanted_scales, wanted_codes, told = as_torchao_quantises(rows, fmt, rule)
    # ao-log2: one less where fl32(absmax/largest) is a little above a power of two. How far that
    # goes depends on torch's log2. The last place of a logarithm up to 128 is 2^-17, and half of it
    # 2^-18·ln 2·2^23 = 22 units of the ratio's last place; 64 leaves room for an inexact log2.
    lower = (wanted_scales - scales.astype(int))[:, 0] == 1
    if rule == "rceil":
        ratio = np.abs(rows[lower]).max(axis=1) / np.float32(fmt.element.largest)
        assert lower.sum() > 100
        assert np.all((ratio.view(np.uint32) & 0x7FFFFF) - np.uint32(1) < 64)
        inverse = np.ldexp(np.float32(1), 127 - scales[lower].astype(np.int32))
        # Its byte 0 comes with the factor 1.
        inverse = np.where(scales[lower] == 0, np.float32(1), inverse)
        wanted_codes[lower] = encode(rows[lower] * inverse, fmt.element)
        wanted_scales[lower] -= 1
    assert np.array_equal(scales, wanted_scales)
    assert np.array_equal(codes[told], wanted_codes[told])


@pytest.mark.parametrize("tensor_scale", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_torchao_nvfp4(torchao, tensor_scale, seed):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((4000, 16)) * np.exp2(rng.integers(-9, 6, (4000, 1)))
    # Half of them on ties, times a scale that E4M3 holds.
    scale = formats.E4M3_SCALE.values[rng.integers(8, 120, (2000, 1))]
    rows[::2] = rng.choice([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0], (2000, 16)) * scale
    rows = rows.astype(np.float32)
    fmt = formats.NVFP4 if tensor_scale else BlockFormat(formats.E2M1, 16, formats.E4M3_SCALE)
    found = quantize(rows, fmt)
    scales, codes = torchao.nvfp4_quantize(rows, found.tensor_scale)
    if tensor_scale:
        amax = torchao.torch.tensor(np.abs(rows).max())
        assert float(torchao.nvfp4.per_tensor_amax_to_scale(amax)) == found.tensor_scale
    assert np.array_equal(scales, found.scales)
    # ao-nvfp4-reciprocal
    g = np.float32(found.tensor_scale if tensor_scale else 1)
    inverse = (np.float32(1) / g) / formats.E4M3_SCALE.values[scales]
    assert inverse.dtype == np.float32
    assert np.array_equal(codes, encode(rows * inverse, formats.E2M1))
    assert np.any(codes != found.codes)
    # and nowhere but on ties: there the two codes are neighbours, and the value between them.
    differ = codes != found.codes
    values = formats.E2M1.values
    middle = (values[codes[differ]] + values[found.codes[differ]]) / 2
    wide = np.repeat(formats.E4M3_SCALE.values[scales] * g, 16, axis=1)[differ]
    # Two roundings apart from the tie at most, of 2^-24 each.
    assert np.all(np.abs(rows[differ] / wide / middle - 1) <= 2.0**-22)


# The document


def number(value):
    value = float(value)
    if np.isnan(value):
        return "NaN"
    return f"{value:.9g}"


def codes_of(codes):
    return "codes " + ", ".join(map(str, np.ravel(codes).tolist()))


def raised(function, *args):
    try:
        function(*args)
    except ValueError:
        return "ValueError"
    return "no error"


def f32(*values):
    return np.array([values], dtype=np.float32)


def independent_rows():
    """Id -> (theirs, ours), computed, for the libraries that the base tests have."""
    e4m3, e5m2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
    double = np.array([17 + 2.0**-40])
    block = quantize(np.append(double, 448.0)[None], "MXFP8_E4M3").dequantize()[0, 0]
    zero = f32(0)
    prev = np.nextafter(np.float32(256), np.float32(0))
    infinite = gfloat.quantize_block(
        GFLOAT["E4M3"], np.array([np.inf, 1.0]), gfloat.compute_scale_amax
    )
    assert infinite.tolist() == [448 * 2.0**127, 0.0]
    bad = f32(np.nan, 1)
    dead = quantize(f32(np.inf, 1), "MXFP8_E4M3").dequantize()[0]
    int8 = np.array([-1.9921875])
    return {
        "ml-overflow": (
            number(f32(465).astype(e4m3)[0, 0]),
            number(formats.E4M3.values[encode(f32(465), formats.E4M3)][0, 0]),
        ),
        "ml-overflow-e5m2": (
            number(f32(1e6).astype(e5m2)[0, 0]),
            number(formats.E5M2.values[encode(f32(1e6), formats.E5M2)][0, 0]),
        ),
        "ml-double": (number(double.astype(e4m3)[0]), number(block)),
        "ml-zero-scale": (
            str(zero.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)[0, 0]),
            str(quantize(zero, "MXFP8_E4M3").scales[0, 0]),
        ),
        "gfloat-int8": (
            number(gfloat.round_float(GFLOAT["INT8"].etype, int8[0].item(), sat=True)),
            number(formats.INT8.values[encode(int8, formats.INT8)][0]),
        ),
        "gfloat-nan": (
            raised(gfloat.quantize_block, GFLOAT["E2M1"], bad[0], gfloat.compute_scale_amax),
            f"byte {quantize(bad, 'MXFP4_E2M1').scales[0, 0]}",
        ),
        "gfloat-inf": ("448·2^127, 0", ", ".join(map(number, dead))),
        "gfloat-log2": tuple(
            f"2^{int(np.log2(scale))}"
            for scale in (
                gfloat.compute_scale_amax(8, f32(prev)),
                formats.E8M0.values[quantize(f32(prev), "MXFP8_E4M3").scales[0, 0]],
            )
        ),
    }


def torchao_rows(torchao):
    """Id -> (theirs, ours), computed."""
    pair = BlockFormat(formats.E4M3, 2)
    inf, nan, tiny = f32(np.inf, 1), f32(np.nan, 1), f32(448 * 2.0**-127, 0)
    above = np.nextafter(np.float32(448 * 2.0**100), np.float32(np.inf))
    single = BlockFormat(formats.E2M1, 16, formats.E4M3_SCALE)

    def scales(rows, rule):
        theirs, _ = torchao.mx(rows, pair, rule)
        ours = quantize(rows, pair, scale_rule=rule).scales
        return f"byte {theirs[0, 0]}", f"byte {ours[0, 0]}"

    def codes(rows, rule):
        _, theirs = torchao.mx(rows, pair, rule)
        return codes_of(theirs), codes_of(quantize(rows, pair, scale_rule=rule).codes)

    def padded(*values):
        return f32(*values, *[0] * (16 - len(values)))

    def scale(byte):
        value = number(formats.E4M3_SCALE.values[byte & 0x7F])  # its NaN may have a sign
        return f"scale {'2^-6' if value == '0.015625' else value}"

    tie = padded(90, 18.75)  # the scale is 15, and 18.75 = 1.25·15
    zeros = padded(0)
    g = torchao.nvfp4.per_tensor_amax_to_scale(torchao.torch.tensor(0.0)).item()
    return {
        "ao-inf-floor": scales(inf, "floor"),
        "ao-inf-rceil": scales(inf, "rceil"),
        "ao-nan-codes": codes(nan, "floor"),
        "ao-smallest-scale": codes(tiny, "floor"),
        "ao-smallest-scale-rceil": codes(tiny, "rceil"),
        "ao-log2": scales(f32(above, above), "rceil"),
        "ao-nvfp4-reciprocal": (
            codes_of(torchao.nvfp4_quantize(tie)[1][0, :2]),
            codes_of(quantize(tie, single).codes[0, :2]),
        ),
        "ao-nvfp4-overflow": (
            scale(torchao.nvfp4_quantize(padded(6000))[0][0, 0]),
            raised(quantize, padded(6000), single),
        ),
        "ao-nvfp4-inf": (
            scale(torchao.nvfp4_quantize(padded(np.inf, 1))[0][0, 0]),
            scale(quantize(padded(np.inf, 1), single).scales[0, 0]),
        ),
        "ao-nvfp4-zero": (
            scale(torchao.nvfp4_quantize(zeros, g)[0][0, 0]),
            scale(quantize(zeros, "NVFP4").scales[0, 0]),
        ),
    }


def documented():
    """Id -> (theirs, ours), as the document has them."""
    lines = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in DOCUMENT.read_text(encoding="utf-8").splitlines()
        if line.startswith("|")
    ]
    assert lines[0] == ["id", "library", "operation", "input", "theirs", "ours", "why"]
    assert all(len(line) == 7 for line in lines)
    return {line[0]: (line[4], line[5]) for line in lines[2:]}


def test_the_document_lists_the_divergences_of_ml_dtypes_and_gfloat():
    listed = {key: row for key, row in documented().items() if not key.startswith("ao-")}
    assert listed == independent_rows()


def test_the_document_lists_the_divergences_of_torchao(torchao):
    listed = {key: row for key, row in documented().items() if key.startswith("ao-")}
    assert listed == torchao_rows(torchao)
    assert all(theirs != ours for theirs, ours in documented().values())
