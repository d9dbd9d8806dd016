"""Streams that each rank reads by itself: how they resume, and how they end."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ddp_trainer
import pytest
import torch
from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.data.stream import Stream
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.run.position import Position
from ddp_trainer.run.stop import Votes
from ddp_trainer.run.train_state import TrainState
from ddp_trainer.run.updates import advance
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.trainer.library.runs import Undisturbed, run_with_faults, script_job
from tests.trainer.library.streaming import STEPS
from tests.trainer.recovery.test_kill_points import spread
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import assert_same
from tests.trainer.support.same_group import group_of_one

BATCHES = 6
BATCH_SIZE = 2
ALONE = ShardAssignment(shards=1, rank=0, size=1)


class Numbers(IterableDataset[float]):
    """Counts from its position, with some noise, and records how often it was read."""

    def __init__(self, length: int = BATCHES * BATCH_SIZE) -> None:
        self.length = length
        self.epoch = -1
        self.given = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[float]:
        for number in range(self.length)[share_of_worker()]:
            self.given += 1
            yield self.noisy(number)

    def noisy(self, number: int) -> float:
        return 100 * self.epoch + number + float(torch.rand(())) / 2


def share_of_worker() -> slice:
    """Return the part of a reading process: all, if there is only one."""
    worker = get_worker_info()
    return slice(worker.id, None, worker.num_workers) if worker is not None else slice(None)


class Counting(Numbers):
    """The same with a position that can be saved and restored."""

    def __init__(self, length: int = BATCHES * BATCH_SIZE) -> None:
        super().__init__(length)
        self.place = self.begin = 0
        self.extra: Any = 0

    def __iter__(self) -> Iterator[float]:
        self.place, self.begin = self.begin, 0
        numbers = range(self.length)[share_of_worker()]
        while self.place < len(numbers):
            self.given += 1
            self.place += 1
            yield self.noisy(numbers[self.place - 1])

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "extra": self.extra}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.begin = state["place"]


def new_run() -> TrainState:
    model = nn.Linear(1, 1)
    run = TrainState({"model": model}, seed=5, device=torch.device("cpu"))
    run.choose_streams(readers=1)
    return run


def stream_of(loader: DataLoader[Any], run: TrainState | None = None) -> Stream:
    return Stream(loader, run or new_run(), seed=5)


def rest_of(stream: Stream, epoch: int, done: int, *, steps: int | None = None) -> list[Any]:
    """Return the batches from a position on, in steps of one batch."""
    rest = stream.rest(epoch, done, ALONE)
    found: list[Any] = []
    while steps is None or len(found) < steps:
        found.append(rest.batch(rest.next_step(), 0).tolist())
        if rest.has_end:
            break
    return found


def numbers(*, workers: int = 0) -> DataLoader[Any]:
    return DataLoader(Numbers(), batch_size=BATCH_SIZE, num_workers=workers)


def stateful(*, workers: int = 0) -> DataLoader[Any]:
    loader: DataLoader[Any] = StatefulDataLoader(
        Numbers(), batch_size=BATCH_SIZE, num_workers=workers
    )
    return loader


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_the_same_whenever_it_is_read(workers: int) -> None:
    whole = rest_of(stream_of(numbers(workers=workers)), 1, 0)
    assert len(whole) == BATCHES
    torch.seed()
    assert rest_of(stream_of(numbers(workers=workers)), 1, 0) == whole
    assert rest_of(stream_of(numbers(workers=workers)), 1, 4) == whole[4:]
    stream = stream_of(numbers(workers=workers))
    assert rest_of(stream, 0, 0, steps=2) == rest_of(stream_of(numbers(workers=workers)), 0, 0)[:2]
    assert rest_of(stream, 1, 0, steps=3) == whole[:3]
    assert rest_of(stream, 1, 2) == whole[2:]
    assert rest_of(stream, 1, 1) == whole[1:]


@pytest.mark.parametrize("count", [1, 2])
def test_it_reads_a_step_ahead_and_no_further(count: int) -> None:
    dataset = Numbers()
    stream = stream_of(DataLoader(dataset, batch_size=BATCH_SIZE))
    rest = stream.rest(0, 0, ALONE, accumulate=count)
    for step in range(1, BATCHES // count):
        assert rest.next_step().samples == count
        assert not rest.has_end
        assert dataset.given == BATCH_SIZE * count * (step + 1)
    rest.next_step()
    assert rest.has_end


@pytest.mark.parametrize("kind", ["dataset", "loader"])
def test_a_bookmark_spares_what_was_read_before(kind: str) -> None:
    def loader() -> tuple[Counting, DataLoader[Any]]:
        dataset = Counting()
        new = StatefulDataLoader if kind == "loader" else DataLoader
        return dataset, new(dataset, batch_size=BATCH_SIZE)

    run = new_run()
    _, first = loader()
    whole = rest_of(stream_of(first), 3, 0)
    stream = stream_of(loader()[1], run)
    with group_of_one() as group:
        rest_of(stream, 3, 0, steps=2)
        stream.bookmark(group)
        later = rest_of(stream, 3, 2)
    assert later == whole[2:]
    assert run.bookmarks is not None
    assert (run.bookmarks.epoch, run.bookmarks.batches) == (3, 2)
    successor = new_run()
    successor.load_state_dict(copy.deepcopy(run.state_dict()))
    assert_same(successor.state_dict(), run.state_dict())
    dataset, other = loader()
    assert rest_of(stream_of(other, successor), 3, 3) == whole[3:]
    assert dataset.given == BATCH_SIZE * (BATCHES - 2)
    dataset, other = loader()
    before = stream_of(other, successor)
    assert rest_of(before, 3, 1) == whole[1:]
    assert rest_of(before, 4, 0) == rest_of(stream_of(loader()[1]), 4, 0)
    assert len(rest_of(before, 5, 0)) == BATCHES


def test_a_bookmark_is_of_the_step_if_the_stream_was_read_further() -> None:
    run = new_run()
    whole = rest_of(stream_of(DataLoader(Counting(), batch_size=BATCH_SIZE)), 0, 0)
    stream = stream_of(DataLoader(Counting(), batch_size=BATCH_SIZE), run)
    for _ in range(2):  # as after a loop that was left
        rest_of(stream, 0, 0, steps=1)
    with group_of_one() as group:
        stream.bookmark(group)
    assert run.bookmarks is not None
    assert run.bookmarks.batches == 1
    dataset = Counting()
    assert rest_of(stream_of(DataLoader(dataset, batch_size=BATCH_SIZE), run), 0, 1) == whole[1:]
    assert dataset.given == BATCH_SIZE * (BATCHES - 1)


def test_reading_of_workers_has_no_bookmark_in_their_parent() -> None:
    run = new_run()
    loader = DataLoader(Counting(), batch_size=BATCH_SIZE, num_workers=1)
    stream = stream_of(loader, run)
    with group_of_one() as group:
        rest_of(stream, 0, 0, steps=1)
        stream.bookmark(group)
    assert run.bookmarks is None


def test_a_stateful_loader_with_workers_has_a_bookmark() -> None:
    def loader() -> DataLoader[Any]:
        new: DataLoader[Any] = StatefulDataLoader(
            Counting(), batch_size=BATCH_SIZE, num_workers=2, snapshot_every_n_steps=1
        )
        return new

    def whole_numbers(batches: list[list[float]]) -> list[list[int]]:
        return [[int(number) for number in batch] for batch in batches]

    run = new_run()
    stream = stream_of(loader(), run)
    with group_of_one() as group:
        rest_of(stream, 0, 0, steps=5)
        stream.bookmark(group)
        later = whole_numbers(rest_of(stream, 0, 5))
    assert run.bookmarks is not None
    assert whole_numbers(rest_of(stream_of(loader(), run), 0, 5)) == later


def test_a_state_that_cannot_be_saved_is_refused() -> None:
    dataset = Counting()
    dataset.extra = object()
    stream = stream_of(DataLoader(dataset, batch_size=BATCH_SIZE))
    rest_of(stream, 0, 0, steps=1)
    with (
        group_of_one() as group,
        pytest.raises(
            ConfigurationError, match=r"state_dict\(\) of the Counting that is read cannot be"
        ),
    ):
        stream.bookmark(group)


@pytest.mark.parametrize(("length", "read"), [(0, 0), (3 * BATCH_SIZE, 3)])
def test_a_stream_that_ends_before_its_time_is_an_error(length: int, read: int) -> None:
    stream = stream_of(DataLoader(Numbers(length), batch_size=BATCH_SIZE))
    rest = stream.rest(2, read, ALONE, accumulate=4)
    with pytest.raises(
        ConfigurationError,
        match=f"rank 0 ended after {read} batches of epoch 2: give each rank at least 4",
    ):
        rest.next_step()


def test_the_number_of_ranks_may_change_between_epochs_alone() -> None:
    run = new_run()
    run.position.samples = 3
    with pytest.raises(ConfigurationError, match="part of 1 streams, which cannot be mapped"):
        run.choose_streams(readers=2)
    run.position.next_epoch()
    run.choose_streams(readers=2)
    with pytest.raises(ConfigurationError, match="10 samples, but had an unknown number"):
        run.choose_samples(10)
    other = TrainState({"model": nn.Linear(1, 1)}, seed=5, device=torch.device("cpu"))
    other.choose_samples(10)
    with pytest.raises(ConfigurationError, match="part of 10 samples"):
        other.choose_streams(readers=1)


def test_the_end_of_an_epoch_of_unknown_length_is_one_state() -> None:
    run = new_run()
    advance(run.position, 1, epoch_length=0)
    run.position.end(epoch_length=0)
    before = copy.deepcopy(run.state_dict())
    run.end_epoch()
    assert_same(run.state_dict(), before)
    assert before["position"]["is_at_end"]
    assert run.position == Position(step=1, epoch=1)


def test_the_end_of_a_stream_is_shared_at_each_step() -> None:
    with group_of_one() as group:
        votes = Votes(group, stop=lambda _: 0.0, save=lambda: False)
        votes.pace(0.01)  # not at each step, that is
        for has_end in (False, True):
            votes.begin(7, has_end=has_end)
            votes.read()
            votes.read()
            assert (votes.has_end, votes.stop, votes.save) == (has_end, False, False)
        votes.begin(8)
        votes.read()
        assert not votes.has_end


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ddp_trainer.Job]:
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with ddp_trainer.join(model=model, optimizer=optimizer, checkpoint_dir=tmp_path) as joined:
        yield joined


def train(job: ddp_trainer.Job, loader: DataLoader[Any], epochs: int, **how: Any) -> list[int]:
    """Train; return the number of batches of each epoch."""
    [model] = job._session.run.models
    net, counts = job.wrap(model), []
    for _ in job.epochs(epochs):
        counts.append(0)
        for inputs in job.batches(loader, **how):
            loss: Tensor = net(inputs.float().unsqueeze(1)).mean() * job.weight
            loss.backward()  # type: ignore[no-untyped-call]
            job.step(loss)
            counts[-1] += 1
    return counts


@pytest.mark.parametrize(("accumulate", "batches"), [(1, 6), (4, 4)])
def test_an_epoch_ends_with_the_last_whole_step(
    job: ddp_trainer.Job, accumulate: int, batches: int
) -> None:
    assert train(job, numbers(), 2, accumulate=accumulate) == [batches, batches]
    assert job.steps_done == 2 * batches // accumulate


def test_streams_and_samples_do_not_mix(job: ddp_trainer.Job) -> None:
    train(job, numbers(), 1)
    with pytest.raises(ConfigurationError, match="had an unknown number"):
        next(job.batches(DataLoader(TensorDataset(torch.ones(4, 1)), batch_size=2)))


EPOCHS = 4
LAST = EPOCHS * STEPS


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.nightly), "stream"])
def test_ranks_that_read_streams_die_at_every_point(
    device: str, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    dead = [
        FaultAt(rank=rank, point=point) for point in fault_injection.IN_A_STEP for rank in (0, 2)
    ]
    plan = spread(dead, begin=2, end=LAST - 2)
    expected = undisturbed("streams", ranks=3)
    actual = run_with_faults(tmp_path, plan, ranks=3, device=device, script="streams")
    assert_same(actual.state(LAST), expected.state(LAST))
    for rank in range(3):
        assert actual.steps_of(rank) == expected.steps_of(rank)
        assert len(expected.steps_of(rank)) == LAST


def test_streams_continue_from_a_checkpoint(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with script_job(tmp_path, ranks=3, script="streams") as stopped:
        [first] = stopped.start_all("--step-delay-seconds=0.1")
        first.wait_for_log("(step 6)")
        first.stop()
        assert first.wait() == 143, first.log
        [second] = stopped.start_all()
        assert second.wait() == 0, second.log
        assert "resuming from checkpoint" in second.log
        assert_same(stopped.state(LAST), undisturbed("streams", ranks=3).state(LAST))
