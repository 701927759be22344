"""The blocked scale layout: literal loops, a table of offsets, torch's and torchao's own."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxstats.formats import from_blocked, quantize, to_blocked


def loops(scales):
    """The definition, entry by entry."""
    rows, columns = scales.shape
    down, across = (rows + 127) // 128, (columns + 3) // 4
    blocked = [0] * (512 * down * across)
    for row in range(rows):
        for column in range(columns):
            r, c = row % 128, column % 4
            tile = (row // 128) * across + column // 4
            blocked[512 * tile + (r % 32) * 16 + (r // 32) * 4 + c] = int(scales[row, column])
    return blocked


def numbered(rows, columns, seed=0):
    return np.random.default_rng(seed).integers(1, 256, (rows, columns), dtype=np.uint8)


@pytest.mark.parametrize(
    ("row", "column", "offset"),
    [
        (0, 0, 0), (0, 3, 3), (1, 0, 16), (31, 3, 499), (32, 0, 4), (64, 0, 8), (96, 0, 12),
        (127, 3, 511), (0, 4, 512), (0, 7, 515), (128, 0, 1024), (160, 5, 1536 + 5),
    ],
)  # fmt: skip
def test_offsets_by_hand(row, column, offset):
    # 256 × 8 scales: two tiles across, two down.
    scales = np.zeros((256, 8), dtype=np.uint8)
    scales[row, column] = 7
    blocked = to_blocked(scales)
    assert blocked.shape == (2048,)
    assert np.flatnonzero(blocked).tolist() == [offset]


@pytest.mark.parametrize(
    "shape",
    [(128, 4), (1, 1), (127, 3), (129, 5), (128, 8), (256, 4), (300, 13), (1, 128), (0, 4), (4, 0)],
)
def test_against_loops_and_back(shape):
    scales = numbered(*shape)
    blocked = to_blocked(scales)
    assert blocked.dtype == np.uint8
    assert blocked.tolist() == loops(scales)
    assert np.array_equal(from_blocked(blocked, *shape), scales)


@settings(max_examples=30)
@given(st.integers(0, 280), st.integers(0, 18), st.integers(0, 100))
def test_any_shape_comes_back(rows, columns, seed):
    scales = numbered(rows, columns, seed)
    blocked = to_blocked(scales)
    assert blocked.size == 512 * -(-rows // 128) * -(-columns // 4)
    # Padding is 0 and nothing else is (the scales above are not).
    assert np.count_nonzero(blocked) == scales.size
    assert np.array_equal(from_blocked(blocked, rows, columns), scales)


def test_padding_is_not_read():
    scales = numbered(130, 6)
    marked = np.where(to_blocked(scales) == 0, 255, to_blocked(scales)).astype(np.uint8)
    assert np.array_equal(from_blocked(marked, 130, 6), scales)


def test_views_and_shapes():
    scales = numbered(12, 200)
    assert to_blocked(scales.T[::-1]).tolist() == loops(scales.T[::-1])
    blocked = to_blocked(scales)
    # As torchao keeps it, 32 × 16 a tile.
    assert np.array_equal(from_blocked(blocked.reshape(-1, 32, 16), 12, 200), scales)
    back = from_blocked(blocked, 12, 200)
    back[:] = 0
    assert blocked.any()


def test_scales_of_the_quantiser():
    x = np.random.default_rng(0).standard_normal((200, 300)).astype(np.float32)
    scales = quantize(x, "nvfp4").scales
    assert to_blocked(scales).tolist() == loops(scales)


class TestTorch:
    """Tensors in, tensors out; and layouts that others wrote."""

    @pytest.fixture(autouse=True)
    def torch(self):
        self.torch = pytest.importorskip("torch")

    @pytest.mark.parametrize("shape", [(128, 4), (129, 5), (300, 13), (1, 1)])
    def test_tensors_come_back_as_tensors(self, shape):
        scales = numbered(*shape)
        blocked = to_blocked(self.torch.from_numpy(scales))
        assert isinstance(blocked, self.torch.Tensor)
        assert blocked.tolist() == loops(scales)
        back = from_blocked(blocked, *shape)
        assert isinstance(back, self.torch.Tensor)
        assert np.array_equal(back.numpy(), scales)

    @pytest.mark.parametrize(
        "module",
        ["torch.testing._internal.common_quantized", "torchao.prototype.mx_formats.utils"],
    )
    @pytest.mark.parametrize("shape", [(128, 4), (129, 5), (300, 13), (1, 1), (512, 128)])
    def test_as_torch_and_torchao_lay_it_out(self, module, shape):
        other = pytest.importorskip(module)
        scales = self.torch.from_numpy(numbered(*shape))
        theirs = other.to_blocked(scales)
        assert self.torch.equal(to_blocked(scales), theirs)
        assert self.torch.equal(from_blocked(theirs, *shape), scales)

    def test_e8m0_tensors_have_to_be_viewed_as_bytes(self):
        scales = self.torch.zeros(2, 2, dtype=self.torch.uint8).view(self.torch.float8_e8m0fnu)
        with pytest.raises(TypeError, match=r"scales has dtype torch\.float8_e8m0fnu; uint8"):
            to_blocked(scales)


tile = np.zeros(512, dtype=np.uint8)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: to_blocked(tile), ValueError, "scales has 1 axes; two are needed"),
        (lambda: to_blocked(tile.reshape(2, 2, 128)), ValueError, "scales has 3 axes"),
        (lambda: to_blocked(np.ones((2, 2))), TypeError, "scales has dtype float64; uint8"),
        (lambda: to_blocked([[1]]), TypeError, "scales must be a NumPy array or a torch tensor"),
        (lambda: from_blocked(tile, 129, 4), ValueError, "blocked has 512 bytes; rows=129, col"),
        (lambda: from_blocked(tile, 128, 5), ValueError, "rows=128, columns=5 take 1024"),
        (lambda: from_blocked(tile[:-1], 1, 1), ValueError, "blocked has 511 bytes"),
        (lambda: from_blocked(tile, -1, 1), ValueError, "rows=-1, columns=1: neither may be neg"),
        (lambda: from_blocked(tile, 1.0, 1), TypeError, "rows must be an integer, got 1.0"),
        (lambda: from_blocked(tile, 1, True), TypeError, "columns must be an integer, got True"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
