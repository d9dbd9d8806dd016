"""Samplers of a script: their whole order, split among ranks, from any position on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.data.loading import Loading
from ddp_trainer.exit_codes import ConfigurationError
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tests.trainer.data.datasets import Noise
from tests.trainer.support.reading import batches_of

SAMPLES = 12


class Halves(Sampler[int]):
    """One half of the samples in even epochs, and the other one in odd ones."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.epoch % 2, SAMPLES, 2))

    def __len__(self) -> int:
        return SAMPLES // 2


def seen(
    loader: DataLoader[Any], *, rank: int = 0, ranks: int = 1, epoch: int = 0, done: int = 0
) -> list[list[float]]:
    """Return the batches that a rank reads."""
    loading = Loading(loader, seed=7)
    torch.seed()  # the order must not depend on earlier random numbers
    rest = loading.rest(epoch, done, ShardAssignment(shards=ranks, rank=rank, size=ranks))
    return [batch.tolist() for batch in batches_of(rest)]


def weighted(**settings: Any) -> WeightedRandomSampler:
    return WeightedRandomSampler([1.0] * SAMPLES, 2 * SAMPLES, **settings)


@pytest.mark.parametrize(
    "sampler",
    [
        None,
        weighted(),
        weighted(generator=torch.Generator()),
        RandomSampler(Noise(SAMPLES), num_samples=7),
    ],
    ids=["shuffled", "weighted", "its own generator", "fewer"],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_split_the_samples_of_a_sampler(sampler: Sampler[int] | None, workers: int) -> None:
    loader = DataLoader(
        Noise(SAMPLES), batch_size=2, shuffle=sampler is None, sampler=sampler, num_workers=workers
    )
    alone = [*chain(*seen(loader))]
    assert len(alone) == (SAMPLES if sampler is None else len(list(sampler)))
    assert seen(loader) == seen(
        DataLoader(Noise(SAMPLES), 2, shuffle=sampler is None, sampler=sampler)
    )
    assert [*chain(*seen(loader, done=5))] == alone[5:]
    first, second = ([*chain(*seen(loader, rank=rank, ranks=2))] for rank in (0, 1))
    assert first == alone[::2]
    assert second[: len(alone) // 2] == alone[1::2]
    assert [*chain(*seen(loader, epoch=1))] != alone


def test_a_sample_that_comes_twice_is_augmented_twice() -> None:
    samples = [*chain(*seen(DataLoader(Noise(SAMPLES), batch_size=4, sampler=weighted())))]
    assert len({int(sample) for sample in samples}) < len(samples)
    assert len(set(samples)) == len(samples)


def test_a_sampler_receives_the_epoch() -> None:
    loader = DataLoader(Noise(SAMPLES), batch_size=3, sampler=Halves())
    for epoch in (0, 1, 2):
        assert [int(one) for one in chain(*seen(loader, epoch=epoch))] == [
            *range(epoch % 2, SAMPLES, 2)
        ]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_batch_sampler_stay_whole(workers: int) -> None:
    batches = BatchSampler(RandomSampler(Noise(SAMPLES)), batch_size=5, drop_last=False)
    loader = DataLoader(Noise(SAMPLES), batch_sampler=batches, num_workers=workers)
    alone = seen(loader)
    assert [len(batch) for batch in alone] == [5, 5, 2]
    assert sorted(map(int, chain(*alone))) == [*range(SAMPLES)]
    assert seen(loader, rank=1, ranks=2) == [alone[1], alone[0]]
    assert seen(loader, done=1) == alone[1:]
    assert Loading(loader, seed=0).samples_a_place == 4


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 2, "sampler": SubsetRandomSampler(range(3, 10))},
        {"batch_sampler": BatchSampler(SubsetRandomSampler(range(3, 10)), 2, drop_last=False)},
    ],
    ids=["sampler", "batch sampler"],
)
def test_an_evaluation_reads_each_sample_of_a_sampler_once(settings: dict[str, Any]) -> None:
    loading = Loading(DataLoader(Noise(SAMPLES), **settings), seed=7)
    parts = [loading.share(rank=rank, world_size=2) for rank in (0, 1)]
    assert sorted(int(one) for part in parts for batch in part for one in batch) == [*range(3, 10)]


def test_epochs_of_a_sampler_may_differ_in_length() -> None:
    class Growing(Halves):
        def __iter__(self) -> Iterator[int]:
            return iter(range(self.epoch + 4))

    loading = Loading(DataLoader(Noise(SAMPLES), batch_size=2, sampler=Growing()), seed=0)
    alone = ShardAssignment(shards=1, rank=0, size=1)
    assert not loading.is_even
    assert [loading.length_of(epoch) for epoch in (0, 3, 1)] == [4, 7, 5]
    assert [len(batch) for batch in batches_of(loading.rest(3, 2, alone))] == [2, 2, 1]


def test_a_subclass_of_the_distributed_sampler_is_not_taken_for_one() -> None:
    class Reversed(DistributedSampler[float]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(SAMPLES - 1, -1, -1))

    sampler = Reversed(Noise(SAMPLES), num_replicas=1, rank=0)
    loader = DataLoader(Noise(SAMPLES), batch_size=4, sampler=sampler)
    assert [int(one) for one in chain(*seen(loader))] == [*range(SAMPLES - 1, -1, -1)]
    shares = Reversed(Noise(SAMPLES), num_replicas=2, rank=0)
    with pytest.raises(ConfigurationError, match="splits samples among ranks"):
        Loading(DataLoader(Noise(SAMPLES), batch_size=4, sampler=shares), seed=0)
