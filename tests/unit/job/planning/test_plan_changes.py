"""Tests of `plan`: changes of the spec by users, and deadlines."""

from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import ContainerExit, Identity

from tests.good_manifests import container, template
from tests.unit.job.builders import (
    NOW,
    condition,
    does_nothing,
    edited,
    ended,
    fresh_job,
    later,
    pod,
    running_job,
    stored,
    with_status,
)

FAILED = ContainerExit(code=1, signal=0, reason="Error", message="", finished=NOW)


class TestSuspension:
    def test_job_created_suspended_starts_with_attempt_0(self) -> None:
        job = fresh_job(suspend=True, activeDeadlineSeconds=100)
        planned = plan(job, [], NOW)
        assert planned.decided
        assert (planned.status.phase, planned.status.start_time) == ("Suspended", None)
        job = stored(job, planned)
        assert does_nothing(plan(job, [], later(1)))
        job = edited(job, suspend=False)
        planned = plan(job, [], later(500))
        assert planned.decided
        assert (planned.status.attempt, planned.status.bookkeeping.suspended_seconds) == (0, 0)
        planned = plan(stored(job, planned), [], later(500))
        assert planned.create == (Identity(0, 0), Identity(1, 0))
        assert planned.requeue_at == later(600)

    def test_suspension_is_recorded_before_pods_are_deleted(self) -> None:
        job, pods = running_job()
        job = edited(job, suspend=True)
        planned = plan(job, pods, later(60))
        assert planned.decided
        assert planned.delete == ()
        assert planned.status.phase == "Suspended"
        assert planned.status.message
        planned = plan(stored(job, planned), pods, later(60))
        assert not planned.decided
        assert set(planned.delete) == {pod.key for pod in pods}
        assert planned.create == ()

    def test_failure_while_suspended_is_ignored(self) -> None:
        job, _ = running_job(restart={"maxRestarts": 0})
        job = edited(job, suspend=True)
        job = stored(job, plan(job, [], later(60)))
        planned = plan(job, [ended(job, 0, code=143, deleting=True)], later(61))
        assert does_nothing(planned)
        assert planned.status.phase == "Suspended"

    @pytest.mark.parametrize("replicas", [2, 3])
    def test_resumed_job_starts_a_new_attempt(self, replicas: int) -> None:
        job, pods = running_job()
        job = with_status(job, replacements={"1": 2})
        job = edited(job, suspend=True)
        job = stored(job, plan(job, pods, later(60)))
        job = edited(job, suspend=False, replicas=replicas)
        planned = plan(job, [], later(160))
        assert planned.decided
        status = planned.status
        assert (status.attempt, status.restarts, status.disruptions) == (1, 0, 0)
        assert status.bookkeeping.replacements == {}
        assert status.bookkeeping.suspended_seconds == 100
        assert status.phase == "Pending"
        assert status.message == "spec.suspend is false again; pods are created"
        planned = plan(stored(job, planned), pods, later(160))
        assert planned.create == (), "the old pods still save"
        assert len(planned.delete) == 2
        planned = plan(stored(job, planned), [], later(165))
        assert planned.create == tuple(Identity(index, 1) for index in range(replicas))
        assert planned.status.ready == f"0/{replicas}"

    def test_job_resumed_before_its_first_pods_were_recorded(self) -> None:
        """The operator stopped after creating them; then the user suspended and resumed."""
        job = fresh_job()
        going = [pod(job, 0, deleting=True)]
        job = edited(job, suspend=True)
        job = stored(job, plan(job, going, NOW))
        job = edited(job, suspend=False)
        job = stored(job, plan(job, going, later(1)))
        assert job.status.attempt == 1
        planned = plan(job, going, later(1))
        assert not planned.decided
        assert planned.create == (Identity(0, 1), Identity(1, 1))


class TestSpecChange:
    def test_changed_template_restarts_uncharged(self) -> None:
        job, pods = running_job(restart={"maxRestarts": 0})
        job = edited(job, template=template(container(image="other")))
        planned = plan(job, pods, later(60))
        assert planned.decided
        assert (planned.status.attempt, planned.status.restarts) == (1, 0)
        assert planned.status.disruptions == 0
        assert (planned.status.phase, planned.status.reason) == ("Restarting", "SpecChanged")
        assert planned.status.failures == ()
        assert not planned.events[0].warning

    def test_changed_template_replaces_pods_that_never_ran(self) -> None:
        job = fresh_job()
        job = stored(job, plan(job, [], NOW))
        pods = [pod(job, i, node="node-a", waiting="ImagePullBackOff") for i in (0, 1)]
        job = stored(job, plan(job, pods, later(5)))
        assert job.status.first_pod_start_time is None
        job = edited(job, template=template(container(image="right")), replicas=3)
        job = stored(job, plan(job, pods, later(60)))
        assert (job.status.attempt, job.status.restarts) == (1, 0)
        planned = plan(job, pods, later(60))
        assert set(planned.delete) == {pod.key for pod in pods}
        gone = [replace(pod, deleting=True, node="") for pod in pods]
        planned = plan(job, gone, later(61))
        assert planned.create == (Identity(0, 1), Identity(1, 1), Identity(2, 1))
        assert planned.status.first_pod_start_time is None

    @pytest.mark.parametrize(
        "state", [{"phase": "Running", "started": NOW}, {"phase": "Failed", "exit": FAILED}]
    )
    def test_first_start_of_a_pod_is_recorded_once(self, state: dict[str, Any]) -> None:
        job = fresh_job()
        job = stored(job, plan(job, [], NOW))
        pods = [pod(job, 0, node="node-a", waiting="ErrImagePull"), pod(job, 1, **state)]
        job = stored(job, plan(job, pods, later(5)))
        assert job.status.first_pod_start_time == later(5)
        for now, there in ((6, pods), (7, [])):
            assert plan(job, there, later(now)).status.first_pod_start_time == later(5)

    def test_finished_job_records_no_first_start(self) -> None:
        job = fresh_job(activeDeadlineSeconds=5)
        job = stored(job, plan(job, [], NOW))
        job = stored(job, plan(job, [pod(job, 0)], later(5)))
        assert job.status.reason == "DeadlineExceeded"
        planned = plan(job, [pod(job, 0, phase="Running", started=later(5))], later(6))
        assert planned.status.first_pod_start_time is None

    def test_change_that_affects_no_pod_restarts_nothing(self) -> None:
        job, pods = running_job()
        job = edited(job, restart={"maxRestarts": 9}, cleanPodPolicy="All")
        planned = plan(job, pods, later(60))
        assert does_nothing(planned)
        assert planned.status.observed_generation == 2


class TestDeadline:
    def test_deadline_fails_the_job(self) -> None:
        job, pods = running_job(activeDeadlineSeconds=100)
        planned = plan(job, pods, later(99.9))
        assert does_nothing(planned)
        assert planned.requeue_at == later(100)
        planned = plan(job, pods, later(100))
        assert planned.decided
        assert (planned.status.phase, planned.status.reason) == ("Failed", "DeadlineExceeded")
        assert "activeDeadlineSeconds (100)" in planned.status.message
        planned = plan(stored(job, planned), pods, later(101))
        assert set(planned.delete) == {pod.key for pod in pods}

    def test_deadline_excludes_suspended_time(self) -> None:
        job, pods = running_job(activeDeadlineSeconds=100)
        for begin in (20, 120):
            job = edited(job, suspend=True)
            job = stored(job, plan(job, pods, later(begin)))
            assert does_nothing(plan(job, [], later(begin + 49)))
            job = edited(job, suspend=False)
            job = stored(job, plan(job, [], later(begin + 50)))
        assert job.status.bookkeeping.suspended_seconds == 100
        assert plan(job, [], later(199)).requeue_at == later(200)
        planned = plan(job, [], later(200))
        assert condition(planned, "Failed") == ("True", "DeadlineExceeded")


class TestRestartRequested:
    """Users request a restart of all pods by an annotation."""

    def wanted(self, job: DDPJob, value: str) -> DDPJob:
        return replace(job, restart_requested=value)

    def test_new_annotation_restarts_all_pods_uncharged(self) -> None:
        job, pods = running_job(restart={"maxRestarts": 0})
        planned = plan(self.wanted(job, "1"), pods, later(60))
        assert planned.decided
        assert condition(planned, "Restarting") == ("True", "RestartRequested")
        [event] = planned.events
        assert (event.warning, "restart-requested" in event.message) == (False, True)
        status = planned.status
        assert (status.attempt, status.restarts, status.disruptions) == (1, 0, 0)
        job = stored(job, planned)
        after = plan(self.wanted(job, "1"), pods, later(61))
        assert not after.decided
        assert set(after.delete) == {pod.key for pod in pods}
        assert plan(self.wanted(job, "2"), pods, later(62)).status.attempt == 2
        assert plan(self.wanted(job, ""), pods, later(62)).status.attempt == 1, "it was removed"

    def test_annotation_before_the_first_pods_is_no_request(self) -> None:
        job = self.wanted(fresh_job(), "1")
        job = self.wanted(stored(job, plan(job, [], NOW)), "1")
        assert (job.status.attempt, job.status.bookkeeping.restart_requested) == (0, "1")
        assert len(plan(job, [], NOW).create) == 2

    def test_resumed_job_with_annotation_starts_once(self) -> None:
        job, pods = running_job()
        job = stored(job, plan(edited(job, suspend=True), pods, later(60)))
        job = self.wanted(edited(job, suspend=False), "1")
        resumed = plan(job, [], later(70))
        assert (resumed.status.attempt, resumed.status.bookkeeping.restart_requested) == (1, "1")
