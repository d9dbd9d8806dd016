"""The training loop. It fits on a screen, and a script of your own looks the same."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from ddp_trainer.devices.precision import autocast
from ddp_trainer.library.job import Job
from ddp_trainer.library.steps.wrapping import WRAP_OPTIONS
from ddp_trainer.loop.learner import Learner
from ddp_trainer.loop.loaders import loader_of
from ddp_trainer.settings.options import Options
from ddp_trainer.workloads.base import Workload


def train(job: Job, learner: Learner, options: Options) -> None:
    """Train from the job's present position to the end."""
    workload, optimization = learner.workload, options.optimization
    loader = loader_of(
        workload.train, options.loading, job.device, batch_size=options.batch_size, shuffle=True
    )
    net = job.wrap(learner.model, **{name: getattr(options.ddp, name) for name in WRAP_OPTIONS})

    for _ in job.epochs(options.epochs, max_steps=options.max_steps):
        for batch in job.batches(loader, accumulate=optimization.accumulate_steps):
            inputs, targets = _on(job.device, batch)
            with autocast(optimization.precision, job.device):
                loss = workload.loss(net(inputs), targets) * job.weight
            scaled = learner.scaler.scale(loss) if learner.scaler is not None else loss
            scaled.backward()  # type: ignore[no-untyped-call]
            job.step(loss, clip_grad_norm=optimization.clip_grad_norm)
            if options.step_delay_seconds:
                time.sleep(options.step_delay_seconds)
        job.evaluated(evaluate(job, net, workload, options))


@torch.no_grad()
def evaluate(job: Job, net: nn.Module, workload: Workload, options: Options) -> float:
    """Return the mean score over the test set, in which each sample counts exactly once."""
    size = options.evaluation_batch_size
    loader = loader_of(workload.test, options.loading, job.device, batch_size=size)
    net.eval()
    score, count = 0.0, 0
    for batch in job.share(loader):
        inputs, targets = _on(job.device, batch)
        with autocast(options.optimization.precision, job.device):
            outputs = net(inputs)
        # In float64, so that the mean does not depend on the batches.
        score += workload.score(outputs, targets).sum(dtype=torch.float64).item()
        count += len(targets)
    net.train()
    score_of_all, count_of_all = job.sum(score, count)
    return score_of_all / count_of_all


def _on(device: torch.device, batch: Any) -> tuple[Tensor, Tensor]:
    inputs, targets = batch
    return inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
