"""The loop that people write by hand, for comparison with the trainer.

It has no checkpoints, no way to stop and no restarts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from ddp_trainer.workloads.base import MapSamples, Samples, SampleSet, Workload
from torch import Tensor
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

BATCH_SIZE = 32
LOG_EVERY_STEPS = 10
LOADING_WORKERS = 1
"""Of each rank, where samples take time to load."""


def batches(
    samples: SampleSet, epoch: int, *, rank: int, world_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """One rank's batches of an epoch: from memory, or by a DataLoader with a worker."""
    if isinstance(samples, MapSamples):
        yield from DataLoader(
            samples.dataset,
            batch_size=BATCH_SIZE,
            sampler=DistributedSampler(samples.dataset, world_size, rank),
            num_workers=LOADING_WORKERS,
        )
        return
    assert isinstance(samples, Samples)
    generator = torch.Generator().manual_seed(epoch)
    mine = torch.randperm(len(samples), generator=generator)[rank::world_size]
    for first in range(0, len(mine), BATCH_SIZE):
        batch = mine[first : first + BATCH_SIZE]
        yield samples.inputs[batch], samples.targets[batch]


@dataclass(frozen=True)
class Moment:
    """By two clocks, in seconds."""

    wall: float
    cpu: float
    """Of this process, all threads together."""

    def __sub__(self, earlier: Moment) -> Moment:
        return Moment(self.wall - earlier.wall, self.cpu - earlier.cpu)


def now() -> Moment:
    """This moment."""
    return Moment(time.perf_counter(), time.process_time())


def train(workload: Workload, *, epochs: int, group: dist.ProcessGroup) -> list[Moment]:
    """Train with AdamW and a cosine schedule in a process group.

    Returns when each step was complete.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        workload.model(), process_group=group, gradient_as_bucket_view=True
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    steps_of_an_epoch = -(-len(workload.train) // (BATCH_SIZE * world_size))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps_of_an_epoch)
    complete: list[Moment] = []
    for epoch in range(epochs):
        for inputs, targets in batches(workload.train, epoch, rank=rank, world_size=world_size):
            loss = workload.loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
            complete.append(now())
            if rank == 0 and len(complete) % LOG_EVERY_STEPS == 0:
                print(f"step {len(complete)} loss {loss.item():.4f}", flush=True)
    return complete
