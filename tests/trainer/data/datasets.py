"""Data sets of numbers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset


class Noise(Dataset[float]):
    """Each sample is its index and a random part of 1."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> float:
        return index + 0.5 * float(torch.rand(()))


class Endless(IterableDataset[Tensor]):
    """A stream of ones."""

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield torch.ones(1)
