"""Wrong arguments are refused in one line that says what would be right; empty arrays are not."""

import ml_dtypes
import numpy as np
import pytest

from mxstats import formats
from mxstats.formats import BlockFormat, ElementFormat, ScaleFormat, ScaleRule, quantize

X = np.ones((4, 64), dtype=np.float32)


def refused(error, match, function, *args, **kwargs):
    with pytest.raises(error, match=match) as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)


def test_unknown_format_lists_the_known_ones():
    refused(ValueError, "'FP8' is unknown", quantize, X, "FP8")
    for name in formats.FORMATS:
        refused(ValueError, name, quantize, X, "FP8")
    refused(TypeError, "BlockFormat or its name", quantize, X, 8)
    refused(TypeError, "BlockFormat or its name", quantize, X, formats.E4M3)


def test_unknown_rule_lists_the_known_ones():
    refused(
        ValueError,
        "'nearest' is unknown; known are floor, ceil, even, rceil",
        *(quantize, X, "MXFP8_E4M3"),
        scale_rule="nearest",
    )
    refused(ValueError, "3 is unknown", quantize, X, "MXFP8_E4M3", scale_rule=3)
    assert ScaleRule("RCEIL") is ScaleRule.RCEIL


@pytest.mark.parametrize("axis", [2, -3, 100])
def test_axis_out_of_range(axis):
    refused(ValueError, f"axis={axis}: out of range for 2 axes", quantize, X, "NVFP4", axis=axis)


@pytest.mark.parametrize("axis", ["0", 1.0, True, None, np.ones(2)], ids=repr)
def test_an_axis_that_is_no_integer(axis):
    refused(TypeError, "axis must be an integer, got", quantize, X, "NVFP4", axis=axis)
    assert quantize(X, "NVFP4", axis=np.int64(0)).axis == 0


@pytest.mark.parametrize("g", ["a", True, 1j, np.ones(3), np.ones(1), [1.0]], ids=repr)
def test_a_tensor_scale_that_is_no_number(g):
    refused(TypeError, "tensor_scale must be a real number", quantize, X, "NVFP4", tensor_scale=g)
    refused(ValueError, "tensor_scale must be", quantize, X, "NVFP4", tensor_scale=10**400)
    assert quantize(X, "NVFP4", tensor_scale=np.float32(0.5)).tensor_scale == 0.5


def test_masked_arrays():
    x = np.ma.array(X, mask=X > 0)
    refused(TypeError, "x must not be a masked array", quantize, x, "MXFP8_E4M3")
    codes = np.ma.array([[1]], mask=[[1]], dtype=np.uint8)
    refused(TypeError, "codes must not be a masked array", formats.pack, codes, 4)


def test_a_single_number():
    refused(ValueError, "at least one axis", quantize, np.float32(1)[...], "MXFP8_E4M3")


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int32", "int64", "uint64", "bool", "complex64", "O", "U3"]
)
def test_dtypes_that_are_no_float(dtype):
    refused(TypeError, "x has dtype", quantize, X.astype(dtype), "MXFP8_E4M3")


@pytest.mark.parametrize("dtype", [np.longdouble, ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
def test_other_dtypes(dtype):
    needed = "one of float16, bfloat16, float32, float64"
    refused(TypeError, needed, quantize, X.astype(dtype), "NVFP4")


@pytest.mark.parametrize("x", [[[1.0, 2.0]], 1.0, None, "x", (1.0,), np.float32(1)])
def test_no_array(x):
    refused(TypeError, "NumPy array or a torch tensor", quantize, x, "MXFP8_E4M3")


def test_torch_dtypes_that_are_no_float():
    torch = pytest.importorskip("torch")
    x = torch.ones(4, 64)
    for dtype in (torch.int64, torch.int8, torch.uint8, torch.bool, torch.complex64):
        refused(TypeError, "dtype", quantize, x.to(dtype), "MXFP8_E4M3")
    refused(
        TypeError,
        "x has dtype torch.float8_e4m3fn; one of",
        quantize,
        x.to(torch.float8_e4m3fn),
        "MXFP8_E4M3",
    )
    refused(ValueError, "at least one axis", quantize, x[0, 0], "MXFP8_E4M3")


def test_torch_tensors_without_values_of_their_own():
    torch = pytest.importorskip("torch")
    refused(TypeError, "x is a meta tensor", quantize, torch.empty(4, 64, device="meta"), "NVFP4")
    refused(TypeError, "to_dense", quantize, torch.eye(4).to_sparse(), "NVFP4")
    # The imaginary part of a conjugate is a view that is only marked as negated.
    z = torch.complex(torch.ones(4, 64), torch.linspace(-3, 5, 256).reshape(4, 64))
    marked = torch.imag(z.conj())
    assert marked.is_neg()
    found, plain = (quantize(one, "MXFP8_E4M3") for one in (marked, -z.imag.clone()))
    assert torch.equal(found.codes, plain.codes)
    assert torch.equal(found.scales, plain.scales)


def test_a_scale_that_the_format_cannot_hold():
    fmt = BlockFormat(formats.E2M1, 16, formats.E4M3_SCALE)
    # 448·6 is the end of the range; up to 464·6, a tie, the scale still rounds to 448.
    held = np.array([[448 * 6.0], [464 * 6.0]], dtype=np.float32)
    assert quantize(held, fmt).scales.tolist() == [[0x7E], [0x7E]]
    above = np.nextafter(held[1:], np.float32(np.inf))
    refused(ValueError, "needs 480 = absmax/6, but E4M3 holds at most 448", quantize, above, fmt)
    refused(ValueError, "/tensor_scale, but E4M3 holds", quantize, X, "NVFP4", tensor_scale=1e-4)
    refused(ValueError, "holds at most 448", quantize, X, "NVFP4", tensor_scale=2.0**-126)
    huge = np.full((1, 16), 3e38, dtype=np.float32)
    refused(ValueError, "needs inf", quantize, huge, "NVFP4", tensor_scale=2.0**-126)
    assert quantize(above, BlockFormat(formats.E2M1, 16, formats.E5M3_SCALE)).scales.size == 1


def test_arguments_that_the_format_does_not_take():
    for rule in (ScaleRule.FLOOR, "rceil"):
        refused(ValueError, "no rule to choose", quantize, X, "NVFP4", scale_rule=rule)
    refused(ValueError, "MXFP8_E4M3 has none", quantize, X, "MXFP8_E4M3", tensor_scale=1.0)
    for g in (0.0, -1.0, np.nan, np.inf, 1e300, 2.0**-127):
        refused(ValueError, "tensor_scale=", quantize, X, "NVFP4", tensor_scale=g)


def test_block_formats():
    for size in (0, -1):
        refused(ValueError, f"block_size={size}: must be", BlockFormat, formats.E4M3, size)
    for size in (2.0, True, "32", None):
        refused(TypeError, "block_size must be an integer", BlockFormat, formats.E4M3, size)
    refused(TypeError, "element must be an ElementFormat", BlockFormat, "E4M3")
    refused(TypeError, "scale must be a ScaleFormat", BlockFormat, formats.E4M3, 32, "E8M0")
    refused(ValueError, "power-of-two scales", BlockFormat, formats.E4M3, tensor_scale=True)


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (TypeError, "exponent_bits must be an integer", (4.0, 3)),
        (TypeError, "mantissa_bits must be an integer", (4, True)),
        (TypeError, "bias must be an integer or None", (4, 3, 7.0)),
        (ValueError, "neither may be negative", (-1, 3)),
        (ValueError, "neither may be negative", (3, -1)),
        (ValueError, "an element of 9 bits; 2 to 8", (5, 3)),
        (ValueError, "an element of 9 bits; 2 to 8", (0, 7)),
        (ValueError, "must be none, nan or ieee", (4, 3, None, "inf")),
        (ValueError, "no bias and no specials", (0, 6, 3)),
        (ValueError, "no bias and no specials", (0, 6, None, "nan")),
        (ValueError, "at least 2", (1, 3, None, "ieee")),
        (ValueError, "leaves no number but 0", (1, 0, None, "nan")),
        (ValueError, "bias=101", (4, 3, 101)),
        (ValueError, "bias=-101", (4, 3, -101)),
        (ValueError, "largest value below 2\\^128", (5, 2, -100)),
        (ValueError, "largest value below 2\\^128", (7, 0, -1)),
    ],
)
def test_element_formats(error, match, arguments):
    refused(error, match, ElementFormat, *arguments)


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (TypeError, "exponent_bits must be an integer", (4.0, 3)),
        (TypeError, "bias must be an integer or None", (4, 3, 7.0)),
        (ValueError, "8 bits in all at most", (6, 3)),
        (ValueError, "at least 2 exponent bits", (1, 3)),
        (ValueError, "must be E8M0", (5, 0)),
        (ValueError, "must be E8M0", (8, 0, 120)),
        (ValueError, "float32 does not hold", (4, 3, 128)),
        (ValueError, "float32 does not hold", (7, 1, -1)),
    ],
)
def test_scale_formats(error, match, arguments):
    refused(error, match, ScaleFormat, *arguments)


@pytest.mark.parametrize("fmt", ["MXFP8_E4M3", "NVFP4"])
@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (0, 0), (0,), (2, 0, 64)])
def test_empty_arrays_have_no_codes(fmt, shape):
    # No rows: no blocks. An empty axis: every row has none. A zero g is never made: it is 1.
    x = np.zeros(shape, dtype=np.float32)
    found = quantize(x, fmt)
    n_blocks = -(-shape[-1] // formats.block_format(fmt).block_size)
    assert found.codes.shape == shape
    assert found.scales.shape == (*shape[:-1], n_blocks)
    assert found.dequantize().shape == shape
    assert found.tensor_scale in (None, 1.0)
    if len(shape) == 2:
        assert quantize(x, fmt, axis=0).codes.shape == shape


@pytest.mark.parametrize("fmt", ["MXFP8_E4M3", "NVFP4"])
def test_empty_rows_take_no_time(fmt):
    # Going through them one by one would take days.
    x = np.zeros((10**14, 0), dtype=np.float32)
    assert quantize(x, fmt).codes.shape == (10**14, 0)


def test_empty_torch_tensors():
    torch = pytest.importorskip("torch")
    for shape in [(0, 64), (3, 0)]:
        found = quantize(torch.zeros(shape, dtype=torch.bfloat16), "MXFP8_E4M3")
        assert found.codes.shape == shape
        assert found.dequantize().shape == shape
