"""Jobs of other controllers are ignored; a job of MultiKueue gets its Workload."""

import json
from datetime import timedelta
from typing import Any

import pytest
from ddp_operator.ports import (
    ClusterError,
    ConflictError,
    ForbiddenError,
    Key,
    NotFoundError,
    NotServedError,
)

from tests.unit.engine.test_reconciler import NOW, World, job

QUEUED: dict[str, Any] = {
    "managedBy": "kueue.x-k8s.io/multikueue",
    "scheduling": {"queueName": "team"},
}
WORKLOAD = Key("default", "train-u1")
_SUCCEEDED = {
    "type": "Succeeded",
    "status": "True",
    "reason": "Completed",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
ENDED = {
    "phase": "Succeeded",
    "completionTime": "2026-01-01T00:00:00Z",
    "conditions": [_SUCCEEDED],
}


def elsewhere(*, generation: int = 1, status: Any = None, **spec: Any) -> dict[str, Any]:
    manifest = job(**QUEUED, **spec)
    manifest["metadata"]["generation"] = generation
    return manifest | ({"status": status} if status else {})


def workload(world: World) -> dict[str, Any]:
    [made] = world.cluster.applied["Workload"].values()
    return made


@pytest.mark.parametrize("invalid", [{}, {"replicas": 0}], ids=["valid", "invalid"])
async def test_job_of_another_controller_is_ignored(world: World, invalid: dict[str, Any]) -> None:
    world.apply(job(managedBy="example.com/other", **invalid))
    assert await world.reconcile() == []
    world.apply(job(managedBy="example.com/other", ttlSecondsAfterFinished=0) | {"status": ENDED})
    assert await world.reconcile() == []


async def test_job_managed_by_this_operator_runs(world: World) -> None:
    world.apply(job(managedBy="ddp-operator.io/ddpjob-controller"))
    await world.reconcile_until_quiet()
    assert len(world.cluster.pods) == 2


async def test_multikueue_job_has_one_workload_and_no_pods(world: World) -> None:
    world.apply(elsewhere())
    made = ["read Workload train-u1-0", "apply Workload train-u1-0"]
    assert await world.reconcile() == made
    running = {"phase": "Running", "observedGeneration": 1, "startTime": "2026-01-01T00:00:00Z"}
    world.apply(elsewhere(status=running))
    assert await world.reconcile() == ["read Workload train-u1-0"]
    world.cluster.applied["Workload"].clear()
    assert await world.reconcile() == made
    assert workload(world)["spec"]["active"]


async def test_suspended_job_deactivates_its_workload(world: World) -> None:
    for generation, suspend in enumerate((True, False, True)):
        world.apply(elsewhere(generation=generation, suspend=suspend))
        await world.reconcile()
        assert workload(world)["spec"]["active"] is not suspend
        assert await world.reconcile() == ["read Workload train-u1-0"]


@pytest.mark.parametrize("suspend", [True, False])
async def test_only_a_change_of_suspend_changes_active(world: World, *, suspend: bool) -> None:
    world.apply(elsewhere(suspend=suspend))
    await world.reconcile()
    workload(world)["spec"]["active"] = suspend  # somebody else decides otherwise
    for generation in (2, 3):
        world.apply(elsewhere(generation=generation, suspend=suspend, ttlSecondsAfterFinished=9))
        assert await world.reconcile() == ["read Workload train-u1-0"]
        assert workload(world)["spec"]["active"] is suspend
    world.apply(elsewhere(generation=4, suspend=not suspend))
    await world.reconcile()
    assert workload(world)["spec"]["active"] is suspend
    world.apply(elsewhere(generation=5, suspend=suspend))
    await world.reconcile()
    assert workload(world)["spec"]["active"] is not suspend


async def test_workload_of_an_earlier_release_follows_its_job(world: World) -> None:
    world.apply(elsewhere())
    await world.reconcile()
    for name in ("suspend", "spec-hash"):
        del workload(world)["metadata"]["annotations"][f"ddp-operator.io/{name}"]
    world.apply(elsewhere(generation=2, suspend=True))
    assert await world.reconcile() == ["read Workload train-u1-0", "update Workload train-u1-0"]
    assert not workload(world)["spec"]["active"]
    world.apply(elsewhere(generation=3, suspend=True, nprocPerNode=2))
    assert "delete Workload train-u1-0" in await world.reconcile()


async def test_replaced_workload_stays_as_inactive_as_before(world: World) -> None:
    world.apply(elsewhere())
    await world.reconcile()
    workload(world)["spec"]["active"] = False
    world.apply(elsewhere(generation=2, nprocPerNode=2))
    assert await world.reconcile() == [
        "read Workload train-u1-0",
        "delete Workload train-u1-0",
        "apply Workload train-u1-0",
    ]
    assert not workload(world)["spec"]["active"]
    world.apply(elsewhere(generation=3, nprocPerNode=2, suspend=True))
    await world.reconcile()
    world.apply(elsewhere(generation=4, nprocPerNode=2))
    await world.reconcile()
    assert workload(world)["spec"]["active"]


@pytest.mark.parametrize(
    ("labels", "pods", "reference"),
    [
        (
            {"kueue.x-k8s.io/priority-class": "high"},
            {"priorityClassName": "low"},
            {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"},
        ),
        (
            {},
            {"priorityClassName": "high"},
            {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"},
        ),
    ],
    ids=["of Kueue", "of pods"],
)
async def test_workload_has_the_priority_of_its_class(
    world: World, labels: dict[str, str], pods: dict[str, str], reference: dict[str, str]
) -> None:
    world.cluster.applied[reference["kind"]] = {Key("", "high"): {"value": 1000}}
    spec = {"containers": [{"name": "trainer", "image": "x"}], **pods}
    world.apply(elsewhere(template={"metadata": {"labels": labels}, "spec": spec}))
    await world.reconcile()
    made = workload(world)["spec"]
    assert (made["priorityClassRef"], made["priority"]) == (reference, 1000)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("apply Workload", NotServedError("no Kueue", status=404)),
        ("apply Workload", ForbiddenError("no right", status=403)),
        ("read PriorityClass", NotFoundError("no class high", status=404)),
    ],
    ids=["not served", "forbidden", "no class"],
)
async def test_missing_object_makes_an_event_and_no_status(
    world: World, call: str, error: ClusterError
) -> None:
    world.cluster.refuse = {call: error}
    spec = {"containers": [{"name": "trainer", "image": "x"}], "priorityClassName": "high"}
    world.cluster.applied["PriorityClass"] = {Key("", "high"): {"value": 1}}
    world.apply(elsewhere(template={"spec": spec}))
    for _ in range(3):
        await world.reconcile_fails(type(error))
        world.now += timedelta(seconds=10)
    [event] = world.cluster.events
    assert error.message in event.message
    assert "manifests/components/multikueue" in event.message
    assert "status" not in world.cluster.jobs[Key("default", "train")]
    world.cluster.refuse = {}
    await world.reconcile()
    assert workload(world)


@pytest.mark.parametrize(("reason", "requeued"), [("Preempted", "True"), ("Deactivated", "False")])
async def test_evicted_workload_releases_its_quota(
    world: World, reason: str, requeued: str
) -> None:
    def condition(name: str, status: str = "True") -> dict[str, str]:
        common = {"message": "text", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        return {"type": name, "status": status, "reason": reason, **common}

    world.apply(elsewhere())
    again_at = await world.reconciler.reconcile(Key("default", "train"))
    assert again_at == NOW + timedelta(seconds=10)
    admitted: dict[str, Any] = {"admission": {"clusterQueue": "q"}, "clusterName": "far"}
    for name in ("QuotaReserved", "Evicted"):
        admitted["conditions"] = [*admitted.get("conditions", ()), condition(name)]
        workload(world)["status"] = admitted
        calls = await world.reconcile()
    assert calls == ["read Workload train-u1-0", "patch_status_of Workload train-u1-0"]
    status = workload(world)["status"]
    assert "admission" not in status
    assert status["clusterName"] == "far"
    assert {one["type"]: one["status"] for one in status["conditions"]} == {
        "QuotaReserved": "False",
        "Evicted": "True",
        "Admitted": "False",
        "Requeued": requeued,
    }
    assert await world.reconcile() == ["read Workload train-u1-0"]


FAILED: dict[str, Any] = {
    **{"time": "2026-01-01T00:00:00Z", "attempt": 0, "index": 1, "pod": "train-0-1"},
    **{"reason": "DeletionByPodGC", "class": "Disruption"},
}


async def test_evicted_workload_keeps_the_failures_of_its_job(world: World) -> None:
    status = {"phase": "Running", "failures": [FAILED], "disruptions": 1}
    world.apply(elsewhere())
    await world.reconcile()
    common = {"status": "True", "reason": "Preempted", "message": "text"}
    known = [{"type": name, **common} for name in ("QuotaReserved", "Evicted")]
    for condition in known:
        condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    workload(world)["status"] = {"conditions": known}
    world.apply(elsewhere(status=status))
    assert await world.reconcile() == [
        "read Workload train-u1-0",
        "update Workload train-u1-0",
        "patch_status_of Workload train-u1-0",
    ]
    kept = json.loads(
        workload(world)["metadata"]["annotations"]["ddp-operator.io/earlier-failures"]
    )
    assert (kept["failures"][0]["pod"], kept["disruptions"]) == ("train-0-1", 1)
    assert await world.reconcile() == ["read Workload train-u1-0"]


@pytest.mark.parametrize(
    "state",
    [{"phase": "Restarting", "bookkeeping": {"queueGroup": 1}}, {"phase": "Restarting"}],
    ids=["needs another group", "was evicted"],
)
async def test_workload_is_created_again_if_its_pods_ended_in_a_restart(
    world: World, state: dict[str, Any]
) -> None:
    status = {**state, "failures": [FAILED]}
    world.apply(elsewhere())
    await world.reconcile()
    message = "Pods succeeded: 0/2."
    finished = {"type": "Finished", "status": "True", "reason": "Succeeded", "message": message}
    workload(world)["status"] = {"conditions": [finished]}
    world.apply(elsewhere(status=status))
    assert await world.reconcile() == [
        "read Workload train-u1-0",
        "delete Workload train-u1-0",
        "apply Workload train-u1-0",
    ]
    made = workload(world)
    assert made["spec"]["active"]
    assert "DeletionByPodGC" in made["metadata"]["annotations"]["ddp-operator.io/earlier-failures"]
    assert world.status == status
    assert await world.reconcile() == ["read Workload train-u1-0"]


@pytest.mark.parametrize("is_evicted", [True, False])
async def test_workload_without_its_remote_job_is_created_again(
    world: World, is_evicted: bool
) -> None:
    def conditions(evicted: str) -> list[dict[str, str]]:
        common = {"reason": "Succeeded", "message": "Pods succeeded: 0/2."}
        return [
            {"type": "Finished", "status": "True", **common},
            {"type": "Evicted", "status": evicted, **common},
            {"type": "QuotaReserved", "status": "True", **common},
        ]

    world.apply(elsewhere(suspend=not is_evicted))
    await world.reconcile()
    workload(world)["status"] = {"conditions": conditions("True" if is_evicted else "False")}
    world.apply(elsewhere(generation=2))  # it is resumed
    calls = await world.reconcile()
    assert [call for call in calls if not call.startswith("read")] == [
        "delete Workload train-u1-0",
        "apply Workload train-u1-0",
    ]
    assert "status" not in workload(world)
    assert "status" not in world.cluster.jobs[Key("default", "train")]
    assert await world.reconcile() == ["read Workload train-u1-0"]


@pytest.mark.parametrize(
    ("outcome", "phase", "reason"),
    [("Succeeded", "Succeeded", "Completed"), ("Failed", "Failed", "WorkloadFailed")],
)
async def test_finished_workload_ends_a_job_without_its_last_status(
    world: World, outcome: str, phase: str, reason: str
) -> None:
    running = {"phase": "Running", "restarts": 2}
    world.apply(elsewhere(status=running))
    await world.reconcile()
    message = "Pods\n" + "x" * 500
    condition = {"type": "Finished", "status": "True", "reason": outcome, "message": message}
    workload(world)["status"] = {"conditions": [{**condition, "status": "False"}]}
    assert await world.reconcile() == ["read Workload train-u1-0"]
    workload(world)["status"] = {"conditions": [condition]}
    await world.reconcile_until_quiet()
    status = world.cluster.jobs[Key("default", "train")]["status"]
    assert (status["phase"], status["reason"], status["restarts"]) == (phase, reason, 2)
    assert status["message"].endswith("status is missing: Pods " + "x" * 115)
    assert len(status["message"]) <= 200
    assert status["completionTime"]
    assert await world.reconcile() == []


async def test_last_status_of_the_other_cluster_is_kept(world: World) -> None:
    world.apply(elsewhere(status={"phase": "Running"}))
    await world.reconcile()
    condition = {"type": "Finished", "status": "True", "reason": "Failed", "message": ""}
    workload(world)["status"] = {"conditions": [condition]}
    # MultiKueue has written the status, and the watch is late.
    world.cluster.store_job(elsewhere(status=ENDED))
    await world.reconcile_fails(ConflictError)
    assert world.cluster.jobs[Key("default", "train")]["status"] == ENDED


async def test_finished_job_is_deleted_after_its_ttl(world: World) -> None:
    world.apply(elsewhere(status=ENDED, ttlSecondsAfterFinished=60))
    assert await world.reconcile() == []
    world.now = NOW + timedelta(seconds=60)
    assert await world.reconcile() == ["delete_job train"]


THEIRS = "train-0a1b2c-0"
COPY: dict[str, Any] = {
    "labels": {"kueue.x-k8s.io/multikueue-origin": "multikueue"},
    "annotations": {"ddp-operator.io/workload-of": "train"},
}


def store_copied(world: World, workload: dict[str, Any] | None, kind: str = "annotations") -> None:
    """Store a job with MultiKueue's annotation or label, and the Workload that it names."""
    copied = job(scheduling={"queueName": "team"})
    copied["metadata"][kind] = {"kueue.x-k8s.io/prebuilt-workload-name": THEIRS}
    world.apply(copied)
    if workload is not None:
        stored = {"metadata": {"namespace": "default", "name": THEIRS, **workload}}
        world.cluster.applied["Workload"] = {Key("default", THEIRS): stored}


@pytest.mark.parametrize("kind", ["annotations", "labels"])
@pytest.mark.parametrize(
    "workload",
    [
        None,
        {},
        {**COPY, "labels": {}},
        {**COPY, "annotations": {"ddp-operator.io/workload-of": "other"}},
    ],
    ids=["missing", "of another owner", "not a copy", "of another job"],
)
async def test_metadata_opens_no_pod_group_of_another_workload(
    world: World, workload: dict[str, Any] | None, kind: str
) -> None:
    store_copied(world, workload, kind)
    await world.reconcile_fails(ForbiddenError)
    assert not world.cluster.pods
    [running] = [item for item in world.status["conditions"] if item["type"] == "Running"]
    assert running["reason"] == "PodsForbidden"
    assert running["message"] == (
        "metadata: kueue.x-k8s.io/prebuilt-workload-name (annotation or label) names the Workload "
        f"{THEIRS}, which MultiKueue did not copy for this job; remove it, because only MultiKueue "
        "sets it"
    )


async def test_copied_job_enters_the_group_of_its_workload(world: World) -> None:
    store_copied(world, COPY)
    await world.reconcile()
    labels = [pod["metadata"]["labels"] for pod in world.cluster.pods.values()]
    assert [each["kueue.x-k8s.io/pod-group-name"] for each in labels] == [THEIRS, THEIRS]


async def test_copied_job_begins_with_its_earlier_failures(world: World) -> None:
    earlier = json.dumps({"failures": [FAILED], "restarts": 2})
    annotations = {**COPY["annotations"], "ddp-operator.io/earlier-failures": earlier}
    store_copied(world, {**COPY, "annotations": annotations})
    await world.reconcile()
    status = world.status
    assert (status["failures"][0]["pod"], status["restarts"]) == ("train-0-1", 2)
    assert len(world.cluster.pods) == 2
    reads = [call for call in await world.reconcile() if call.startswith("read")]
    assert reads == [], "only once"


async def test_unreadable_workload_names_the_missing_right(world: World) -> None:
    store_copied(world, COPY)
    world.cluster.refuse["read Workload"] = ForbiddenError("cannot get workloads", status=403)
    await world.reconcile_fails(ForbiddenError)
    assert not world.cluster.pods
    assert "manifests/components/multikueue" in world.status["message"]
