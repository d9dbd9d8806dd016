"""A script in which bits flip after steps that a plan in the environment names."""

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
or the rank dies, also as "death in a probe". Each happens once, in this order."""
FOLDER = "TEST_FLIPS_FOLDER"
LEAVE_AT = "TEST_LEAVE_AT"
"""The script leaves its loop after this step."""
PROBE_EVERY = "TEST_VERIFY_GRADIENTS"
FAULT = "TEST_FAULT"
"""A rank and a step: from then on its processor flips a bit of each gradient, until the run returns
to an earlier step. A process that replaces the rank has no such fault."""
SAVES = "TEST_SAVES"
"""Folder of the checkpoints; one is saved every 10 steps."""
SHARDS = "TEST_LOGICAL_SHARDS"
BIT = 32 + 22
"""The highest bit of the fraction of the second number."""


def flip(tensor: Tensor, bit: int) -> None:
    """Flip a bit of a contiguous tensor."""
    with torch.no_grad():
        tensor.reshape(-1).view(torch.uint8)[bit // 8] ^= 1 << bit % 8


def _taken(rank: int, step: int) -> Path:
    """Return the file that exists once a rank has taken a step."""
    return Path(os.environ[FOLDER], f"rank-{rank}-step-{step}")


def inject(job: Job, model: nn.Module, optimizer: torch.optim.Optimizer, *, is_taken: bool) -> None:
    """Inject the faults of the plan for this rank after this step."""
    if is_taken and FOLDER in os.environ:
        _taken(job.rank, job.steps_done).touch()
    for number, (rank, step, what) in enumerate(json.loads(os.environ.get(PLAN, "[]"))):
        mark = Path(os.environ[FOLDER], str(number))
        if mark.exists():
            continue
        happens = rank, step, what != "death in a probe"
        if happens == (job.rank, job.steps_done, is_taken):
            mark.touch()
            if what.startswith("death"):
                # Otherwise one may not take the step, and the faulty state is sent to it, too.
                for other in range(job.world_size):
                    until(_taken(other, step).exists, "all to take the step")
                os.kill(os.getpid(), signal.SIGKILL)
            parameter = next(model.parameters())
            state: Tensor = optimizer.state[parameter]["exp_avg"]
            flip(parameter if what == "parameter" else state, bit=37)
        return


class Processor:
    """A rank's processor, which computes wrong gradients as long as it is faulty."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rank, self._since = json.loads(os.environ.get(FAULT, "[null, 0]"))
        self._last = 0
        self._has_returned = False

    def compute(self, gradient: Tensor) -> Tensor:
        """Return the gradient, or a wrong one."""
        step = self._job.steps_done
        self._has_returned = self._has_returned or step < self._last
        self._last = step
        if self._job.rank != self._rank or step < self._since or self._has_returned:
            return gradient
        mark = Path(os.environ[FOLDER], "fault")
        if not mark.exists():
            mark.write_text(str(os.getpid()))
        if mark.read_text() != str(os.getpid()):
            return gradient
        wrong = gradient.clone()
        flip(wrong, BIT)
        return wrong


def main(arguments: Sequence[str]) -> None:
    options = parsed(arguments)
    torch.use_deterministic_algorithms(os.environ.get("DDP_BACKEND") == "nccl")
    model, optimizer = seeded_parts()
    with ddp_trainer.join(
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99),
        checkpoint_dir=os.environ.get(SAVES, ""),
        checkpoint_every_steps=10,
        logical_shards=int(os.environ.get(SHARDS, "0")) or None,
        verify_replicas=int(os.environ.get(EVERY_STEPS, "0")),
        verify_gradients=int(os.environ.get(PROBE_EVERY, "0")),
        group_timeout_seconds=60,
        heartbeat_timeout_seconds=0,
    ) as job:
        loader = digits(job.rank)
        net = job.wrap(model, bucket_cap_mb=0.01)
        processor = Processor(job)
        next(model.parameters()).register_hook(processor.compute)  # type: ignore[no-untyped-call]
        for _ in job.epochs(options.epochs):
            for inputs, targets, _places in job.batches(loader):
                outputs = net(inputs.to(job.device))
                loss = nn.functional.cross_entropy(outputs, targets.to(job.device))
                loss.backward()  # type: ignore[no-untyped-call]
                is_taken = job.step(loss)
                inject(job, model, optimizer, is_taken=is_taken)
                if not is_taken:
                    print(f"rank {job.rank} takes no step after {job.steps_done}", flush=True)
                    continue
                if job.steps_done == int(os.environ.get(LEAVE_AT, "0")):
                    break
            [ranks] = job.sum(1.0)
            assert ranks == job.world_size
        print(f"rank {job.rank} ends with {digest(model, optimizer)}", flush=True)
