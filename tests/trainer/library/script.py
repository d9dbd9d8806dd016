"""A training script of somebody's own, with all that tempts a recovery to differ by a bit.

Running statistics, dropout, random augmentation, a scheduler, clipped gradients, and an evaluation
that all ranks take part in.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ddp_trainer
import torch
from ddp_trainer.data.sampler import SampleTrace
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.trainer.support.norm import network

BATCH_SIZE = 32
SLOW_EVALUATION = "TEST_SECONDS_A_BATCH"
"""What each batch of the evaluation takes longer, and is told of."""


class Digits(Dataset[tuple[Tensor, int, int]]):
    """Digits that are a little different each time they are looked at."""

    def __init__(self, *, train: bool) -> None:
        digits = load_digits()
        self._indices = [i for i in range(len(digits.target)) if (i % 5 != 0) == train]
        self._images = torch.tensor(digits.images, dtype=torch.float32) / 16
        self._targets = digits.target.tolist()
        self._train = train

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, place: int) -> tuple[Tensor, int, int]:
        index = self._indices[place]
        image = self._images[index]
        if self._train:
            image = image + 0.1 * torch.randn(8, 8)
        return image, self._targets[index], place


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Those of the bundled trainer's flags that mean something here."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--max-reforms", type=int, default=10)
    parser.add_argument("--heartbeat-timeout-seconds", type=float, default=5)
    parser.add_argument("--group-timeout-seconds", type=float, default=5)
    parser.add_argument("--rendezvous-timeout-seconds", type=float, default=600)
    parser.add_argument("--step-delay-seconds", type=float, default=0)
    parser.add_argument("--trace-samples", type=Path)
    options, _ = parser.parse_known_args(arguments)
    return options


def seeded_parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model with running statistics and random numbers, and its optimizer: equal on all ranks."""
    torch.manual_seed(0)
    model = network(dropout=0.25)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


def digits(_: int) -> DataLoader[Any]:
    """All that there are, for all ranks."""
    return DataLoader(Digits(train=True), batch_size=BATCH_SIZE, shuffle=True)


def main(arguments: Sequence[str], *, loader_of: Callable[[int], DataLoader[Any]] = digits) -> None:
    """Train to the end on what a rank's loader gives."""
    options = parsed(arguments)
    model, optimizer = seeded_parts()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    test_loader = DataLoader(Digits(train=False), batch_size=BATCH_SIZE)
    with ddp_trainer.join(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        checkpoint_every_steps=3,
        group_timeout_seconds=options.group_timeout_seconds,
        rendezvous_timeout_seconds=options.rendezvous_timeout_seconds,
        heartbeat_timeout_seconds=options.heartbeat_timeout_seconds,
        max_reforms=options.max_reforms,
    ) as job:
        loader = loader_of(job.rank)
        trace = SampleTrace(options.trace_samples, rank=job.rank)
        net = job.wrap(model, bucket_cap_mb=0.01)
        for epoch in job.epochs(options.epochs):
            for inputs, targets, places in job.batches(loader):
                trace.rank = job.rank  # it may be another one by now
                trace.write(step=job.steps_done + 1, epoch=epoch, samples=places.tolist())
                loss = nn.functional.cross_entropy(net(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                job.step(loss)
                time.sleep(options.step_delay_seconds)
            net.eval()
            right = total = 0
            with torch.no_grad():
                for inputs, targets, _ in job.share(test_loader):
                    if SLOW_EVALUATION in os.environ:
                        print("evaluating", flush=True)
                        time.sleep(float(os.environ[SLOW_EVALUATION]))
                    right += int((net(inputs).argmax(1) == targets).sum())
                    total += len(targets)
            net.train()
            right_of_all, total_of_all = job.sum(right, total)
            if job.is_main:
                print(f"epoch {epoch}: {right_of_all:.0f} of {total_of_all:.0f}", flush=True)
    print(f"ends with {digest(model, optimizer, scheduler)}", flush=True)


def digest(*parts: Any) -> str:
    """The same where all that they hold is the same to the bit."""
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    return hashlib.sha256(file.getvalue()).hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
