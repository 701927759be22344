"""The fused cast against the reference quantiser, with zero tolerance."""

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from mxstats import formats
from mxstats.kernels import mx_cast, mx_cast_triton
from mxstats.kernels.mx_cast import _mx_cast, empty_outputs
from mxstats.kernels.spec import cast_spec
from tests.kernels.cast_cases import (
    CASES,
    COMPILED,
    FLOATS,
    case_name,
    held,
    normal,
    rows_of,
    to_numpy,
    to_torch,
)

E4M3, NVFP4 = formats.MXFP8_E4M3, formats.NVFP4
AXES = ["rows", "columns", "both"]
FEW = [(E4M3, "rceil"), (formats.MXINT8, "even"), (NVFP4, None)]


def equal(tensor, array):
    np.testing.assert_array_equal(to_numpy(tensor), array)


def check(made, x, fmt, rule, axis):
    """Codes and scales of one axis, or of both, equal the reference's."""
    pairs = [(made.codes, made.scales, 0 if axis == "columns" else -1)]
    if axis == "both":
        pairs.append((made.column_codes, made.column_scales, 0))
    else:
        assert made.column_codes is made.column_scales is None
    for codes, scales, along in pairs:
        wanted = formats.quantize(x, fmt, scale_rule=rule, axis=along)
        equal(scales, wanted.scales)
        equal(codes, wanted.codes)
        if wanted.tensor_scale is None:
            assert made.tensor_scale is None
        else:
            assert made.tensor_scale.item() == wanted.tensor_scale


def cast(x, case, axis, backend, device):
    fmt, rule = case
    tensor = to_torch(x, device)
    return mx_cast(tensor, fmt=fmt, scale_rule=rule, axis=axis, backend=backend)


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_every_format_and_rule(case, backend, device):
    # Short last blocks both ways.
    x = held(rows_of((40, 72), "float32", 3), case[0])
    check(cast(x, case, "both", backend, device), x, *case, "both")


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", FEW, ids=case_name)
def test_every_dtype_along_every_axis(case, dtype, axis, backend, device):
    x = rows_of((40, 150), dtype, 4)
    check(cast(x, case, axis, backend, device), x, *case, axis)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("blocked", [False, True])
def test_a_block_far_longer_than_the_row(blocked, axis, backend, device):
    """A tile as wide as the block would be more than a program can hold."""
    fmt = formats.BlockFormat(formats.E4M3, block_size=4_000_000)
    x = rows_of((40, 72), "bfloat16", 6)
    layout = "blocked" if blocked else "rows"
    made = mx_cast(to_torch(x, device), fmt=fmt, axis=axis, scale_layout=layout, backend=backend)
    # A block of the row's own length is the same block.
    for along, codes, scales in (
        (-1, made.codes, made.scales),
        (0, made.column_codes if axis == "both" else made.codes, made.column_scales),
    ):
        if axis not in ("both", "columns" if along == 0 else "rows"):
            continue
        scales = made.scales if scales is None else scales
        own = formats.BlockFormat(formats.E4M3, block_size=x.shape[along])
        wanted = formats.quantize(x, own, axis=along)
        equal(codes, wanted.codes)
        of_rows = wanted.scales.T if along == 0 else wanted.scales
        equal(scales, formats.to_blocked(of_rows) if blocked else wanted.scales)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 33), (33, 1), (2, 3, 40), (64,)])
def test_shapes(shape, axis, backend, device):
    x = rows_of(shape, "bfloat16", 5)
    made = cast(x, (E4M3, None), axis, backend, device)
    codes = [made.codes] if axis != "both" else [made.codes, made.column_codes]
    assert all(some.shape == shape and some.is_contiguous() for some in codes)
    if axis != "columns":
        assert made.scales.shape == (*shape[:-1], -(-shape[-1] // 32))
    matrix = x.reshape(-1, shape[-1])
    flat = made._replace(
        codes=made.codes.view(matrix.shape),
        scales=made.scales.view(-1, made.scales.shape[-1]),
        column_codes=None if made.column_codes is None else made.column_codes.view(matrix.shape),
    )
    check(flat, matrix, E4M3, None, axis)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("case", [(E4M3, None), (NVFP4, None)], ids=case_name)
def test_no_rows(case, axis, backend, device):
    made = cast(np.zeros((0, 40), np.float32), case, axis, backend, device)
    check(made, np.zeros((0, 40), np.float32), *case, axis)


@pytest.mark.parametrize("axis", AXES)
def test_rows_that_are_not_adjacent(axis, backend, device):
    wide = rows_of((90, 128), "bfloat16", 6)
    view = to_torch(wide, device)[::2, 32:96]
    assert not view.is_contiguous()
    made = mx_cast(view, axis=axis, backend=backend)
    check(made, np.ascontiguousarray(wide[::2, 32:96]), E4M3, None, axis)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("fmt", [E4M3, NVFP4], ids=lambda fmt: fmt.name)
def test_the_blocked_layout(fmt, axis, backend, device):
    x = rows_of((40, 150), "float32", 7, dead=False)
    made = mx_cast(to_torch(x, device), fmt=fmt, axis=axis, scale_layout="blocked", backend=backend)
    of_rows = formats.to_blocked(formats.quantize(x, fmt).scales)
    of_columns = formats.to_blocked(formats.quantize(x.T, fmt).scales)
    equal(made.scales, of_columns if axis == "columns" else of_rows)
    if axis == "both":
        equal(made.column_scales, of_columns)


@pytest.mark.parametrize("given", [0.25, "tensor"])
def test_a_given_tensor_scale(given, backend, device):
    x = rows_of((8, 64), "bfloat16", 8)
    x = np.where(np.isfinite(x), np.clip(x.astype(np.float32), -600, 600), x).astype(np.float32)
    g = torch.full((1,), 0.25, device=device) if given == "tensor" else given
    made = mx_cast(to_torch(x, device), fmt=NVFP4, tensor_scale=g, backend=backend)
    wanted = formats.quantize(x, NVFP4, tensor_scale=0.25)
    equal(made.codes, wanted.codes)
    equal(made.scales, wanted.scales)
    assert made.tensor_scale.shape == ()


def test_zeros_have_a_tensor_scale_of_one(backend, device):
    made = mx_cast(torch.zeros(2, 16, device=device), fmt="nvfp4", backend=backend)
    assert made.tensor_scale.item() == 1.0
    assert not made.codes.any()


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("case", FEW, ids=case_name)
def test_every_byte_of_the_outputs_is_written(case, axis, blocked, device):
    spec, x = cast_spec(*case), rows_of((37, 104), "float32", 10)
    tensor = to_torch(x, device)
    g = torch.ones((), device=device) if spec.has_tensor_scale else None
    filled = []
    for poison in (0xA5, 0x5A):
        outputs = [some.fill_(poison) for some in empty_outputs(tensor, spec, axis, blocked)]
        mx_cast_triton.launch(outputs, tensor, spec, axis, None, None, g, blocked)
        filled.append(outputs)
    for first, second in zip(*filled, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("case", [(E4M3, None), (NVFP4, None)], ids=case_name)
@pytest.mark.parametrize("axis", AXES)
def test_opcheck(axis, case, backend, device):
    spec = cast_spec(*case)
    g = torch.ones((), device=device) if spec.has_tensor_scale else None
    x = normal((5, 40), 10, device)
    for blocked in (False, True):
        torch.library.opcheck(_mx_cast, (x, spec.key, axis, None, None, g, blocked, backend))
    row, column = normal((5,), 11, device), normal((40,), 12, device)
    torch.library.opcheck(_mx_cast, (x, spec.key, axis, row, column, g, False, backend))


@pytest.mark.parametrize(("backend", "compiler"), COMPILED)
@pytest.mark.parametrize("fmt", ["mxfp8_e4m3", "nvfp4"])
def test_compiled_once_for_any_number_of_rows(fmt, backend, compiler, device):
    def both(x):
        return mx_cast(x * 2.0, fmt=fmt, axis="both", backend=backend)

    torch.compiler.reset()
    counted = CompileCounterWithBackend(compiler)
    compiled = torch.compile(both, fullgraph=True, backend=counted)
    # All of more than one block down a column: an axis of length 1 is always a case of its own.
    for step, rows in enumerate((40, 70, 33, 130)):
        x = normal((rows, 96), rows, device)
        for made, wanted in zip(compiled(x), both(x), strict=True):
            assert (made is None) == (wanted is None)
            assert made is None or torch.equal(made, wanted)
        # The second number of rows makes the shape dynamic, no other compiles again.
        assert counted.frame_count <= min(step + 1, 2)


BAD = [
    ({"x": [1.0]}, TypeError, "x must be a torch tensor, got list"),
    ({"x": torch.zeros(2, 4, dtype=torch.float64)}, TypeError, "x has dtype torch.float64; bfl"),
    ({"x": torch.zeros(())}, ValueError, "x is a single number; at least one axis"),
    ({"x": torch.zeros(3, 0)}, ValueError, r"x has shape \(3, 0\): its last axis must be from 1"),
    ({"x": torch.zeros(1, 65_537)}, ValueError, "its last axis must be from 1 to 65536"),
    ({"x": torch.zeros(4, 3).t()}, ValueError, "x has stride 3 along its last axis; 1 is needed"),
    ({"x": torch.zeros(4, 6, 8)[:, ::2]}, None, ""),
    ({"x": torch.zeros(4, 6, 8).transpose(0, 1)}, ValueError, "which no rows .24, 8. can share"),
    ({"axis": 0}, ValueError, "axis=0 is unknown; known are rows, columns, both"),
    ({"scale_layout": "tiles"}, ValueError, "scale_layout='tiles' is unknown; known are rows, b"),
    ({"backend": "cuda"}, ValueError, "backend='cuda' is unknown; known are auto, triton, torch"),
    ({"fmt": "fp8"}, ValueError, "fmt='fp8' is unknown; known are"),
    ({"fmt": "nvfp4", "scale_rule": "floor"}, ValueError, "scale_rule='floor': NVFP4 has floating"),
    ({"tensor_scale": 1.0}, ValueError, "tensor_scale=1.0: the format has none"),
    ({"fmt": "nvfp4", "tensor_scale": 0.0}, ValueError, "tensor_scale=0.0: must be a finite float"),
    (
        {"fmt": "nvfp4", "tensor_scale": torch.ones(2)},
        ValueError,
        r"tensor_scale has shape \(2,\) and dtype torch.float32; one float32 is needed",
    ),
]


@pytest.mark.parametrize(("changed", "error", "message"), BAD, ids=lambda value: str(value)[:40])
def test_bad_input(changed, error, message):
    arguments = {"x": torch.zeros(4, 32), **changed}
    if error is None:
        # Rows that are views of one another's gaps are rows all the same.
        assert mx_cast(arguments.pop("x"), **arguments).codes.shape == (4, 3, 8)
        return
    with pytest.raises(error, match=message) as raised:
        mx_cast(arguments.pop("x"), **arguments)
    assert "\n" not in str(raised.value)


def test_triton_needs_a_gpu_or_the_interpreter(monkeypatch):
    from mxstats.kernels import backend

    monkeypatch.setattr(backend, "INTERPRETED", False)
    with pytest.raises(ValueError, match="backend='triton': x is on cpu; a CUDA tensor is needed"):
        mx_cast(torch.zeros(1, 32), backend="triton")


@pytest.mark.gpu
@pytest.mark.parametrize("axis", AXES)
def test_more_elements_than_an_int32_counts(axis, device):
    """Offsets are 64 bits wide: the last rows are where they belong."""
    rows, columns = 2**15 + 64, 2**16
    generator = torch.Generator(device).manual_seed(12)
    x = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)
    x.normal_(generator=generator)
    made = mx_cast(x, axis=axis, backend="triton")
    tail = mx_cast(x[-64:].cpu(), axis=axis, backend="torch")
    assert torch.equal(made.codes[-64:].cpu(), tail.codes)
    length = 2 if axis == "columns" else 64
    assert torch.equal(made.scales[-length:].cpu(), tail.scales)


@pytest.mark.gpu
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("case", [(E4M3, "rceil"), (formats.MXFP8_E5M2, "floor"), (NVFP4, None)])
def test_large_tensors_equal_the_torch_twin(case, axis, device):
    x = normal((4099, 11008), 11, device).mul(3).bfloat16()
    made = mx_cast(x, fmt=case[0], scale_rule=case[1], axis=axis, backend="triton")
    wanted = mx_cast(x, fmt=case[0], scale_rule=case[1], axis=axis, backend="torch")
    for first, second in zip(made, wanted, strict=True):
        assert (first is None) == (second is None)
        assert first is None or torch.equal(first, second)
