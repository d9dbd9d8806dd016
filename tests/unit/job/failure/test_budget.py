"""Tests of the restart budget: charges, progress and backoff."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import CheckpointRecord, MemoryCheckpointRecord
from ddp_operator.job.failure.budget import MIN_NODE_FAILURES
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import PodState
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.job.builders import (
    NOW,
    edited,
    ended,
    fresh_job,
    later,
    node_failures,
    pod,
    ready,
    running_job,
    stored,
    with_status,
)

ECC = "CUDA error: uncorrectable ECC error encountered"


def start(**restart: Any) -> DDPJob:
    return running_job(restart=restart)[0]


def checkpointed(job: DDPJob, step: int) -> DDPJob:
    return with_status(job, checkpoint=CheckpointRecord(step=step))


def saved_in_memory(job: DDPJob, step: int) -> DDPJob:
    return with_status(job, memory_checkpoint=MemoryCheckpointRecord(step=step))


def fails(job: DDPJob, **how: Any) -> Plan:
    """Return the plan after a pod of the running job fails."""
    return plan(job, [ready(job, 0), failed(job, **how)], later(60))


def failed(job: DDPJob, **how: Any) -> PodState:
    return ended(job, 1, **{"code": 1, **how})


def running_again(job: DDPJob, planned: Plan, *, at: float = 60) -> DDPJob:
    """Return the job after the restart, with running pods."""
    job = stored(job, planned)
    begins = job.status.next_start_time or later(at)
    job = stored(job, plan(job, [], begins))
    job = stored(job, plan(job, [ready(job, index) for index in (0, 1)], begins))
    assert job.status.phase == "Running"
    return job


class TestProgress:
    @pytest.mark.parametrize("saved", [checkpointed, saved_in_memory])
    def test_a_later_checkpoint_refills_the_budget(
        self, saved: Callable[[DDPJob, int], DDPJob]
    ) -> None:
        job = start(maxRestarts=1)
        for step in (10, 20, 30):
            job = saved(job, step)
            planned = fails(job)
            assert planned.status.bookkeeping.restarts_without_progress == 1
            assert planned.status.bookkeeping.checkpoint_step_at_restart == step
            assert "restart 1 of 1" in planned.status.message
            job = running_again(job, planned)
        assert job.status.restarts == 3

    @pytest.mark.parametrize("step", [10, 5])
    def test_same_or_earlier_checkpoint_refills_nothing(self, step: int) -> None:
        job = start(maxRestarts=1)
        job = running_again(job, fails(checkpointed(job, 10)))
        planned = fails(checkpointed(job, step))
        assert (planned.status.phase, planned.status.reason) == ("Failed", "MaxRestartsExceeded")


class TestLostSteps:
    """Steps that were saved before are no progress."""

    def lives(self, *saves: int, **restart: Any) -> DDPJob:
        """Run attempts that each save one step, and fail."""
        job = start(**restart)
        for step in saves:
            planned = fails(checkpointed(job, step))
            job = stored(job, planned) if planned.status.finished else running_again(job, planned)
            if job.status.finished:
                break
        return job

    @pytest.mark.parametrize(
        ("saves", "restarts"),
        [([50] * 9, 3), ([50, 1050] * 9, 4), ([9000, *range(50, 9000, 1000)], 3)],
        ids=["same step", "wiped again and again", "wiped once"],
    )
    def test_job_that_saves_no_later_step_than_before_fails(
        self, saves: Sequence[int], restarts: int
    ) -> None:
        job = self.lives(*saves, maxRestarts=3)
        assert (job.status.reason, job.status.restarts) == ("MaxRestartsExceeded", restarts)

    def test_job_beyond_its_lost_steps_has_its_whole_budget_again(self) -> None:
        job = self.lives(3000, 50, 1050, 4050, 60, 1060, maxRestarts=3)
        assert not job.status.finished
        assert job.status.bookkeeping.restarts_without_progress == 3

    def test_hours_without_a_saved_step_refill_nothing(self) -> None:
        job, at = start(maxRestarts=2), 0.0
        for _ in range(3):
            at += 7200
            planned = plan(job, [ready(job, 0), failed(job, at=at)], later(at))
            if planned.status.finished:
                break
            job = running_again(job, planned, at=at)
        assert planned.status.reason == "MaxRestartsExceeded"

    def test_lost_snapshots_ahead_of_the_disk_are_no_loss(self) -> None:
        """All pods run out of memory each week, and resume from the disk."""
        job = start(maxRestarts=1)
        for step in range(100_000, 800_000, 100_000):
            job = with_status(
                job,
                checkpoint=CheckpointRecord(step=step),
                memory_checkpoint=MemoryCheckpointRecord(step=step + 500),
            )
            job = running_again(job, fails(job))
            assert job.status.bookkeeping.restarts_without_progress == 1
            job = with_status(job, memory_checkpoint=MemoryCheckpointRecord(step=None))
        assert job.status.restarts == 7

    def test_node_failures_without_progress_end_the_job(self) -> None:
        job = start(maxRestarts=0)
        for step in [9000] + [50, 40] * MIN_NODE_FAILURES:
            planned = fails(checkpointed(job, step), message=ECC)
            if planned.status.finished:
                break
            job = running_again(job, planned)
        assert planned.status.reason == "MaxRestartsExceeded"


class TestBackoff:
    def pauses(self, job: DDPJob, count: int, **how: Any) -> list[float]:
        pauses = []
        for _ in range(count):
            planned = fails(job, **how)
            next_start = planned.status.next_start_time
            pauses.append((next_start - later(60)).total_seconds() if next_start else 0)
            job = running_again(job, planned)
        return pauses

    @pytest.mark.parametrize(
        ("initial", "most", "pauses"), [(5, 30, [0, 5, 10, 20, 30, 30]), (0, 0, [0, 0, 0])]
    )
    def test_backoff_doubles_up_to_max_seconds(
        self, initial: int, most: int, pauses: list[float]
    ) -> None:
        job = start(maxRestarts=9, backoff={"initialSeconds": initial, "maxSeconds": most})
        assert self.pauses(job, len(pauses)) == pauses

    def test_uncharged_restarts_back_off_until_progress(self) -> None:
        rule = {"exitCodes": [7], "action": "RestartGang", "charged": False}
        job = start(maxRestarts=0, rules=[rule], backoff={"initialSeconds": 10, "maxSeconds": 100})
        now, pauses = 60.0, []
        for _ in range(8):
            pods = [ready(job, 0), failed(job, code=7, at=now)]
            planned = plan(job, pods, later(now))
            assert (planned.status.restarts, planned.status.phase) == (0, "Restarting")
            due = planned.status.next_start_time
            pauses.append((due - later(now)).total_seconds() if due else 0)
            now += 200
            job = stored(job, planned)
            job = stored(job, plan(job, [], later(now)))
            job = stored(job, plan(job, [ready(job, index) for index in (0, 1)], later(now)))
        assert pauses == [0, 10, 20, 40, 80, 100, 100, 100]
        saved = with_status(job, checkpoint=CheckpointRecord(step=9, time=later(now)))
        planned = plan(saved, [ready(job, 0), failed(job, code=7, at=now + 1)], later(now + 1))
        assert planned.status.next_start_time is None, "training gets on"

    def test_second_loss_does_not_shorten_the_backoff(self) -> None:
        job = start(scope="Pod", backoff={"initialSeconds": 300, "maxSeconds": 300})
        job = with_status(job, restarts=1, restarts_without_progress=1, restarts_in_a_row=1)
        job = stored(job, fails(job))
        assert job.status.next_start_time == later(360)
        other = ready(job, 0)
        assert plan(job, [other], later(61)).decided is False, "its replacement is not there yet"
        for left in ([replace(other, deleting=True)], []):
            planned = plan(job, left, later(61))
            assert (planned.decided, planned.status.next_start_time) == (True, later(360))

    def test_message_names_attempt_and_backoff(self) -> None:
        job = start()
        job = running_again(job, fails(job))
        planned = fails(job)
        assert "as attempt 2 after 5 s (restart 2 of 3; " in planned.status.message
        waiting = plan(stored(job, planned), [], later(61))
        assert waiting.create == ()
        assert waiting.requeue_at == planned.status.next_start_time
        assert "waiting until 2026-03-01T12:01:05Z" in waiting.status.message
        assert "digits-1-1" in waiting.status.message

    @given(
        initial=st.integers(0, 3600),
        most=st.integers(0, 86400),
        count=st.integers(1, 1000),
    )
    def test_backoff_grows_within_its_bounds(self, initial: int, most: int, count: int) -> None:
        initial = min(initial, most)
        job = start(maxRestarts=1000, backoff={"initialSeconds": initial, "maxSeconds": most})
        found = []
        for spent in (count - 1, count):
            status = fails(with_status(job, restarts_in_a_row=spent - 1)).status
            found.append((status.next_start_time or later(60)) - later(60))
        for pause, after in pairwise([timedelta(), *found, timedelta(seconds=most)]):
            assert pause <= after


class TestFreePauses:
    """Restarts that nobody is charged for have no limit, so their pauses grow."""

    GROWING: ClassVar = [0, 10, 20, 40, 80, 160, 320, 600, 600]
    PREEMPTED: ClassVar[dict[str, Any]] = {"disruption": "PreemptionByScheduler"}

    def pause(self, job: DDPJob, *, after: float = 1, **how: Any) -> tuple[float, DDPJob]:
        """Return the pause of a job that fails so long after it began, and the job after it."""
        assert job.status.running_since is not None
        at = (job.status.running_since - NOW).total_seconds() + after
        planned = plan(job, [ready(job, 0), failed(job, at=at, **how)], later(at))
        due = planned.status.next_start_time
        pause = (due - later(at)).total_seconds() if due else 0
        return pause, running_again(job, planned, at=at)

    def pauses(self, job: DDPJob, count: int, **how: Any) -> list[float]:
        found = []
        for _ in range(count):
            pause, job = self.pause(job, **how)
            found.append(pause)
        assert job.status.restarts == 0
        return found

    def test_pauses_double_to_ten_minutes(self) -> None:
        job = start(maxRestarts=0, backoff={"initialSeconds": 0, "maxSeconds": 0})
        assert self.pauses(job, len(self.GROWING), **self.PREEMPTED) == self.GROWING

    def test_node_failures_pause_until_they_are_charged(self) -> None:
        assert self.pauses(start(maxRestarts=3), 3, message=ECC) == [0, 10, 20]

    def test_job_that_saves_between_preemptions_never_pauses(self) -> None:
        job = start()
        for step in range(1, 30):
            pause, job = self.pause(checkpointed(job, step), **self.PREEMPTED)
            assert pause == 0

    def test_job_that_runs_ten_minutes_between_preemptions_never_pauses(self) -> None:
        job = start()
        _, job = self.pause(job, **self.PREEMPTED)
        for _ in range(30):
            pause, job = self.pause(job, after=600, **self.PREEMPTED)
            assert pause == 0
        assert self.pause(job, after=599, **self.PREEMPTED)[0] == 10

    def test_all_restarts_in_a_row_count_for_one_pause(self) -> None:
        job = start(maxRestarts=9, backoff={"initialSeconds": 3, "maxSeconds": 300})
        found = []
        for how in ({}, self.PREEMPTED, {"message": ECC}, {}):
            pause, job = self.pause(job, **how)
            found.append(pause)
        assert found == [0, 10, 20, 12]

    def test_pods_that_are_lost_one_by_one_are_one_restart(self) -> None:
        job, pods = running_job(replicas=3, restart={"scope": "Pod"})
        first, second = (replace(each, deleting=True) for each in pods[1:])
        for _ in ("decide", "create"):
            job = stored(job, plan(job, [pods[0], first, pods[2]], later(61)))
        job = stored(job, plan(job, [pods[0], pod(job, 1, replacement=1), second], later(62)))
        assert job.status.bookkeeping.replacements == {"1": 1, "2": 1}
        assert job.status.bookkeeping.restarts_in_a_row == 1
        assert job.status.next_start_time is None

    def test_requested_restart_and_resumed_job_do_not_wait(self) -> None:
        job = start()
        for _ in range(4):
            _, job = self.pause(job, **self.PREEMPTED)
        job = stored(job, fails(job, **self.PREEMPTED))
        assert job.status.next_start_time == later(60 + 80)
        asked = stored(job, plan(replace(job, restart_requested="now"), [], later(61)))
        suspended = edited(job, suspend=True)
        suspended = stored(suspended, plan(suspended, [], later(61)))
        resumed = edited(suspended, suspend=False)
        resumed = stored(resumed, plan(resumed, [], later(62)))
        for one in (replace(asked, restart_requested="now"), resumed):
            assert len(plan(one, [], later(63)).create) == 2

    def test_pods_refused_at_each_start_restart_less_and_less_often(self) -> None:
        """One node's device plugin has lost a GPU, and the scheduler does not know."""
        job, at, attempts = fresh_job(), 0.0, []
        while at < 86_400:
            job = stored(job, plan(job, [], later(at)))
            refused = pod(job, 1, phase="Failed", node="node-a", reason="OutOfnvidia.com/gpu")
            job = stored(job, plan(job, [ready(job, 0, ready=False), refused], later(at)))
            assert job.status.next_start_time is not None
            attempts.append((job.status.next_start_time - later(at)).total_seconds())
            at += attempts[-1]
        assert attempts[:8] == [10, 20, 40, 80, 160, 320, 600, 600]
        assert len(attempts) < 150
        assert job.status.restarts == 0


class TestNodeFailures:
    def test_node_failure_is_counted_for_its_node(self) -> None:
        job = start(maxRestarts=0)
        planned = fails(job, message=ECC)
        assert (planned.status.phase, planned.status.reason) == ("Restarting", "NodeFailed")
        assert (planned.status.restarts, planned.status.disruptions) == (0, 1)
        assert node_failures(planned.status) == {"node-a": 1}
        [noted] = planned.status.failures
        assert (noted.class_, noted.charged) == ("Infrastructure", False)
        job = running_again(job, planned)
        planned = fails(job, message=ECC, node="node-b")
        assert node_failures(planned.status) == {"node-a": 1, "node-b": 1}

    @pytest.mark.parametrize("limit", [0, 1, 5])
    def test_repeated_node_failures_without_progress_are_charged(self, limit: int) -> None:
        job = start(maxRestarts=limit)
        for _ in range(max(limit, MIN_NODE_FAILURES)):
            job = running_again(job, fails(job, message=ECC))
        assert job.status.restarts == 0
        for _ in range(limit):
            job = running_again(job, fails(job, message=ECC))
        assert job.status.restarts == limit
        assert fails(job, message=ECC).status.reason == "MaxRestartsExceeded"

    def test_node_failures_with_progress_are_never_charged(self) -> None:
        job = start(maxRestarts=0)
        for step in range(1, 3 * MIN_NODE_FAILURES):
            job = running_again(job, fails(checkpointed(job, step), message=ECC))
        assert job.status.restarts == 0
