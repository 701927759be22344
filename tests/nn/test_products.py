"""What dequantised operands are multiplied in: bfloat16 equals float32 as far as it is said to."""

import pytest
import torch

from mxstats import formats
from mxstats.nn import MXLinear, MXNormLinear, RMSNormLinear
from mxstats.nn.products import Operand, plain, product, quantised, quantised_both
from mxstats.nn.settings import cast_settings
from tests.nn.oracle import (
    CASES,
    E4M3_E5M3,
    case_name,
    dequantised,
    gradients_of,
    randomise,
    relative,
    rows_of,
    same_bits,
)


def cast_of(fmt, rule=None, operands="auto"):
    return cast_settings(fmt, rule, operands=operands)[0]


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_operands_are_the_reference_quantisers(case):
    fmt, rule = case
    cast = cast_of(fmt, rule)
    x = rows_of(50, 44, seed=1) * torch.logspace(-6, 6, 44)
    rows, columns = quantised_both(x, cast)
    for operand, axis in (
        (quantised(x, cast, 1), 1),
        (quantised(x, cast, 0), 0),
        (rows, 1),
        (columns, 0),
    ):
        assert operand.factor is None, "float32 takes all of it"
        assert same_bits(operand.values, dequantised(x, fmt, rule, axis))
    if fmt.tensor_scale:
        g = 2000.0
        given = quantised(x, cast, 1, tensor_scale=g)
        assert same_bits(given.values, dequantised(x, fmt, rule, 1, g))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_product_is_accumulated_in_float32_and_rounded_once(dtype):
    # Sums that bfloat16 or float16 accumulation would lose: 256 + 1·4096, one at a time.
    a, b = torch.ones(2, 4097), torch.ones(4097, 3)
    a[:, 0] = 256.0
    kinds = [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16)]
    if dtype == torch.float16:
        kinds.append((torch.float16, torch.float16))
    for kind, other in kinds:
        out = product(Operand(a.to(kind), None), Operand(b.to(other), None), dtype)
        assert out.dtype == dtype
        assert torch.equal(out, torch.full((2, 3), 4352.0).to(dtype))


def test_a_product_of_float32_is_not_lowered_by_autocast():
    a, b = rows_of(8, 64, seed=2), rows_of(64, 8, seed=3)
    wanted = torch.mm(a, b)
    with torch.autocast("cpu", torch.bfloat16):
        assert same_bits(product(plain(a, torch.float32), Operand(b, None), torch.float32), wanted)
        once = product(plain(a, torch.float32), Operand(b, None), torch.bfloat16)
    assert same_bits(once, wanted.bfloat16())


@pytest.mark.parametrize("make", [MXNormLinear, RMSNormLinear, MXLinear])
@pytest.mark.parametrize("name", ["MXFP8_E4M3", "MXFP8_E5M2", "MXFP6_E2M3", "MXFP4_E2M1", "MXINT8"])
def test_bfloat16_operands_are_float32s_bit_for_bit(make, name):
    features = 40 if make is MXLinear else (40, 24)
    one, other = (
        randomise(make(72, features, fmt=name, operands=each)) for each in ("bfloat16", "float32")
    )
    # Sixty binades of rows and gradients: nothing of them is near 2^−133.
    x = rows_of(40, 72, seed=4) * torch.logspace(-9, 9, 40)[:, None]
    d = [rows_of(40, n, seed=n) for n in ((40,) if make is MXLinear else (40, 24))]
    outputs, found = gradients_of(one, x, d)
    plain_outputs, plain_found = gradients_of(other, x, d)
    # The numbers are the same, and without a bfloat16 result a CPU multiplies them in float32.
    for ours, theirs in zip(outputs, plain_outputs, strict=True):
        assert same_bits(ours, theirs)
    for key, gradient in found.items():
        assert same_bits(gradient, plain_found[key]), key


@pytest.mark.parametrize("make", [MXNormLinear, RMSNormLinear, MXLinear])
def test_bfloat16_operands_with_a_tensor_scale(make):
    one, other = (
        randomise(make(80, 40, fmt="NVFP4", operands=each)) for each in ("bfloat16", "float32")
    )
    x, d = rows_of(48, 80, seed=5), [rows_of(48, 40, seed=6)]
    outputs, found = gradients_of(one, x, d)
    plain_outputs, plain_found = gradients_of(other, x, d)
    # g stands outside the product instead of in every scale: roundings of 6e-8 each, at most one
    # for each term and two for the sum.
    assert relative(outputs[0], plain_outputs[0]) < 5e-7
    for key, gradient in found.items():
        assert relative(gradient, plain_found[key]) < 5e-7, key
    operand = quantised(x, cast_of("NVFP4", operands="bfloat16"), 1)
    made = formats.quantize(x, "NVFP4")
    assert operand.values.dtype == torch.bfloat16
    assert float(operand.factor) == made.tensor_scale
    exact = operand.values.double() * made.tensor_scale
    # In the float32 of the reference fl32(s·g)·e is rounded twice.
    torch.testing.assert_close(made.dequantize().double(), exact, rtol=1.2e-7, atol=0.0)


def test_bfloat16_operands_of_a_floating_scale_without_a_tensor_scale():
    x = rows_of(32, 64, seed=7)
    operand = quantised(x, cast_of(E4M3_E5M3, operands="bfloat16"), 1)
    assert operand.values.dtype == torch.bfloat16
    assert operand.factor is None
    assert torch.equal(operand.values.float(), dequantised(x, E4M3_E5M3, None, 1))


def test_numbers_below_bfloat16s_last_place_need_float32():
    # E4M3 under its smallest scales reaches 2^−136.
    x = rows_of(4, 32, seed=8) * 2.0**-131
    wanted = dequantised(x, formats.MXFP8_E4M3, None, 1)
    one = quantised(x, cast_of("MXFP8_E4M3", operands="bfloat16"), 1).values
    other = quantised(x, cast_of("MXFP8_E4M3", operands="float32"), 1).values
    assert same_bits(other, wanted)
    assert not torch.equal(one.float(), wanted)
    assert same_bits(one, wanted.bfloat16())


def test_auto_is_float32_on_a_cpu():
    assert quantised(rows_of(2, 32), cast_of("MXFP8_E4M3"), 1).values.dtype == torch.float32


@pytest.mark.parametrize("operands", ["auto", "bfloat16"])
def test_16_bit_results_of_either_kind_of_operands(operands):
    module = randomise(MXNormLinear(64, 32, operands=operands, dtype=torch.bfloat16))
    wanted = randomise(MXNormLinear(64, 32, operands="float32", dtype=torch.bfloat16))
    x = rows_of(32, 64, seed=9, dtype=torch.bfloat16)
    found, exact = module(x), wanted(x)
    # Two orders of a float32 sum may end on two sides of a bfloat16's border: a last place of some
    # elements, 2^−8 of each.
    torch.testing.assert_close(found, exact, rtol=2.0**-7, atol=1e-6)
    assert (found != exact).float().mean() < 0.02
