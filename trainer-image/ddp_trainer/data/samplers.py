"""The order of an epoch: the trainer's own, or that of a loader's sampler.

The trainer's own order can start anywhere. A script's sampler cannot: its whole order is read when
an epoch begins, with the same random numbers on each rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from ddp_trainer.data.order import Order, shuffled, unshuffled
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.run.seeds import seed_by_name

Key = tuple[Any, ...]
"""Position of a sample in the training, and its index last. Samples with different keys have
different random numbers."""


class Epoch(NamedTuple):
    """The samples of an epoch in their order."""

    order: Order
    """Positions that ranks share → numbers for `keys`."""
    keys: Callable[[list[int]], Iterable[Key]]
    """Numbers of a batch → keys of its samples."""
    length: int
    """Number of positions."""


class Epochs(Protocol):
    """Epochs, which may differ in length if a sampler of the script makes them."""

    length: int
    """Positions of the first epoch."""
    is_even: bool
    """False if an epoch had another length than the first."""
    samples_a_place: int
    """Average number of samples per position; a position may be a whole batch."""
    fingerprint: bytes
    """Of the order, if only the sampler knows it: equal on all ranks."""

    def begin(self, number: int) -> Epoch:
        """Return an epoch, numbered from 0."""

    def part(self, rank: int, size: int) -> Sequence[Any]:
        """Return the indices, or batches of them, that one of `size` ranks evaluates."""


class OwnOrder:
    """The trainer's order: shuffled differently in each epoch, or the order of the dataset."""

    def __init__(self, length: int, *, shuffles: bool, seed: int) -> None:
        self.length, self.samples_a_place = length, 1
        self.is_even, self.fingerprint = True, b""
        self._shuffles = shuffles
        self._seed = seed

    def begin(self, number: int) -> Epoch:
        """Return an epoch; its positions are indices."""
        order = shuffled(self.length, seed=self._seed + number) if self._shuffles else unshuffled
        keys = partial(zip, repeat(number))  # no Python for each sample, or each batch
        return Epoch(order, keys, self.length)

    def part(self, rank: int, size: int) -> Sequence[Any]:
        """Return every `size`-th index, in the order of the dataset."""
        return range(rank, self.length, size)


class SamplerOrder:
    """The order of a loader's sampler, or of its batch sampler: then a position is a batch."""

    def __init__(self, loader: DataLoader[Any], *, seed: int) -> None:
        """Read the order of the first two epochs, that of the first one twice.

        Raises:
            ConfigurationError: the sampler itself splits samples among ranks, or its order differs
                each time that it is read.
        """
        self._gives_batches = loader.batch_size is None
        self._sampler: Any = loader.batch_sampler if self._gives_batches else loader.sampler
        self._seed = seed
        self._name = type(self._sampler).__name__
        inner = getattr(self._sampler, "sampler", None)  # of a BatchSampler
        self._samplers: list[Any] = [self._sampler, *([] if inner is None else [inner])]
        for sampler in self._samplers:
            if getattr(sampler, "num_replicas", 1) > 1:
                raise ConfigurationError(
                    f"the loader's {type(sampler).__name__} splits samples among ranks, but "
                    "job.batches() does that: make it with num_replicas=1 and rank=0"
                )
        self._first = self._draw(0)
        self.length = len(self._first)
        self.is_even = len(self._draw(1)) == self.length
        self.fingerprint = hashlib.blake2b(repr(self._first).encode(), digest_size=8).digest()
        samples = sum(map(len, self._first)) if self._gives_batches else self.length
        self.samples_a_place = max(1, round(samples / max(self.length, 1)))
        if self._draw(0) != self._first:
            raise ConfigurationError(
                f"the loader's {self._name} gives another order each time that it is read, so "
                "ranks would differ: use random functions of torch, NumPy or Python in it, or "
                "set_epoch()"
            )

    def begin(self, number: int) -> Epoch:
        """Return an epoch with the sampler's order for it.

        A sample may appear more than once, so its key contains its position.
        """
        drawn = self._draw(number)
        self.is_even = self.is_even and len(drawn) == self.length

        def keys(places: list[int]) -> list[Key]:
            if not self._gives_batches:
                return [(number, place, drawn[place]) for place in places]
            batch = [(place, index) for place in places for index in drawn[place]]
            return [(number, count, *each) for count, each in enumerate(batch)]

        return Epoch(unshuffled, keys, len(drawn))

    def part(self, rank: int, size: int) -> Sequence[Any]:
        """Return the rank's part of the first epoch's order."""
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
    """Return the order of a loader's epochs.

    Raises:
        ConfigurationError: its sampler does not repeat its order.
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
