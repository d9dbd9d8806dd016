"""Scenarios of Kueue's contract, which the model and the real Kueue both pass.

Workloads of `create_workload` belong to no pods, as that of a job that MultiKueue runs: the test
plays their controller. All share a queue with quota for two pods. A kubelet runs the pods.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from ddp_operator.api.constants import KUEUE_GROUP, KUEUE_QUEUE, KUEUE_RETRIABLE
from ddp_operator.job.pods import multikueue
from ddp_operator.ports import ClusterError, ForbiddenError, Manifest

Json = dict[str, Any]

QUEUE: Final = "team"
CHIP: Final = "example.com/chip"
WORKLOAD: Final = "kueue.x-k8s.io/v1beta2"


class Subject(Protocol):
    """A Kueue that a scenario runs against, with the objects of one namespace."""

    async def create_workload(self, manifest: Manifest) -> None:
        """Create a Workload."""

    async def workload(self, name: str) -> Manifest | None:
        """Return a Workload, or None if it does not exist."""

    async def change(self, name: str, **spec: Any) -> None:
        """Replace fields of a Workload's spec."""

    async def patch_status(self, name: str, status: Manifest) -> None:
        """Merge a patch into a Workload's status."""

    async def delete_workload(self, name: str) -> None:
        """Delete a Workload."""

    async def create_pod(self, manifest: Manifest) -> None:
        """Create a pod."""

    async def pods(self) -> dict[str, Manifest]:
        """Return all pods by their names."""

    async def end_pod(self, name: str, *, exit_code: int) -> None:
        """End a running pod's container."""

    async def mark_pod(self, name: str, **annotations: str) -> None:
        """Set annotations of a pod."""

    async def eventually(self, holds: Callable[[], Awaitable[object]]) -> None:
        """Wait until a condition holds."""

    async def pass_time(self) -> None:
        """Wait as long as Kueue needs for a change."""


def workload(name: str, *, pods: int = 2, priority: int = 0, image: str = "x") -> Json:
    """Return a Workload without pods."""
    pod_set = {"name": "main", "count": pods, "template": {"spec": _pod_spec(image)}}
    return {
        "apiVersion": WORKLOAD,
        "kind": "Workload",
        "metadata": {"name": name},
        "spec": {"queueName": QUEUE, "priority": priority, "podSets": [pod_set]},
    }


def pod(name: str, group: str, total: int) -> Json:
    """Return a pod of a group."""
    annotations = {
        "kueue.x-k8s.io/pod-group-total-count": str(total),
        "kueue.x-k8s.io/role-hash": "pods",
    }
    labels = {KUEUE_QUEUE: QUEUE, KUEUE_GROUP: group}
    metadata = {"name": name, "labels": labels, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _pod_spec("x")}


def _pod_spec(image: str) -> Json:
    resources = {"requests": {CHIP: "1"}, "limits": {CHIP: "1"}}
    trainer = {"name": "trainer", "image": image, "resources": resources}
    return {"restartPolicy": "Never", "containers": [trainer]}


async def existing(subject: Subject, name: str) -> Manifest:
    """Return a Workload that must exist."""
    stored = await subject.workload(name)
    assert stored is not None
    return stored


def conditions(stored: Manifest | None) -> dict[str, str]:
    """Return the reasons of an object's true conditions, by type."""
    status = (stored or {}).get("status") or {}
    true = (one for one in status.get("conditions") or () if one["status"] == "True")
    return {one["type"]: one.get("reason", "") for one in true}


async def until(subject: Subject, name: str, **expected: str | None) -> None:
    """Wait until true conditions of a Workload have these reasons; None: not true."""

    async def holds() -> bool:
        known = conditions(await subject.workload(name))
        return all(known.get(type_) == reason for type_, reason in expected.items())

    await subject.eventually(holds)


async def until_running(subject: Subject, *names: str) -> None:
    """Wait until exactly these pods run."""

    async def holds() -> bool:
        pods = await subject.pods()
        return {n for n, one in pods.items() if one["status"]["phase"] == "Running"} == set(names)

    await subject.eventually(holds)


async def give_back(subject: Subject, name: str) -> None:
    """Give the quota of an evicted Workload back, as the operator does."""
    stored = await existing(subject, name)
    await subject.patch_status(name, multikueue.without_admission(stored))


async def refusal(call: Awaitable[None]) -> ClusterError:
    """Return the error of a call that must fail."""
    try:
        await call
    except ClusterError as error:
        return error
    raise AssertionError("it was accepted")


async def pod_sets_are_immutable_while_quota_is_reserved(kueue: Subject) -> None:
    await kueue.create_workload(workload("a"))
    await until(kueue, "a", QuotaReserved="QuotaReserved", Admitted="Admitted")
    other = workload("a", image="y")["spec"]["podSets"]
    error = await refusal(kueue.change("a", active=False, podSets=other))
    assert isinstance(error, ForbiddenError)
    assert error.message.startswith('admission webhook "vworkload.kb.io" denied the request: ')
    assert "spec.podSets.0: Invalid value: " in error.message
    assert error.message.endswith("field is immutable")
    assert (await existing(kueue, "a"))["spec"]["active"]
    await kueue.change("a", active=False)


async def pod_sets_change_while_a_workload_waits(kueue: Subject) -> None:
    await kueue.create_workload(workload("a"))
    await until(kueue, "a", Admitted="Admitted")
    await kueue.create_workload(workload("b", pods=1))
    await kueue.pass_time()
    other = workload("b", pods=2, image="y")["spec"]["podSets"]
    await kueue.change("b", podSets=other)
    assert (await existing(kueue, "b"))["spec"]["podSets"][0]["count"] == 2


async def deactivated_workload_is_evicted_and_others_get_its_quota(kueue: Subject) -> None:
    await kueue.create_workload(workload("a"))
    await until(kueue, "a", Admitted="Admitted")
    await kueue.create_workload(workload("b"))
    await kueue.change("a", active=False)
    await until(kueue, "a", Evicted="Deactivated", QuotaReserved="QuotaReserved")
    await until(kueue, "b", Admitted="Admitted")


async def deactivated_workload_stays_inactive_until_it_is_activated(kueue: Subject) -> None:
    await kueue.create_workload(workload("a"))
    await until(kueue, "a", Admitted="Admitted")
    await kueue.change("a", active=False)
    await until(kueue, "a", Evicted="Deactivated")
    await give_back(kueue, "a")
    await kueue.pass_time()
    await until(kueue, "a", QuotaReserved=None, Admitted=None)
    await kueue.change("a", active=True)
    await until(kueue, "a", Requeued="Reactivated", Admitted="Admitted", Evicted=None)


async def workload_waits_until_another_gives_its_quota_up(kueue: Subject) -> None:
    await kueue.create_workload(workload("a", pods=1))
    await until(kueue, "a", Admitted="Admitted")
    await kueue.create_workload(workload("b"))

    async def waits() -> bool:
        stored = await kueue.workload("b") or {}
        known = stored.get("status", {}).get("conditions") or ()
        return any("insufficient unused quota" in one["message"] for one in known)

    await kueue.eventually(waits)
    await kueue.delete_workload("a")
    await until(kueue, "b", Admitted="Admitted")


async def urgent_workload_preempts_and_waits_for_the_quota(kueue: Subject) -> None:
    await kueue.create_workload(workload("a"))
    await until(kueue, "a", Admitted="Admitted")
    await kueue.create_workload(workload("urgent", priority=1000))
    await until(kueue, "a", Evicted="Preempted", QuotaReserved="QuotaReserved")
    await kueue.pass_time()
    await until(kueue, "urgent", QuotaReserved=None)
    await give_back(kueue, "a")
    await until(kueue, "urgent", Admitted="Admitted")
    await kueue.delete_workload("urgent")
    await until(kueue, "a", Admitted="Admitted", Evicted=None)


async def workload_that_was_admitted_last_is_preempted_first(kueue: Subject) -> None:
    await kueue.create_workload(workload("a", pods=1))
    await until(kueue, "a", Admitted="Admitted")
    for _ in range(3):  # Kueue compares whole seconds
        await kueue.pass_time()
    await kueue.create_workload(workload("b", pods=1))
    await until(kueue, "b", Admitted="Admitted")
    await kueue.create_workload(workload("urgent", pods=1, priority=1000))
    await until(kueue, "b", Evicted="Preempted", QuotaReserved="QuotaReserved")
    await give_back(kueue, "b")
    await until(kueue, "urgent", Admitted="Admitted")
    await until(kueue, "a", Admitted="Admitted", Evicted=None)


async def group_is_admitted_when_all_its_pods_exist(kueue: Subject) -> None:
    await kueue.create_pod(pod("a-0", "a", total=2))
    await kueue.pass_time()
    assert await kueue.workload("a") is None
    gated = (await kueue.pods())["a-0"]
    assert [gate["name"] for gate in gated["spec"]["schedulingGates"]] == [
        "kueue.x-k8s.io/admission",
        "kueue.x-k8s.io/topology",
    ]
    assert gated["metadata"]["finalizers"] == ["kueue.x-k8s.io/managed"]
    await kueue.create_pod(pod("a-1", "a", total=2))
    await until(kueue, "a", Admitted="Admitted")
    await until_running(kueue, "a-0", "a-1")
    await kueue.create_pod(pod("a-2", "a", total=2))  # one too many
    await kueue.eventually(lambda: _are(kueue, "a-0", "a-1"))


async def _are(kueue: Subject, *names: str) -> bool:
    return (await kueue.pods()).keys() == set(names)


async def _group(kueue: Subject, name: str, **options: Any) -> None:
    """Start a group of two pods."""
    for number in (0, 1):
        await kueue.create_pod(pod(f"{name}-{number}", name, total=2, **options))
    await until(kueue, name, Admitted="Admitted")
    await until_running(kueue, f"{name}-0", f"{name}-1")


async def replacement_of_a_failed_pod_keeps_the_quota(kueue: Subject) -> None:
    await _group(kueue, "a")
    before = await existing(kueue, "a")
    await kueue.end_pod("a-1", exit_code=1)
    await kueue.create_pod(pod("a-1-r1", "a", total=2))
    await until_running(kueue, "a-0", "a-1-r1")
    after = await existing(kueue, "a")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]

    async def is_released() -> bool:
        return not (await kueue.pods())["a-1"]["metadata"].get("finalizers")

    await kueue.eventually(is_released)


async def group_gives_its_quota_back_when_all_pods_succeeded(kueue: Subject) -> None:
    await _group(kueue, "a")
    for name in ("a-0", "a-1"):
        await kueue.end_pod(name, exit_code=0)
    await until(kueue, "a", Finished="Succeeded")
    await kueue.create_workload(workload("b"))
    await until(kueue, "b", Admitted="Admitted")


async def group_ends_without_retries_when_one_pod_is_marked(kueue: Subject) -> None:
    await _group(kueue, "a")
    for name in ("a-0", "a-1"):
        await kueue.end_pod(name, exit_code=1)
    await kueue.pass_time()
    await until(kueue, "a", Finished=None)
    await kueue.mark_pod("a-0", **{KUEUE_RETRIABLE: "false"})
    await until(kueue, "a", Finished="Succeeded")


async def deactivated_group_loses_its_pods_and_gives_its_quota_back(kueue: Subject) -> None:
    await _group(kueue, "a")
    await kueue.change("a", active=False)
    await until(kueue, "a", Evicted="Deactivated", QuotaReserved=None, Admitted=None)
    for stored in (await kueue.pods()).values():
        assert "deletionTimestamp" in stored["metadata"]
        assert conditions(stored)["TerminationTarget"] == "WorkloadEvictedDueToDeactivated"


async def preempted_group_returns_with_new_pods(kueue: Subject) -> None:
    await _group(kueue, "a")
    await kueue.create_workload(workload("urgent", priority=1000))
    await until(kueue, "urgent", Admitted="Admitted")
    await until(kueue, "a", Evicted="Preempted", QuotaReserved=None)
    for name in ("a-0-1", "a-1-1"):
        await kueue.create_pod(pod(name, "a", total=2))
    await kueue.pass_time()
    await until_running(kueue)
    await kueue.delete_workload("urgent")
    await until(kueue, "a", Admitted="Admitted")
    await until_running(kueue, "a-0-1", "a-1-1")


async def group_without_its_workload_loses_its_pods(kueue: Subject) -> None:
    await _group(kueue, "a")
    await kueue.delete_workload("a")
    await kueue.eventually(lambda: _are(kueue))

    async def gone() -> bool:
        return await kueue.workload("a") is None

    await kueue.eventually(gone)


Scenario = Callable[[Subject], Awaitable[None]]

SCENARIOS: Final[tuple[Scenario, ...]] = (
    pod_sets_are_immutable_while_quota_is_reserved,
    pod_sets_change_while_a_workload_waits,
    deactivated_workload_is_evicted_and_others_get_its_quota,
    deactivated_workload_stays_inactive_until_it_is_activated,
    workload_waits_until_another_gives_its_quota_up,
    urgent_workload_preempts_and_waits_for_the_quota,
    workload_that_was_admitted_last_is_preempted_first,
    group_is_admitted_when_all_its_pods_exist,
    replacement_of_a_failed_pod_keeps_the_quota,
    group_gives_its_quota_back_when_all_pods_succeeded,
    group_ends_without_retries_when_one_pod_is_marked,
    deactivated_group_loses_its_pods_and_gives_its_quota_back,
    preempted_group_returns_with_new_pods,
    group_without_its_workload_loses_its_pods,
)
