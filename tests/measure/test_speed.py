"""What the benchmark times is what it says: baselines to the bit, bytes, copies, whole outputs."""

import os

import numpy as np
import pytest
import torch

HAS_CUDA = torch.cuda.is_available()
# Triton reads it when it is first imported.
if not HAS_CUDA:
    os.environ["TRITON_INTERPRET"] = "1"

from mxstats.formats import MXFP8_E4M3, NVFP4, quantize  # noqa: E402
from mxstats.measure.speed import baselines, copying, timing, traffic  # noqa: E402
from mxstats.measure.speed.cases import CASES, LIGER, chosen, gamma, inputs  # noqa: E402

DEVICE = torch.device("cuda" if HAS_CUDA else "cpu")


def rows_of_all_kinds(low, high):
    """Normals over many scales, zeros, subnormals, maxima next to powers of two, float32's ends."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(256, 128, generator=generator)
    x *= torch.exp2(torch.randint(low, high, (256, 1), generator=generator).float())
    x[0] = 0.0
    x[1] = -0.0
    x[2] = 2.0**-149
    x[3, ::32] = torch.tensor([448.0, 448.00003, 511.99997, 512.0])
    x[4] = torch.finfo(torch.float32).max
    x[5] = torch.linspace(-500, 500, 128)
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_plain_cast_is_the_reference(dtype):
    y = rows_of_all_kinds(*((-20, 12) if dtype is torch.float16 else (-130, 120)))
    if dtype is torch.float16:
        y = y.clamp(-60000, 60000)
    elif dtype is torch.bfloat16:
        y = y.clamp(-3e38, 3e38)  # float32's largest rounds to infinity
    y = y.to(dtype)
    codes, scales = baselines.mx_cast(y)
    wanted = quantize(y, MXFP8_E4M3)
    assert torch.equal(codes.view(torch.uint8), wanted.codes)
    assert torch.equal(scales, wanted.scales)
    assert len(torch.unique(codes.view(torch.uint8))) > 200


def test_the_plain_norm_and_cast_is_the_norm_then_the_reference():
    given, g = inputs(64, 256, torch.device("cpu"), 0), gamma(256, torch.device("cpu"))
    y = torch.nn.functional.rms_norm(given.x.double(), (256,), g.double(), eps=1e-5)
    codes, scales = baselines.rmsnorm_mx(given.x, g)
    found = codes.float().unflatten(-1, (-1, 32)) * torch.exp2(scales.float() - 127).unsqueeze(-1)
    wanted = quantize(y.float(), MXFP8_E4M3)
    # Float32 against float64: an element may round to the other neighbour, a sixteenth apart.
    np.testing.assert_allclose(found.flatten(-2), wanted.dequantize(), rtol=1 / 8, atol=0)
    assert torch.mean((codes.view(torch.uint8) == wanted.codes).float()) > 0.999
    # The rounded norm is what a module in bfloat16 hands on.
    assert torch.equal(
        baselines.rmsnorm_rounded(given.x, g), baselines.rmsnorm(given.x, g).bfloat16()
    )


def test_the_plain_backward_is_the_gradient():
    given, g = inputs(32, 192, torch.device("cpu"), 1), gamma(192, torch.device("cpu"))
    x, w = given.x.double().requires_grad_(), g.double().requires_grad_()
    y = torch.nn.functional.rms_norm(x, (192,), w, eps=1e-300)
    y.backward(given.other.double())
    dx, d_gamma = baselines.rmsnorm_backward(given.other, given.x, given.rho, g)
    # dx is rounded to bfloat16, half a unit of 8 bits; dγ is a float32 sum of 32 rows.
    torch.testing.assert_close(dx.double(), x.grad, rtol=2**-8, atol=1e-6)
    torch.testing.assert_close(d_gamma.double(), w.grad, rtol=1e-5, atol=1e-5)


def test_the_plain_swiglu():
    gate_up = torch.randn(16, 128)
    codes, scales = baselines.swiglu_mx(gate_up)
    y = torch.nn.functional.silu(gate_up[:, :64]) * gate_up[:, 64:]
    wanted = quantize(y, MXFP8_E4M3)
    assert torch.equal(codes.view(torch.uint8), wanted.codes)
    assert torch.equal(scales, wanted.scales)


OURS = [name for name in CASES if "compiled" not in name and name != LIGER]


@pytest.mark.parametrize("name", OURS)
def test_bytes_counted_are_those_of_the_tensors(name):
    case, rows, hidden_size = CASES[name], 128, 256
    given = inputs(rows, hidden_size, DEVICE, 0)
    outputs = list(timing.tensors(case.build(hidden_size, DEVICE)(given)))
    moved = case.traffic(rows, hidden_size)
    assert moved.written == sum(one.nbytes for one in outputs)
    read = {"mxnorm_backward p=2": (given.other, given.x, given.rho),
            "mxnorm_backward p=1": (given.other, given.x, given.rho),
            "mxnorm_backward residual": (given.other, given.x, given.third, given.rho),
            "rmsnorm_mx_backward": (given.other, given.x, given.rho, gamma(hidden_size, DEVICE)),
            "rmsnorm_mx": (given.x, gamma(hidden_size, DEVICE)),
            "mxnorm residual": (given.x, given.other),
            "mxnorm weights": (given.x, torch.ones(hidden_size // 32))}  # fmt: skip
    assert moved.read == sum(one.nbytes for one in read.get(name, (given.x,)))


def test_cases_are_variants_of_what_they_are_named_for():
    rows, hidden_size = 8, 128
    given = inputs(rows, hidden_size, DEVICE, 0)
    found = {n: CASES[n].build(hidden_size, DEVICE)(given) for n in OURS if n.startswith("mxnorm ")}
    # Weights of 1/c² are the scalar constant.
    assert torch.equal(found["mxnorm weights"].codes, found["mxnorm p=2"].codes)
    assert not torch.equal(found["mxnorm p=1"].rho, found["mxnorm p=2"].rho)
    assert not torch.equal(found["mxnorm scales"].rho, found["mxnorm p=2"].rho)
    assert torch.equal(found["mxnorm residual"].residual, given.x + given.other)
    assert found["mxnorm NVFP4"].scales.shape == (rows, hidden_size // NVFP4.block_size)
    assert found["mxnorm blocked"].scales.shape == (512,)
    # Rows have RMS 1, and the constant is that of their distribution.
    assert found["mxnorm p=2"].rho.mean().item() == pytest.approx(1.0, abs=0.1)


def test_names_of_cases():
    assert {case.direction for case in chosen(["forward"])} == {"forward"}
    assert len(chosen(["all"])) == len(CASES) - (baselines.liger_rmsnorm() is None)
    # Once, in the order of the first mention.
    assert [c.name for c in chosen(["mxnorm p=1", "mxnorm p=1"])] == ["mxnorm p=1"]
    with pytest.raises(ValueError, match="case 'mxnorm' is unknown; known are usual, all"):
        chosen(["mxnorm"])


def test_liger_by_name_is_an_error_where_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(baselines, "liger_rmsnorm", lambda: None)
    with pytest.raises(ValueError, match="case 'liger \\+ mx_cast': liger_kernel is not installed"):
        CASES[LIGER].build(64, DEVICE)


def test_liger_is_called_with_x_gamma_and_epsilon(monkeypatch):
    calls = []

    def norm(x, g, eps):
        calls.append(eps)
        return baselines.rmsnorm_rounded(x, g)

    monkeypatch.setattr(baselines, "liger_rmsnorm", lambda: norm)
    given = inputs(4, 64, DEVICE, 0)
    found = CASES[LIGER].build(64, DEVICE)(given)
    wanted = quantize(baselines.rmsnorm_rounded(given.x, gamma(64, DEVICE)), MXFP8_E4M3)
    assert torch.equal(found.codes, wanted.codes)
    assert calls == [1e-5]


@pytest.mark.parametrize(
    "moved",
    [
        traffic.mxnorm(8, 416),
        traffic.mxnorm(8, 416, residual=True, weights=True),
        traffic.mxnorm_backward(8, 416),
        traffic.mx_cast(8, 416, along_columns=True),
    ],
)
def test_the_copy_moves_the_same_bytes(moved):
    plan = copying.copy_plan(moved, 8 * 416)
    # Four bytes a word.
    assert 0 <= plan.total - moved.total < 4
    source, target, rest = copying.buffers(plan, DEVICE)
    assert 4 * (source.numel() + target.numel() + plan.rest_words) == plan.total
    target.fill_(-1)
    rest.fill_(-1)
    copying.copy_bytes(plan, (source, target, rest), words=256, warps=4)
    # Every word written (a random word is −1 once in 2^32), each as the loads of its lane combine.
    assert not (target == -1).any()
    assert not (rest == -1).any()
    whole = plan.n_words // 256 * 256
    lanes = source[: whole * plan.reads].view(-1, plan.reads, 256).cpu().numpy()
    wanted = np.bitwise_xor.reduce(lanes, axis=1)
    found = target[: whole * plan.writes].view(-1, plan.writes, 256).cpu().numpy()
    for stream in range(plan.writes):
        np.testing.assert_array_equal(found[:, stream], wanted)


def test_the_copy_stays_within_its_buffers():
    plan = copying.copy_plan(traffic.mxnorm(8, 416), 8 * 416)
    source, _, _ = copying.buffers(plan, DEVICE)
    guarded = [
        torch.full((n + 512,), 7, dtype=torch.int32, device=DEVICE)
        for n in (plan.n_words * plan.writes, plan.rest_words)
    ]
    copying.copy_bytes(plan, (source, *guarded), words=512, warps=4)
    for one in guarded:
        assert (one[-512:] == 7).all()


def test_a_copy_of_less_than_a_byte_an_element_is_refused():
    with pytest.raises(ValueError, match="elements=400: must be a multiple of 4, and at most"):
        copying.copy_plan(traffic.Traffic(800, 300), 400)


def test_sets_are_several_caches():
    # At least 8; 16 MiB of x against a 60 MiB cache: 240/16.
    assert timing.n_sets(2**30, 60 * 2**20) == 8
    assert timing.n_sets(16 * 2**20, 60 * 2**20) == 15


def test_summary_is_median_and_quantiles():
    found = timing.summary(range(101))
    assert (found.low, found.median, found.high) == (5.0, 50.0, 95.0)


def test_elements_left_unwritten_are_counted():
    held = (torch.zeros(10, dtype=torch.bfloat16), torch.zeros(7, dtype=torch.uint8))

    def run():
        held[0][:6] = 1.0
        held[1][:] = 3

    assert timing.unwritten(timing.Pass(run, 1, held)) == 4


@pytest.mark.parametrize("operation", ["mxnorm", "mxnorm_backward", "rmsnorm_mx", "mx_cast"])
def test_the_three_ways_into_a_kernel_are_one_kernel(operation):
    from mxstats.measure.speed.overhead import operations

    ways = operations(DEVICE, rows=2, hidden_size=64)[operation]
    found = {way: list(timing.tensors(call())) for way, call in ways.items()}
    assert list(found) == ["launcher", "operator", "function"]
    for way in ("operator", "function"):
        assert len(found[way]) == len(found["launcher"])
        for one, other in zip(found[way], found["launcher"], strict=True):
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def test_the_layer_is_that_of_llama_3_8b():
    from mxstats.measure.speed import layer

    # 8,030,261,248 parameters: two tables of 128,256 tokens and the last norm aside, 32 layers
    # with two norms each.
    a_layer = (8_030_261_248 - 2 * 128_256 * 4096 - 4096) // 32
    assert sum(a * b for a, b in layer.MATMULS.values()) + 2 * layer.HIDDEN_SIZE == a_layer


def test_the_rotary_embedding_turns_pairs():
    from mxstats.measure.speed.layer import _rotate

    x, angle = torch.randn(5, 3, 8), torch.rand(5, 1, 4)
    turned = torch.complex(*x.chunk(2, dim=-1)) * torch.polar(torch.ones_like(angle), angle)
    found = _rotate(x, angle.cos(), angle.sin())
    # A few roundings of numbers about 1.
    torch.testing.assert_close(
        found, torch.cat((turned.real, turned.imag), dim=-1), rtol=1e-5, atol=1e-6
    )


@pytest.mark.gpu
def test_a_shape_is_measured_whole():
    from mxstats.measure.speed.comparison import compare
    from mxstats.measure.speed.kernel_times import measure_kernels

    found = compare(measure_kernels([(2048, 1024)], chosen(["usual"])))
    assert (found["low_us"] <= found["time_us"]).all()
    assert (found["time_us"] <= found["high_us"]).all()
    # No GPU moves 20 TB/s, and none takes a hundred times what a copy takes.
    assert found["tb_per_s"].max() < 20
    assert found["share_of_copy"].min() > 0.01


@pytest.mark.gpu
def test_launchers_allocate_their_outputs_alone():
    from mxstats.measure.speed.overhead import measure_overhead

    found = measure_overhead()
    launchers = found[found["way"] == "launcher"]
    assert (launchers["allocations"] == launchers["outputs"]).all()


@pytest.mark.gpu
def test_compiled_baselines_give_the_plain_bytes():
    given, g = inputs(64, 1024, DEVICE, 0), gamma(1024, DEVICE)
    y = baselines.rmsnorm_rounded(given.x, g)
    codes, scales = baselines.compiled(baselines.mx_cast)(y)
    wanted = quantize(y, MXFP8_E4M3)
    assert torch.equal(codes.view(torch.uint8), wanted.codes)
    assert torch.equal(scales, wanted.scales)
