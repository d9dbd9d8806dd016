"""Tests of the cause among several failures, and of pods that cannot start."""

import json
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Progress
from ddp_operator.job.planning.gaps import UNSTARTABLE_SECONDS
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import PodState

from tests.unit.job.builders import (
    ended,
    fresh_job,
    later,
    pod,
    ready,
    running_job,
    stored,
    with_status,
)

LOST_PEER = "RuntimeError: Connection closed by peer"


def cause_of(job: DDPJob, *pods: PodState) -> tuple[int, str, bool]:
    """Return index, class and charge of the only recorded failure."""
    [failure] = plan(job, pods, later(60)).status.failures
    return failure.index, failure.class_, failure.charged


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"code": 1}, (1, "Application", True)),
        ({"code": 75}, (0, "Disruption", False)),
        ({"code": 1, "message": LOST_PEER}, (0, "Disruption", False)),
    ],
    ids=["own failure", "exit code 75", "lost peer"],
)
def test_vanished_pod_is_the_cause_of_a_secondary_failure(
    how: dict[str, Any], expected: tuple[int, str, bool]
) -> None:
    job, _ = running_job()
    assert cause_of(job, ended(job, 1, **how)) == expected


class TestDisruptedAndFailed:
    """Deletions have the API server's time, which differs from a node's."""

    @pytest.mark.parametrize(
        ("failed_at", "deleted_at", "expected"),
        [
            (20, 30, (1, "Application", True)),
            (28, 30, (0, "Disruption", False)),
            (31, 30, (0, "Disruption", False)),
            (0, None, (0, "Disruption", False)),
        ],
    )
    def test_earlier_of_failure_and_deletion_is_the_cause(
        self, failed_at: float, deleted_at: float | None, expected: tuple[int, str, bool]
    ) -> None:
        job, pods = running_job()
        disrupted_at = None if deleted_at is None else later(deleted_at)
        going = replace(pods[0], deleting=True, disrupted_at=disrupted_at)
        assert cause_of(job, going, ended(job, 1, code=1, at=failed_at)) == expected


class TestPlainScripts:
    """A plain script always exits with 1, so only its message shows the cause."""

    def test_own_error_is_the_cause_although_it_ended_later(self) -> None:
        job, _ = running_job(replicas=3)
        pods = [
            ended(job, 0, code=1, at=1, message=LOST_PEER),
            ended(job, 1, code=1, at=3, message="ValueError: no such data set"),
            ended(job, 2, code=1, at=2, message=LOST_PEER),
        ]
        assert cause_of(job, *pods) == (1, "Application", True)

    def test_lost_peer_alone_is_held_for_its_cause(self) -> None:
        job, pods = running_job()
        lost = ended(job, 0, code=1, at=60, message=LOST_PEER)
        assert not plan(job, [lost, pods[1]], later(61)).decided
        assert plan(job, [lost, pods[1]], later(63)).decided

    def test_all_failed_pods_are_replaced_for_one_charge(self) -> None:
        job, _ = running_job(replicas=3, restart={"scope": "Pod"})
        pods = [ready(job, 0), ended(job, 1, code=1), ended(job, 2, code=1, message=LOST_PEER)]
        planned = plan(job, pods, later(60))
        assert planned.status.bookkeeping.replacements == {"1": 1, "2": 1}
        assert planned.status.restarts == 1


def test_rank_that_times_out_during_a_backoff_is_not_charged() -> None:
    job, pods = running_job(replicas=3, restart={"scope": "Pod", "maxRestarts": 2})
    for replaced in range(2):
        failed = ended(job, 1, code=1, replacement=replaced)
        job = stored(job, plan(job, [pods[0], failed, pods[2]], later(60)))
        if not replaced:
            again = ready(job, 1, identity=replace(pods[1].identity, replacement=1))
            job = stored(job, plan(job, [pods[0], again, pods[2]], later(60)))
    assert job.status.next_start_time == later(65)
    gave_up = ended(job, 2, code=75, at=60.5)
    waiting = plan(job, [pods[0], gave_up], later(61))
    assert (waiting.decided, waiting.requeue_at) == (False, later(63.5))
    planned = plan(job, [pods[0], gave_up], later(64))
    assert planned.status.bookkeeping.replacements == {"1": 2, "2": 1}
    assert (planned.status.restarts, planned.status.disruptions) == (2, 1)


class TestCannotStart:
    def stuck(self, job: DDPJob, why: str = "ImagePullBackOff") -> PodState:
        return pod(job, 1, node="node-a", waiting=why, waiting_message="not found")

    def waiting(self, *, since: datetime, why: str = "ImagePullBackOff") -> DDPJob:
        """Return a job with one pod that cannot start."""
        job = fresh_job()
        job = stored(job, plan(job, [], later(0)))
        planned = plan(job, [ready(job, 0), self.stuck(job, why)], since)
        assert planned.requeue_at is not None
        assert (planned.requeue_at - since).total_seconds() == UNSTARTABLE_SECONDS
        return stored(job, planned)

    def test_missing_secret_fails_the_job_after_minutes(self) -> None:
        why = "CreateContainerConfigError"
        job = self.waiting(since=later(100), why=why)
        pods = [ready(job, 0), self.stuck(job, why)]
        assert not plan(job, pods, later(99 + UNSTARTABLE_SECONDS)).decided
        planned = plan(job, pods, later(100 + UNSTARTABLE_SECONDS))
        assert (planned.status.phase, planned.status.reason) == ("Failed", why)
        assert planned.status.message.endswith("not found")
        [failure] = planned.status.failures
        assert (failure.class_, failure.action) == ("Configuration", "FailJob")

    def test_repaired_pod_restarts_the_clock(self) -> None:
        job = self.waiting(since=later(100))
        job = stored(job, plan(job, [ready(job, 0), pod(job, 1)], later(200)))
        assert [gap.reason for gap in job.status.gaps] == ["Unscheduled"]
        planned = plan(job, [ready(job, 0), self.stuck(job)], later(900))
        assert not planned.decided

    def test_other_waiting_reason_keeps_the_clock(self) -> None:
        job = self.waiting(since=later(100))
        job = stored(job, plan(job, [ready(job, 0), self.stuck(job, "ErrImagePull")], later(200)))
        [gap] = job.status.gaps
        assert (gap.reason, gap.since, gap.node_ranks) == ("CannotStart", later(100), "1")

    def test_invalid_image_name_fails_at_once(self) -> None:
        job = fresh_job()
        job = stored(job, plan(job, [], later(0)))
        planned = plan(job, [pod(job, 0), self.stuck(job, "InvalidImageName")], later(1))
        assert (planned.status.phase, planned.status.reason) == ("Failed", "InvalidImageName")

    def test_rule_replaces_pod_with_invalid_image_name(self) -> None:
        rules = [{"reasons": ["InvalidImageName"], "action": "RestartPod", "charged": True}]
        job, pods = running_job(restart={"rules": rules})
        planned = plan(job, [pods[0], self.stuck(job, "InvalidImageName")], later(60))
        assert (planned.status.attempt, planned.status.bookkeeping.replacements) == (0, {"1": 1})

    def test_run_container_error_is_charged_to_the_node(self) -> None:
        job = self.waiting(since=later(0), why="RunContainerError")
        pods = [ready(job, 0), self.stuck(job, "RunContainerError")]
        planned = plan(job, pods, later(UNSTARTABLE_SECONDS))
        assert (planned.status.phase, planned.status.reason) == ("Restarting", "NodeFailed")
        assert (planned.status.attempt, planned.status.restarts) == (1, 0)
        assert planned.status.gaps == ()


class TestMistakesInTheCommand:
    """No restart helps a command that fails alike in all pods before the first step."""

    MESSAGE = "python: can't open file '/train.py': [Errno 2] No such file or directory"

    @pytest.mark.parametrize("launcher", [False, True])
    def test_job_fails_at_once(self, launcher: bool) -> None:
        job, _ = running_job()
        report = {"rank": 0, "printed": True, "error": f"exit code 2\n{self.MESSAGE}"}
        message = json.dumps(report) if launcher else self.MESSAGE
        pods = [ended(job, i, code=2, message=message) for i in range(2)]
        status = plan(job, pods, later(60)).status
        assert (status.phase, status.reason) == ("Failed", "ConfigurationError")
        assert "can't open file '/train.py'" in status.message
        assert cause_of(job, *pods)[1] == "Configuration"

    def test_other_pods_are_awaited_a_moment(self) -> None:
        job, pods = running_job()
        one = ended(job, 0, code=2, at=60, message=self.MESSAGE)
        assert plan(job, [one, pods[1]], later(61)).status.failures == ()

    def test_one_pod_alone_restarts(self) -> None:
        job, pods = running_job()
        assert cause_of(job, ended(job, 0, code=2, at=1, message=self.MESSAGE), pods[1]) == (
            *(0, "Application", True),
        )

    def test_different_ends_restart(self) -> None:
        job, _ = running_job()
        pods = [ended(job, i, code=1 + i, message=self.MESSAGE) for i in range(2)]
        assert cause_of(job, *pods) == (0, "Application", True)

    def test_job_that_has_trained_restarts(self) -> None:
        job, _ = running_job()
        progress = {"step": 7, "updatedAt": "2026-01-01T00:00:00Z"}
        job = with_status(job, progress=Progress.model_validate(progress))
        pods = [ended(job, i, code=2, message=self.MESSAGE) for i in range(2)]
        assert cause_of(job, *pods) == (0, "Application", True)
