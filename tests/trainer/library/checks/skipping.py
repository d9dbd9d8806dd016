"""A script with batches that are not numbers, or with steps that are left out by hand."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import ddp_trainer
import torch
from ddp_trainer.data.sampler import SampleTrace
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from tests.trainer.library.script import digest, digits, parsed
from tests.trainer.library.sharded.sharding import Own
from tests.trainer.support import fault_injection
from tests.trainer.support.norm import network

BAD = "TEST_BAD_STEPS"
"""Lists of a step and a rank: its batch is not a number in that step."""
BY_HAND = "TEST_BY_HAND"
"""Set: all batches are numbers, and these steps change nothing."""
SHARDED = "TEST_SHARDED"
"""Set: the model is sharded over all ranks."""
MOST = 2
"""Steps in a row that are skipped."""


class LeavingOut(torch.optim.AdamW):
    """An optimizer that changes nothing in some steps; buffers are restored after them."""

    def __init__(self, model: nn.Module, steps: set[int]) -> None:
        super().__init__(model.parameters(), lr=3e-3)
        self.job: ddp_trainer.Job
        self._model, self._steps = model, steps
        self._before: list[Tensor] = []

    def begin(self) -> None:
        self._before = [buffer.clone() for buffer in self._model.buffers()]

    def step(self, closure: Any = None) -> Any:
        if self.job.steps_done + 1 not in self._steps:
            return super().step(closure)

    def end(self) -> None:
        """Restore the buffers after a step that was left out."""
        if self.job.steps_done in self._steps:
            for buffer, value in zip(self._model.buffers(), self._before, strict=True):
                buffer.copy_(value)


def main(arguments: Sequence[str]) -> None:
    options = parsed(arguments)
    bad = json.loads(os.environ[BAD])
    by_hand, is_sharded = BY_HAND in os.environ, SHARDED in os.environ
    torch.manual_seed(0)
    model = network(dropout=0.25)
    if is_sharded:
        fully_shard(model, mesh=ddp_trainer.device_mesh())
    optimizer = LeavingOut(model, {step for step, _ in bad} if by_hand else set())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    with ddp_trainer.join(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        checkpoint_dir="",
        skip_nonfinite_steps=0 if by_hand else MOST,
        group_timeout_seconds=60,
        heartbeat_timeout_seconds=0,
        max_reforms=100,
    ) as job:
        optimizer.job = job
        net = model if is_sharded else job.wrap(model, bucket_cap_mb=0.01)
        trace = SampleTrace(options.trace_samples, rank=job.rank)
        for epoch in job.epochs(options.epochs):
            for inputs, targets, places in job.batches(digits(job.rank)):
                optimizer.begin()
                step = job.steps_done + 1
                trace.write(step=step, epoch=epoch, samples=places.tolist())
                if [step, job.rank] in bad and not by_hand:
                    inputs.fill_(float("nan"))
                outputs = net(inputs.to(job.device))
                loss = nn.functional.cross_entropy(outputs, targets.to(job.device))
                loss.backward()  # type: ignore[no-untyped-call]
                fault_injection.reach("after backward")
                is_taken = job.step(loss, clip_grad_norm=1.0)
                assert not (is_taken and step in {each for each, _ in bad}) or by_hand
                optimizer.end()
        print(f"rank {job.rank} ends with {digest(Own(model, optimizer), scheduler)}", flush=True)
