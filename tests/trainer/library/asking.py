"""A script that asks the other ranks before training, before each epoch and after it."""

from __future__ import annotations

from collections.abc import Sequence

import ddp_trainer
from torch import nn

from tests.trainer.library.script import digest, digits, parsed, seeded_parts
from tests.trainer.support import fault_injection


def main(arguments: Sequence[str]) -> None:
    """Train to the end."""
    options = parsed(arguments)
    model, optimizer = seeded_parts()
    with ddp_trainer.join(
        model=model,
        optimizer=optimizer,
        heartbeat_timeout_seconds=options.heartbeat_timeout_seconds,
        group_timeout_seconds=options.group_timeout_seconds,
    ) as job:
        before = [job.sum(10 * job.rank), job.sum(1)]
        loader, net = digits(job.rank), job.wrap(model)
        for epoch in job.epochs(options.epochs):
            begun = job.sum(epoch)
            for inputs, targets, _ in job.batches(loader):
                loss = nn.functional.cross_entropy(net(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
                fault_injection.reach("after a step")
            after = [job.sum(7), job.sum(job.rank)]
            fault_injection.reach("after an epoch")
            print(f"epoch {epoch}: {before} {begun} {after} {job.sum(epoch)}", flush=True)
    print(f"ends with {digest(model, optimizer)}", flush=True)
