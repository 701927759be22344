"""What is timed: each case makes a function of one input set, and knows the bytes it must move.

x is bfloat16 [rows, hidden size], the elements E4M3 with E8M0 scales unless a name says otherwise.
The baselines' bytes are those of the fused kernel that does the same, whatever they really move.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch

from mxstats.formats import NVFP4
from mxstats.kernels.mx_cast import mx_cast
from mxstats.kernels.mxnorm import mxnorm
from mxstats.kernels.mxnorm_backward import mxnorm_backward
from mxstats.kernels.rmsnorm_mx import rmsnorm_mx
from mxstats.kernels.rmsnorm_mx_backward import rmsnorm_mx_backward
from mxstats.measure.speed import baselines, traffic
from mxstats.measure.speed.traffic import Traffic
from mxstats.theory import constant

Direction = Literal["forward", "backward"]
Call = Callable[["Inputs"], Any]


class Inputs(NamedTuple):
    """One input set: x, a second tensor like it (a residual, or dy), a third, and 1/RMS(x)."""

    x: torch.Tensor
    other: torch.Tensor
    third: torch.Tensor
    rho: torch.Tensor


@dataclass(frozen=True)
class Case:
    """``build(hidden_size, device)`` returns the function that is timed."""

    name: str
    direction: Direction
    build: Callable[[int, torch.device], Call]
    traffic: Callable[[int, int], Traffic]


def inputs(rows: int, hidden_size: int, device: torch.device, seed: int) -> Inputs:
    """Return Gaussian inputs of RMS 1 in bfloat16; ρ float32, [rows]."""
    generator = torch.Generator(device).manual_seed(seed)
    x, other, third = (
        torch.randn(rows, hidden_size, device=device, generator=generator).bfloat16()
        for _ in range(3)
    )
    return Inputs(x, other, third, x.float().square().mean(dim=-1).rsqrt())


def gamma(hidden_size: int, device: torch.device) -> torch.Tensor:
    """Return γ about 1, bfloat16, [hidden size]."""
    generator = torch.Generator(device).manual_seed(0)
    return (1 + 0.1 * torch.randn(hidden_size, device=device, generator=generator)).bfloat16()


def _c(p: float, block_size: int = 32) -> float:
    return float(constant(p=p, block_size=block_size))


def _weights(hidden_size: int, device: torch.device) -> torch.Tensor:
    n_blocks = -(-hidden_size // 32)
    return torch.full((n_blocks,), _c(2.0) ** -2, dtype=torch.float32, device=device)


def _mxnorm(hidden_size: int, device: torch.device, *, p: float = 2.0, **options: Any) -> Call:
    c = _c(p)
    return lambda given: mxnorm(given.x, p=p, c=c, **options)


def _mxnorm_weights(hidden_size: int, device: torch.device) -> Call:
    weights = _weights(hidden_size, device)
    return lambda given: mxnorm(given.x, weights=weights)


def _mxnorm_residual(hidden_size: int, device: torch.device) -> Call:
    c = _c(2.0)
    return lambda given: mxnorm(given.x, c=c, residual=given.other)


def _mxnorm_nvfp4(hidden_size: int, device: torch.device) -> Call:
    c = _c(2.0, NVFP4.block_size)
    return lambda given: mxnorm(given.x, c=c, fmt=NVFP4)


def _mxnorm_backward(
    hidden_size: int, device: torch.device, *, p: float = 2.0, residual: bool = False
) -> Call:
    c = _c(p)

    def call(given: Inputs) -> torch.Tensor:
        d_residual = given.third if residual else None
        return mxnorm_backward(given.other, given.x, given.rho, p=p, c=c, d_residual=d_residual)

    return call


def _rmsnorm_mx(hidden_size: int, device: torch.device) -> Call:
    g = gamma(hidden_size, device)
    return lambda given: rmsnorm_mx(given.x, g)


def _rmsnorm_mx_backward(hidden_size: int, device: torch.device) -> Call:
    g = gamma(hidden_size, device)
    return lambda given: rmsnorm_mx_backward(given.other, given.x, given.rho, g)


def _mx_cast(
    hidden_size: int, device: torch.device, *, axis: Literal["rows", "columns", "both"]
) -> Call:
    return lambda given: mx_cast(given.x, axis=axis)


def _compiled(hidden_size: int, device: torch.device) -> Call:
    g, function = gamma(hidden_size, device), baselines.compiled(baselines.rmsnorm_mx)
    return lambda given: function(given.x, g)


def _compiled_in_two(hidden_size: int, device: torch.device) -> Call:
    g = gamma(hidden_size, device)
    norm = baselines.compiled(baselines.rmsnorm_rounded)
    cast = baselines.compiled(baselines.mx_cast)
    return lambda given: cast(norm(given.x, g))


def _liger(hidden_size: int, device: torch.device) -> Call:
    norm = baselines.liger_rmsnorm()
    if norm is None:
        raise ValueError("case 'liger + mx_cast': liger_kernel is not installed")
    g = gamma(hidden_size, device)
    return lambda given: mx_cast(norm(given.x, g, 1e-5))


def _compiled_backward(hidden_size: int, device: torch.device) -> Call:
    g, function = gamma(hidden_size, device), baselines.compiled(baselines.rmsnorm_backward)
    return lambda given: function(given.other, given.x, given.rho, g)


MXNORM, RMSNORM_MX = "mxnorm p=2", "rmsnorm_mx"
COMPILED, COMPILED_IN_TWO, LIGER = "compiled", "compiled in two", "liger + mx_cast"
MXNORM_BACKWARD, RMSNORM_MX_BACKWARD = "mxnorm_backward p=2", "rmsnorm_mx_backward"
COMPILED_BACKWARD = "compiled backward"

CASES = {
    case.name: case
    for case in (
        Case(MXNORM, "forward", _mxnorm, traffic.mxnorm),
        Case("mxnorm p=1", "forward", partial(_mxnorm, p=1.0), traffic.mxnorm),
        Case(
            "mxnorm weights", "forward", _mxnorm_weights, partial(traffic.mxnorm, weights=True)
        ),
        Case(
            "mxnorm residual", "forward", _mxnorm_residual, partial(traffic.mxnorm, residual=True)
        ),
        Case("mxnorm NVFP4", "forward", _mxnorm_nvfp4, partial(traffic.mxnorm, block_size=16)),
        Case(
            "mxnorm scales", "forward", partial(_mxnorm, estimate_from="scales"), traffic.mxnorm
        ),
        Case(
            "mxnorm blocked", "forward", partial(_mxnorm, scale_layout="blocked"), traffic.mxnorm
        ),
        Case(RMSNORM_MX, "forward", _rmsnorm_mx, traffic.rmsnorm_mx),
        Case("mx_cast rows", "forward", partial(_mx_cast, axis="rows"), traffic.mx_cast),
        Case(
            "mx_cast columns",
            "forward",
            partial(_mx_cast, axis="columns"),
            partial(traffic.mx_cast, along_rows=False, along_columns=True),
        ),
        Case(
            "mx_cast both",
            "forward",
            partial(_mx_cast, axis="both"),
            partial(traffic.mx_cast, along_columns=True),
        ),
        Case(COMPILED, "forward", _compiled, traffic.rmsnorm_mx),
        Case(COMPILED_IN_TWO, "forward", _compiled_in_two, traffic.rmsnorm_mx),
        Case(LIGER, "forward", _liger, traffic.rmsnorm_mx),
        Case(MXNORM_BACKWARD, "backward", _mxnorm_backward, traffic.mxnorm_backward),
        Case(
            "mxnorm_backward p=1", "backward", partial(_mxnorm_backward, p=1.0),
            traffic.mxnorm_backward,
        ),
        Case(
            "mxnorm_backward residual",
            "backward",
            partial(_mxnorm_backward, residual=True),
            partial(traffic.mxnorm_backward, residual=True),
        ),
        Case(RMSNORM_MX_BACKWARD, "backward", _rmsnorm_mx_backward, traffic.rmsnorm_backward),
        Case(COMPILED_BACKWARD, "backward", _compiled_backward, traffic.rmsnorm_backward),
    )
}  # fmt: skip

# What a first look needs: MXNorm, and everything that it is compared with.
USUAL = (
    MXNORM, RMSNORM_MX, COMPILED, COMPILED_IN_TWO, LIGER,
    MXNORM_BACKWARD, RMSNORM_MX_BACKWARD, COMPILED_BACKWARD,
)  # fmt: skip


def chosen(names: Iterable[str]) -> list[Case]:
    """Return cases by name, or all of a direction by "forward" or "backward", or "all".

    Liger's is left out of a group where ``liger_kernel`` is not installed, and an error by name.

    Raises ValueError for an unknown name, listing the known ones.
    """
    found: dict[str, Case] = {}
    for name in names:
        if name in CASES:
            found[name] = CASES[name]
        elif name in ("forward", "backward", "all", "usual"):
            found |= {
                case.name: case
                for case in CASES.values()
                if (name in ("all", case.direction) or (name == "usual" and case.name in USUAL))
                and (case.name != LIGER or baselines.liger_rmsnorm() is not None)
            }
        else:
            raise ValueError(
                f"case {name!r} is unknown; known are usual, all, forward, backward, "
                f"{', '.join(CASES)}"
            )
    return list(found.values())
