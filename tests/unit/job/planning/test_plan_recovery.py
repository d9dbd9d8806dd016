"""Tests of `plan`: failed and missing pods, their causes, and restarts."""

from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.failure.budget import FIRST_PAUSE_SECONDS
from ddp_operator.job.failure.causes import CAUSE_WAIT_SECONDS
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import ContainerExit, Identity, PodState

from tests.unit.job.builders import (
    condition,
    edited,
    ended,
    fresh_job,
    key,
    later,
    pod,
    ready,
    running_job,
    stored,
    with_status,
)

ERROR = ContainerExit(code=1, signal=0, reason="Error", message="", finished=later(0))
FAILURES: dict[str, dict[str, Any]] = {
    "exit code": {"code": 1},
    "out of memory": {"code": 137, "reason": "OOMKilled"},
    "SIGTERM from an unknown sender": {"code": 143},
    "lost its peer": {"code": 75},
    "error, and deleted later": {"code": 1, "deleting": True},
}
DISRUPTIONS: dict[str, dict[str, Any]] = {
    "node drained": {"code": 143, "disruption": "EvictionByEvictionAPI"},
    "preempted": {"code": 137, "disruption": "PreemptionByScheduler"},
    "evicted by kubelet": {"code": 137, "pod_reason": "Evicted"},
    "node shut down": {"code": 143, "pod_reason": "Terminated"},
    "deleted by a user, and ended by it": {
        "code": 143,
        "deleting": True,
        "ended_by_deletion": True,
    },
}


def failing(job: DDPJob, index: int, how: dict[str, Any]) -> PodState:
    pod_reason = how.get("pod_reason", "")
    state = {name: value for name, value in how.items() if name != "pod_reason"}
    return replace(ended(job, index, **state), reason=pod_reason)


@pytest.mark.parametrize("scope", ["Gang", "Pod"])
class TestFailure:
    @pytest.mark.parametrize("how", FAILURES)
    def test_failure_is_charged(self, scope: str, how: str) -> None:
        job, pods = running_job(restart={"scope": scope})
        planned = plan(job, [pods[0], failing(job, 1, FAILURES[how])], later(60))
        assert planned.decided
        assert (planned.create, planned.delete, planned.fence) == ((), (), ())
        assert (planned.status.restarts, planned.status.disruptions) == (1, 0)
        assert (planned.status.phase, planned.status.reason) == ("Restarting", "PodFailed")
        assert [event.warning for event in planned.events] == [True]
        assert "restart 1 of 3" in planned.events[0].message

    @pytest.mark.parametrize("how", DISRUPTIONS)
    def test_disruption_is_not_charged(self, scope: str, how: str) -> None:
        job, pods = running_job(restart={"scope": scope, "maxRestarts": 0})
        planned = plan(job, [pods[0], failing(job, 1, DISRUPTIONS[how])], later(60))
        assert planned.decided
        assert (planned.status.restarts, planned.status.disruptions) == (0, 1)
        assert (planned.status.phase, planned.status.reason) == ("Restarting", "Disrupted")
        assert planned.status.failures[-1].disruption

    def test_deleted_or_vanished_pod_is_a_disruption(self, scope: str) -> None:
        job, pods = running_job(restart={"scope": scope})
        for rest, reason in (([replace(pods[1], deleting=True)], "Deleted"), ([], "Vanished")):
            planned = plan(job, [pods[0], *rest], later(60))
            assert planned.decided
            assert (planned.status.restarts, planned.status.disruptions) == (0, 1)
            [failure] = planned.status.failures
            assert (failure.reason, failure.pod) == (reason, "digits-0-1")

    def test_all_pods_lost_start_a_new_attempt(self, scope: str) -> None:
        job, _ = running_job(restart={"scope": scope})
        planned = plan(job, [ended(job, i, code=1) for i in (0, 1)], later(60))
        assert (planned.status.attempt, planned.status.bookkeeping.replacements) == (1, {})
        assert planned.status.restarts == 1

    @pytest.mark.parametrize("spent", [0, 2])
    def test_the_last_allowed_failure_ends_the_job(self, scope: str, spent: int) -> None:
        job, pods = running_job(restart={"scope": scope, "maxRestarts": spent})
        job = with_status(job, restarts=spent, restarts_without_progress=spent)
        planned = plan(job, [pods[0], ended(job, 1, code=3, message="boom")], later(60))
        assert planned.decided
        assert (planned.status.phase, planned.status.reason) == ("Failed", "MaxRestartsExceeded")
        assert planned.status.restarts == spent
        for part in ("maxRestarts", "digits-0-1", "node rank 1", "code 3", "node-a", "boom"):
            assert part in planned.status.message
        assert planned.status.completion_time == later(60)

    def test_configuration_error_ends_the_job_at_once(self, scope: str) -> None:
        job, _ = running_job(restart={"scope": scope, "maxRestarts": 9})
        pods = [ended(job, 0, code=75), ended(job, 1, code=64, at=1, message="no such workload")]
        planned = plan(job, pods, later(60))
        assert (planned.status.phase, planned.status.reason) == ("Failed", "ConfigurationError")
        assert "no such workload" in planned.status.message
        assert planned.status.failures[-1].index == 1

    @pytest.mark.parametrize("secondary", [75, 143])
    def test_secondary_failure_is_never_the_cause(self, scope: str, secondary: int) -> None:
        """It may seem to end first, because clocks of nodes differ."""
        job, _ = running_job(replicas=3, restart={"scope": scope})
        pods = [
            ended(job, 0, code=secondary, at=1),
            ended(job, 1, code=139, at=3),
            ended(job, 2, code=secondary, at=2),
        ]
        planned = plan(job, pods, later(60))
        [cause] = planned.status.failures
        assert (cause.index, cause.exit_code, cause.signal) == (1, 139, 11)
        assert "digits-0-1" in planned.status.message

    def test_first_of_several_failures_is_the_cause(self, scope: str) -> None:
        job, _ = running_job(restart={"scope": scope})
        planned = plan(job, [ended(job, 0, code=1, at=5), ended(job, 1, code=2, at=4)], later(60))
        assert [(f.index, f.time) for f in planned.status.failures] == [(1, later(4))]


class TestGangRestart:
    def test_replace_when_terminating_creates_all_pods_at_once(self) -> None:
        job, pods = running_job(restart={"replaceWhen": "Terminating"})
        pods = [pods[0], ended(job, 1, code=1)]
        job = stored(job, plan(job, pods, later(60)))
        planned = plan(job, pods, later(60))
        assert planned.create == (Identity(0, 1), Identity(1, 1))
        assert planned.create_service
        assert set(planned.delete) == {key("digits-0-0"), key("digits-0-1")}
        assert planned.fence == (), "new pods have other host names"
        assert condition(planned, "PodsCreated")[0] == "True"

    def test_terminating_pods_are_not_deleted_again(self) -> None:
        job, pods = running_job()
        pods = [replace(pods[0], deleting=True), pods[1]]
        job = stored(job, plan(job, pods, later(60)))
        assert plan(job, pods, later(60)).delete == (key("digits-0-1"),)

    def test_crash_between_new_creations_charges_nothing_twice(self) -> None:
        job, pods = running_job()
        job = stored(job, plan(job, [pods[0], ended(job, 1, code=1)], later(60)))
        planned = plan(job, [ended(job, 1, code=1, attempt=0), pod(job, 0)], later(61))
        assert not planned.decided
        assert planned.create == (Identity(1, 1),)
        assert planned.status.restarts == 1

    def test_running_new_pods_end_restarting(self) -> None:
        job, pods = running_job()
        job = stored(job, plan(job, [pods[0], ended(job, 1, code=1)], later(60)))
        job = stored(job, plan(job, [], later(60)))
        assert job.status.phase == "Restarting"
        stuck = pod(job, 1, waiting="Unschedulable", waiting_message="no room")
        planned = plan(job, [ready(job, 0), stuck], later(70))
        assert (planned.status.phase, planned.status.reason) == ("Restarting", "Unschedulable")
        assert "no room" in planned.status.message
        planned = plan(job, [ready(job, 0), ready(job, 1)], later(70))
        assert planned.status.phase == "Running"
        assert condition(planned, "Restarting")[0] == "False"


class TestPodReplacement:
    @pytest.mark.parametrize(
        ("state", "deleted", "fenced"),
        [
            ({"deleting": True}, False, True),
            ({"deleting": True, "serving": False}, False, False),
            ({"phase": "Failed", "exit": ERROR}, True, False),
            ({"phase": "Running", "exit": ERROR}, True, True),
        ],
        ids=["terminating", "fenced already", "ended", "ended with a running side car"],
    )
    def test_only_the_failed_pod_is_replaced_and_fenced_while_dns_lists_it(
        self, state: dict[str, Any], deleted: bool, fenced: bool
    ) -> None:
        job, pods = running_job(replicas=3, restart={"scope": "Pod"})
        pods[1] = replace(pods[1], **state)
        job = stored(job, plan(job, pods, later(60)))
        assert (job.status.attempt, job.status.bookkeeping.replacements) == (0, {"1": 1})
        planned = plan(job, pods, later(60))
        assert planned.create == (Identity(1, 0, 1),)
        lost = (key("digits-0-1"),)
        assert (planned.delete, planned.fence) == (lost * deleted, lost * fenced)

    def test_pod_that_vanishes_during_a_replacement_is_lost_too(self) -> None:
        job, pods = running_job(replicas=3, restart={"scope": "Pod"})
        job = stored(job, plan(job, [pods[0], *self.current(job, code=1), pods[2]], later(60)))
        assert job.status.bookkeeping.replacing == (1,)
        job = stored(job, plan(job, [pods[0]], later(61)))  # the replacement does not exist yet
        notes = job.status.bookkeeping
        assert (notes.replacements, notes.replacing) == ({"1": 1, "2": 1}, (1, 2))
        assert (job.status.restarts, job.status.disruptions) == (1, 1)
        created = plan(job, [pods[0]], later(120))
        assert created.create == (Identity(1, 0, 1), Identity(2, 0, 1))
        assert created.status.bookkeeping.replacing == ()

    def test_pods_of_a_new_attempt_are_not_lost_before_they_exist(self) -> None:
        job, pods = running_job(replicas=3, restart={"scope": "Pod"})
        job = stored(job, plan(job, [pods[0], *self.current(job, code=1), pods[2]], later(60)))
        job = stored(job, plan(job, [], later(61)))
        assert job.status.bookkeeping.replacements == {"1": 1, "0": 1, "2": 1}
        job = stored(job, plan(job, [], later(120)))
        job = stored(job, plan(job, [], later(121)))
        assert (job.status.attempt, job.status.bookkeeping.replacing) == (1, ())
        planned = plan(job, [], later(180))
        assert not planned.decided
        assert len(planned.create) == 3

    @staticmethod
    def current(job: DDPJob, *, code: int) -> list[PodState]:
        replaced = job.status.bookkeeping.replacements.get("1", 0)
        return [ended(job, 1, code=code, replacement=replaced)]

    def test_failure_after_a_rank_completed_restarts_the_gang(self) -> None:
        """A replacement would wait for a peer that has completed."""
        job, _ = running_job(restart={"scope": "Pod"})
        planned = plan(job, [ended(job, 0, code=0), ended(job, 1, code=1)], later(60))
        assert (planned.status.attempt, planned.status.bookkeeping.replacements) == (1, {})


class TestPause:
    """Pods that are disrupted before they ran restart with pauses."""

    def disrupted(self, *, ran: bool) -> DDPJob:
        """Return a job after its second pod was refused by a node."""
        job, pods = running_job()
        if not ran:
            job = stored(fresh_job(), plan(fresh_job(), [], later(0)))
            pods = [pod(job, index) for index in (0, 1)]
        refused = replace(pods[1], phase="Failed", reason="UnexpectedAdmissionError", ready=False)
        return stored(job, plan(job, [pods[0], refused], later(60)))

    def test_pods_that_never_ran_restart_after_a_pause(self) -> None:
        job = self.disrupted(ran=False)
        old = pod(job, 0, identity=Identity(0, 0))
        waiting = plan(job, [old], later(61))
        assert (waiting.create, waiting.create_service) == ((), False)
        assert waiting.delete == (old.key,)
        assert waiting.requeue_at == later(60 + FIRST_PAUSE_SECONDS)
        assert waiting.status.reason == "WaitingToStart"
        assert "UnexpectedAdmissionError" in waiting.status.message
        resumed = plan(stored(job, waiting), [], waiting.requeue_at)
        assert [identity.index for identity in resumed.create] == [0, 1]
        assert resumed.status.next_start_time is None

    def test_pods_that_ran_restart_at_once(self) -> None:
        job = self.disrupted(ran=True)
        assert len(plan(job, [], later(61)).create) == 2

    def test_the_deadline_ends_the_pause(self) -> None:
        job = edited(self.disrupted(ran=False), activeDeadlineSeconds=63)
        waiting = plan(job, [], later(61))
        assert waiting.requeue_at == later(63)
        assert plan(job, [], later(63)).status.reason == "DeadlineExceeded"


class TestConsequenceSeenFirst:
    """Kubelets report exits in any order, so a secondary failure may appear first."""

    def test_secondary_failure_waits_for_its_cause(self) -> None:
        job, pods = running_job()
        lost = ended(job, 0, code=75, at=60)
        waiting = plan(job, [lost, pods[1]], later(61))
        assert not waiting.decided
        assert waiting.requeue_at == later(60 + CAUSE_WAIT_SECONDS)
        crashed = ended(job, 1, code=137, reason="OOMKilled", at=60)
        decided = plan(job, [lost, crashed], later(62))
        assert decided.status.failures[-1].reason == "OOMKilled"
        assert decided.status.restarts == 1
        disrupted = plan(job, [lost, replace(pods[1], deleting=True)], later(60))
        assert (disrupted.status.restarts, disrupted.status.disruptions) == (0, 1)
        late = plan(job, [lost, pods[1]], later(60 + CAUSE_WAIT_SECONDS))
        assert late.decided
        assert late.status.failures[-1].exit_code == 75

    def test_no_cause_is_awaited_without_running_pods_or_with_a_clock_ahead(self) -> None:
        job, pods = running_job()
        assert plan(job, [ended(job, i, code=75, at=60) for i in (0, 1)], later(60)).decided
        assert plan(job, [ended(job, 0, code=75, at=4000), pods[1]], later(60)).decided


class TestGrace:
    """Old pods of a gang have a limited time to save."""

    @pytest.mark.parametrize(("own", "given"), [(30, 15), (600, 15), (15, None), (2, None)])
    def test_old_pods_get_fifteen_seconds_at_most(self, own: int, given: int | None) -> None:
        job, pods = running_job()
        pods = [replace(one, grace_seconds=own) for one in pods]
        failed = ended(job, 1, code=1, at=60)
        job = stored(job, plan(job, [pods[0], failed], later(60)))
        planned = plan(job, [pods[0], failed], later(61))
        assert planned.delete == (pods[0].key, failed.key)
        assert planned.grace_seconds.get(pods[0].key) == given

    def test_suspended_pods_keep_their_own_grace_period(self) -> None:
        job, pods = running_job()
        job = stored(job, plan(edited(job, suspend=True), pods, later(60)))
        planned = plan(edited(job, suspend=True), pods, later(61))
        assert len(planned.delete) == 2
        assert planned.grace_seconds == {}

    def test_stuck_old_pods_do_not_delay_running(self) -> None:
        job, pods = running_job()
        failed = ended(job, 1, code=1, at=60)
        job = stored(job, plan(job, [pods[0], failed], later(60)))
        stuck = replace(pods[0], deleting=True)
        new = [ready(job, index) for index in (0, 1)]
        running = plan(job, [stuck, *new], later(9999))
        assert running.status.phase == "Running"
        assert (running.delete, running.create) == ((), ())


class TestWords:
    def test_message_about_many_pods_keeps_the_cause(self) -> None:
        job, pods = running_job(replicas=300, restart={"scope": "Pod"})
        lost = [replace(each, deleting=True, node="spot-1") for each in pods[:-1]]
        message = plan(job, [*lost, pods[-1]], later(60)).status.message
        assert message.startswith("replacing the pods of node ranks 0-298")
        assert message.endswith(
            "was disrupted: Deleted on node spot-1: the cluster or a user deleted the pod"
        )
        assert len(message) < 250

    def test_message_names_the_first_of_scattered_pods(self) -> None:
        job, pods = running_job(replicas=100, restart={"scope": "Pod"})
        mixed = [replace(p, deleting=p.identity.index % 2 == 0) for p in pods]
        message = plan(job, mixed, later(60)).status.message
        assert message.startswith("replacing the pods of node ranks 0, 2, 4, 6, 8, 10, 12, 14, … (")


def test_running_condition_reports_unready_pods() -> None:
    job, pods = running_job(replicas=3)
    seen = plan(job, [pods[0], pods[1], replace(pods[2], ready=False)], later(60))
    assert condition(seen, "Running") == ("True", "PodsNotReady")
    assert (seen.status.phase, seen.status.message) == ("Running", "2 of 3 pods are ready")
    job = stored(job, seen)
    again = plan(job, pods, later(70))
    assert condition(again, "Running") == ("True", "PodsReady")
    assert again.events == (), "training did not stop"
