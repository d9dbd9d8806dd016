"""A script in which bits flip after some steps, as a plan in the environment says."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import ddp_trainer
import torch
from ddp_trainer.library.job import Job
from torch import Tensor, nn

from tests.trainer.library.script import digest, digits, parsed, seeded_parts
from tests.trainer.support.pods import until

EVERY_STEPS = "TEST_VERIFY_REPLICAS"
PLAN = "TEST_FLIPS"
"""Lists of a rank, a step, and "parameter", "state" or "death": after that step a bit flips there,
or the rank dies. Each happens once, in this order."""
FOLDER = "TEST_FLIPS_FOLDER"
LEAVE_AT = "TEST_LEAVE_AT"
"""The script leaves its loop after this step."""


def flip(tensor: Tensor, bit: int) -> None:
    """Flip a bit of a contiguous tensor."""
    with torch.no_grad():
        tensor.reshape(-1).view(torch.uint8)[bit // 8] ^= 1 << bit % 8


def _taken(rank: int, step: int) -> Path:
    """Return the file that says that a rank has taken a step."""
    return Path(os.environ[FOLDER], f"rank-{rank}-step-{step}")


def befall(job: Job, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Do what the plan has for this rank after this step."""
    _taken(job.rank, job.steps_done).touch()
    for number, (rank, step, what) in enumerate(json.loads(os.environ[PLAN])):
        mark = Path(os.environ[FOLDER], str(number))
        if mark.exists():
            continue
        if (rank, step) == (job.rank, job.steps_done):
            mark.touch()
            if what == "death":
                # Otherwise one may not take the step, and the faulty state is sent to it, too.
                for other in range(job.world_size):
                    until(_taken(other, step).exists, "all to take the step")
                os.kill(os.getpid(), signal.SIGKILL)
            parameter = next(model.parameters())
            state: Tensor = optimizer.state[parameter]["exp_avg"]
            flip(parameter if what == "parameter" else state, bit=37)
        return


def main(arguments: Sequence[str]) -> None:
    """Train to the end."""
    options = parsed(arguments)
    model, optimizer = seeded_parts()
    with ddp_trainer.join(
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99),
        checkpoint_dir="",
        verify_replicas=int(os.environ[EVERY_STEPS]),
        group_timeout_seconds=60,
        heartbeat_timeout_seconds=0,
    ) as job:
        loader = digits(job.rank)
        net = job.wrap(model, bucket_cap_mb=0.01)
        for _ in job.epochs(options.epochs):
            for inputs, targets, _places in job.batches(loader):
                outputs = net(inputs.to(job.device))
                loss = nn.functional.cross_entropy(outputs, targets.to(job.device))
                loss.backward()  # type: ignore[no-untyped-call]
                if not job.step(loss):
                    continue
                befall(job, model, optimizer)
                if job.steps_done == int(os.environ.get(LEAVE_AT, "0")):
                    break
            [ranks] = job.sum(1.0)
            assert ranks == job.world_size
        print(f"rank {job.rank} ends with {digest(model, optimizer)}", flush=True)
