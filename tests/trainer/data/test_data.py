"""The samples that each rank trains on and evaluates."""

from __future__ import annotations

import tracemalloc
from itertools import islice

import numpy as np
import pytest
import torch
from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.data.loading import Loading
from ddp_trainer.data.order import _computed
from ddp_trainer.run.position import Position
from ddp_trainer.run.updates import advance
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, DistributedSampler

lengths = st.integers(1, 200)
world_sizes = st.integers(1, 9)
seeds = st.integers(0, 5)
epochs = st.integers(0, 5)


def shares(length: int, world_size: int, seed: int, epoch: int, start: int = 0) -> list[list[int]]:
    ranks = batches(length, world_size, seed, epoch, start, batch_size=8)
    return [[index for batch in rank for index in batch] for rank in ranks]


def batches(
    length: int, world_size: int, seed: int, epoch: int, start: int, *, batch_size: int
) -> list[list[list[int]]]:
    found = []
    for rank in range(world_size):
        loader = DataLoader(Numbers(length), batch_size=batch_size, shuffle=True)
        assignment = ShardAssignment(shards=world_size, rank=rank, size=world_size)
        rest = Loading(loader, seed=seed).rest(epoch, start, assignment)
        found.append([share.own for share in iter(rest.next_step, None)])
        assert rest.is_at_end
    return found


def interleaved(parts: list[list[int]]) -> list[int]:
    """Return the global order: one index of each rank in turn."""
    return [index for turn in zip(*parts, strict=True) for index in turn]


@given(lengths, world_sizes, seeds, epochs)
def test_same_shards_as_torch(length: int, world_size: int, seed: int, epoch: int) -> None:
    for rank, share in enumerate(shares(length, world_size, seed, epoch)):
        torchs: DistributedSampler[int] = DistributedSampler(
            torch.utils.data.TensorDataset(torch.zeros(length)),
            num_replicas=world_size,
            rank=rank,
            seed=seed,
        )
        torchs.set_epoch(epoch)
        assert share == list(torchs)


@given(st.data(), lengths, world_sizes, seeds, epochs)
def test_resuming_gives_the_rest_of_the_sequence(
    data: st.DataObject, length: int, world_size: int, seed: int, epoch: int
) -> None:
    turns = data.draw(st.integers(0, length // world_size))
    whole = shares(length, world_size, seed, epoch)
    rest = shares(length, world_size, seed, epoch, start=turns * world_size)
    assert rest == [share[turns:] for share in whole]


@given(st.data(), lengths, seeds)
def test_an_epoch_with_changing_world_sizes_has_every_sample_once(
    data: st.DataObject, length: int, seed: int
) -> None:
    """Batches and the position count the samples of all ranks, as in a run that resumes."""
    position = Position()
    trained: list[int] = []
    padding = 0
    while position.samples < length:
        world_size = data.draw(world_sizes, label="world size")
        batch_size = data.draw(st.integers(1, 8), label="batch size")
        ranks = batches(length, world_size, seed, 0, position.samples, batch_size=batch_size)
        for turn in range(data.draw(st.integers(1, 5), label="steps")):
            if position.samples == length:
                break
            samples = interleaved([rank[turn] for rank in ranks])
            before = position.samples
            advance(position, len(samples), epoch_length=length)
            new = position.samples - before
            trained += samples[:new]
            padding = len(samples) - new
            assert padding == 0 or position.samples == length
    assert sorted(trained) == list(range(length))
    assert padding < world_size


@pytest.mark.parametrize("start", [-1, 51])
def test_a_start_outside_the_epoch_is_refused(start: int) -> None:
    with pytest.raises(ValueError, match="outside an epoch of 50"):
        shares(50, 1, 0, 0, start=start)


@given(lengths, st.integers(1, 70), world_sizes)
def test_each_sample_is_evaluated_by_exactly_one_rank(
    length: int, batch_size: int, world_size: int
) -> None:
    loader = DataLoader(Numbers(length), batch_size=batch_size)
    loading = Loading(loader, seed=0)
    ranks = [list(loading.share(rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert all(len(batch) <= batch_size for batches in ranks for batch in batches)
    evaluated = [int(index) for batches in ranks for batch in batches for index in batch]
    assert sorted(evaluated) == list(range(length))


class Numbers(Dataset[int]):
    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("length", [2, 3, 10, 1000, 4096, 4097, 70_001])
def test_a_computed_order_has_every_sample_once(length: int) -> None:
    places = np.arange(length)
    order = _computed(places, length=length, seed=1)
    assert sorted(order.tolist()) == places.tolist()
    if length >= 1000:
        assert _computed(places, length=length, seed=2).tolist() != order.tolist()
        # As in a random order, hardly any sample is in its own place or next to its neighbour.
        assert np.count_nonzero(order == places) < 10
        assert np.count_nonzero(np.abs(np.diff(order)) == 1) < 15
        assert abs(np.corrcoef(places, order)[0, 1]) < 4 / np.sqrt(length)


def test_a_billion_samples_take_no_list_of_them() -> None:
    tracemalloc.start()
    loading = Loading(DataLoader(Numbers(10**9), batch_size=64, shuffle=True), seed=0)
    rest = loading.rest(1, 999_000_000, ShardAssignment(shards=8, rank=3, size=8))
    taken = list(islice(iter(rest.next_step, None), 300))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20
    seen = [index for share in taken for index in share.own]
    assert len(set(seen)) == len(seen) == 300 * 64
    assert 0 <= min(seen) < 10**8 < 9 * 10**8 < max(seen) < 10**9
