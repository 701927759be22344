"""RMSNorm with its cast, and its gradient, against NumPy, the reference quantiser and autograd."""

import ml_dtypes
import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from mxstats import formats
from mxstats.kernels import (
    rmsnorm_mx,
    rmsnorm_mx_backward,
    rmsnorm_mx_backward_triton,
    rmsnorm_mx_triton,
)
from mxstats.kernels.rmsnorm_mx import _rmsnorm_mx, empty_outputs
from mxstats.kernels.rmsnorm_mx_backward import _rmsnorm_mx_backward
from mxstats.kernels.spec import cast_spec
from tests.kernels.cast_cases import (
    CASES,
    COMPILED,
    FLOATS,
    case_name,
    normal,
    rows_of,
    to_numpy,
    to_torch,
)

E4M3, NVFP4 = formats.MXFP8_E4M3, formats.NVFP4
EPS = 1e-5


def reference(x, gamma, fmt, rule, g=None, eps=EPS):
    """ρ, codes and scales by the formula in NumPy and the reference quantiser."""
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        rho = 1 / np.sqrt((wide * wide).sum(1) / x.shape[1] + np.float64(np.float32(eps)))
        rho = np.where(np.isfinite(wide).all(1), rho, np.nan).astype(np.float32)
        y = rho[:, None] * x.astype(np.float32) * gamma.astype(np.float32)
    made = formats.quantize(y, fmt, scale_rule=rule, tensor_scale=g)
    return rho, made.codes, made.scales


def spread_rows(shape, dtype, seed):
    """Rows of ordinary size with one massive channel, a zero, a NaN, an infinite and a tiny row."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, (shape[0], 1)))
    x[:, shape[1] // 3] *= 100
    x = x.astype(dtype)
    for row, value in ((1, 0.0), (2, -0.0)):
        x[row] = value
    x[3, 1], x[4, 0] = np.nan, -np.inf
    x[5] = (
        rng.integers(-3, 4, shape[1]) * float(ml_dtypes.finfo(dtype).smallest_subnormal)
    ).astype(dtype)
    return x


def weights(length, dtype=np.float32, seed=7):
    return (1 + 0.3 * np.random.default_rng(seed).standard_normal(length)).astype(dtype)


def check(x, gamma, case, backend, device, **extra):
    fmt, rule = case
    made = rmsnorm_mx(
        to_torch(x, device),
        to_torch(gamma, device),
        fmt=fmt,
        scale_rule=rule,
        backend=backend,
        **extra,
    )
    g = None if made.tensor_scale is None else made.tensor_scale.item()
    rho, codes, scales = reference(x, gamma, fmt, rule, g)
    np.testing.assert_array_equal(to_numpy(made.rho), rho)
    np.testing.assert_array_equal(to_numpy(made.scales), scales)
    np.testing.assert_array_equal(to_numpy(made.codes), codes)
    return made


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_every_format_and_rule(case, backend, device):
    check(spread_rows((8, 104), np.float32, 1), weights(104), case, backend, device)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
@pytest.mark.parametrize("hidden_size", [32, 33, 160])
def test_every_dtype_and_hidden_size(hidden_size, dtype, backend, device):
    x, gamma = spread_rows((7, hidden_size), dtype, 2), weights(hidden_size, dtype)
    check(x, gamma, (E4M3, None), backend, device)


@pytest.fixture(params=["held", "read twice"])
def passes(request, monkeypatch):
    """Rows as the kernels hold them, and as they read those that are too long: here, above 64."""
    rmsnorm_mx_backward_triton._plan.cache_clear()
    if request.param != "held":
        monkeypatch.setattr(rmsnorm_mx_triton, "LONGEST_IN_REGISTERS", 64)
        monkeypatch.setattr(rmsnorm_mx_backward_triton, "_RESIDENT", 64)
    yield
    rmsnorm_mx_backward_triton._plan.cache_clear()


@pytest.mark.parametrize("case", [(E4M3, "rceil"), (NVFP4, None)], ids=case_name)
@pytest.mark.parametrize("hidden_size", [80, 160])
def test_rows_that_are_read_twice(hidden_size, case, passes, backend, device):
    x = spread_rows((6, hidden_size), ml_dtypes.bfloat16, 3)
    check(x, weights(hidden_size), case, backend, device)


@pytest.mark.parametrize("dtype", FLOATS)
def test_random_bits(dtype, backend, device):
    """Magnitudes over the whole range, ties and subnormals within a row."""
    x = rows_of((100, 64), dtype, 4)
    check(x, weights(64), (E4M3, "rceil"), backend, device)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_the_sum_is_rounded_and_then_normalised(dtype, passes, backend, device):
    hidden_size = 96
    x, other = (spread_rows((6, hidden_size), dtype, seed) for seed in (5, 6))
    with np.errstate(over="ignore"):
        total = (x.astype(np.float32) + other.astype(np.float32)).astype(dtype)
    gamma = weights(hidden_size)
    made = rmsnorm_mx(
        to_torch(x, device),
        to_torch(gamma, device),
        residual=to_torch(other, device),
        backend=backend,
    )
    np.testing.assert_array_equal(to_numpy(made.residual).astype(float), total.astype(float))
    rho, codes, scales = reference(total, gamma, E4M3, None)
    np.testing.assert_array_equal(to_numpy(made.rho), rho)
    np.testing.assert_array_equal(to_numpy(made.scales), scales)
    np.testing.assert_array_equal(to_numpy(made.codes), codes)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_the_order_of_the_sum(dtype, passes, backend, device):
    """What the module states of a row of three pieces, done in NumPy; and near the true sum."""
    rows, hidden_size, piece = 40, 1056, 512
    x = spread_rows((rows, hidden_size), dtype, 14)
    if dtype != np.float16:
        # Squares beyond float32, and below it.
        x[6], x[7] = x[8].astype(np.float32) * 1e22, x[8].astype(np.float32) * 1e-22
    pieces = np.zeros((rows, 3 * piece), np.float32)
    pieces[:, :hidden_size] = x
    pieces = pieces.reshape(rows, 3, piece)
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        squares = pieces * pieces
        total = (squares[:, 0] + squares[:, 1] + squares[:, 2]).astype(np.float64).sum(1)
        exact = (wide * wide).sum(1)
        if dtype == np.float32:
            total = exact
        total = np.where((total >= 2.0**-80) & (total < np.inf), total, exact)
        roots = [np.sqrt(s / hidden_size + np.float64(np.float32(EPS))) for s in (total, exact)]
    rho, true = (np.where(np.isfinite(wide).all(1), 1 / root, np.nan) for root in roots)
    gamma = to_torch(weights(hidden_size), device)
    made = to_numpy(rmsnorm_mx(to_torch(x, device), gamma, backend=backend).rho)
    np.testing.assert_array_equal(made, rho.astype(np.float32))
    # Half a unit by rounding ρ, and half of what two additions lose of a square, 2^-24 each.
    np.testing.assert_allclose(made, true, rtol=2.0**-23)


def test_a_block_far_longer_than_the_row(backend, device):
    """A tile as wide as the block would be more than a program can hold."""
    x, gamma = spread_rows((7, 72), ml_dtypes.bfloat16, 15), weights(72)
    fmt = formats.BlockFormat(formats.E4M3, block_size=4_000_000)
    made = rmsnorm_mx(to_torch(x, device), to_torch(gamma, device), fmt=fmt, backend=backend)
    # A block of the row's own length is the same block.
    own = formats.BlockFormat(formats.E4M3, block_size=72)
    rho, codes, scales = reference(x, gamma, own, None)
    np.testing.assert_array_equal(to_numpy(made.rho), rho)
    np.testing.assert_array_equal(to_numpy(made.scales), scales)
    np.testing.assert_array_equal(to_numpy(made.codes), codes)


def test_a_zero_row_has_the_limit_of_rho(backend, device):
    x = torch.zeros(1, 64, device=device)
    made = rmsnorm_mx(x, torch.ones(64, device=device), eps=0.25, backend=backend)
    assert made.rho.item() == 2.0
    assert not made.codes.any()
    assert not made.scales.any()


def test_a_row_that_float32_cannot_square(backend, device):
    """1e25² is beyond float32; the sum is in float64."""
    x = torch.full((1, 32), 1e25, device=device)
    made = rmsnorm_mx(x, torch.ones(32, device=device), backend=backend)
    assert abs(made.rho.item() * 1e25 - 1) < 1e-6  # one rounding of 1e25 and one of ρ
    # 1.0 is 256 units of the scale 2^-8.
    assert made.scales.item() == 119
    assert (made.codes == 0x78).all()


@pytest.mark.parametrize("shape", [(0, 64), (1, 64), (2, 3, 64), (64,)])
def test_shapes(shape, backend, device):
    x = rows_of((max(1, int(np.prod(shape))),), "bfloat16", 8)[: int(np.prod(shape))].reshape(shape)
    gamma = weights(64)
    made = rmsnorm_mx(to_torch(x, device), to_torch(gamma, device), backend=backend)
    rho, codes, scales = reference(x.reshape(-1, 64), gamma, E4M3, None)
    assert made.residual is None
    np.testing.assert_array_equal(to_numpy(made.rho), rho.reshape(shape[:-1]))
    np.testing.assert_array_equal(to_numpy(made.codes), codes.reshape(shape))
    np.testing.assert_array_equal(to_numpy(made.scales), scales.reshape(*shape[:-1], 2))


def test_rows_that_are_not_adjacent(backend, device):
    wide, gamma = spread_rows((14, 128), ml_dtypes.bfloat16, 9), weights(64)
    view, other = to_torch(wide, device)[::2, 32:96], to_torch(wide, device)[1::2, :64]
    made = rmsnorm_mx(view, to_torch(gamma, device), residual=other, backend=backend)
    total = (wide[::2, 32:96].astype(np.float32) + wide[1::2, :64]).astype(ml_dtypes.bfloat16)
    rho, codes, scales = reference(total, gamma, E4M3, None)
    np.testing.assert_array_equal(to_numpy(made.rho), rho)
    np.testing.assert_array_equal(to_numpy(made.codes), codes)
    np.testing.assert_array_equal(to_numpy(made.scales), scales)


@pytest.mark.parametrize("fmt", [E4M3, NVFP4], ids=lambda fmt: fmt.name)
def test_the_blocked_layout(fmt, backend, device):
    x, gamma = spread_rows((7, 150), np.float32, 10), weights(150)
    tensor = (to_torch(x, device), to_torch(gamma, device))
    made = rmsnorm_mx(*tensor, fmt=fmt, scale_layout="blocked", backend=backend)
    plain = rmsnorm_mx(*tensor, fmt=fmt, backend=backend)
    np.testing.assert_array_equal(
        to_numpy(made.scales), formats.to_blocked(to_numpy(plain.scales))
    )  # fmt: skip
    assert torch.equal(made.codes, plain.codes)


def test_the_tensor_scale_of_the_bound_is_never_exceeded(backend, device):
    """One spike, the row that reaches √D: its block's scale is E4M3's largest, and not clipped."""
    x = torch.zeros(1, 64, device=device)
    x[0, 5] = 3e4
    gamma = torch.full((64,), -1.5, device=device)
    made = rmsnorm_mx(x, gamma, fmt="nvfp4", backend=backend)
    assert made.tensor_scale.item() == np.float32(8 * 1.5 / (448 * 6))
    assert made.scales[0].tolist() == [126, 8, 8, 8]
    assert made.codes[0, 5].item() == 0xF


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("case", [(E4M3, None), (NVFP4, None)], ids=case_name)
def test_every_byte_of_the_outputs_is_written(case, blocked, device):
    spec, x = cast_spec(*case), to_torch(spread_rows((7, 104), np.float32, 11), device)
    gamma = torch.ones(104, device=device)
    g = torch.ones((), device=device) if spec.has_tensor_scale else None
    filled = []
    for poison in (0xA5, 0x5A):
        outputs = empty_outputs(x, x, spec, blocked)
        for output in outputs:
            output.view(torch.uint8).fill_(poison)
        rmsnorm_mx_triton.launch(outputs, x, gamma, x, g, spec, EPS, blocked)
        filled.append([output.view(torch.uint8) for output in outputs])
    for first, second in zip(*filled, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("residual", [False, True])
def test_opcheck(residual, backend, device):
    x, gamma = normal((5, 40), 20, device), torch.ones(40, device=device)
    other, g = (normal((5, 40), 21, device) if residual else None), torch.ones((), device=device)
    for fmt, blocked in ((E4M3, False), (NVFP4, True)):
        spec = cast_spec(fmt)
        scale = g if spec.has_tensor_scale else None
        arguments = (x, gamma, other, scale, spec.key, EPS, blocked, backend)
        torch.library.opcheck(_rmsnorm_mx, arguments)
    rho = torch.ones(5, device=device)
    torch.library.opcheck(_rmsnorm_mx_backward, (x, x, rho, gamma, other, backend))


@pytest.mark.parametrize(("backend", "compiler"), COMPILED)
def test_compiled_once_for_any_number_of_rows(backend, compiler, device):
    gamma = normal((96,), 22, device)

    def step(x, dy):
        made = rmsnorm_mx(x, gamma, residual=x, scale_rule="rceil", backend=backend)
        return (
            *made[:4],
            *rmsnorm_mx_backward(dy, made.residual, made.rho, gamma, backend=backend),
        )

    torch.compiler.reset()
    counted = CompileCounterWithBackend(compiler)
    compiled = torch.compile(step, fullgraph=True, backend=counted)
    for call, rows in enumerate((5, 9, 4, 12)):
        x = normal((rows, 96), rows, device)
        for made, wanted in zip(compiled(x, x), step(x, x), strict=True):
            assert torch.equal(made, wanted)
        # The second number of rows makes the shape dynamic, no other compiles again.
        assert counted.frame_count <= min(call + 1, 2)


def autograd(dy, x, gamma, eps=EPS):
    """dx and dγ of the plain formula, float64."""
    x = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    gamma = torch.from_numpy(gamma.astype(np.float64)).requires_grad_()
    y = x * (x.square().mean(1, keepdim=True) + float(np.float32(eps))).rsqrt() * gamma
    return torch.autograd.grad(y, (x, gamma), torch.from_numpy(dy.astype(np.float64)))


def near(made, wanted, tolerance):
    """Norm of the difference, relative to that of what is wanted."""
    assert (made.double().cpu() - wanted).norm() <= tolerance * wanted.norm()


# Rows of the gradient's tests: of the hidden sizes there 64 go to a program at most, of which there
# are 6 in the interpreter.
N_ROWS = 500


@pytest.mark.parametrize("hidden_size", [40, 160])
@pytest.mark.parametrize("residual", [False, True])
def test_the_gradient_is_that_of_the_plain_formula(residual, hidden_size, passes, backend, device):
    rng = np.random.default_rng(12)
    # More rows than all programs take at a time, so that each goes on to others.
    x, dy, other = rng.standard_normal((3, N_ROWS, hidden_size)).astype(np.float32)
    x[3], x[4] = 0, 1e20 * x[4]
    gamma = weights(hidden_size)
    wide = x.astype(np.float64)
    rho = (1 / np.sqrt((wide * wide).mean(1) + np.float32(EPS))).astype(np.float32)
    dx, dgamma = rmsnorm_mx_backward(
        *(to_torch(value, device) for value in (dy, x, rho, gamma)),
        d_residual=to_torch(other, device) if residual else None,
        backend=backend,
    )
    wanted, wanted_gamma = autograd(dy, x, gamma)
    if residual:
        wanted = wanted + torch.from_numpy(other).double()
    # Sums of 160 terms in float32: some 1e-7.
    for row in range(N_ROWS):
        near(dx[row], wanted[row], 1e-5)
    near(dgamma, wanted_gamma, 1e-5)
    assert dgamma.dtype == torch.float32


def test_the_gradient_in_bf16_is_rounded_once(backend, device):
    rng = np.random.default_rng(13)
    x, dy = rng.standard_normal((2, 9, 96)).astype(ml_dtypes.bfloat16)
    gamma = weights(96)
    forward = rmsnorm_mx(to_torch(x, device), to_torch(gamma, device), backend=backend)
    dx, _ = rmsnorm_mx_backward(
        to_torch(dy, device), to_torch(x, device), forward.rho, to_torch(gamma, device),
        backend=backend,
    )  # fmt: skip
    wanted, _ = autograd(dy, x, gamma)
    assert dx.dtype == torch.bfloat16
    # Half a unit in the last of 8 bits, and the float32 error before it where values cancel.
    assert ((dx.double().cpu() - wanted).abs() <= wanted.abs() * 2**-8 + 1e-5).all()


def test_the_gradient_is_the_same_every_time(backend, device):
    x = normal((50, 96), 23, device)
    arguments = (x, x, torch.ones(50, device=device), torch.ones(96, device=device))
    first, second = (rmsnorm_mx_backward(*arguments, backend=backend) for _ in range(2))
    assert torch.equal(first[1], second[1])


def test_no_rows_have_no_gradient(backend, device):
    x, gamma = torch.zeros(0, 64, device=device), torch.ones(64, device=device)
    dx, dgamma = rmsnorm_mx_backward(x, x, x[:, 0], gamma, backend=backend)
    assert dx.shape == (0, 64)
    assert dgamma.tolist() == [0.0] * 64


X, GAMMA = torch.zeros(4, 32), torch.ones(32)
BAD = [
    ({"gamma": torch.ones(31)}, ValueError, r"gamma has shape \(31,\); \(32,\) is needed"),
    ({"gamma": [1.0] * 32}, TypeError, "gamma must be a torch tensor, got list"),
    ({"gamma": torch.ones(32, dtype=torch.int64)}, TypeError, "gamma has dtype torch.int64; bfl"),
    ({"eps": 0.0}, ValueError, "eps=0.0: must be a finite float32 above 0"),
    ({"eps": float("nan")}, ValueError, "eps=nan: must be a finite float32 above 0"),
    ({"residual": torch.zeros(4, 31)}, ValueError, r"residual has shape \(4, 31\); that of x is"),
    ({"residual": X.bfloat16()}, TypeError, "residual has dtype torch.bfloat16; that of x is"),
    ({"x": torch.zeros(4, 0)}, ValueError, r"x has shape \(4, 0\): its last axis must be from 1"),
    ({"x": torch.zeros(32, 4).t()}, ValueError, "x has stride 4 along its last axis; 1 is needed"),
    ({"tensor_scale": 2.0}, ValueError, "tensor_scale=2.0: the format has none"),
    ({"fmt": "nvfp4", "tensor_scale": -1.0}, ValueError, "tensor_scale=-1.0: must be a finite"),
    ({"backend": "numpy"}, ValueError, "backend='numpy' is unknown; known are auto, triton, torch"),
    ({"scale_layout": "tiles"}, ValueError, "scale_layout='tiles' is unknown"),
]


@pytest.mark.parametrize(("changed", "error", "message"), BAD, ids=lambda value: str(value)[:40])
def test_bad_input(changed, error, message):
    arguments = {"x": X, "gamma": GAMMA, **changed}
    with pytest.raises(error, match=message) as raised:
        rmsnorm_mx(arguments.pop("x"), arguments.pop("gamma"), **arguments)
    assert "\n" not in str(raised.value)


BAD_BACKWARD = [
    ({"dy": torch.zeros(4, 31)}, ValueError, r"dy has shape \(4, 31\); that of x is \(4, 32\)"),
    ({"rho": torch.zeros(3)}, ValueError, r"rho has shape \(3,\); \(4,\) is needed"),
    (
        {"rho": torch.zeros(4).double()},
        TypeError,
        "rho must be a float32 tensor, got torch.float64",
    ),
    ({"rho": 1.0}, TypeError, "rho must be a float32 tensor, got float"),
    ({"gamma": torch.ones(2)}, ValueError, r"gamma has shape \(2,\); \(32,\) is needed"),
    ({"d_residual": torch.zeros(32)}, ValueError, r"d_residual has shape \(32,\); that of x is"),
]


@pytest.mark.parametrize(
    ("changed", "error", "message"), BAD_BACKWARD, ids=lambda value: str(value)[:40]
)  # fmt: skip
def test_bad_input_of_the_gradient(changed, error, message):
    given = {"dy": X, "x": X, "rho": torch.ones(4), "gamma": GAMMA, **changed}
    with pytest.raises(error, match=message):
        rmsnorm_mx_backward(**given)


@pytest.mark.gpu
@pytest.mark.parametrize("hidden_size", [2048, 4096, 5120, 7168, 8192, 11008, 16384, 28672, 65536])
@pytest.mark.parametrize("fmt", ["mxfp8_e4m3", "nvfp4"])
@pytest.mark.parametrize("rows", [1027, 4099])
def test_many_rows_of_a_program_equal_the_torch_twin(rows, fmt, hidden_size, device):
    """Without a residual a program goes from row to row, the next ones on their way."""
    x, gamma = normal((rows, hidden_size), 28, device), normal((hidden_size,), 29, device)
    made, twin = (
        rmsnorm_mx(x.bfloat16(), gamma, fmt=fmt, backend=backend) for backend in ("triton", "torch")
    )
    for first, second in zip(made, twin, strict=True):
        assert first is None or torch.equal(first, second)


@pytest.mark.gpu
@pytest.mark.parametrize("hidden_size", [2048, 4096, 5120, 7168, 8192, 11008, 16384, 28672, 65536])
@pytest.mark.parametrize("fmt", ["mxfp8_e4m3", "nvfp4"])
def test_large_tensors_equal_the_torch_twin(fmt, hidden_size, device):
    """ρ may differ by a unit where two orders of the float64 sum straddle a tie: none seen."""
    x = normal((1027, hidden_size), 24, device).bfloat16()
    gamma = normal((hidden_size,), 25, device)
    triton, twin = (
        rmsnorm_mx(x, gamma, residual=x.flip(0), fmt=fmt, backend=backend)
        for backend in ("triton", "torch")
    )
    for first, second in zip(triton, twin, strict=True):
        assert first is None or torch.equal(first, second)
    dy = normal(x.shape, 26, device).bfloat16()
    made = rmsnorm_mx_backward(dy, triton.residual, triton.rho, gamma, d_residual=x)
    wanted = rmsnorm_mx_backward(
        dy.double().float(), triton.residual, triton.rho, gamma, d_residual=x, backend="torch"
    )
    # bf16 results of two float32 orders: apart by a unit here and there, 2^-8 of the norm at most.
    near(made[0], wanted[0].double().cpu(), 2**-9)
    near(made[1], wanted[1].double().cpu(), 1e-5)  # 1027 terms in float32


@pytest.mark.gpu
def test_more_elements_than_an_int32_counts(device):
    generator = torch.Generator(device).manual_seed(27)
    x = torch.empty(2**15 + 8, 2**16, dtype=torch.bfloat16, device=device)
    x.normal_(generator=generator)
    gamma = torch.ones(2**16, device=device)
    made = rmsnorm_mx(x, gamma, backend="triton")
    tail = rmsnorm_mx(x[-8:].cpu(), gamma.cpu(), backend="torch")
    assert torch.equal(made.codes[-8:].cpu(), tail.codes)
    assert torch.equal(made.scales[-8:].cpu(), tail.scales)


def test_rho_may_be_a_view_of_any_stride(backend, device):
    x, dy = (
        to_torch(np.random.default_rng(s).standard_normal((4, 96)).astype(np.float32), device)
        for s in (7, 8)
    )
    gamma = torch.ones(96, device=device)
    pairs = torch.tensor([[0.5, 9.0], [0.25, 9.0], [1.5, 9.0], [2.0, 9.0]], device=device)
    for rho in (pairs[:, 0], pairs[:1, 0].expand(4)):
        got = rmsnorm_mx_backward(dy, x, rho, gamma, backend=backend)
        wanted = rmsnorm_mx_backward(dy, x, rho.clone(), gamma, backend=backend)
        for one, other in zip(got, wanted, strict=True):
            assert torch.equal(one, other)
