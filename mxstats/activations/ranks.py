"""One process among several under ``torchrun``, or the only one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@contextmanager
def from_environment() -> Iterator[None]:
    """Join the other processes of ``torchrun`` for the block, where it started this one."""
    from torch import cuda, distributed

    if (
        int(os.environ.get("WORLD_SIZE", "1")) < 2
        or not distributed.is_available()
        or distributed.is_initialized()
    ):
        yield
        return
    if cuda.is_available():
        cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    # Only sizes, names and barriers go between processes; gloo does that on every machine.
    distributed.init_process_group("gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def together() -> bool:
    """Whether ``torch.distributed`` runs, with more than one process."""
    from torch import distributed

    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def rank() -> int:
    """Number of this process."""
    from torch import distributed

    return distributed.get_rank() if together() else 0


def world_size() -> int:
    """Number of processes."""
    from torch import distributed

    return distributed.get_world_size() if together() else 1


def barrier() -> None:
    """Wait for all processes."""
    from torch import distributed

    if together():
        distributed.barrier()


def broadcast_text(text: str | None) -> str:
    """What process 0 says."""
    if not together():
        return text or ""
    return gather_bytes((text or "").encode())[0].decode()


def gather_bytes(data: bytes) -> list[bytes]:
    """What every process says, in their order; plain bytes, nothing is pickled."""
    import torch
    from torch import distributed

    if not together():
        return [data]
    device = _device()
    length = torch.tensor([len(data)], device=device)
    lengths = [torch.zeros_like(length) for _ in range(world_size())]
    distributed.all_gather(lengths, length)
    sizes = [int(one) for one in lengths]
    padded = torch.zeros(max(1, *sizes), dtype=torch.uint8, device=device)
    if data:
        padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
    parts = [torch.zeros_like(padded) for _ in sizes]
    distributed.all_gather(parts, padded)
    return [
        bytes(part[:size].cpu().numpy().tobytes()) for part, size in zip(parts, sizes, strict=True)
    ]


def _device() -> "torch.device":
    import torch
    from torch import distributed

    on_gpu = "nccl" in str(distributed.get_backend())
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
