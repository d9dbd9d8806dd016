"""A script that averages its weights, and counts, after each step: both belong to the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ddp_trainer
import torch
from ddp_trainer.data.sampler import SampleTrace
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.trainer.library.script import digest, digits, parsed
from tests.trainer.support.norm import network


class Losses:
    """The sum of those of all steps."""

    def __init__(self) -> None:
        self.steps = 0
        self.total = torch.zeros((), dtype=torch.float64)

    def state_dict(self) -> dict[str, Any]:
        """What is known so far."""
        return {"steps": self.steps, "total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it over."""
        self.steps, self.total = state["steps"], state["total"]


def main(arguments: Sequence[str]) -> None:
    """Train to the end."""
    options = parsed(arguments)
    torch.manual_seed(0)
    model = network(dropout=0.25)
    average = AveragedModel(
        model,
        multi_avg_fn=get_ema_multi_avg_fn(0.9),  # type: ignore[no-untyped-call]
        use_buffers=True,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    counted = Losses()
    with ddp_trainer.join(
        model=model,
        average=average,
        optimizer=optimizer,
        counted=counted,
        checkpoint_every_steps=3,
        log_every_steps=1,
        group_timeout_seconds=5,
        heartbeat_timeout_seconds=5,
    ) as job:
        loader = digits(job.rank)
        trace = SampleTrace(options.trace_samples, rank=job.rank)
        net = job.wrap(model, bucket_cap_mb=0.01)
        for epoch in job.epochs(options.epochs):
            for inputs, targets, places in job.batches(loader):
                trace.write(step=job.steps_done + 1, epoch=epoch, samples=places.tolist())
                loss = nn.functional.cross_entropy(net(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                if job.step(loss):
                    average.update_parameters(model)
                    counted.steps += 1
                    counted.total += next(average.parameters()).detach().abs().sum().double()
            assert counted.steps == job.steps_done
    print(f"ends with {digest(model, optimizer, average, counted)}", flush=True)
