"""Who trains on which samples, and in what order.

torch's DistributedSampler cannot start in the middle of an epoch, and its padding counts some
test samples twice; these two samplers can, and do not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch


class ShardedSampler:
    """One rank's share of a shuffled epoch, from any position on.

    Same order and sharding as `DistributedSampler(drop_last=False)`: the order
    depends on seed and epoch alone, is padded from its own beginning to a multiple of the world
    size, and rank r takes every world_size-th index. `start` is the number of samples that all
    ranks together have consumed of the epoch. It is a property of the data and not of the group:
    an epoch begun with one world size can be ended with another.
    """

    def __init__(
        self, length: int, *, rank: int, world_size: int, seed: int, shuffle: bool = True
    ) -> None:
        if length < 1:
            raise ValueError("a training set needs at least one sample")
        self._length = length
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = 0
        self._start = 0

    def set_epoch(self, epoch: int, *, start: int = 0) -> None:
        """Choose the epoch, and the samples of it to skip because they are consumed."""
        if not 0 <= start <= self._length:
            raise ValueError(f"start {start} lies outside an epoch of {self._length} samples")
        self._epoch = epoch
        self._start = start

    def __len__(self) -> int:
        """Samples left for each rank, padding included; the same on all ranks."""
        return math.ceil((self._length - self._start) / self._world_size)

    def __iter__(self) -> Iterator[int]:
        order = list(range(self._length))
        if self._shuffle:
            generator = torch.Generator().manual_seed(self._seed + self._epoch)
            order = torch.randperm(self._length, generator=generator).tolist()
        rest = order[self._start :]
        missing = len(self) * self._world_size - len(rest)
        while missing > 0:  # more than once round when there are fewer samples than ranks
            rest += order[:missing]
            missing = len(self) * self._world_size - len(rest)
        return iter(rest[self._rank :: self._world_size])

    def batches(self, batch_size: int) -> Iterator[list[int]]:
        """The rest of the epoch in batches of `batch_size`; the last one may be smaller."""
        indices = list(self)
        for first in range(0, len(indices), batch_size):
            yield indices[first : first + batch_size]


def evaluation_batches(
    length: int, batch_size: int, *, rank: int, world_size: int
) -> list[list[int]]:
    """The samples that `rank` evaluates: every sample falls to exactly one rank.

    Shares differ by up to one sample and may be empty. All ranks have as many batches, so that they
    can talk to each other in between; the last one may be empty.
    """
    share = range(rank, length, world_size)
    longest = math.ceil(length / world_size)
    return [list(share[first : first + batch_size]) for first in range(0, longest, batch_size)]


class SampleTrace:
    """Writes down which samples a rank trained on at which step, for whoever wants to check.

    A step that did not come to its end appears again, with the same samples; so do, after a resume,
    the steps since the checkpoint.
    """

    def __init__(self, path: Path | None, *, rank: int) -> None:
        """`path` gets the suffix `.rank<rank>`; None: nothing is written."""
        self._path = path.with_name(f"{path.name}.rank{rank}") if path is not None else None

    def write(self, *, step: int, epoch: int, samples: list[int]) -> None:
        """Append one JSON line before the step is taken; `step` counts steps from 1."""
        if self._path is not None:
            line = json.dumps({"step": step, "epoch": epoch, "samples": samples})
            with self._path.open("a") as file:
                file.write(line + "\n")
