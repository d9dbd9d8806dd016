"""A script that calls collectives wherever scripts do: before, within and after steps.

Its printed results are the same if a rank is lost. Faults have a point before each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ddp_trainer
import torch
from torch import distributed as dist
from torch import nn

from tests.trainer.library.script import Digits, digest, digits, parsed, seeded_parts
from tests.trainer.support import fault_injection


def main(arguments: Sequence[str]) -> None:
    options = parsed(arguments)
    model, optimizer = seeded_parts()
    tests = Digits(train=False)
    with ddp_trainer.join(
        model=model,
        optimizer=optimizer,
        group_timeout_seconds=options.group_timeout_seconds,
        heartbeat_timeout_seconds=options.heartbeat_timeout_seconds,
        max_reforms=100,
    ) as job:
        fault_injection.reach("before training")
        names: list[Any] = [None] * job.world_size
        dist.all_gather_object(names, f"rank {job.rank}")
        sums = [job.sum(10 * job.rank), job.sum(1)]
        last = dist.new_group([1, job.world_size - 1])
        again = dist.new_group([1, job.world_size - 1])
        loader, net = digits(job.rank), job.wrap(model, bucket_cap_mb=0.01)
        for epoch in job.epochs(options.epochs):
            fault_injection.reach("before an epoch")
            begun = torch.tensor([100 * epoch + job.rank])
            dist.broadcast(begun, src=1)
            steps = 0.0
            for inputs, targets, _ in job.batches(loader):
                loss = nn.functional.cross_entropy(net(inputs), targets)
                shared = loss.detach().clone()
                fault_injection.reach("within a step")
                dist.all_reduce(shared)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
                fault_injection.reach("after a step")
                mean = loss.detach().clone()
                dist.all_reduce(mean)
                steps += mean.isfinite().item()
            fault_injection.reach("barrier")
            dist.barrier()
            net.eval()
            own = [tests[place] for place in range(job.rank, len(tests), job.world_size)]
            images, targets = torch.stack([one[0] for one in own]), [one[1] for one in own]
            with torch.no_grad():
                right = int((net(images).argmax(1) == torch.tensor(targets)).sum())
            net.train()
            counts = torch.tensor([right, len(own)])
            fault_injection.reach("evaluation")
            dist.all_reduce(counts)
            among = torch.tensor([job.rank])
            if job.rank in (1, job.world_size - 1):
                for group in (last, again):  # later both are formed, and a rank waits in one
                    dist.all_reduce(torch.zeros(1), group=group)
                fault_injection.reach("in a smaller group")
                dist.all_reduce(among, group=last)
            fault_injection.reach("gathering")
            parts = [torch.empty(1, dtype=torch.long) for _ in range(job.world_size)]
            dist.all_gather(parts, among)
            best: list[Any] = [{"epoch": epoch} if job.rank == 0 else None]
            dist.broadcast_object_list(best, src=0)
            given = [torch.tensor([10 * rank]) for rank in range(job.world_size)]
            mine = torch.zeros(1, dtype=torch.long)
            dist.scatter(mine, given if job.rank == 1 else None, src=1)
            dist.reduce(mine, 0)
            sums_after = [job.sum(7), job.sum(job.rank)]
            fault_injection.reach("between two sums")
            sums_after.append(job.sum(epoch))
            results = (
                *(begun.item(), counts.tolist(), [part.item() for part in parts]),
                *(best, mine.item(), sums, sums_after),
            )
            if job.is_main:
                print(f"epoch {epoch}: {results}, among {names}", flush=True)
        fault_injection.reach("after training")
        dist.barrier()
    print(f"ends with {digest(model, optimizer)}", flush=True)
