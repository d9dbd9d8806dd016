"""Who trains on which samples, and in what order.

torch's DistributedSampler cannot start in the middle of an epoch; this one can.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ddp_trainer.data.order import shuffled, unshuffled

_AT_A_TIME = 1 << 14
"""Places whose samples are looked up together: fast, and no list worth counting."""


class ShardedSampler:
    """One rank's share of a shuffled epoch, from any position on.

    Same sharding as `DistributedSampler(drop_last=False)`, and the same order up to a few million
    samples: it depends on seed and epoch alone, is padded from its own beginning to a multiple of
    the world size, and rank r takes every world_size-th index. `start` is the number of samples
    that all ranks together have consumed of the epoch. It is a property of the data and not of the
    group: an epoch begun with one world size can be ended with another.
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
        for indices in self.batches(_AT_A_TIME):
            yield from indices

    def batches(self, batch_size: int) -> Iterator[list[int]]:
        """The rest of the epoch in batches of `batch_size`; the last one may be smaller."""
        order = (
            shuffled(self._length, seed=self._seed + self._epoch) if self._shuffle else unshuffled
        )
        many = max(1, _AT_A_TIME // batch_size) * batch_size
        for first in range(0, len(self), many):
            own = np.arange(first, min(first + many, len(self)), dtype=np.int64)
            # Beyond the end it goes on at the beginning: more than once round when there are fewer
            # samples than ranks.
            places = (self._start + self._rank + own * self._world_size) % self._length
            indices = order(places).tolist()
            for begin in range(0, len(indices), batch_size):
                yield indices[begin : begin + batch_size]


class SampleTrace:
    """Writes down which samples a rank trained on at which step, for whoever wants to check.

    A step that did not come to its end appears again, with the same samples; so do, after a resume,
    the steps since the checkpoint.
    """

    def __init__(self, path: Path | None, *, rank: int) -> None:
        """`path` gets the suffix `.rank<rank>`; None: nothing is written."""
        self._path = path
        self.rank = rank
        """The present one."""

    def write(self, *, step: int, epoch: int, samples: list[int]) -> None:
        """Append one JSON line before the step is taken; `step` counts steps from 1."""
        if self._path is not None:
            line = json.dumps({"step": step, "epoch": epoch, "samples": samples})
            with self._path.with_name(f"{self._path.name}.rank{self.rank}").open("a") as file:
                file.write(line + "\n")
