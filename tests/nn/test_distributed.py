"""DDP and FSDP2 of two processes train as one process does on the whole batch."""

import time

import pytest
import torch
from torch import nn

from mxstats.nn import RMSNormLinear
from tests.nn.nets import Gated
from tests.nn.oracle import relative, rows_of

STEPS, ROWS, WORLD = 3, 64, 2
LIMIT_S = 120


def model_of():
    # Weights of blocks are a buffer, which DDP broadcasts.
    weights = torch.tensor([0.2, 0.4])
    return nn.Sequential(Gated(), Gated(weights=weights), Gated(RMSNormLinear))


def train(model, rows):
    """SGD on a part of the batch: whole blocks of 32 tokens, so that casts do not cross parts."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for step in range(STEPS):
        x, target = rows_of(ROWS, 64, seed=step)[rows], rows_of(ROWS, 64, seed=50 + step)[rows]
        optimiser.zero_grad()
        (model(x) - target).square().mean().backward()
        optimiser.step()


def work(rank, folder):
    # Imported in the processes alone: it takes a second.
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=WORLD)
    try:
        part = slice(rank * ROWS // WORLD, (rank + 1) * ROWS // WORLD)
        replicated = model_of()
        train(DistributedDataParallel(replicated), part)
        sharded = model_of()
        mesh = init_device_mesh("cpu", (WORLD,))
        for layer in sharded:
            fully_shard(layer, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        train(sharded, part)
        whole = {name: value.full_tensor() for name, value in sharded.named_parameters()}
        assert sharded[0].up.gamma.to_local().numel() == 64 // WORLD
        found = {"DDP": dict(replicated.named_parameters()), "FSDP2": whole}
        torch.save(
            {kind: {n: v.detach() for n, v in of.items()} for kind, of in found.items()},
            f"{folder}/{rank}.pt",
        )
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Parameters by kind, as each of the processes has them."""
    import torch.multiprocessing as mp

    folder = tmp_path_factory.mktemp("processes")
    context = mp.spawn(work, (str(folder),), nprocs=WORLD, join=False)
    try:
        start = time.monotonic()
        while not context.join(timeout=5):
            assert time.monotonic() - start < LIMIT_S, "the processes wait for each other"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
            process.join()
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="this torch has no gloo",
)
@pytest.mark.parametrize("kind", ["DDP", "FSDP2"])
def test_two_processes_train_as_one_does(trained, kind):
    model, start = model_of(), dict(model_of().named_parameters())
    train(model, slice(None))
    for name, wanted in model.named_parameters():
        first, second = (found[kind][name] for found in trained)
        assert torch.equal(first, second)
        update = wanted - start[name]
        assert update.norm() > 1e-3 * start[name].norm(), "something has been learnt"
        # Sums over tokens in two parts differ by float32 roundings, 1e-7, and now and then put an
        # element on the other side of a border of its E4M3, a change of 1/16 in one of thousands.
        assert relative(first - start[name], update) < 2e-3, name
