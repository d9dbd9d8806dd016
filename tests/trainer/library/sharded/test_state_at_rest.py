"""Bits flip between two steps, where no other rank has the same part; and which step is kept."""

from __future__ import annotations

import json
import random
from typing import cast

import pytest
import torch
from ddp_trainer.collectives.group import Group
from ddp_trainer.exit_codes import ConfigurationError, FlippedBitsError, LeavingError
from ddp_trainer.library.checks.replicas import Replica, faulty
from ddp_trainer.library.checks.verification import Part, compared
from ddp_trainer.library.sharded.state_at_rest import StateAtRest, end_step_of_changed
from ddp_trainer.library.sharded.support import part_of
from ddp_trainer.library.sharded.verified_step import VerifiedStep
from ddp_trainer.run.train_state import TrainState
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from tests.trainer.library.sharded.flipped import flip_in_memory
from tests.trainer.library.sharded.sharding import NEEDS_TORCH
from tests.trainer.library.sharded.test_sharded import fake_group, local, sharded

pytestmark = [NEEDS_TORCH, pytest.mark.timeout(3600)]
CPU = torch.device("cpu")


class Trained:
    """The part of one rank, which takes steps."""

    def __init__(self, *, is_sharded: bool = True) -> None:
        """`is_sharded`: False for many steps: DTensors are slow."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3).to(torch.bfloat16))
        self.model = sharded(model) if is_sharded else model
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        parts = {"model": self.model, "optimizer": self.optimizer}
        self.run = TrainState(parts, seed=0, device=CPU)
        self.at_rest = StateAtRest(self.run, is_verified=True)

    def step(self) -> None:
        for each in self.model.parameters():
            each.grad = own = torch.randn_like(local(each))
            if isinstance(each, DTensor):
                mesh, placements = each.device_mesh, each.placements
                each.grad = DTensor.from_local(own, mesh, placements, run_check=False)
        self.run.updates.complete_step(1)

    def stored(self) -> list[torch.Tensor]:
        return [local(each) for each in compared([self.model], [self.optimizer])]


@pytest.mark.parametrize(
    ("steps", "flips", "is_sharded"),
    [(300, 300, True), pytest.param(100_000, 1000, False, marks=pytest.mark.nightly)],
)
def test_each_flip_at_rest_is_found_and_no_other_is(
    steps: int, flips: int, is_sharded: bool
) -> None:
    trained, drawn = Trained(is_sharded=is_sharded), random.Random(1)
    found = false = 0
    for step in range(steps):
        trained.step()
        trained.at_rest.note()
        false += trained.at_rest.has_changed()
        if step < flips:
            trained.at_rest.note()
            tensor = drawn.choice(trained.stored())
            bit = drawn.randrange(8 * tensor.nbytes)
            flip_in_memory(tensor, bit)
            found += trained.at_rest.has_changed()
            flip_in_memory(tensor, bit)
    print(f"{steps} steps, {false} false reports; {flips} flips, {found} found")
    assert (found, false) == (flips, 0)


def test_changes_by_the_script_are_no_flips(caplog: pytest.LogCaptureFixture) -> None:
    trained = Trained()
    for _ in range(2):
        trained.at_rest.note()
        with torch.no_grad():
            next(trained.model.parameters()).mul_(2)
        assert not trained.at_rest.has_changed()
    assert caplog.text.count("the script changes weights after job.batches()") == 1
    trained.at_rest.note()
    trained.at_rest.end()
    flip_in_memory(trained.stored()[0], 3)
    assert not trained.at_rest.has_changed(), "the step has begun to change the state"


def test_a_flip_is_found_though_a_lost_rank_ends_the_step() -> None:
    trained = Trained()
    trained.at_rest.note()
    flip_in_memory(trained.stored()[0], 3)
    for _ in range(2):
        trained.at_rest.note()  # the step begins again
        assert trained.at_rest.has_changed()
    trained.step()  # or the state of another step was loaded
    trained.at_rest.note()
    assert not trained.at_rest.has_changed()


class Ranks:
    """A group of three ranks; in some, the state has changed."""

    size = 3

    def __init__(self, *changed: int) -> None:
        self.changed = changed

    def gather(self, _: bytes) -> list[bytes]:
        return [json.dumps(rank in self.changed).encode() for rank in range(self.size)]


def test_a_rank_whose_state_has_changed_ends_and_the_others_continue() -> None:
    group = cast(Group, Ranks(1))
    text = "the state of rank 1 has changed since step 7: flipped bits in memory"
    with pytest.raises(FlippedBitsError, match=f"^{text}$"):
        end_step_of_changed(group, is_own=True, step=7)
    with pytest.raises(LeavingError, match=f"^{text}$"):
        end_step_of_changed(group, is_own=False, step=7)
    with pytest.raises(ConfigurationError, match=r"the script changes weights through \.data"):
        end_step_of_changed(cast(Group, Ranks(0, 1, 2)), is_own=True, step=7)


def test_ranks_are_compared_with_those_of_the_same_part() -> None:
    def ranks(*prints: int) -> list[Replica]:
        return [Replica(each, 3, True, rank % 2) for rank, each in enumerate(prints)]

    assert faulty(ranks(5, 6, 5, 6, 5, 6)) == []
    assert faulty(ranks(5, 6, 5, 5, 5, 6)) == [3]
    assert faulty(ranks(5, 6, 7, 6, 5, 9)) == [2, 5]
    assert faulty(ranks(5, 6, 5, 7)) == []


def test_snapshots_of_the_verified_step_stay_until_a_newer_one_is_complete() -> None:
    verified = VerifiedStep(is_required=True)
    assert verified.replaceable([4, 3, 2]) == [2, 3]
    verified.note(4)
    verified.complete(3)
    assert {verified.number, *verified.kept} == {None, 4}
    assert [verified.is_due] == [True]
    verified.complete(4)
    assert {verified.number, *verified.kept} == {4}
    assert [verified.is_due] == [False]
    verified.note(8)
    assert verified.replaceable([4, 6, 7, 8]) == [6, 7]
    assert [step for step in range(10) if verified.may_be_saved(step)] == [4, 8]
    verified.begin_at(7)  # a rank was lost before all had copies of step 8
    assert verified.kept == {4}
    verified.begin_at(3)
    assert verified.kept == set()
    assert VerifiedStep(is_required=False).may_be_saved(5)


def test_parts_have_replicas_if_the_mesh_has_two_dimensions() -> None:
    with fake_group(ranks=4):
        assert part_of(init_device_mesh("cpu", (4,))) == Part(0, 0)
        assert part_of(init_device_mesh("cpu", (1, 4))) == Part(0, 0)
        assert part_of(init_device_mesh("cpu", (2, 2))) == Part(0, 2)
