"""A script that leaves its training early on one rank, without an error, when a test wants it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NoReturn

import ddp_trainer
from torch import nn

from tests.trainer.library.script import digest, digits, parsed, seeded_parts
from tests.trainer.support import fault_injection


class LeaveError(Exception):
    """It leaves."""


def leave() -> NoReturn:
    """What befalls the rank."""
    raise LeaveError


def main(arguments: Sequence[str]) -> None:
    """Train to the end."""
    fault_injection.ACTIONS["leave"] = leave
    options = parsed(arguments)
    model, optimizer = seeded_parts()
    with ddp_trainer.join(
        model=model,
        optimizer=optimizer,
        heartbeat_timeout_seconds=options.heartbeat_timeout_seconds,
        group_timeout_seconds=options.group_timeout_seconds,
    ) as job:
        loader, net = digits(job.rank), job.wrap(model)
        with contextlib.suppress(LeaveError):
            for _ in job.epochs(options.epochs):
                for inputs, targets, _ in job.batches(loader):
                    loss = nn.functional.cross_entropy(net(inputs), targets)
                    fault_injection.reach("within a step")
                    loss.backward()  # type: ignore[no-untyped-call]
                    job.step(loss)
                    fault_injection.reach("after a step")
                fault_injection.reach("after an epoch")
                job.sum(1)
    print(f"ends with {digest(model, optimizer)}", flush=True)
