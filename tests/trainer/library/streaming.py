"""A script whose ranks read streams of their own, of different lengths, which augment at random."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import ddp_trainer
import torch
from ddp_trainer.data.sampler import SampleTrace
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from tests.trainer.library.script import BATCH_SIZE, Digits, parsed
from tests.trainer.norm import network

STEPS = 15
"""Of an epoch: as many as the shortest stream has batches."""


class Share(IterableDataset[tuple[Tensor, int, int]]):
    """A rank's digits, from wherever it was told to begin."""

    def __init__(self, rank: int) -> None:
        self._digits = Digits(train=True)
        self._first = rank * 400
        self._length = BATCH_SIZE * (STEPS + (2 - rank) % 3)
        self._begin = self._next = 0

    def __iter__(self) -> Iterator[tuple[Tensor, int, int]]:
        self._next, self._begin = self._begin, 0
        while self._next < self._length:
            self._next += 1
            yield self._digits[(self._first + self._next - 1) % len(self._digits)]

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Stand there when it is iterated next."""
        self._begin = state["next"]


def main(arguments: Sequence[str]) -> None:
    """Train to the end."""
    options = parsed(arguments)
    torch.manual_seed(0)
    model = network(dropout=0.25)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with ddp_trainer.join(
        model=model,
        optimizer=optimizer,
        checkpoint_every_steps=3,
        group_timeout_seconds=5,
        heartbeat_timeout_seconds=5,
    ) as job:
        loader = DataLoader(Share(job.rank), batch_size=BATCH_SIZE)
        trace = SampleTrace(options.trace_samples, rank=job.rank)
        net = job.wrap(model, bucket_cap_mb=0.01)
        for epoch in job.epochs(options.epochs):
            for inputs, targets, places in job.batches(loader):
                trace.write(step=job.steps_done + 1, epoch=epoch, samples=places.tolist())
                loss = nn.functional.cross_entropy(net(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                job.step(loss)
                time.sleep(options.step_delay_seconds)
