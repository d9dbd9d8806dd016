"""Ranks compare gradients that all have computed; a probe leaves no trace in the training."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import ddp_trainer
import numpy as np
import pytest
import torch
from ddp_trainer.collectives.group import Group
from ddp_trainer.collectives.shard_assignment import ShardAssignment
from ddp_trainer.data.loading import Loading
from ddp_trainer.exit_codes import (
    BrokenGroupError,
    ConfigurationError,
    DifferingReplicasError,
    ExitCode,
    FlippedBitsError,
    LeavingError,
)
from ddp_trainer.library.checks.probe import check_probes, fingerprint, undone
from ddp_trainer.library.checks.replicas import in_words
from ddp_trainer.library.checks.verification import Verification
from ddp_trainer.run.train_state import TrainState
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.trainer.data.datasets import Endless
from tests.trainer.library.checks.flipping import (
    EVERY_STEPS,
    FAULT,
    FOLDER,
    PLAN,
    PROBE_EVERY,
    SAVES,
    SHARDS,
    flip,
)
from tests.trainer.library.checks.test_verification import FLAGS, Ends, ends_of
from tests.trainer.library.runs import Undisturbed, log_of, run_to_its_end, script_job
from tests.trainer.support.pods import assert_same
from tests.trainer.support.reading import batches_of

STEPS = 23
"""Of an epoch with two ranks."""
CPU = torch.device("cpu")
SPARSE = nn.Embedding(5, 3, sparse=True)


def run_of(model: nn.Module) -> TrainState:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return TrainState({"model": model, "optimizer": optimizer}, seed=0, device=CPU)


def test_a_pass_is_undone() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    run = run_of(model)
    old = model[0].weight.grad = torch.ones(2, 3)
    buffers = [buffer.clone() for buffer in model.buffers()]

    def draw() -> list[float]:
        return [random.random(), np.random.random(), float(torch.rand(()))]

    with undone(run):
        assert all(parameter.grad is None for parameter in model.parameters())
        expected = draw()
        model(torch.randn(4, 3)).square().sum().backward()
    assert draw() == expected
    assert [parameter.grad for parameter in model.parameters()] == [old, None, None, None]
    assert torch.equal(old, torch.ones(2, 3))
    assert all(map(torch.equal, model.buffers(), buffers))


@pytest.mark.parametrize("model", [nn.Linear(3, 2), SPARSE], ids=["dense", "sparse"])
def test_each_flip_changes_the_fingerprint(model: nn.Module) -> None:
    inputs = torch.tensor([[0, 1, 1]]) if model is SPARSE else torch.ones(1, 3)
    loss = model(inputs).square().sum()
    loss.backward()
    before = fingerprint([model], loss)
    values = gradient = cast(Tensor, next(model.parameters()).grad)
    if gradient.is_sparse:
        next(model.parameters()).grad = gradient = gradient.coalesce()
        values = gradient.values()
    for bit in range(8 * values.nbytes):
        flip(values, bit)
        assert fingerprint([model], loss) != before
        flip(values, bit)
    assert fingerprint([model], loss) == before
    assert fingerprint([model], loss + 1) != before
    assert fingerprint([model], None) != before


@pytest.mark.parametrize("settings", [{"batch_size": 3}, {"batch_sampler": [[2, 0, 1], [4, 3]]}])
def test_all_ranks_can_read_the_next_batch_of_one(settings: dict[str, Any]) -> None:
    loader = DataLoader(TensorDataset(torch.arange(20)), **settings)
    loading = Loading(loader, seed=1)
    for rank in range(2):
        assignment = ShardAssignment(shards=2, rank=rank, size=2)
        own = next(batches_of(loading.rest(0, 0, assignment)))
        assert_same(loading.whole_batch(0, 0, rank=rank, world_size=2), own)
    at_the_end = loading.whole_batch(0, loading.samples, rank=0, world_size=2)
    assert len(at_the_end[0]) == 3


# Results of a difference.


class Ranks:
    """A group of three ranks, in which this rank or the last one may be faulty."""

    size = 3

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank
        self.faulty: int | None = None
        """The rank with other gradients."""
        self.differs: int | None = None
        """The rank with another replica."""
        self.breaks = False
        """True: the group breaks before this rank hears from the others how they differ."""

    def bounds(self, *values: int) -> list[tuple[int, int]]:
        replica, gradients, *rest = values
        of_replica = replica, replica + (self.differs is not None)
        of_gradients = gradients, gradients + (self.faulty is not None)
        return [of_replica, of_gradients, *((value, value) for value in rest)]

    def gather(self, data: bytes) -> list[bytes]:
        if self.breaks:
            raise BrokenGroupError("another rank has left")
        own, *rest = json.loads(data)
        wrong = self.faulty if self.differs is None else self.differs
        prints = [own + (rank == wrong) - (self.rank == wrong) for rank in range(self.size)]
        return [json.dumps([each, *rest]).encode() for each in prints]


class Trained:
    """A rank that takes steps; its only parameter is the number of its steps."""

    def __init__(self, *, every_steps: int, rank: int = 0) -> None:
        self.model = nn.Linear(1, 1, bias=False)
        self.run = run_of(self.model)
        self.ranks = Ranks(rank)
        self.verification = Verification(self.run, every_steps=every_steps, probe_every_steps=5)
        self.begin(had_state=False)

    def begin(self, *, had_state: bool) -> None:
        group = cast(Group, self.ranks)
        self.verification.begin(group, had_state=had_state, may_return=True)

    def step(self) -> None:
        self.verification.keep()
        self.run.position.step += 1
        with torch.no_grad():
            self.model.weight.fill_(self.run.position.step)

    def check(self, *, gradients: int | None = None, is_last: bool = False) -> bool:
        return self.verification.check(
            cast(Group, self.ranks),
            gradients=gradients,
            is_needed=False,
            is_last=is_last,
            may_return=True,
        )

    def train(self, until: int) -> None:
        """Take steps, with a probe every 5 of them."""
        while self.run.position.step < until:
            self.step()
            self.check(gradients=None if self.run.position.step % 5 else 1)

    @property
    def state(self) -> tuple[int, float]:
        return self.run.position.step, self.model.weight.item()


@pytest.mark.parametrize("every_steps", [0, 1])
def test_ranks_return_to_a_state_that_a_probe_has_confirmed(
    every_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal replicas confirm nothing: a wrong gradient is in all of them."""
    monkeypatch.setattr("ddp_trainer.library.checks.state_copy._COPY_SHARE", 1e9)
    trained = Trained(every_steps=every_steps)
    trained.train(13)
    trained.begin(had_state=True)  # a rank was lost
    trained.train(14)
    trained.ranks.faulty = 2
    with pytest.raises(LeavingError, match=r"rank 2 .* step 15; gradients last equal at step 10"):
        trained.train(15)
    assert trained.state == (10, 10.0)
    trained.ranks.faulty = None
    trained.begin(had_state=True)
    trained.train(19)
    trained.ranks.faulty = 1
    with pytest.raises(LeavingError, match="rank 1 differs"):
        trained.train(20)
    assert trained.state == (15, 15.0)


def test_without_a_probe_so_far_ranks_return_to_the_beginning() -> None:
    trained = Trained(every_steps=1)
    trained.train(4)
    trained.ranks.faulty = 1
    with pytest.raises(LeavingError, match=r"rank 1 .* step 5; gradients never equal"):
        trained.train(5)
    assert trained.run.position.step == 0


def test_ranks_with_other_replicas_return_to_a_confirmed_state_too() -> None:
    trained = Trained(every_steps=1)
    trained.train(8)
    trained.ranks.differs = 1
    with pytest.raises(LeavingError, match=r"rank 1 .* step 9; last equal at step 8: flipped"):
        trained.train(9)
    assert trained.run.position.step in {0, 5}


@pytest.mark.parametrize(
    ("kind", "message", "steps"),
    [
        ("faulty", r"differ after step 5, .*; gradients never", {0}),
        ("differs", r"differ after step 5, .*; last equal at step 4", {0, 4}),
    ],
)
def test_ranks_that_lose_their_group_while_comparing_return_later(
    kind: str, message: str, steps: set[int]
) -> None:
    trained = Trained(every_steps=0 if kind == "faulty" else 1)
    trained.train(4)
    setattr(trained.ranks, kind, 1)
    trained.ranks.breaks = True
    with pytest.raises(BrokenGroupError, match="has left"):
        trained.train(5)
    setattr(trained.ranks, kind, None)
    trained.ranks.breaks = False
    with pytest.raises(LeavingError, match=message):
        trained.begin(had_state=True)
    assert trained.run.position.step in steps
    trained.begin(had_state=True)


def test_the_faulty_rank_ends() -> None:
    trained = Trained(every_steps=0, rank=1)
    trained.train(4)
    trained.ranks.faulty = 1
    with pytest.raises(FlippedBitsError, match="rank 1 differs"):
        trained.train(5)


def test_ranks_do_not_return_into_a_loop_that_the_script_has_left() -> None:
    trained = Trained(every_steps=0)
    trained.train(7)
    trained.check(is_last=True)  # by `break`, so there was no probe
    trained.train(9)
    trained.ranks.faulty = 1
    with pytest.raises(DifferingReplicasError, match="restarting from the newest checkpoint"):
        trained.train(10)


def test_ranks_are_probed_in_turn() -> None:
    trained = Trained(every_steps=0)
    group = cast(Group, trained.ranks)
    found = []
    for _ in range(20):
        trained.run.position.step += 1
        found.append(trained.verification.rank_to_probe(group, is_needed=False))
    assert [rank for rank in found if rank is not None] == [1, 2, 0, 1]
    assert [step for step, rank in enumerate(found, 1) if rank is not None] == [5, 10, 15, 20]
    trained.run.position.step = 21
    assert trained.verification.rank_to_probe(group, is_needed=True) == 1
    trained.ranks.size = 1
    assert trained.verification.rank_to_probe(group, is_needed=True) is None


def test_a_message_is_short() -> None:
    assert len(in_words(range(9, 99), 10**9, 10**9, of_gradients=True)) < 200


# Refusals.


def test_gradients_that_cannot_be_compared_are_refused() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ddp_trainer.join(
        model=model, optimizer=optimizer, checkpoint_dir="", verify_gradients=2
    ) as job:
        whole = DataLoader(TensorDataset(torch.ones(4, 1)))
        job.wrap(model)
        with pytest.raises(ConfigurationError, match="cannot read the samples of another one"):
            next(job.batches(DataLoader(Endless())))
        next(job.batches(whole))
    with pytest.raises(ConfigurationError, match=r"set --deterministic, or call torch\.use_det"):
        check_probes(torch.device("cuda"), is_stream=False)


# With processes.


def variables(folder: Path, *, probe_every: int, every: int = 0) -> dict[str, str]:
    known = {EVERY_STEPS: every, PROBE_EVERY: probe_every, PLAN: "[]", FOLDER: folder}
    return {name: str(value) for name, value in known.items()}


def probes_of(log: str, *, rank: int = 0) -> Sequence[int]:
    """Return the steps with probes, in which a rank takes no step; two ranks rehearse none."""
    return [int(step) for step in re.findall(rf"rank {rank} takes no step after (\d+)", log)]


@pytest.mark.parametrize("device", ["cpu", pytest.param("stream", marks=pytest.mark.nightly)])
def test_a_probe_of_each_step_reports_nothing_and_leaves_no_trace(
    device: str, tmp_path: Path
) -> None:
    """With dropout, batch norm, and noise in the samples."""
    states = []
    for every in (1, 0):
        folder = tmp_path / str(every)
        folder.mkdir()
        more = variables(folder, probe_every=every) | {SAVES: str(folder / "checkpoints")}
        with script_job(folder, ranks=2, device=device, script="flips", variables=more) as job:
            log = run_to_its_end(job, *FLAGS).log
            states.append(job.state(2 * STEPS))
        assert probes_of(log) == [*range(1, 2 * STEPS + 1)] * every, log
        assert "flipped bits" not in log
    assert_same(*states)


@pytest.mark.parametrize("every", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_rank_with_wrong_gradients_ends_and_the_others_return(
    tmp_path: Path, every: int, ends: Ends
) -> None:
    more = variables(tmp_path, probe_every=5, every=every) | {FAULT: "[1, 12]"}
    with script_job(tmp_path, ranks=3, nodes=3, script="flips", variables=more) as job:
        first, failed, last = job.start_all(*FLAGS)
        assert failed.wait() == ExitCode.FLIPPED_BITS, failed.log
        assert failed.message["error"] == (
            "rank 1 differs from the other ranks after step 15; gradients last equal at step 10: "
            "flipped bits in memory"
        )
        successor = job.start(1, *FLAGS)
        for pod in (first, last, successor):
            assert pod.wait() == 0, pod.log
            assert "restarting it" not in pod.log
        [returned] = re.findall(r"returning from step 15 to step (\d+) in memory", first.log)
        assert int(returned) in {0, 5, 10}
        assert ends_of(*(pod.log for pod in job.pods)) == ends(3)


@pytest.mark.nightly
def test_a_rank_dies_in_a_probe(tmp_path: Path, ends: Ends) -> None:
    more = variables(tmp_path, probe_every=5) | {PLAN: '[[2, 10, "death in a probe"]]'}
    with script_job(tmp_path, ranks=3, script="flips", variables=more) as job:
        log = run_to_its_end(job, *FLAGS).log
    assert log.count("restarting it") == 1
    assert "differ" not in log
    assert ends_of(log) == ends(3)


def test_a_probe_precedes_each_save_and_the_end_of_an_epoch(tmp_path: Path) -> None:
    more = variables(tmp_path, probe_every=7) | {SAVES: str(tmp_path / "saves")}
    with script_job(tmp_path, ranks=2, script="flips", variables=more) as job:
        log = run_to_its_end(job, "--epochs", "1").log
    assert probes_of(log) == probes_of(log, rank=1) == [7, 10, 14, 20, 21, STEPS]


@pytest.mark.nightly
def test_probes_leave_no_trace_in_steps_of_logical_shards(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Each of two ranks computes two of three shards, or one of them again."""
    more = variables(tmp_path, probe_every=5) | {SHARDS: "3"}
    with script_job(tmp_path, ranks=2, script="flips", variables=more) as job:
        log = run_to_its_end(job, *FLAGS).log
    assert "differ" not in log
    expected = undisturbed("flips", *FLAGS, ranks=2, variables={SHARDS: "3"})
    assert ends_of(log) == ends_of(log_of(expected))


@pytest.mark.nightly
def test_probes_leave_no_trace_if_optimizers_take_turns(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    flags, script = ("--epochs", "1"), "two models"
    with script_job(tmp_path, ranks=2, script=script, variables={PROBE_EVERY: "5"}) as job:
        log = run_to_its_end(job, *flags).log
        assert "differ" not in log
        assert_same(job.state(STEPS), undisturbed(script, *flags, ranks=2).state(STEPS))
