"""A training script with many things in which a recovery could differ by a bit.

It has running statistics, dropout, random augmentation, a scheduler, clipped gradients and an
evaluation by all ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import ddp_trainer
import numpy as np
import torch
from ddp_trainer.data.sampler import SampleTrace
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.trainer.support import fault_injection
from tests.trainer.support.norm import network

BATCH_SIZE = 32
SLOW_EVALUATION = "TEST_SECONDS_A_BATCH"
"""Delay of each batch of the evaluation, which is printed then."""


class Digits(Dataset[tuple[Tensor, int, int]]):
    """Digits that are augmented by each of the generators that scripts use."""

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
            image = image + 0.1 * torch.randn(8, 8) + 0.1 * float(np.random.normal())
            image = image.roll(random.choice((-1, 0, 1)), dims=-1)
        return image, self._targets[index], place


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the few flags of the bundled trainer that these scripts know."""
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
    """Return a model with running statistics and dropout, and its optimizer; equal on all ranks."""
    torch.manual_seed(0)
    model = network(dropout=0.25)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


def digits(_: int) -> DataLoader[Any]:
    """Return the loader of all digits, for any rank."""
    return DataLoader(Digits(train=True), batch_size=BATCH_SIZE, shuffle=True)


class LeaveError(Exception):
    """The rank leaves its loop early."""


def leave() -> NoReturn:
    """Let the rank leave without an error: a fault."""
    raise LeaveError


class Extra:
    """More parts of a training, which change after each step."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parts: dict[str, Any] = {}

    def after_step(self, steps_done: int) -> None:
        """Change them."""


def main(
    arguments: Sequence[str],
    *,
    loader_of: Callable[[int], DataLoader[Any]] = digits,
    extra_of: Callable[[nn.Module], Extra] = Extra,
) -> None:
    """Train to the end on the batches of each rank's loader."""
    fault_injection.ACTIONS["leave"] = leave
    options = parsed(arguments)
    model, optimizer = seeded_parts()
    extra = extra_of(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    test_loader = DataLoader(Digits(train=False), batch_size=BATCH_SIZE)
    with ddp_trainer.join(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        **extra.parts,
        checkpoint_every_steps=3,
        group_timeout_seconds=options.group_timeout_seconds,
        rendezvous_timeout_seconds=options.rendezvous_timeout_seconds,
        heartbeat_timeout_seconds=options.heartbeat_timeout_seconds,
        max_reforms=options.max_reforms,
    ) as job:
        loader = loader_of(job.rank)
        trace = SampleTrace(options.trace_samples, rank=job.rank)
        net = job.wrap(model, bucket_cap_mb=0.01)
        with contextlib.suppress(LeaveError):
            for epoch in job.epochs(options.epochs):
                for inputs, targets, places in job.batches(loader):
                    trace.rank = job.rank  # it may be another one by now
                    trace.write(step=job.steps_done + 1, epoch=epoch, samples=places.tolist())
                    loss = nn.functional.cross_entropy(net(inputs), targets)
                    fault_injection.reach("within a step")
                    loss.backward()  # type: ignore[no-untyped-call]
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    if job.step(loss):
                        extra.after_step(job.steps_done)
                    fault_injection.reach("after a step")
                    time.sleep(options.step_delay_seconds)
                right, total = evaluate(net, job.share(test_loader))
                fault_injection.reach("after an epoch")
                right_of_all, total_of_all = job.sum(right, total)
                if job.is_main:
                    print(f"epoch {epoch}: {right_of_all:.0f} of {total_of_all:.0f}", flush=True)
    print(f"ends with {digest(model, optimizer, scheduler, *extra.parts.values())}", flush=True)


def evaluate(net: nn.Module, batches: Iterable[Any]) -> tuple[int, int]:
    """Return the number of right answers, and of all."""
    net.eval()
    right = total = 0
    with torch.no_grad():
        for inputs, targets, _ in batches:
            if SLOW_EVALUATION in os.environ:
                print("evaluating", flush=True)
                time.sleep(float(os.environ[SLOW_EVALUATION]))
            right += int((net(inputs).argmax(1) == targets).sum())
            total += len(targets)
    net.train()
    return right, total


def digest(*parts: Any) -> str:
    """Return a digest of the states of some parts."""
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    return hashlib.sha256(file.getvalue()).hexdigest()


if __name__ == "__main__":
    main(sys.argv[1:])
