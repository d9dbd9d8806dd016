"""Which steps sharded ranks take twice after a loss, at each point at which a rank can die."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path

import ddp_trainer
import pytest
import torch
from ddp_trainer.library.sharded.agreement import Decision, Inventory, newest_complete
from ddp_trainer.library.sharded.replicas import shard_of
from ddp_trainer.memory.volume import Key
from ddp_trainer.run.parts import Parts
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from tests.trainer.library.runs import Undisturbed, log_of
from tests.trainer.library.sharded.sharding import CLIP, NEEDS_TORCH, ONLY_SHARDS, SHARD_SIZE
from tests.trainer.library.sharded.test_fsdp import FLAGS, LAST_STEP, printed, run
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import Job

pytestmark = [NEEDS_TORCH, pytest.mark.timeout(900)]
REPLICAS = {SHARD_SIZE: "2", ONLY_SHARDS: "1"}
"""2 x 2 ranks: ranks 0 and 2 have the same part, and ranks 1 and 3."""
ALONE = {CLIP: "0"}
"""Ranks apply a step without the others."""
TAKEN = "a step taken"
UPDATED = "before the optimizer's step"
"""Ranks that have reached this know that all others will apply the step, too."""


def steps_of(log: str, rank: int) -> list[int]:
    """Return the steps that a rank has taken, in this order, in all of its processes."""
    return [int(step) for step in re.findall(rf"rank {rank} took step (\d+):", log)]


def check(
    log: str,
    plan: Sequence[FaultAt],
    undisturbed: Job,
    *,
    ranks: int,
    missing: Mapping[int, Set[int]],
    repeated: Mapping[int, Sequence[int]],
) -> None:
    """Check which steps each rank has taken, and that all it has printed is equal to the bit.

    `missing`: steps that a rank received from another one. `repeated`: steps that it took twice.
    """
    expected = printed(log_of(undisturbed))
    of_lost = [f"rank {rank} took step {at}:" for rank, steps in missing.items() for at in steps]
    assert printed(log) == {line for line in expected if not line.startswith(tuple(of_lost))}
    for rank in range(ranks):
        steps = {*range(1, LAST_STEP[ranks] + 1)} - missing.get(rank, set())
        assert sorted(steps_of(log, rank)) == sorted([*steps, *repeated.get(rank, ())]), log
    assert log.count("restarting it") == len(plan), log


def test_a_step_without_a_copy_is_taken_twice(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """The parts of step 11, and of step 19, die with their ranks."""
    plan = [
        FaultAt(rank=0, point="within a step", step=4, others_at="a snapshot copied"),
        FaultAt(rank=1, point="vote", step=7, others_at="a snapshot copied"),
        FaultAt(rank=2, point="after the optimizer's step", step=12, others_at=TAKEN),
        FaultAt(rank=0, point=UPDATED, step=14),
        FaultAt(rank=1, point="a snapshot's departure", step=20, others_at=TAKEN),
    ]
    log = run(tmp_path, 3, 1, plan)
    expected, repeated = undisturbed("shards", *FLAGS, ranks=3), {0: [11, 19], 1: [11, 19], 2: [19]}
    check(log, plan, expected, ranks=3, missing={}, repeated=repeated)


@pytest.mark.parametrize("copies", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_no_step_is_taken_twice_if_another_rank_has_the_same_part(
    copies: int, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """A rank that dies while it applies a step has taken it when it returns."""
    plan = [
        FaultAt(rank=0, point="within a step", step=3, others_at=TAKEN),
        FaultAt(rank=1, point=UPDATED, step=6, others_at=UPDATED),
        FaultAt(rank=2, point="within the optimizer's step", step=9, others_at=UPDATED),
        FaultAt(rank=3, point="after the optimizer's step", step=12, others_at=TAKEN),
        FaultAt(rank=0, point="a snapshot", step=15, others_at=TAKEN),
        FaultAt(rank=2, point="vote", step=18, others_at=TAKEN),
        FaultAt(rank=1, point="gate", step=21, others_at=TAKEN),
    ]
    variables = {**REPLICAS, **ALONE}
    log = run(tmp_path, 4, copies, plan, variables=variables)
    expected = undisturbed("shards", *FLAGS, ranks=4, variables=variables)
    check(log, plan, expected, ranks=4, missing={1: {6, 20}, 2: {9}, 3: {11}}, repeated={})


def test_a_rank_without_the_norm_of_gradients_receives_the_step(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Rank 1 cannot clip its gradients without rank 0; the other replica can."""
    plan = [FaultAt(rank=0, point=UPDATED, step=5, others_at=TAKEN, others=2)]
    log = run(tmp_path, 4, 0, plan, variables=REPLICAS)
    expected = undisturbed("shards", *FLAGS, ranks=4, variables=REPLICAS)
    check(log, plan, expected, ranks=4, missing={0: {5}, 1: {5}}, repeated={})
    assert "rank 0's part from rank 2, rank 1's part from rank 3" in log


@pytest.mark.nightly
def test_the_step_before_stays_until_a_step_is_copied(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Ranks 0 and 2 are lost with the only parts of step 5, which rank 0 had from rank 2."""
    plan = [
        FaultAt(rank=0, point="after the optimizer's step", step=6, others_at=TAKEN),
        FaultAt(rank=0, point="a snapshot's departure"),
        FaultAt(rank=2, point="rendezvous"),
    ]
    variables = {**REPLICAS, **ALONE}
    log = run(tmp_path, 4, 2, plan, variables=variables)
    expected = undisturbed("shards", *FLAGS, ranks=4, variables=variables)
    check(log, plan, expected, ranks=4, missing={}, repeated={rank: [5] for rank in (1, 2, 3)})


def keys(*steps: int) -> list[Key]:
    return [Key(0, step) for step in steps]


def replicas(*own: Sequence[int], shards: Sequence[int | None] = (0, 1, 0, 1)) -> list[Inventory]:
    """Return the inventories of 2 x 2 ranks without copies."""
    return [
        Inventory(own=keys(*steps), copies=[], shard=shard)
        for steps, shard in zip(own, shards, strict=True)
    ]


def test_a_lost_rank_continues_where_its_replica_is() -> None:
    decision = newest_complete(replicas([0], [6, 7], [6, 7], [6, 7]))
    assert decision == Decision(Key(0, 7), {0: 2})
    assert str(decision) == "rank 0's part from rank 2"


def test_a_rank_that_is_behind_receives_the_step_of_its_replica() -> None:
    decision = newest_complete(replicas([0], [5, 6], [6, 7], [6, 7]))
    assert decision == Decision(Key(0, 7), {0: 2, 1: 3})


def test_a_shard_whose_ranks_are_all_behind_decides_the_step() -> None:
    decision = newest_complete(replicas([0], [5, 6], [6, 7], [5, 6]))
    assert decision == Decision(Key(0, 6), {0: 2})


def test_a_copy_is_used_rather_than_a_replica() -> None:
    held = replicas([0], [6, 7], [6, 7], [6, 7])
    held[3] = replace(held[3], copies=[(0, Key(0, 7))])
    assert newest_complete(held) == Decision(Key(0, 7), {0: 3})


@pytest.mark.parametrize("shards", [(0, 1, None, None), (None, 1, 0, 1), (None,) * 4])
def test_a_rank_with_a_state_of_its_own_is_no_replica(shards: Sequence[int | None]) -> None:
    assert newest_complete(replicas([0], [6, 7], [6, 7], [6, 7], shards=shards)) is None


class Counted:
    """A part that `join` does not know."""

    def state_dict(self) -> dict[str, int]:
        return {"samples": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        del state


def test_states_are_equal_if_all_of_them_is_sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    mesh = ddp_trainer.device_mesh(shard_size=2)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    assert shard_of(Parts({"model": model, "optimizer": optimizer}), mesh) is None, "buffers differ"
    parts = {"model": model[0], "optimizer": optimizer}
    assert shard_of(Parts(parts), mesh) == 1
    assert shard_of(Parts({**parts, "counted": Counted()}), mesh) is None
    assert shard_of(Parts(parts), ddp_trainer.device_mesh()) is None, "there are no replicas"


@pytest.mark.parametrize("shard_size", [1, None], ids=["replicas", "shards"])
def test_a_step_without_all_ranks_counts_if_its_collectives_ended(shard_size: int | None) -> None:
    model = nn.Linear(1, 1)
    fully_shard(model, mesh=ddp_trainer.device_mesh(shard_size))
    loader = DataLoader(TensorDataset(torch.ones(2, 1)))
    with ddp_trainer.join(model=model, optimizer=torch.optim.AdamW(model.parameters())) as job:
        formation, snapshots = job._session.formation, job._session.formation.snapshots
        assert snapshots is not None
        counts = partial(snapshots.end_step, formation.group, has_all=False)
        for (inputs,) in job.batches(loader):
            model(inputs).sum().backward()
            snapshots.leave_step()
            dist.all_reduce(torch.ones(1))
            assert counts() == bool(shard_size)
            work = dist.all_reduce(torch.ones(1), async_op=True)
            assert not counts()
            work.wait()
            work.wait()
            assert counts() == bool(shard_size)
            job.step()
