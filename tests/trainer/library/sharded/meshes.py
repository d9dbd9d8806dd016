"""A script that communicates over device meshes, which it makes once, before it trains."""

from __future__ import annotations

from collections.abc import Sequence

import ddp_trainer
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from tests.trainer.library.script import digest, digits, parsed, seeded_parts
from tests.trainer.support import fault_injection


def gathered(own: Tensor, mesh: DeviceMesh) -> list[float]:
    """Return the values of all ranks of a mesh."""
    whole: Tensor = DTensor.from_local(own, mesh, [Shard(0)]).full_tensor()
    return [float(value) for value in whole]


def summed(own: Tensor, mesh: DeviceMesh, to: Replicate | Shard) -> Tensor:
    """Return the sum over the ranks of a mesh, or this rank's part of it."""
    return DTensor.from_local(own, mesh, [Partial()]).redistribute(mesh, [to]).to_local()


def main(arguments: Sequence[str]) -> None:
    options = parsed(arguments)
    model, optimizer = seeded_parts()
    with ddp_trainer.join(
        model=model, optimizer=optimizer, group_timeout_seconds=20, max_reforms=100
    ) as job:
        mesh = init_device_mesh("cpu", (job.world_size,))
        pair = DeviceMesh("cpu", [0, job.world_size - 1])
        net, ranks = job.wrap(model, bucket_cap_mb=0.01), torch.arange(float(job.world_size))
        loader = digits(job.rank)
        for epoch in job.epochs(options.epochs):
            for inputs, targets, _ in job.batches(loader):
                loss = nn.functional.cross_entropy(net(inputs), targets)
                fault_injection.reach("within a step")
                all_ranks = gathered(torch.tensor([float(job.rank)]), mesh)
                shares = summed(ranks, mesh, Shard(0))
                own = torch.empty(1)
                dist.reduce_scatter_tensor(own, ranks)
                loss.backward()  # type: ignore[no-untyped-call]
                if job.step(loss):
                    assert all_ranks == ranks.tolist()
                    assert shares == own == job.rank * job.world_size
            fault_injection.reach("evaluation")
            found = summed(ranks, mesh, Replicate()).tolist()
            if pair.get_coordinate() is not None:
                found += gathered(torch.tensor([10.0 + job.rank]), pair)
            if job.is_main:
                print(f"epoch {epoch}: {found}", flush=True)
    print(f"ends with {digest(model, optimizer)}", flush=True)
