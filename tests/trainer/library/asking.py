"""A script that asks the other ranks before training, before each epoch and after it."""

from __future__ import annotations

from collections.abc import Sequence

import ddp_trainer
import torch
from torch import nn

from tests.trainer.library.script import digest, digits, parsed
from tests.trainer.support import deaths
from tests.trainer.support.norm import network


def main(arguments: Sequence[str]) -> None:
    """Train to the end."""
    options = parsed(arguments)
    torch.manual_seed(0)
    model = network(dropout=0.25)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
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
                deaths.pass_by("after a step")
            after = [job.sum(7), job.sum(job.rank)]
            deaths.pass_by("after an epoch")
            print(f"epoch {epoch}: {before} {begun} {after} {job.sum(epoch)}", flush=True)
    print(f"ends with {digest(model, optimizer)}", flush=True)
