"""The order of an epoch: the trainer's own, or the one that a loader's sampler gives.

An order that the trainer makes can be begun anywhere. A sampler of the script's cannot: all of its
order is read when an epoch begins, with the same random numbers on each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from ddp_trainer.data.order import Order, shuffled, unshuffled
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.run.seeds import seed_by_name

Key = tuple[Any, ...]
"""Where a sample is in the training, and last its index: two with different keys have different
random numbers."""


class Epoch(NamedTuple):
    """Which samples an epoch has, in which order."""

    order: Order
    """Places that ranks share out to the numbers that `keys` takes."""
    keys: Callable[[list[int]], list[Key]]
    """The numbers of a batch to the keys of its samples."""


class Epochs(Protocol):
    """All of them have as many places."""

    length: int
    samples_a_place: int
    """On average, where a place is a batch."""

    def begin(self, number: int) -> Epoch:
        """The epoch of this number, from 0."""

    def part(self, rank: int, size: int) -> Sequence[Any]:
        """What one of so many ranks evaluates: indices, or batches of them."""


class OwnOrder:
    """The trainer's: shuffled otherwise in each epoch, or as the dataset has it."""

    def __init__(self, length: int, *, shuffles: bool, seed: int) -> None:
        self.length, self.samples_a_place = length, 1
        self._shuffles = shuffles
        self._seed = seed

    def begin(self, number: int) -> Epoch:
        """One whose places are indices."""
        order = shuffled(self.length, seed=self._seed + number) if self._shuffles else unshuffled
        return Epoch(order, lambda indices: [(number, index) for index in indices])

    def part(self, rank: int, size: int) -> Sequence[Any]:
        """Indices as the dataset has them."""
        return range(rank, self.length, size)


class SamplerOrder:
    """What a loader's sampler gives, or its batch sampler: a place is a whole batch then."""

    def __init__(self, loader: DataLoader[Any], *, seed: int) -> None:
        """Read the first epoch's order, twice.

        Raises:
            ConfigurationError: the sampler shares out samples among ranks, or has another order
                each time that it is read.
        """
        self._gives_batches = loader.batch_size is None
        self._sampler: Any = loader.batch_sampler if self._gives_batches else loader.sampler
        self._seed = seed
        self._name = type(self._sampler).__name__
        inner = getattr(self._sampler, "sampler", None)  # as a BatchSampler has
        self._samplers: list[Any] = [self._sampler, *([] if inner is None else [inner])]
        for sampler in self._samplers:
            if getattr(sampler, "num_replicas", 1) > 1:
                raise ConfigurationError(
                    f"the loader's {type(sampler).__name__} shares out samples among ranks, which "
                    "job.batches() does: make it with num_replicas=1 and rank=0"
                )
        self._first = self._draw(0)
        self.length = len(self._first)
        samples = sum(map(len, self._first)) if self._gives_batches else self.length
        self.samples_a_place = max(1, round(samples / max(self.length, 1)))
        if self._draw(0) != self._first:
            raise ConfigurationError(
                f"the loader's {self._name} gives another order each time that it is read, so that "
                "ranks would differ: let it draw with torch's, NumPy's or Python's own functions, "
                "or depend on set_epoch()"
            )

    def begin(self, number: int) -> Epoch:
        """One of another order, perhaps. A sample may come more than once: its place is its key.

        Raises:
            ConfigurationError: the epoch has another length than the first one.
        """
        drawn = self._draw(number)
        if len(drawn) != self.length:
            raise ConfigurationError(
                f"the loader's {self._name} gives {len(drawn)} in epoch {number}, and gave "
                f"{self.length} in the first: let all epochs have the same number"
            )

        def keys(places: list[int]) -> list[Key]:
            if not self._gives_batches:
                return [(number, place, drawn[place]) for place in places]
            batch = [(place, index) for place in places for index in drawn[place]]
            return [(number, count, *each) for count, each in enumerate(batch)]

        return Epoch(unshuffled, keys)

    def part(self, rank: int, size: int) -> Sequence[Any]:
        """Of the first epoch."""
        return self._first[rank::size]

    def _draw(self, epoch: int) -> list[Any]:
        for sampler in self._samplers:
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)
            generator = getattr(sampler, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(self._seed + epoch)
        seed_by_name(self._seed, epoch, "sampler")
        return list(self._sampler)


def order_of(loader: DataLoader[Any], *, seed: int) -> Epochs:
    """The order of a loader's epochs.

    Raises:
        ConfigurationError: its sampler cannot be read again.
    """
    samples = len(loader.dataset)  # type: ignore[arg-type]  # map-style datasets have one
    sampler = loader.sampler
    if loader.batch_size is not None:
        if type(sampler) is DistributedSampler:
            return OwnOrder(samples, shuffles=sampler.shuffle, seed=seed)
        if type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == samples:
            return OwnOrder(samples, shuffles=True, seed=seed)
        if type(sampler) is SequentialSampler and len(sampler) == samples:
            return OwnOrder(samples, shuffles=False, seed=seed)
    return SamplerOrder(loader, seed=seed)
