"""A script with a stream for each rank; lengths differ, and samples are augmented at random."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from tests.trainer.library import script
from tests.trainer.library.script import BATCH_SIZE, Digits

STEPS = 15
"""Steps of an epoch: the batches of the shortest stream."""


class Share(IterableDataset[tuple[Tensor, int, int]]):
    """A rank's digits, from a position on."""

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
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._begin = state["next"]


def share(rank: int) -> DataLoader[Any]:
    return DataLoader(Share(rank), batch_size=BATCH_SIZE)


def main(arguments: Sequence[str]) -> None:
    script.main(arguments, loader_of=share)
