"""Tests of pods replaced in a queue: when their quota is free, and when the job queues again."""

from dataclasses import replace
from typing import Any, ClassVar

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership.launchers import NO_LAUNCHERS
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.state import Identity, PodState, QueueMember

from tests.unit.job.builders import (
    NOW,
    condition,
    edited,
    ended,
    fresh_job,
    later,
    stored,
    with_status,
)
from tests.unit.job.planning.test_queue_groups import failed, marked, succeeded, trained
from tests.unit.job.planning.test_queues import QUEUE, created, gated, trains
from tests.unit.job.status.test_goodput import look

GROUP = "kueue.x-k8s.io/pod-group-name"
COUNT = "kueue.x-k8s.io/pod-group-total-count"
ENDING: dict[str, Any] = {"deleting": True, "ends_by": later(90)}


def group(job: DDPJob, pod: Identity | None = None) -> tuple[str, str]:
    """Return name and size of a pod's group, by default of the first pod's."""
    metadata = manifests.pod(job, pod or Identity(0, job.status.attempt))["metadata"]
    return metadata["labels"][GROUP], metadata["annotations"][COUNT]


def replacing(**spec: Any) -> tuple[DDPJob, list[PodState]]:
    """Return a job that replaces its second, terminating pod, and its pods."""
    job, pods = trained(restart={"scope": "Pod"}, **spec)
    pods[1] = replace(pods[1], **ENDING, disruption="DeletionByTaintManager")
    job = look(job, pods, 60)
    assert job.status.bookkeeping.replacements == {"1": 1}
    return job, pods


def test_gang_waits_for_old_pods_and_keeps_its_group() -> None:
    job, pods = trained(restart={"scope": "Gang"})
    before = group(job)
    lost = [ended(job, 0, code=1, at=20, queue=pods[0].queue), *pods[1:]]
    job = stored(job, plan(job, lost, later(21)))
    assert (job.status.attempt, group(job)) == (1, before)
    job = with_status(job, next_start_time=None)
    old = [lost[0], *(replace(one, **ENDING) for one in pods[1:])]
    for still in (old, old[:2]):
        planned = plan(job, still, later(60))
        assert planned.create == ()
        assert condition(planned, "Running")[1] == "WaitingForOldPods"
        assert planned.requeue_at == later(100)
    assert plan(job, old, later(999)).create == (), "Kueue would delete the new pods"
    for over in ([failed(one) for one in old], []):
        assert len(plan(job, over, later(60)).create) == 3


def test_place_of_a_pod_is_free_once_it_failed_or_is_gone() -> None:
    job, pods = replacing()
    planned = plan(job, pods, later(61))
    assert planned.create == ()
    assert planned.requeue_at == later(100)
    for rest in ([pods[0], failed(pods[1]), pods[2]], [pods[0], pods[2]]):
        [new] = plan(job, rest, later(61)).create
        assert new.pod_name(job.name) == "digits-0-1-r1"
        assert group(job, new) == group(job)


def test_no_place_is_awaited_outside_queues() -> None:
    job, pods = replacing()
    outside = edited(job, scheduling={})
    pods = [replace(one, queue=None, spec_hash=outside.spec_hash) for one in pods]
    assert len(plan(outside, pods, later(61)).create) == 1


def resumed(job: DDPJob, pods: list[PodState]) -> DDPJob:
    job = look(edited(job, suspend=True), pods, 20)
    return look(edited(job, suspend=False), [], 40)


def of_another_spec(job: DDPJob, pods: list[PodState]) -> DDPJob:
    return look(edited(job, nprocPerNode=2), pods, 20)


def half_placed(job: DDPJob, pods: list[PodState]) -> DDPJob:
    waiting = [replace(one, phase="Pending", ready=False) for one in pods]
    job = with_status(job, conditions=())
    job = look(job, waiting, 20)
    waiting[1] = replace(waiting[1], node="", waiting="Unschedulable")
    job = look(job, waiting, 30)
    return look(job, waiting, 9999)


@pytest.mark.parametrize("happens", [resumed, of_another_spec, half_placed])
def test_job_that_released_its_quota_queues_as_a_new_group(happens: Any) -> None:
    job, pods = trained(schedulingTimeoutSeconds=60)
    (name, count), after = group(job), happens(job, pods)
    assert after.status.attempt == 1
    assert group(after) == (f"{name[:-1]}1", count)
    assert after.status.bookkeeping.queue_group == 1


@pytest.mark.parametrize("scope", ["Pod", "InPlace", "Auto", "Gang"])
@pytest.mark.parametrize("reason", ["WorkloadEvicted", "NotAdmitted", "WorkloadDeleted"])
def test_eviction_of_one_pod_by_kueue_restarts_the_gang(scope: str, reason: str) -> None:
    job, pods = trained(restart={"scope": scope})
    job = with_status(job, launcher="InPlace")
    pods = [replace(one, started=NOW) for one in pods]
    lost = [pods[0], replace(pods[1], deleting=True, disruption=reason), pods[2]]
    launchers = replace(NO_LAUNCHERS, scope="InPlace")
    planned = plan(job, lost, later(60), launchers=launchers)
    [failure] = planned.status.failures
    assert (failure.action, failure.charged, failure.reason) == ("RestartGang", False, reason)
    assert (planned.status.attempt, planned.status.bookkeeping.queue_group) == (1, None)


def slots(pods: tuple[Identity, ...]) -> list[int]:
    return [each.slot for each in pods]


class TestSpares:
    spec: ClassVar[dict[str, Any]] = {
        "replicas": 3,
        "spares": 1,
        "scheduling": QUEUE,
        "restart": {"scope": "Pod"},
    }

    def test_spares_are_created_once_their_job_has_nodes(self) -> None:
        job = fresh_job(**self.spec)
        planned = plan(job, [], NOW)
        assert (slots(planned.create), planned.create_spares) == ([0, 1, 2], ())
        assert planned.status.bookkeeping.queue_group_size == 3
        assert {group(job, one)[1] for one in planned.create} == {"3"}
        job = stored(job, planned)
        waiting = [gated(job, index) for index in range(3)]
        assert plan(job, waiting, later(1)).create_spares == ()
        pods = [trains(job, index) for index in range(3)]
        [new] = plan(job, pods, later(2)).create_spares
        name, _ = group(job)
        assert (new.slot, group(job, new)) == (3, (f"{name}-0-3-0", "1"))

    def test_lost_spare_asks_for_quota_of_its_own(self) -> None:
        job = created(**self.spec)
        pods = [replace(trains(job, index), started=NOW) for index in range(4)]
        job = look(job, pods, 10)
        pods[3] = replace(pods[3], **ENDING, disruption="DeletionByTaintManager")
        job = look(job, pods, 20)
        assert job.status.bookkeeping.replacements == {"3": 1}
        [new] = plan(job, pods, later(80)).create_spares
        name, _ = group(job)
        assert group(job, new) == (f"{name}-0-3-1", "1")

    def test_group_of_an_earlier_release_counts_its_spares(self) -> None:
        job = with_status(created(**self.spec), queue_group_size=4)
        assert {group(job, Identity(slot, 0))[1] for slot in range(4)} == {"4"}
        waiting = [gated(job, index) for index in range(3)]
        assert slots(plan(job, waiting, later(1)).create_spares) == [3]
        assert plan(job, [*waiting, gated(job, 3)], later(1)).create_spares == ()
        pods = [replace(trains(job, index), started=NOW) for index in range(4)]
        job = look(job, pods, 10)
        pods[3] = replace(pods[3], **ENDING, disruption="DeletionByTaintManager")
        job = look(job, pods, 20)
        planned = plan(job, pods, later(80))
        assert (planned.create_spares, planned.requeue_at) == ((), later(100))
        [new] = plan(job, [*pods[:3], failed(pods[3])], later(80)).create_spares
        assert new.pod_name(job.name) == "digits-0-3-r1"
        fewer = edited(job, spares=0)
        assert group(fewer, pods[0].identity)[1] == "4", "the size of a group is fixed"
        again = with_status(job, queue_group=1, queue_group_size=None)
        assert group(again)[1] == "3"


def lost_place(planned: Plan) -> bool:
    """Tell if a plan restarts the job for a lost place in the queue."""
    return condition(planned, "Restarting") == ("True", "PlaceInQueueLost")


class TestLostPlaces:
    def test_place_of_a_succeeded_pod_is_lost(self) -> None:
        job, pods = replacing()
        planned = plan(job, [pods[0], succeeded(pods[1]), pods[2]], later(62))
        assert lost_place(planned)
        status = planned.status
        assert (status.attempt, status.restarts, status.bookkeeping.queue_group) == (1, 0, 1)
        assert status.message.startswith("restarting all 3 pods, which queue again (not charged)")
        assert "digits-0-1" in status.message

    def test_unneeded_lost_place_restarts_nothing(self) -> None:
        job, pods = replacing()
        new = replace(trains(job, 1), identity=Identity(1, 0, 1))
        assert not plan(job, [pods[0], succeeded(pods[1]), new, pods[2]], later(62)).decided
        elsewhere = QueueMember("other")
        other = replace(succeeded(pods[1]), queue=elsewhere)
        assert slots(plan(job, [pods[0], other, pods[2]], later(62)).create) == [1]
        job, pods = trained()
        assert not plan(job, marked(pods, "digits-0-0"), later(62)).decided
        other = replace(pods[2], queue=elsewhere)
        assert not plan(job, [*pods[:2], other], later(62)).decided

    def test_ending_group_has_no_free_places(self) -> None:
        job, pods = replacing()
        for name in ("digits-0-0", "digits-0-1"):
            there = marked([pods[0], failed(pods[1]), pods[2]], name)
            planned = plan(job, there, later(62))
            assert lost_place(planned)
            assert f"{name} can have no replacement there" in planned.status.message
        other = replace(pods[2], queue=QueueMember("other"))
        assert lost_place(plan(job, [pods[0], failed(pods[1]), other], later(62)))

    @pytest.mark.parametrize("end", ["succeeded", "marked"])
    def test_restarted_gang_queues_again_in_the_same_attempt(self, end: str) -> None:
        """An earlier release marked pods to say that none of their group is replaced."""
        job, pods = trained(restart={"scope": "Gang"})
        lost = [ended(job, 0, code=1, at=20, queue=pods[0].queue), *pods[1:]]
        job = stored(job, plan(job, lost, later(21)))
        job = with_status(job, next_start_time=None)
        old = [failed(lost[0]), succeeded(replace(pods[1], **ENDING)), failed(pods[2])]
        if end == "marked":
            old = marked([failed(one) for one in lost], "digits-0-2")
        planned = plan(job, old, later(60))
        assert planned.decided
        assert (planned.status.attempt, planned.status.bookkeeping.queue_group) == (1, 1)
        again = plan(stored(job, planned), old, later(60))
        assert (again.decided, len(again.create)) == (False, 3)
