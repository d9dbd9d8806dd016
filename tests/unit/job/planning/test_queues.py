"""Tests of jobs in a queue: they wait until Kueue admits their pods."""

from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.schedulers.kueue import group_of
from ddp_operator.job.pods.state import Identity, PodState, QueueMember
from ddp_operator.ports import Event, Node

from tests.unit.job.builders import (
    NOW,
    condition,
    does_nothing,
    edited,
    event_reasons,
    fresh_job,
    later,
    pod,
    ready,
    stored,
)
from tests.unit.job.status.test_goodput import goodput, look
from tests.unit.job.status.test_training_count import said

QUEUE = {"queueName": "team-a"}


def member(job: DDPJob, index: int, **state: bool) -> QueueMember:
    """Return the queue membership of a pod in the job's current group."""
    return QueueMember(group_of(job, Identity(index, job.status.attempt)).name, **state)


def gated(job: DDPJob, index: int) -> PodState:
    text = "Scheduling is blocked due to non-empty scheduling gates"
    return pod(
        job, index, waiting="SchedulingGated", waiting_message=text, queue=member(job, index)
    )


def admitted(job: DDPJob, index: int) -> PodState:
    return pod(job, index, node=f"node-{index}", queue=member(job, index))


def trains(job: DDPJob, index: int) -> PodState:
    return ready(job, index, queue=member(job, index))


def created(**spec: object) -> DDPJob:
    job = fresh_job(**spec)
    return stored(job, plan(job, [], NOW))


def test_queued_job_is_pending_without_a_warning() -> None:
    job = created(scheduling=QUEUE)
    planned = plan(job, [gated(job, index) for index in range(2)], later(1))
    assert does_nothing(planned)
    assert condition(planned, "Running") == ("False", "Queued")
    assert (planned.status.phase, planned.status.reason) == ("Pending", "Queued")
    message = planned.status.message
    assert message.startswith("2 of 2 pods wait in spec.scheduling.queueName (team-a) for quota")
    labels = manifests.pod(job, Identity(0, 0))["metadata"]["labels"]
    group = labels["kueue.x-k8s.io/pod-group-name"]
    workload = f"kubectl describe workloads.kueue.x-k8s.io {group}"
    assert f"see kubectl ddp why, or {workload}" in message, "the message names Kueue's Workload"
    assert planned.events == (Event("Queued", message),)
    again = plan(stored(job, planned), [gated(job, index) for index in range(2)], later(5))
    assert again.events == ()


def test_queued_provisioning_waits_for_quota_and_nodes() -> None:
    queued = {"type": "nvidia-l4", "provisioning": "queued"}
    for spec in (
        {"accelerator": queued},
        {"overrides": [{"indexes": ["1"], "accelerator": queued}]},
    ):
        job = created(scheduling=QUEUE, **spec)
        planned = plan(job, [gated(job, index) for index in range(2)], later(1))
        assert condition(planned, "Running") == ("False", "Queued")
        assert "(team-a) for quota and nodes; see kubectl" in planned.status.message


def test_scheduling_gates_outside_a_queue_are_named() -> None:
    job = created()
    message = plan(job, [gated(job, 0), admitted(job, 1)], later(1)).status.message
    assert message == "1 of 2 pods wait for their scheduling gates to be removed"


def test_waiting_reason_of_an_admitted_pod_is_named_first() -> None:
    job = created(scheduling=QUEUE)
    stuck = pod(job, 1, waiting="Unschedulable", waiting_message="0/3 nodes are available")
    planned = plan(job, [gated(job, 0), stuck], later(1))
    assert planned.status.reason == "Unschedulable"


def test_queued_gang_has_no_scheduling_timeout() -> None:
    """A queued gang holds no resources."""
    job = created(scheduling=QUEUE, schedulingTimeoutSeconds=60)
    assert not plan(job, [gated(job, index) for index in range(2)], later(9999)).decided


def test_queued_time_counts_as_pending() -> None:
    job = created(scheduling=QUEUE)
    job = look(job, [gated(job, index) for index in range(2)], 1)
    job = look(job, [admitted(job, index) for index in range(2)], 60)
    assert job.status.phase == "Starting"
    job = look(job, [trains(job, index) for index in range(2)], 67)
    assert job.status.phase == "Running"
    books = goodput(job)
    assert (books.pending_seconds, books.starting_seconds) == (60, 7)


def test_job_evicted_by_kueue_queues_again_uncharged() -> None:
    job = created(scheduling=QUEUE)
    pods = [trains(job, index) for index in range(2)]
    job = look(job, pods, 10)
    evicted = [
        replace(one, deleting=True, disruption="WorkloadEvicted", message="Preempted by another")
        for one in pods
    ]
    planned = plan(job, evicted, later(110), report=said(120, 110))
    [last] = planned.status.failures
    assert (last.class_, last.charged, last.action) == ("Disruption", False, "RestartGang")
    assert last.reason == "WorkloadEvicted"
    assert "Preempted by another" in planned.status.message
    job = look(job, evicted, 110, said(120, 110))
    assert (job.status.attempt, job.status.restarts, job.status.disruptions) == (1, 0, 1)
    job = look(job, [], 115)
    assert job.status.phase == "Restarting"
    job = look(job, [gated(job, index) for index in range(2)], 120)
    assert (job.status.phase, job.status.reason) == ("Pending", "Queued")
    job = look(job, [admitted(job, index) for index in range(2)], 420)
    assert job.status.phase == "Restarting"
    pods = [trains(job, index) for index in range(2)]
    job = look(job, pods, 425)
    job = look(job, pods, 430, said(121, 430, attempt=1))
    books = goodput(job)
    assert (books.pending_seconds, books.training_seconds) == (10 + 300, 100)
    assert books.lost_seconds == 10 + 5


def test_active_deadline_excludes_queued_time() -> None:
    job = created(scheduling=QUEUE, activeDeadlineSeconds=100)
    waiting = [gated(job, index) for index in range(2)]
    job = look(job, waiting, 10)
    patient = plan(job, waiting, later(5000))
    assert (patient.decided, patient.requeue_at) == (False, None)
    pods = [admitted(job, index) for index in range(2)]
    job = look(job, pods, 1010)
    assert plan(job, pods, later(1050)).requeue_at == later(1100)
    assert not plan(job, pods, later(1099)).decided
    assert condition(plan(job, pods, later(1100)), "Failed") == ("True", "DeadlineExceeded")


def test_suspension_of_a_queued_job_counts_once() -> None:
    job = created(scheduling=QUEUE, activeDeadlineSeconds=100)
    job = look(job, [gated(job, index) for index in range(2)], 10)
    job = look(edited(job, suspend=True), [], 500)
    job = look(edited(job, suspend=False), [], 700)
    job = look(job, [gated(job, index) for index in range(2)], 700)
    pods = [admitted(job, index) for index in range(2)]
    job = look(job, pods, 1010)
    assert plan(job, pods, later(1050)).requeue_at == later(1100)


def test_pods_outside_the_queue_are_reported_once() -> None:
    job = created(scheduling=QUEUE)
    pods = [trains(job, 0), ready(job, 1)]
    planned = plan(job, pods, later(5))
    assert event_reasons(planned) == ["Running", "NotQueued"]
    assert planned.events[1].warning
    assert "(team-a): 1 of 2 pods run outside the queue" in planned.events[1].message
    assert event_reasons(plan(stored(job, planned), pods, later(9))) == []
    plain = created()
    assert event_reasons(plan(plain, [ready(plain, 0), ready(plain, 1)], later(5))) == ["Running"]


def test_gated_pod_in_an_admitted_group_is_not_queued() -> None:
    job = created(scheduling=QUEUE)
    planned = plan(job, [gated(job, 0), admitted(job, 1)], later(1))
    assert planned.status.reason == "PodsStarting"
    assert planned.events == ()


PROVISIONED: dict[str, Any] = {
    "scheduling": QUEUE,
    "accelerator": {"type": "nvidia-l4", "provisioning": "queued"},
    "restart": {"scope": "Pod"},
}


def provisioned(**spec: Any) -> tuple[DDPJob, list[PodState]]:
    """Return a training job of three pods on nodes that its queue provided, and its pods."""
    job = created(replicas=3, **PROVISIONED | spec)
    pods = [
        replace(trains(job, index), node=f"node-{index}", address="10.0.0.1:1", started=NOW)
        for index in range(3 + job.spec.spares)
    ]
    return look(job, pods, 10), pods


def nodes(*names: str) -> list[Node]:
    return [Node(name, {}) for name in names]


LOST = (
    "DeletionByTaintManager",
    "TerminationByKubelet",
    "DeletionByPodGC",
    "PreemptionByScheduler",
)
FOUR = nodes("node-0", "node-1", "node-2", "node-3")


@pytest.mark.parametrize("reason", LOST)
@pytest.mark.parametrize("is_gone", [True, False], ids=["node gone", "node there"])
def test_provisioned_nodes_are_requested_again_only_if_one_is_gone(
    reason: str, *, is_gone: bool
) -> None:
    job, pods = provisioned()
    pods[1] = replace(pods[1], deleting=True, disruption=reason)
    known = [node for node in FOUR if not (is_gone and node.name == "node-1")]
    planned = plan(job, pods, later(60), nodes=known)
    [failure] = planned.status.failures
    assert failure.action == ("RestartGang" if is_gone else "RestartPod")
    assert (planned.status.bookkeeping.queue_group, planned.status.attempt) == (
        (1, 1) if is_gone else (None, 0)
    )
    assert ("asking the queue for nodes again" in planned.status.message) == is_gone


@pytest.mark.parametrize(
    ("spec", "known"),
    [
        ({"accelerator": {"type": "nvidia-l4", "provisioning": "spot"}}, FOUR[2:]),
        ({"spares": 1}, FOUR[2:]),
        ({}, []),
        ({}, [replace(node, unready=True) for node in FOUR]),
    ],
    ids=["not provided by the queue", "a spare takes over", "nodes are unknown", "not ready"],
)
def test_lost_pod_is_replaced_alone_while_nodes_may_be_there(
    spec: dict[str, Any], known: list[Node]
) -> None:
    job, pods = provisioned(**spec)
    pods[1] = replace(pods[1], deleting=True, disruption="DeletionByTaintManager")
    planned = plan(job, pods, later(60), nodes=known)
    assert [failure.action for failure in planned.status.failures] == ["RestartPod"]
    assert (planned.status.bookkeeping.queue_group, planned.status.attempt) == (None, 0)


def test_restart_of_all_pods_requests_nodes_again_if_one_is_gone() -> None:
    for known, group in ((FOUR, None), (FOUR[1:], 1)):
        job, pods = provisioned(restart={"scope": "Gang"})
        pods[0] = replace(pods[0], deleting=True, disruption="DeletionByTaintManager")
        planned = plan(job, pods, later(60), nodes=known)
        assert (planned.status.attempt, planned.status.bookkeeping.queue_group) == (1, group)


def test_pod_that_finds_no_provisioned_node_requests_nodes_again() -> None:
    """Its node was silent when the pod was lost, or is too broken for a new one."""
    job, pods = provisioned()
    lost = replace(pods[1], deleting=True, disruption="DeletionByTaintManager")
    job = look(job, [pods[0], lost, pods[2]], 60)
    job = look(job, [pods[0], pods[2]], 100)
    new = pod(job, 1, replacement=1, waiting="Unschedulable", queue=pods[1].queue)
    waiting = [pods[0], new, pods[2]]
    job = look(job, waiting, 110)
    early = plan(job, waiting, later(600))
    assert (early.decided, early.requeue_at) == (False, later(660))
    planned = plan(job, waiting, later(660))
    assert planned.status.reason == "SchedulingTimeout"
    assert planned.status.bookkeeping.queue_group == 1
    assert "spec.schedulingTimeoutSeconds (600)" in planned.status.message
    patient = edited(job, schedulingTimeoutSeconds=3600)
    assert not plan(patient, waiting, later(660)).decided


def test_provisioned_nodes_may_be_late_at_the_first_start() -> None:
    job = created(**PROVISIONED)
    half = [admitted(job, 0), replace(admitted(job, 1), node="", waiting="Unschedulable")]
    assert not plan(look(job, half, 10), half, later(9000)).decided


def test_scheduling_timeout_begins_when_the_queue_admits_the_pods() -> None:
    job = created(scheduling=QUEUE, schedulingTimeoutSeconds=60)
    job = look(job, [gated(job, index) for index in range(2)], 1)
    job = look(job, [gated(job, index) for index in range(2)], 9000)
    half = [admitted(job, 0), replace(admitted(job, 1), node="", waiting="Unschedulable")]
    job = look(job, half, 9010)
    assert not plan(job, half, later(9069)).decided
    assert plan(job, half, later(9070)).status.reason == "SchedulingTimeout"
