"""The launcher of node rank 0 lets rank 0 pause after a snapshot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ddp_trainer.launcher.memory.pausing import Pausing
from ddp_trainer.launcher.memory.protocol.messages import RankReport
from ddp_trainer.memory.pausing import PauseRequest

from tests.trainer.launcher.memory.network import SimulatedJob, without_threads


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    without_threads(monkeypatch)


class Pauses:
    """A job of two pods whose rank 0 may pause."""

    def __init__(self, folder: Path) -> None:
        self.job = SimulatedJob(folder)
        self.pods = self.job.pods
        self.request = PauseRequest(self.pods[0].volume)
        self.request.make(after=-1)  # an earlier launcher's
        self.pausing = Pausing(self.request, self.pods[0].world)
        self.job.restart()

    def want(self, pause: bool) -> None:
        world = self.pods[0].world
        assert world.accept(replace(world.assignment, pause=pause))

    def look(self, now: float) -> str | None:
        """Return the state of the pause at a time, as the operator learns it."""
        self.pausing.look(self.pods[0].memory.group, now)
        return self.pods[0].world.news(after=0, wait_seconds=0).pause

    def due(self, now: float) -> float | None:
        return self.pausing.look(self.pods[0].memory.group, now)

    def reach(self, step: int, *, generation: int = 1, rank: int = 0) -> None:
        """Report that a rank pauses."""
        report = RankReport(rank=rank, generation=generation, step=step, saved=True, paused=True)
        self.pausing.note(report)


@pytest.fixture
def pauses(tmp_path: Path) -> Pauses:
    return Pauses(tmp_path)


def test_rank_0_is_paused_once_all_pods_have_its_step(pauses: Pauses) -> None:
    assert pauses.look(0) == ""
    assert not pauses.request.includes(7), "the earlier request is withdrawn"
    pauses.want(True)
    assert pauses.look(1) == "Requested"
    assert pauses.request.includes(7)
    pauses.pods[0].save(0, 7)
    pauses.reach(7)
    pauses.job.settle()
    assert pauses.look(2) == "Requested", "another pod has not saved yet"
    pauses.pods[1].save(0, 7)
    pauses.job.settle()
    number = pauses.pods[0].world.news(after=0, wait_seconds=0).number
    assert pauses.look(3) == "Paused"
    news = pauses.pods[0].world.news(after=number, wait_seconds=0)
    assert news.number == number + 1, "the operator learns it at once"
    assert pauses.request.includes(7)


def test_a_complete_step_is_not_enough_while_rank_0_trains(pauses: Pauses) -> None:
    pauses.want(True)
    pauses.look(0)
    pauses.job.step(7)
    assert pauses.look(1) == "Requested", "it had saved before it saw the request"
    pauses.reach(9, generation=0)
    pauses.reach(9, rank=1)
    assert pauses.look(2) == "Requested"


def test_rank_0_continues_when_nobody_wants_the_pause_any_more(pauses: Pauses) -> None:
    for reaches in (False, True):
        pauses.want(True)
        pauses.look(0)
        if reaches:
            pauses.job.step(7)
            pauses.reach(7)
            assert pauses.look(1) == "Paused"
        pauses.want(False)
        assert pauses.look(2) == ""
        assert not pauses.request.includes(7)
        pauses.reach(7)  # it arrives late
        assert pauses.look(3) == ""


def test_rank_0_pauses_at_a_later_step_if_a_pod_skips_one(pauses: Pauses) -> None:
    pauses.want(True)
    pauses.look(0)
    pauses.pods[0].save(0, 7)
    pauses.reach(7)
    report = RankReport(rank=1, generation=1, step=7, saved=False)
    pauses.pods[1].memory.note(report)
    pauses.job.settle()
    pauses.job.settle()  # by now nobody holds that step
    assert pauses.look(1) == "Requested"
    assert not pauses.request.includes(7), "rank 0 continues"
    assert pauses.request.includes(8)
    pauses.job.step(8)
    pauses.reach(8)
    assert pauses.look(2) == "Paused"


def test_no_wait_is_endless(pauses: Pauses) -> None:
    pauses.want(True)
    due = pauses.due(0)
    assert due == 600
    assert pauses.look(599) == "Requested"
    assert pauses.look(600) == "Missed"
    assert not pauses.request.includes(7)
    assert pauses.look(5000) == "Missed", "one request is missed once"
    pauses.want(False)
    assert pauses.look(5001) == ""


@pytest.mark.parametrize("complete", [True, False])
def test_rank_0_does_not_pause_for_longer_than_two_minutes(pauses: Pauses, complete: bool) -> None:
    pauses.want(True)
    pauses.look(0)
    if complete:
        pauses.job.step(7)
    pauses.reach(7)
    pauses.look(100)
    assert pauses.request.includes(7)
    assert pauses.look(220) == "Missed", "the copies, or the operator, are too slow"
    assert not pauses.request.includes(7)


def test_next_generation_does_not_inherit_the_pause(pauses: Pauses) -> None:
    pauses.want(True)
    pauses.look(0)
    pauses.job.step(7)
    pauses.reach(7)
    assert pauses.look(1) == "Paused"
    pauses.job.restart()
    assert pauses.pods[0].world.news(after=0, wait_seconds=0).pause == ""
    assert pauses.look(2) == ""
    assert not pauses.request.includes(7)


def test_other_pods_request_no_pause(tmp_path: Path) -> None:
    job = SimulatedJob(tmp_path)
    job.restart()
    pod = job.pods[1]
    pausing = Pausing(PauseRequest(pod.volume), pod.world)
    assert pod.world.accept(replace(pod.world.assignment, pause=True))
    assert pausing.look(pod.memory.group, 0) is None
    assert not PauseRequest(pod.volume).includes(7)
