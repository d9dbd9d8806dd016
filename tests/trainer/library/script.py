"""A training script of somebody's own, with all that tempts a recovery to differ by a bit.

Running statistics, dropout, random augmentation in workers of a DataLoader, a scheduler, clipping,
and an evaluation that ranks take part in together.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import ddp_trainer
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.trainer.norm import network

BATCH_SIZE = 32


class Digits(Dataset[tuple[Tensor, int]]):
    """Digits that are a little different each time they are looked at."""

    def __init__(self, *, train: bool) -> None:
        digits = load_digits()
        self._indices = [i for i in range(len(digits.target)) if (i % 5 != 0) == train]
        self._images = torch.tensor(digits.images, dtype=torch.float32) / 16
        self._targets = digits.target.tolist()
        self._train = train

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        index = self._indices[place]
        image = self._images[index]
        if self._train:
            image = image + 0.1 * torch.randn(8, 8)
        return image, self._targets[index]


def main(arguments: Sequence[str]) -> None:
    """Train to the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--step-delay", type=float, default=0.0)
    parser.add_argument("--accumulate", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    model = network(dropout=0.25)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    loader = DataLoader(
        Digits(train=True), batch_size=BATCH_SIZE, shuffle=True, num_workers=options.workers
    )
    test_loader = DataLoader(Digits(train=False), batch_size=BATCH_SIZE)
    with ddp_trainer.join(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        checkpoint_every_steps=3,
        group_timeout_seconds=5,
        heartbeat_timeout_seconds=5,
    ) as job:
        net = job.wrap(model, bucket_cap_mb=0.01)
        for epoch in job.epochs(options.epochs):
            for inputs, targets in job.batches(loader, accumulate=options.accumulate):
                loss = nn.functional.cross_entropy(net(inputs), targets) / options.accumulate
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                job.step(loss)
                time.sleep(options.step_delay)
            net.eval()
            right = total = 0
            with torch.no_grad():
                for inputs, targets in job.share(test_loader):
                    right += int((net(inputs).argmax(1) == targets).sum())
                    total += len(targets)
            net.train()
            right_of_all, total_of_all = job.sum(right, total)
            if job.is_main:
                print(f"epoch {epoch}: {right_of_all:.0f} of {total_of_all:.0f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
