"""Which implementation runs: Triton on a GPU or in its interpreter, vectorised torch elsewhere."""

import os
from functools import cache
from importlib.util import find_spec

import torch

BACKENDS = ("auto", "triton", "torch")
# Read once, as the kernels are decorated once.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
HAS_TRITON = find_spec("triton") is not None
# The first GPUs that convert to 8-bit floats in one instruction.
_FP8_CAPABILITY = (8, 9)


def resolve(backend: str, x: torch.Tensor) -> str:
    """Return ``"triton"`` or ``"torch"``.

    ``"auto"`` takes Triton for a tensor on a CUDA device and torch for any other.

    Raises
    ------
    ValueError
        An unknown backend, or ``"triton"`` for a tensor that no GPU holds, unless Triton's
        interpreter is on (``TRITON_INTERPRET=1`` before triton is first imported).
    ModuleNotFoundError
        Triton is needed and not installed.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} is unknown; known are {', '.join(BACKENDS)}")
    if backend == "auto":
        backend = "triton" if x.is_cuda else "torch"
    if backend == "triton" and not x.is_cuda and not INTERPRETED:
        raise ValueError(
            f"backend='triton': x is on {x.device}; a CUDA tensor is needed, or TRITON_INTERPRET=1"
        )
    if backend == "triton" and not HAS_TRITON:
        raise ModuleNotFoundError(
            "backend='triton' needs triton: pip install triton, or use backend='torch'",
            name="triton",
        )
    return backend


@cache  # torch's own calls take microseconds
def has_fp8_cast(device: torch.device) -> bool:
    """Whether kernels on this device convert to E4M3 and E5M2 in hardware (sm_89 and newer).

    The interpreter's conversion rounds otherwise than the hardware and is never used.
    """
    if device.type != "cuda" or INTERPRETED:
        return False
    return torch.cuda.get_device_capability(device) >= _FP8_CAPABILITY
