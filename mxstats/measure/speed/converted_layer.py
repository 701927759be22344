"""A converted decoder layer of Llama 3 8B's size, forward and backward, against the plain one.

The layer is transformers' own, made from a config: hidden size 4096, 32 heads of 128 with 8 heads
of keys and values, MLP 14336 (arXiv 2407.21783, table 3), parameters and activations in bfloat16.
:func:`mxstats.nn.convert` gives it MXNorm or RMSNorm with the cast in one kernel, and linears on
MXFP8 operands. A GPU without block scales in hardware multiplies the dequantised operands: what it
spends on that is the time of the dequantising kernels, which the table names, and a product in
bfloat16 where a block-scaled unit would take half the time or less.
"""

import re
from typing import Any

import pandas as pd
import torch

from mxstats.measure.speed.timing import summary
from mxstats.nn import convert

TOKENS = 8192
LLAMA_3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rope_theta": 500_000.0,
}
VARIANTS: dict[str, dict[str, Any] | None] = {
    "bf16": None,
    "MXNorm": {"norm": "mxnorm"},
    "RMSNorm + cast": {"norm": "rmsnorm"},
    # The norm and its linears as one operation, on unquantised products.
    "MXNorm, no cast": {"norm": "mxnorm", "fmt": None},
}
_GROUPS = (
    ("kernels of mxstats", r"^_\w*kernel$"),
    ("attention", r"flash|fmha|attention"),
    ("matmul", r"gemm|nvjet|xmma|cublas|cutlass|splitk"),
)


def group_of(kernel: str) -> str:
    """The part of the work that a kernel is, by its name."""
    for group, pattern in _GROUPS:
        if re.search(pattern, kernel, re.IGNORECASE):
            return group
    return "dequantising and elementwise"


def layer_of(
    variant: str, device: torch.device | str, *, sizes: dict[str, Any] | None = None, seed: int = 0
) -> torch.nn.Module:
    """Return a layer as a function of hidden states [1, tokens, hidden size], all in bfloat16.

    Needs transformers. Every variant of one seed has the same parameters.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128, num_hidden_layers=1, max_position_embeddings=TOKENS,
        **(LLAMA_3_8B if sizes is None else sizes),
    )  # fmt: skip
    torch.manual_seed(seed)
    with torch.device(device):
        model: Any = LlamaForCausalLM(config)
    model = model.to(torch.bfloat16)
    how = VARIANTS[variant]
    if how is not None:
        model, _ = convert(model, **how)
    return _Layer(model)


class _Layer(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.layer, self.rotary = model.model.layers[0], model.model.rotary_emb

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1], device=x.device)[None]
        out = self.layer(x, position_embeddings=self.rotary(x, positions), position_ids=positions)
        return out[0] if isinstance(out, tuple) else out


def measure_converted_layer(tokens: int = TOKENS, rounds: int = 20) -> pd.DataFrame:
    """Table of the variants, eager and compiled, on the current GPU.

    Columns: variant, way (eager or compiled), forward_us and backward_us with their 5 % and 95 %
    points, peak_mib (of a forward and a backward, the gradients included, above the parameters),
    kernels (launched a forward and backward), and the device time of each group of kernels in µs.
    All of a way take turns, round after round.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    x = torch.randn(1, tokens, LLAMA_3_8B["hidden_size"], device=device).bfloat16()
    gradient = torch.randn_like(x)
    lines = []
    for way in ("eager", "compiled"):
        torch.compiler.reset()
        layers = {variant: layer_of(variant, device) for variant in VARIANTS}
        if way == "compiled":
            for layer in layers.values():
                layer.compile(fullgraph=True)
        times = _times(layers, x, gradient, rounds)
        lines += [
            {
                "variant": variant,
                "way": way,
                **times[variant],
                "peak_mib": _peak(layer, x, gradient),
                **_kernels(layer, x, gradient),
                "tokens": tokens,
                "device": torch.cuda.get_device_name(device),
            }
            for variant, layer in layers.items()
        ]
        del layers
        torch.cuda.empty_cache()
    return pd.DataFrame(lines)


def _step(run: torch.nn.Module, x: torch.Tensor, d: torch.Tensor) -> None:
    # Else each parameter's gradient would be added to the last one.
    run.zero_grad(set_to_none=True)
    run(x.detach().requires_grad_()).backward(d)


def _times(
    layers: dict[str, torch.nn.Module], x: torch.Tensor, d: torch.Tensor, rounds: int
) -> dict[str, dict[str, float]]:
    events: dict[str, list[list[torch.cuda.Event]]] = {name: [] for name in layers}
    for at in range(4 + rounds):
        for name, run in layers.items():
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
            run.zero_grad(set_to_none=True)
            marks[0].record()
            out = run(x.detach().requires_grad_())
            marks[1].record()
            out.backward(d)
            marks[2].record()
            if at >= 4:
                events[name].append(marks)
    torch.cuda.synchronize()
    found: dict[str, dict[str, float]] = {}
    for name, rounds_of in events.items():
        found[name] = {}
        for part, at in (("forward", 0), ("backward", 1)):
            times = summary([1e3 * marks[at].elapsed_time(marks[at + 1]) for marks in rounds_of])
            found[name] |= {
                f"{part}_us": times.median,
                f"{part}_low_us": times.low,
                f"{part}_high_us": times.high,
            }
    return found


def _peak(run: torch.nn.Module, x: torch.Tensor, d: torch.Tensor) -> float:
    run.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    _step(run, x, d)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _kernels(run: torch.nn.Module, x: torch.Tensor, d: torch.Tensor) -> dict[str, float]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        _step(run, x, d)
        torch.cuda.synchronize()
    of_device = [
        event for event in seen.events() or [] if event.device_type.name == "CUDA"
        and not event.name.startswith(("Memcpy", "Memset"))
    ]  # fmt: skip
    found: dict[str, float] = {"kernels": len(of_device)}
    for group in [name for name, _ in _GROUPS] + [group_of("")]:
        times = [event.device_time for event in of_device if group_of(event.name) == group]
        found[f"{group} µs"] = float(sum(times))
    return found
