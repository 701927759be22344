"""The parts of a Llama 3 8B layer's forward pass, each timed alone on the GPU at hand.

One sequence of 8192 tokens: hidden size 4096, 32 heads of 128 with 8 heads of keys and values, MLP
14336 (Llama 3, arXiv 2407.21783, table 3). Activations are bfloat16 between the parts. The matmuls
run in E4M3 with one scale a tensor (``torch._scaled_mm``: the unit's rate, which a GPU without
block scales in hardware can give) and in bfloat16, on random numbers, with q, k, v in one matmul
and gate and up in another; attention is torch's flash kernel, causal. Casts of weights are left
out: they are made once a step, whatever the number of tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from mxstats.kernels.mx_cast import mx_cast
from mxstats.kernels.mxnorm import mxnorm
from mxstats.kernels.rmsnorm_mx import rmsnorm_mx
from mxstats.measure.speed import baselines
from mxstats.measure.speed.cases import gamma
from mxstats.measure.speed.timing import captured, race
from mxstats.theory import constant

TOKENS, HIDDEN_SIZE, MLP = 8192, 4096, 14336
HEADS, KV_HEADS, HEAD_SIZE = 32, 8, 128
MATMULS = {
    "qkv": (HIDDEN_SIZE, (HEADS + 2 * KV_HEADS) * HEAD_SIZE),
    "attention output": (HEADS * HEAD_SIZE, HIDDEN_SIZE),
    "gate and up": (HIDDEN_SIZE, 2 * MLP),
    "down": (MLP, HIDDEN_SIZE),
}
# Together with the outputs several times any cache.
_SETS = 6


@dataclass(frozen=True)
class Part:
    """A part of the layer: its group, how it is done, how often, its function and its arguments."""

    name: str
    group: str
    variant: str
    count: int
    call: Callable[[Any], Any]
    sets: list[Any]


@torch.no_grad()
def measure_layer() -> pd.DataFrame:
    """Table: part, group, variant, count (a layer), time_us (of one), low_us, high_us, device.

    Groups are norm (variants are the ways to normalise and cast), elementwise, attention and matmul
    (variants fp8 and bf16).
    """
    device = torch.device("cuda", torch.cuda.current_device())
    torch.compiler.reset()
    lines = []
    for make in (_norms, _elementwise, _attention, _matmuls):
        parts = make(device)
        times = race({_key(one): captured(one.call, one.sets) for one in parts})
        for one in parts:
            time = times[_key(one)]
            lines.append(
                {
                    "part": one.name,
                    "group": one.group,
                    "variant": one.variant,
                    "count": one.count,
                    "time_us": time.median,
                    "low_us": time.low,
                    "high_us": time.high,
                    "device": torch.cuda.get_device_name(device),
                }
            )
        del parts
        torch.cuda.empty_cache()
    return pd.DataFrame(lines)


def _key(one: Part) -> str:
    return f"{one.name}, {one.variant}"


def _random(device: torch.device, *shape: int) -> list[torch.Tensor]:
    return [torch.randn(*shape, device=device).bfloat16() for _ in range(_SETS)]


def _norms(device: torch.device) -> list[Part]:
    g, c = gamma(HIDDEN_SIZE, device), float(constant(p=2.0, block_size=32))
    together = baselines.compiled(baselines.rmsnorm_mx)
    norm, cast = (baselines.compiled(one) for one in (baselines.rmsnorm_rounded, baselines.mx_cast))
    ways: dict[str, Callable[[torch.Tensor], Any]] = {
        "compiled RMSNorm, then cast": lambda x: cast(norm(x, g)),
        "compiled RMSNorm + cast": lambda x: together(x, g),
        "fused RMSNorm + cast": lambda x: rmsnorm_mx(x, g),
        "MXNorm": lambda x: mxnorm(x, c=c),
    }
    rows = _random(device, TOKENS, HIDDEN_SIZE)
    return [Part("norm", "norm", way, 2, call, rows) for way, call in ways.items()]


def _elementwise(device: torch.device) -> list[Part]:
    hidden, gate_up = _random(device, 2, TOKENS, HIDDEN_SIZE), _random(device, TOKENS, 2 * MLP)
    add = baselines.compiled(_add)
    swiglu, rotate = baselines.compiled(baselines.swiglu_mx), baselines.compiled(_rotate)
    angle = torch.rand(TOKENS, 1, HEAD_SIZE // 2, device=device)
    cos, sin = angle.cos(), angle.sin()
    qk = _random(device, TOKENS, HEADS + KV_HEADS, HEAD_SIZE)
    return [
        Part("residual", "elementwise", "compiled", 2, lambda s: add(s[0], s[1]), hidden),
        Part("rotary embedding", "elementwise", "compiled", 1, lambda s: rotate(s, cos, sin), qk),
        Part(
            "cast after attention", "elementwise", "mx_cast", 1,
            lambda s: mx_cast(s[0]), hidden,
        ),
        Part("SwiGLU + cast", "elementwise", "compiled", 1, swiglu, gate_up),
    ]  # fmt: skip


def _attention(device: torch.device) -> list[Part]:
    q = _random(device, 1, HEADS, TOKENS, HEAD_SIZE)
    k, v = (_random(device, 1, KV_HEADS, TOKENS, HEAD_SIZE) for _ in range(2))

    def call(given: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return functional.scaled_dot_product_attention(*given, is_causal=True, enable_gqa=True)

    return [Part("attention", "attention", "flash", 1, call, list(zip(q, k, v, strict=True)))]


def _matmuls(device: torch.device) -> list[Part]:
    parts = []
    for name, (inner, outer) in MATMULS.items():
        pairs = list(
            zip(_random(device, TOKENS, inner), _random(device, outer, inner), strict=True)
        )
        parts.append(Part(name, "matmul", "bf16", 1, lambda pair: pair[0] @ pair[1].t(), pairs))
        if torch.cuda.get_device_capability(device) >= (8, 9):
            coded = [tuple(one.to(torch.float8_e4m3fn) for one in pair) for pair in pairs]
            one = torch.ones((), device=device)
            parts.append(Part(name, "matmul", "fp8", 1, partial(_scaled_mm, one), coded))
    return parts


def _scaled_mm(one: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
        pair[0], pair[1].t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )  # fmt: skip


def _add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)
