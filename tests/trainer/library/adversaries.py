"""A script with two models and two optimizers, which take turns with each batch."""

from __future__ import annotations

import os
from collections.abc import Sequence

import ddp_trainer
import torch
from ddp_trainer.data.sampler import SampleTrace
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus
from torch.utils.data import DataLoader

from tests.trainer.library.checks.flipping import PROBE_EVERY
from tests.trainer.library.script import BATCH_SIZE, Digits, parsed

NOISE = 16


def forger() -> nn.Module:
    """Noise to images."""
    return nn.Sequential(nn.Linear(NOISE, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64))


def critic() -> nn.Module:
    """Images to scores: high for real ones."""
    return nn.Sequential(
        *(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.LeakyReLU(0.2), nn.Dropout(0.25)),
        nn.Linear(64, 1),
    )


def verdict(says: Tensor, *, real: bool) -> Tensor:
    """Return the loss of a critic's scores for images that are real, or are not."""
    return binary_cross_entropy_with_logits(says, torch.full_like(says, float(real)))


def main(arguments: Sequence[str]) -> None:
    options = parsed(arguments)
    torch.manual_seed(0)
    forging, judging = forger(), critic()
    forging_optimizer = torch.optim.Adam(forging.parameters(), lr=2e-3)
    judging_optimizer = torch.optim.Adam(judging.parameters(), lr=2e-3)
    loader = DataLoader(Digits(train=True), batch_size=BATCH_SIZE, shuffle=True)
    with ddp_trainer.join(
        forger=forging,
        critic=judging,
        forger_optimizer=forging_optimizer,
        critic_optimizer=judging_optimizer,
        scheduler=torch.optim.lr_scheduler.ExponentialLR(judging_optimizer, 0.99),
        checkpoint_every_steps=3,
        verify_gradients=int(os.environ.get(PROBE_EVERY, "0")),
        group_timeout_seconds=5,
        heartbeat_timeout_seconds=5,
    ) as job:
        trace = SampleTrace(options.trace_samples, rank=job.rank)
        forge, judge = (job.wrap(model, bucket_cap_mb=0.01) for model in (forging, judging))
        for epoch in job.epochs(options.epochs):
            for images, _, places in job.batches(loader):
                trace.write(step=job.steps_done + 1, epoch=epoch, samples=places.tolist())
                real = images.reshape(-1, 64)
                forged = forge(torch.randn(len(real), NOISE))
                loss = verdict(judge(real), real=True) + verdict(judge(forged.detach()), real=False)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss, optimizer=judging_optimizer, clip_grad_norm=5.0)
                loss = softplus(-judge(forged)).mean()
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss, optimizer=forging_optimizer)
