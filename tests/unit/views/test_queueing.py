"""Workloads as Kueue 0.17.0 writes them; each message names the file of Kueue that it is from."""

from typing import Any

import pytest
from ddp_client.views.job.diagnosis import diagnose
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.queueing import UNKNOWN, QueueState, Workload, explain, inactive
from ddp_client.views.job.screen import screen

from tests.unit.cli.jobs import ESCAPES, at, seen
from tests.unit.job.builders import later

NOW = later(60)
NAME = "digits-abc123-0"


def condition(type_: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": at(30),
        "observedGeneration": 1,
    }


def pending(message: str, reason: str = "Pending") -> dict[str, Any]:
    """As pkg/workload/workload.go, UnsetQuotaReservationWithCondition."""
    return condition("QuotaReserved", "False", reason, message)


def evicted(reason: str, message: str) -> dict[str, Any]:
    """As pkg/workload/workload.go, SetEvictedCondition."""
    return condition("Evicted", "True", reason, message)


def explained(
    *conditions: dict[str, Any],
    active: bool = True,
    position: str = "2 jobs ahead",
    closed: str = "",
    **status: Any,
) -> QueueState:
    found = Workload.read(
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "Workload",
            "metadata": {"name": NAME, "namespace": "research"},
            "spec": {"active": active, "queueName": "team", "podSets": []},
            "status": {"conditions": [*conditions], **status},
        }
    )
    assert found is not None
    return explain(found, NAME, position=position, closed=closed)


# pkg/scheduler/flavorassigner/flavorassigner.go
SET = "couldn't assign flavors to pod set"
BUSY = f"{SET} a: insufficient unused quota for nvidia.com/gpu in flavor default, 2 more needed"
LARGE = (
    f"{SET} a: insufficient quota for nvidia.com/gpu in flavor default, previously considered "
    "podsets requests (0) + current podset request (16) > maximum capacity (8)"
)
PREEMPTED = (  # pkg/scheduler/preemption/preemption.go
    "Preempted to accommodate a workload (UID: a, JobUID: b) due to prioritization in the "
    "ClusterQueue; preemptor path: /team; preemptee path: /team"
)
LIMIT = "The workload is deactivated due to exceeding the maximum number of re-queuing retries"


@pytest.mark.parametrize(
    "message",
    [
        f"{BUSY}. Pending the preemption of 1 workload(s)",
        LARGE,
        "LocalQueue team doesn't exist",
        "reworded in a later release",
    ],
)
def test_any_message_is_shown_as_kueue_writes_it(message: str) -> None:
    assert explained(pending(message)) == QueueState("2 jobs ahead", message)


@pytest.mark.parametrize(
    ("reason", "message", "remedy"),
    [
        ("WaitingForQuota", BUSY, ""),
        ("ExceedsMaxQuota", LARGE, "have the queue's quota raised"),
        ("NoMatchingFlavor", f"{SET} a: no flavor", "tolerations in spec.template"),
        ("Misconfigured", "LocalQueue team doesn't exist", "correct what Kueue's message names"),
    ],
)
def test_reason_of_kueue_follows_its_message(reason: str, message: str, remedy: str) -> None:
    """apis/kueue/v1beta2/workload_types.go of 0.20-devel; a reason may be all that is known."""
    found = explained(pending(message, reason))
    assert found.message == f"{message} ({reason})"
    assert remedy in found.remedy
    assert bool(remedy) == bool(found.remedy)


def test_message_of_a_closed_queue() -> None:
    message = "LocalQueue team is inactive"
    for reason in ("Inadmissible", "Suspended"):
        found = explained(pending(message, reason), closed="LocalQueue is stopped")
        assert found == QueueState("", f"{message}: LocalQueue is stopped")


def test_reason_of_a_closed_queue() -> None:
    """pkg/cache/scheduler/clusterqueue.go."""
    stopped = condition("Active", "False", "Stopped", "Can't admit new workloads: is stopped.")
    assert inactive({"status": {"conditions": [stopped]}}) == (
        "Can't admit new workloads: is stopped"
    )
    ready = condition("Active", "True", "Ready", "Can admit new workloads")
    for silent in ({"status": {"conditions": [ready]}}, {}, {"status": 7}):
        assert inactive(silent) == ""


DELETE = f"to queue the job again: kubectl delete workloads.kueue.x-k8s.io {NAME}"


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("Deactivated", "The workload is deactivated"),
        ("DeactivatedDueToRequeuingLimitExceeded", LIMIT),
    ],
)
def test_deactivated_workload_shows_kueues_message(reason: str, message: str) -> None:
    found = explained(pending(BUSY), evicted(reason, message), active=False, position="")
    assert found == QueueState("", message, "", DELETE)


def test_workload_deactivated_without_a_message() -> None:
    found = explained(pending(BUSY), active=False, position="")
    assert found == QueueState("", "the Workload's spec.active is false", "", DELETE)


def test_workload_deactivated_and_not_yet_evicted() -> None:
    """pkg/controller/core/workload_controller.go sets the reason, then `active`, then evicts."""
    message = "exceeding the maximum number of re-queuing retries"
    target = condition("DeactivationTarget", "True", "RequeuingLimitExceeded", message)
    reserved = condition("QuotaReserved", "True", "QuotaReserved")
    found = explained(reserved, target, position="")
    assert found == QueueState("", message, "", DELETE)


def test_preempted_job_names_the_preemptor() -> None:
    by_other = evicted("Preempted", PREEMPTED)
    assert explained(pending(PREEMPTED), by_other).message == PREEMPTED
    found = explained(pending(BUSY), by_other)
    assert (found.message, found.eviction) == (BUSY, PREEMPTED)
    over = {**by_other, "status": "False", "message": f"Previously: {PREEMPTED}"}
    assert explained(pending(BUSY), over).eviction == ""


def test_an_admission_check_is_pending() -> None:
    reserved = condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in shared")
    checks = [
        {"name": "budget", "state": "Ready", "message": "", "lastTransitionTime": at(1)},
        {"name": "nodes", "state": "Pending", "message": "Waiting", "lastTransitionTime": at(1)},
    ]
    found = explained(reserved, admissionChecks=checks)
    assert found.message == "admission check nodes is Pending: Waiting"
    assert explained(reserved, admissionChecks=checks[:1], position="") == UNKNOWN


def test_a_workload_that_failed_to_start_is_finished() -> None:
    """pkg/controller/jobframework/reconciler.go."""
    failed = condition("Finished", "True", "FailedToStart", "in admission check x: conflict")
    found = explained(failed, condition("QuotaReserved", "True", "QuotaReserved"))
    assert found.message == "in admission check x: conflict"


def test_a_new_workload_explains_nothing() -> None:
    assert explained() == QueueState("2 jobs ahead")
    assert explained(position="") == UNKNOWN


@pytest.mark.parametrize(
    "manifest",
    [
        {"status": 7},
        {"spec": {"active": [1]}},
        {"status": {"conditions": [{"type": "QuotaReserved"}]}},
    ],
)
def test_malformed_workload_is_not_read(manifest: dict[str, Any]) -> None:
    assert Workload.read(manifest) is None


def test_foreign_text_is_bounded_and_printable() -> None:
    hostile = ESCAPES + "x" * 5000
    check = {"name": hostile, "state": hostile, "message": hostile}
    for found in (
        explained(pending(hostile, hostile), evicted("Preempted", hostile)),
        explained(evicted(f"DeactivatedDueTo{hostile}", hostile), active=False),
        explained(condition("Finished", "True", hostile, hostile)),
        explained(condition("QuotaReserved", "True", "QuotaReserved"), admissionChecks=[check]),
    ):
        text = "".join((found.message, found.eviction, found.remedy))
        assert text.isprintable()
        assert len(text) < 1200


JOB = seen(
    "Pending",
    "Queued",
    "2 of 2 pods wait in spec.scheduling.queueName (team)",
    spec={"scheduling": {"queueName": "team"}},
)


def test_why_gives_kueues_message() -> None:
    queue = explained(pending(LARGE), evicted("Preempted", PREEMPTED))
    found = diagnose(JOB, Pods.of(JOB, []), NOW, queue=queue)
    assert found.sentence == f"digits is waiting, Queued: {LARGE}"
    assert found.evidence[0] == "2 of 2 pods wait in spec.scheduling.queueName (team)"
    assert f"evicted before: {PREEMPTED}" in found.evidence
    assert found.remedies == ["wait for quota, or ask the queue's administrator"]


def test_why_gives_the_remedy_of_a_deactivated_workload() -> None:
    queue = explained(evicted("Deactivated", LIMIT), active=False)
    found = diagnose(JOB, Pods.of(JOB, []), NOW, queue=queue)
    assert (found.sentence, found.remedies) == (f"digits is waiting, Queued: {LIMIT}", [DELETE])


def test_why_gives_the_position_of_a_job_that_waits_for_quota() -> None:
    queue = explained(pending(BUSY), position="1 job ahead in queue team")
    found = diagnose(JOB, Pods.of(JOB, []), NOW, queue=queue)
    assert "it waits for 1 job ahead in queue team" in found.evidence


def test_status_gives_kueues_message_in_one_line() -> None:
    queue = explained(pending("LocalQueue team is inactive", "Inadmissible"))
    lines = screen(JOB, Pods.of(JOB, []), NOW, queue=queue)
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("Kueue")] == [
        "LocalQueue team is inactive"
    ]
