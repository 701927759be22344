"""Packed codes: literal bytes, a bit stream built bit by bit, torch's and torchao's own packing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from mxstats.formats import FORMATS, pack, quantize, unpack

GROUP = {4: 2, 6: 4, 8: 1}


def stream(codes, bits):
    """Bytes of one row of codes: bit b of code i is bit b + i·bits of a little-endian integer."""
    filled = list(codes) + [0] * (-len(codes) % GROUP[bits])
    number = sum(int(code) << (i * bits) for i, code in enumerate(filled))
    return list(number.to_bytes(len(filled) * bits // 8, "little"))


@pytest.mark.parametrize(
    ("codes", "bits", "packed"),
    [
        ([0x1, 0x2], 4, [0x21]),
        ([0x1, 0x2, 0x3, 0x4], 4, [0x21, 0x43]),
        ([0xF], 4, [0x0F]),
        ([0x7, 0x8, 0x9], 4, [0x87, 0x09]),
        ([0b111111, 0, 0, 0], 6, [0b00111111, 0, 0]),
        ([0, 0b111111, 0, 0], 6, [0b11000000, 0b00001111, 0]),
        ([0, 0, 0b111111, 0], 6, [0, 0b11110000, 0b00000011]),
        ([0, 0, 0, 0b111111], 6, [0, 0, 0b11111100]),
        ([0b000001, 0b000010, 0b000011, 0b000100], 6, [0b10000001, 0b00110000, 0b00010000]),
        ([0b100001], 6, [0b00100001, 0, 0]),
        ([1, 2, 3, 4, 5], 6, [0b10000001, 0b00110000, 0b00010000, 5, 0, 0]),
        ([0, 127, 255], 8, [0, 127, 255]),
        ([], 4, []),
        ([], 6, []),
    ],
)
def test_literal_bytes(codes, bits, packed):
    given_codes = np.array(codes, dtype=np.uint8)
    found = pack(given_codes, bits)
    assert found.dtype == np.uint8
    assert found.tolist() == packed
    assert unpack(found, bits, len(codes)).tolist() == codes


@st.composite
def codes_and_bits(draw):
    bits = draw(st.sampled_from([4, 6, 8]))
    shape = draw(array_shapes(max_dims=3, min_side=0, max_side=9))
    return draw(arrays(np.uint8, shape, elements=st.integers(0, 2**bits - 1))), bits


@given(codes_and_bits())
def test_rows_are_bit_streams_and_come_back(drawn):
    codes, bits = drawn
    packed = pack(codes, bits)
    n = codes.shape[-1]
    assert packed.shape == (*codes.shape[:-1], len(stream([0] * n, bits)))
    rows = codes.reshape(int(np.prod(codes.shape[:-1])), n)
    flat = packed.reshape(len(rows), packed.shape[-1])
    for row, found in zip(rows, flat, strict=True):
        assert found.tolist() == stream(row, bits)
    assert np.array_equal(unpack(packed, bits, n), codes)


@pytest.mark.parametrize("bits", [4, 6])
def test_every_code_in_every_place(bits):
    place = GROUP[bits]
    every = np.zeros((place, 2**bits, place), dtype=np.uint8)
    for i in range(place):
        every[i, :, i] = np.arange(2**bits)
    packed = pack(every, bits)
    expected = [[stream(group, bits) for group in groups] for groups in every.tolist()]
    assert packed.tolist() == expected
    assert np.array_equal(unpack(packed, bits, place), every)


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_strided_views_and_what_they_are_views_of_stay_as_they_were(bits):
    codes = (np.arange(7 * 12) % 2**bits).astype(np.uint8).reshape(7, 12)
    before = codes.copy()
    view = codes.T[::2, ::-1]
    assert np.array_equal(pack(view, bits), pack(view.copy(), bits))
    assert np.array_equal(unpack(pack(view, bits), bits, 7), view)
    assert np.array_equal(codes, before)
    codes.flags.writeable = False
    assert np.array_equal(unpack(pack(codes, bits), bits, 12), before)


def test_eight_bits_are_the_identity():
    codes = np.arange(256, dtype=np.uint8)
    assert pack(codes, 8) is codes
    assert unpack(codes, 8, 256) is codes


@pytest.mark.parametrize("fmt", [f for f in FORMATS.values() if f.element.bits < 8], ids=str)
def test_codes_of_the_quantiser_are_packed(fmt):
    x = np.random.default_rng(0).standard_normal((5, 75)).astype(np.float32)
    codes = quantize(x, fmt).codes
    bits = fmt.element.bits
    packed = pack(codes, bits)
    assert packed.nbytes == 5 * len(stream([0] * 75, bits))
    assert np.array_equal(unpack(packed, bits, 75), codes)


class TestTorch:
    """Tensors in, tensors out; and packing that others wrote."""

    @pytest.fixture(autouse=True)
    def torch(self):
        self.torch = pytest.importorskip("torch")

    @pytest.mark.parametrize("bits", [4, 6, 8])
    def test_tensors_come_back_as_tensors(self, bits):
        codes = np.random.default_rng(bits).integers(0, 2**bits, (3, 11), dtype=np.uint8)
        tensor = self.torch.from_numpy(codes)
        packed = pack(tensor, bits)
        assert isinstance(packed, self.torch.Tensor)
        assert packed.dtype == self.torch.uint8
        assert np.array_equal(packed.numpy(), pack(codes, bits))
        back = unpack(packed, bits, 11)
        assert isinstance(back, self.torch.Tensor)
        assert self.torch.equal(back, tensor)

    def test_a_transposed_tensor(self):
        tensor = (self.torch.arange(24, dtype=self.torch.uint8) % 16).reshape(4, 6)
        assert self.torch.equal(pack(tensor.T, 4), pack(tensor.T.contiguous(), 4))

    def test_float4_as_torchs_own_helper_makes_it(self):
        # float4_e2m1fn_x2 has no cast of its own on a CPU; this helper is what torch's tests of
        # its fp4 products use.
        quantized = pytest.importorskip("torch.testing._internal.common_quantized")
        values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
        x = self.torch.tensor([values + [-v for v in values]] * 2)
        x[1] = x[1, self.torch.randperm(16, generator=self.torch.Generator().manual_seed(0))]
        theirs = quantized._bfloat16_to_float4_e2m1fn_x2(x.bfloat16())
        assert theirs.dtype == self.torch.float4_e2m1fn_x2
        # A largest value of 6 makes the block's scale 2^0 under FLOOR, so that codes are casts.
        ours = quantize(x, "mxfp4_e2m1")
        assert (ours.scales == 127).all()
        assert self.torch.equal(pack(ours.codes, 4), theirs.view(self.torch.uint8))

    def test_float4_codes_view_as_torchs_type(self):
        packed = pack(self.torch.arange(16, dtype=self.torch.uint8), 4)
        assert packed.view(self.torch.float4_e2m1fn_x2).shape == (8,)

    def test_four_bits_as_torchao_packs_them(self):
        kernels = pytest.importorskip("torchao.prototype.mx_formats.kernels")
        generator = self.torch.Generator().manual_seed(1)
        codes = self.torch.randint(0, 16, (6, 64), dtype=self.torch.uint8, generator=generator)
        assert self.torch.equal(pack(codes, 4), kernels.pack_uint4(codes))
        assert self.torch.equal(unpack(pack(codes, 4), 4, 64), kernels.unpack_uint4(pack(codes, 4)))

    def test_torch_dtypes_that_are_not_bytes(self):
        packed = pack(self.torch.zeros(4, dtype=self.torch.uint8), 4)
        with pytest.raises(TypeError, match=r"packed has dtype torch\.float4_e2m1fn_x2; uint8"):
            unpack(packed.view(self.torch.float4_e2m1fn_x2), 4, 4)
        with pytest.raises(TypeError, match=r"codes has dtype torch\.int64; uint8"):
            pack(self.torch.zeros(4, dtype=self.torch.int64), 4)


codes = np.zeros(4, dtype=np.uint8)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: pack(np.array([16], np.uint8), 4), ValueError, "codes has a code 16: at most 15"),
        (lambda: pack(np.array([1, 64], np.uint8), 6), ValueError, "codes has a code 64: at most"),
        (lambda: pack(codes.astype(np.int8), 4), TypeError, "codes has dtype int8; uint8"),
        (lambda: pack(codes.astype(np.float32), 4), TypeError, "codes has dtype float32; uint8"),
        (lambda: pack([1, 2], 4), TypeError, "codes must be a NumPy array or a torch tensor"),
        (lambda: pack(np.uint8(3), 4), TypeError, "codes must be a NumPy array"),
        (lambda: pack(np.array(3, np.uint8), 4), ValueError, "codes is a single number"),
        (lambda: unpack(np.array(3, np.uint8), 4, 1), ValueError, "packed is a single number"),
        (lambda: pack(codes, 5), ValueError, "bits=5: codes of 4, 6 or 8 bits"),
        (lambda: pack(codes, True), TypeError, "bits must be an integer, got True"),
        (lambda: pack(codes, 4.0), TypeError, "bits must be an integer, got 4.0"),
        (lambda: unpack(codes, 7, 4), ValueError, "bits=7: codes of 4, 6 or 8 bits"),
        (lambda: unpack(codes, 4, 9), ValueError, "n=9: 4 bytes hold 7 to 8 codes of 4 bits"),
        (lambda: unpack(codes, 4, 6), ValueError, "n=6: 4 bytes hold 7 to 8 codes of 4 bits"),
        (lambda: unpack(codes, 4, -1), ValueError, "n=-1: 4 bytes hold 7 to 8 codes"),
        (lambda: unpack(codes[:3], 6, 5), ValueError, "n=5: 3 bytes hold 1 to 4 codes of 6 bits"),
        (lambda: unpack(codes, 6, 5), ValueError, "4 bytes hold no whole number of groups of"),
        (lambda: unpack(codes, 8, 3), ValueError, "n=3: 4 bytes hold 4 codes of 8 bits"),
        (lambda: unpack(codes[:0], 4, 1), ValueError, "n=1: 0 bytes hold 0 codes"),
        (lambda: unpack(codes, 4, 7.0), TypeError, "n must be an integer, got 7.0"),
        (lambda: unpack(np.array([0x10], np.uint8), 4, 1), ValueError, "n=1: a code other than 0"),
        (lambda: unpack(np.array([0, 0, 4], np.uint8), 6, 3), ValueError, "n=3: a code other than"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
