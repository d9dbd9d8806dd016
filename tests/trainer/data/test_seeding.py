"""The random numbers of a sample depend on its place alone, and only those that draw are seeded."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.data import seeding
from ddp_trainer.data.loading import Loading
from ddp_trainer.run.seeds import seed_by_name
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from tests.trainer.support.reading import batches_of

SAMPLES, SEED, EPOCH = 12, 7, 1
DRAWS: list[Callable[[], float]] = [
    random.random,
    lambda: random.gauss(0, 1),
    np.random.random,
    lambda: float(np.random.standard_normal()),
    lambda: float(torch.rand(())),
    lambda: float(torch.randn(())),
]
"""Numbers of each generator; normal ones come in pairs, so that the second needs no new bits."""


class Drawing(Dataset[float]):
    """Samples that are their index, and some of them a random number too."""

    def __init__(self, draw: Callable[[], float], indices: set[int]) -> None:
        self._draw = draw
        self._indices = indices
        self.reads: Counter[int] = Counter()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> float:
        self.reads[index] += 1
        return index + (self._draw() if index in self._indices else 0.0)


def read(
    dataset: Dataset[float], *, batch_size: int = 4, ranks: int = 1, workers: int = 0, **more: Any
) -> list[float]:
    """Return the samples of an epoch, by all ranks, in no order."""
    loader = DataLoader(dataset, batch_size, num_workers=workers, **more)
    assignments = [ShardAssignment(shards=ranks, rank=rank, size=ranks) for rank in range(ranks)]
    rests = [Loading(loader, seed=SEED).rest(EPOCH, 0, each) for each in assignments]
    random.seed()  # earlier random numbers must not matter
    torch.default_generator.seed()
    batches = chain.from_iterable(map(batches_of, rests))
    return [value for batch in batches for value in batch.tolist()]


def seeded_always(dataset: Dataset[float]) -> list[float]:
    """Return all samples, each with its own seed."""
    samples = []
    for index in range(SAMPLES):
        seed_by_name(SEED, EPOCH, index, "sample")
        samples.append(dataset[index])
    return samples


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("indices", [{*range(SAMPLES)}, {0}, {6}, {5, 11}], ids=len)
def test_samples_that_draw_are_those_of_their_own_seeds(
    draw: Callable[[], float], indices: set[int]
) -> None:
    expected = seeded_always(Drawing(draw, indices))
    assert read(Drawing(draw, indices)) == expected
    for batch_size, ranks in [(1, 1), (5, 1), (2, 3)]:
        dataset = Drawing(draw, indices)
        assert sorted(read(dataset, batch_size=batch_size, ranks=ranks)) == sorted(expected)


def test_workers_read_the_same_samples() -> None:
    expected = seeded_always(Drawing(random.random, {5, 11}))
    for persistent in (False, True):
        dataset = Drawing(random.random, {5, 11})
        assert read(dataset, workers=2, persistent_workers=persistent) == expected


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Return the names of all seeds from now on."""
    names: list[tuple[object, ...]] = []

    def seed(*parts: object) -> None:
        names.append(parts)
        seed_by_name(*parts)

    monkeypatch.setattr(seeding, "seed_by_name", seed)
    return names


def test_samples_that_draw_nothing_are_read_once_without_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = counted(monkeypatch)
    dataset = Drawing(random.random, set())
    assert read(dataset) == [*range(SAMPLES)]
    assert dataset.reads == dict.fromkeys(range(SAMPLES), 1)
    assert names == []


def test_a_first_draw_repeats_its_batch_alone() -> None:
    dataset = Drawing(random.random, {6, 7, 10})
    read(dataset)
    assert dataset.reads == dict.fromkeys(range(SAMPLES), 1) | dict.fromkeys(range(4, 8), 2)


def test_samples_that_always_draw_are_read_twice_once() -> None:
    dataset = Drawing(random.random, {*range(SAMPLES)})
    read(dataset)
    assert dataset.reads == dict.fromkeys(range(SAMPLES), 1) | {0: 2}


@pytest.mark.parametrize("draw", [random.random, lambda: float(torch.rand(()))])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_collate_fn_draws_the_same_numbers_each_time(
    draw: Callable[[], float], batch_size: int
) -> None:
    def noisy(samples: list[float]) -> torch.Tensor:
        return torch.tensor(samples) + draw()

    # In a process of its own, a batch may be the first that is read.
    first, again = (
        sorted(
            read(
                Drawing(random.random, set()), batch_size=batch_size, ranks=ranks, collate_fn=noisy
            )
        )
        for ranks in ((1, 3) if batch_size == 1 else (1, 1))
    )
    assert first == again
    assert len({value % 1 for value in first}) > 1, "each batch has its own"


@pytest.mark.parametrize("also_draws", [False, True])
def test_samples_see_their_own_seed_in_torchs_generator(also_draws: bool) -> None:
    def look() -> float:
        return torch.initial_seed() % 1000 + (random.random() if also_draws else 0.0)

    def looking() -> Drawing:
        return Drawing(look, {*range(SAMPLES)})

    expected = seeded_always(looking())
    assert len({value - index for index, value in enumerate(expected)}) > 1
    for batch_size in (1, 4):
        assert read(looking(), batch_size=batch_size) == expected


def test_samples_that_draw_only_in_a_later_epoch_are_seeded() -> None:
    dataset = Drawing(random.random, set())
    loading = Loading(DataLoader(dataset, 4), seed=SEED)
    alone = ShardAssignment(shards=1, rank=0, size=1)
    for epoch in (0, EPOCH):
        dataset._indices = {6} if epoch == EPOCH else set()
        batches = batches_of(loading.rest(epoch, 0, alone))
        samples = [value for batch in batches for value in batch.tolist()]
        assert dataset.reads[1] == 1 + epoch, "no sample that draws nothing takes another seed"
    assert samples == seeded_always(dataset)


class Augmented(Subset[Any]):
    """Samples of a set in memory, with noise."""

    def __getitem__(self, index: int) -> Any:
        [sample] = self.dataset[self.indices[index]]
        return sample + torch.rand(())

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def test_noise_that_a_subset_adds_to_tensors_is_seeded() -> None:
    dataset = Augmented(TensorDataset(torch.zeros(SAMPLES)), range(SAMPLES))
    samples = read(dataset)
    assert len({*samples}) == SAMPLES
    for batch_size, ranks in [(1, 1), (2, 3)]:
        assert sorted(read(dataset, batch_size=batch_size, ranks=ranks)) == sorted(samples)
