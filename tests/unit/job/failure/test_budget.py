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

from tests.unit.job.builders import NOW, ended, later, ready, running_job, stored, with_status
from tests.unit.job.status.test_goodput import look
from tests.unit.job.status.test_progress import report

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


def running_again(job: DDPJob, planned: Plan) -> DDPJob:
    """Return the job after the restart, with running pods."""
    job = stored(job, planned)
    at = job.status.next_start_time or later(60)
    job = stored(job, plan(job, [], at))
    job = stored(job, plan(job, [ready(job, index) for index in (0, 1)], at))
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

    @pytest.mark.parametrize(("step", "resets"), [(10, True), (5, True), (20, False)])
    def test_same_or_earlier_checkpoint_refills_nothing(self, step: int, resets: bool) -> None:
        job = start(maxRestarts=1, resetAfterProgress=resets)
        job = running_again(job, fails(checkpointed(job, 10)))
        planned = fails(checkpointed(job, step))
        assert (planned.status.phase, planned.status.reason) == ("Failed", "MaxRestartsExceeded")


class TestLostCheckpoints:
    """Repeated steps after lost checkpoints count as progress, but not repeatedly."""

    RUN: ClassVar = [(0, 50), *((step, step + 1000) for step in range(50, 9000, 1000))]

    def lives(
        self, lives: Sequence[tuple[int, int]], *, reported: bool = True, **restart: Any
    ) -> DDPJob:
        """Run attempts that each start at one step, save another one and fail."""
        job, now = start(**restart), 20.0
        for begins, saves in lives:
            if job.status.finished:
                break
            attempt = job.status.attempt
            fields: dict[str, Any] = {"checkpoint": {"step": saves}}
            if reported:
                fields["resumed"] = {"step": begins, "time": later(now).isoformat()}
            pods = [ready(job, index) for index in (0, 1)]
            for step in (begins + 1, saves + 1):
                now += 10
                heard = report(step, received=now, attempt=attempt, **fields)
                job = look(job, pods, now, heard)
            now += 1
            job = look(job, [pods[0], ended(job, 1, code=1, at=now)], now)
            now = max(now, ((job.status.next_start_time or NOW) - NOW).total_seconds()) + 1
            job = look(job, [], now)
            job = look(job, [ready(job, index) for index in (0, 1)], now)
        return job

    @pytest.mark.parametrize(("limit", "reported"), [(2, True), (3, False)])
    def test_new_run_in_the_same_job_refills_the_budget(self, limit: int, reported: bool) -> None:
        job = self.lives([(0, 9000), *self.RUN], reported=reported, maxRestarts=limit)
        assert not job.status.finished
        assert job.status.restarts == len(self.RUN) + 1

    @pytest.mark.parametrize(
        ("lives", "reported", "restarts"),
        [
            ([(0, 50)] * 9, True, 3),
            ([(0, 50)] * 9, False, 3),
            ([(0, 50 + n) for n in range(9)], True, 3),
            ([(0, 50), (50, 1050)] * 9, True, 6),
        ],
        ids=["same step", "same step, unreported", "growing", "wiped repeatedly"],
    )
    def test_job_that_restarts_at_step_0_each_time_fails(
        self, lives: list[tuple[int, int]], reported: bool, restarts: int
    ) -> None:
        job = self.lives(lives, reported=reported, maxRestarts=3)
        assert (job.status.reason, job.status.restarts) == ("MaxRestartsExceeded", restarts)

    def test_job_beyond_its_lost_steps_may_lose_them_again(self) -> None:
        job = self.lives([(0, 3000), *self.RUN, *self.RUN], maxRestarts=2)
        assert not job.status.finished

    def test_older_checkpoint_shows_lost_steps(self) -> None:
        job = start(maxRestarts=3)
        for step in (9000, 50, 1050, 2050, 3050, 4050):
            planned = fails(checkpointed(job, step))
            assert not planned.status.finished
            job = running_again(job, planned)

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

    def test_disruption_has_no_backoff(self) -> None:
        job = start(maxRestarts=9)
        for _ in range(3):
            job = running_again(job, fails(job))
        assert fails(job).status.next_start_time is not None
        assert fails(job, disruption="PreemptionByScheduler").status.next_start_time is None
        assert fails(checkpointed(job, 10)).status.next_start_time is None, "progress resets it"

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
        job = with_status(job, restarts=1, restarts_without_progress=1)
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
            status = fails(with_status(job, restarts_without_progress=spent - 1)).status
            found.append((status.next_start_time or later(60)) - later(60))
        for pause, after in pairwise([timedelta(), *found, timedelta(seconds=most)]):
            assert pause <= after


class TestNodeFailures:
    def test_node_failure_is_counted_for_its_node(self) -> None:
        job = start(maxRestarts=0)
        planned = fails(job, message=ECC)
        assert (planned.status.phase, planned.status.reason) == ("Restarting", "NodeFailed")
        assert (planned.status.restarts, planned.status.disruptions) == (0, 1)
        assert planned.status.node_failures == {"node-a": 1}
        [noted] = planned.status.failures
        assert (noted.class_, noted.charged) == ("Infrastructure", False)
        job = running_again(job, planned)
        planned = fails(job, message=ECC, node="node-b")
        assert planned.status.node_failures == {"node-a": 1, "node-b": 1}

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
