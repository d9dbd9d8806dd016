"""Tests of MultiKueue: the Workload in the manager cluster, and pods in a worker cluster."""

from collections import Counter
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.multikueue import (
    first_status,
    is_copy_for,
    must_be_replaced,
    reference,
    workload,
)
from ddp_operator.job.pods.schedulers.kueue import kueue_group
from ddp_operator.job.pods.state import Identity

from tests.full_status import FULL_STATUS
from tests.good_manifests import Json, container, template
from tests.unit.job.builders import UID, edited, fresh_job, stored_job, with_status

ROLE = "kueue.x-k8s.io/role-hash"
GROUP = "kueue.x-k8s.io/pod-group-name"
PREBUILT = "kueue.x-k8s.io/prebuilt-workload-name"
OF = "ddp-operator.io/workload-of"
ORIGIN = {"kueue.x-k8s.io/multikueue-origin": "multikueue"}
QUEUED: dict[str, Any] = {"scheduling": {"queueName": "team"}}


def elsewhere(**spec: Any) -> DDPJob:
    return fresh_job(managedBy="kueue.x-k8s.io/multikueue", **QUEUED | spec)


def copied(name: str, *, kind: str = "annotations", **spec: Any) -> DDPJob:
    """Return a job as MultiKueue creates it in a worker cluster; before 0.18 with `kind` labels."""
    document = stored_job(**QUEUED, **spec)
    document["metadata"][kind] = {PREBUILT: name}
    return DDPJob.parse(document)


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        ({"replicas": 3}, {"pods": 3}),
        ({"replicas": 2, "spares": 1, "restart": {"scope": "Pod"}}, {"pods": 2}),
        ({"replicas": 4, "elastic": {"minReplicas": 3}}, {"pods": 3}),
        (
            {
                "replicas": 4,
                "overrides": [
                    {"indexes": ["0-1"], "nprocPerNode": 2},
                    {"indexes": ["3"], "nprocPerNode": 4},
                ],
            },
            {"pods": 1, "pods-1": 2, "pods-2": 1},
        ),
    ],
    ids=["equal", "with a spare", "elastic", "overrides"],
)
def test_workload_has_the_roles_of_the_pods(spec: dict[str, Any], counts: dict[str, int]) -> None:
    job = elsewhere(**spec)
    pod_sets = workload(job, None)["spec"]["podSets"]
    assert [(one["name"], one["count"]) for one in pod_sets] == [*counts.items()]
    pods = [manifests.pod(job, Identity(slot, 0)) for slot in range(sum(counts.values()))]
    assert Counter(pod["metadata"]["annotations"][ROLE] for pod in pods) == counts
    shapes = [manifests.shape(job.name, job.spec, slot)["spec"] for slot in range(len(pods))]
    for one in pod_sets:
        assert one["template"]["spec"] in shapes


LATER: dict[str, Json] = {
    "restarted in place": {
        "world": {"generation": 3, "members": "0-3"},
        "bookkeeping": {"launcher": "InPlace"},
    },
    "restarted": {"attempt": 2, "bookkeeping": {"queueGroup": 1, "queueGroupSize": 9}},
    "grown": {"world": {"generation": 2, "members": "0-5"}},
    "a spare took over": {"world": {"generation": 1, "members": "0,4,2-3"}},
    "avoids nodes": {"attempt": 1, "excludedNodes": ["gpu-7"]},
    "full": FULL_STATUS,
}
SPECS: dict[str, Json] = {
    "plain": {},
    "elastic": {"elastic": {"minReplicas": 2, "maxReplicas": 8}},
    "spares": {"spares": 2, "restart": {"scope": "Pod"}},
    "overrides": {"overrides": [{"indexes": ["1"], "nprocPerNode": 2}]},
    "provisioned": {
        "accelerator": {
            "type": "nvidia-h100-mega-80gb",
            "count": 8,
            "provisioning": "queued",
            "maxRunSeconds": 600,
        }
    },
    "in any image": {
        "launcher": "inject",
        "template": template(container(command=["python", "train.py"])),
    },
}


@pytest.mark.parametrize("later", LATER.values(), ids=LATER)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_workload_describes_the_same_pods_at_any_status(spec: Json, later: Json) -> None:
    wanted = {"managedBy": "kueue.x-k8s.io/multikueue", "replicas": 4, **QUEUED, **spec}
    before = DDPJob.parse(stored_job(**wanted))
    after = DDPJob.parse(stored_job(status=later, **wanted))
    assert after.status != before.status
    assert workload(after, None)["spec"] == workload(before, None)["spec"]
    assert not must_be_replaced(after, workload(before, None))


def admitted(made: Json, status: str = "True", **spec: Any) -> Json:
    """Return a Workload as it is stored when its quota is reserved."""
    conditions = [
        {"type": type_, "status": status, "reason": "x", "message": "x"}
        for type_ in ("QuotaReserved", "Admitted")
    ]
    return {**made, "spec": {**made["spec"], **spec}, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 3},
        {"template": template(container(image="new"))},
        {"scheduling": {"queueName": "other"}},
    ],
    ids=["more pods", "image", "queue"],
)
def test_workload_of_other_pods_is_replaced_unless_they_run(change: Json) -> None:
    job = elsewhere(replicas=2)
    made = workload(job, None)
    changed = edited(job, **change)
    assert must_be_replaced(changed, made)
    assert must_be_replaced(changed, admitted(made, "False"))
    assert not must_be_replaced(changed, admitted(made))


@pytest.mark.parametrize("change", [{"suspend": True}, {"ttlSecondsAfterFinished": 60}])
def test_workload_is_kept_when_the_pods_stay_the_same(change: Json) -> None:
    job = elsewhere(replicas=2)
    assert not must_be_replaced(edited(job, **change), workload(job, None))


def test_smallest_size_of_an_elastic_job_replaces_its_workload() -> None:
    job = elsewhere(replicas=4, elastic={"minReplicas": 2})
    changed = edited(job, elastic={"minReplicas": 3})
    assert changed.spec_hash == job.spec_hash
    assert must_be_replaced(changed, workload(job, None))


def test_time_limit_of_provisioned_nodes_reaches_their_request() -> None:
    limit = {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": "600"}
    made = workload(elsewhere(**SPECS["provisioned"]), None)["metadata"]["annotations"]
    assert limit.items() <= made.items()
    assert not limit.keys() & workload(elsewhere(), None)["metadata"]["annotations"].keys()


def test_job_owns_the_workload_and_is_no_controller() -> None:
    """Kueue would finish it, because its group has no pods here (`OwnerNotFound`, 0.18)."""
    made = workload(elsewhere(), None)
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("DDPJob", UID, False)
    assert made["metadata"]["labels"]["ddp-operator.io/job-uid"] == UID
    assert made["spec"]["queueName"] == "team"
    assert "priority" not in made["spec"]


@pytest.mark.parametrize("required", [False, True])
def test_workload_requests_the_topology_of_the_pods(*, required: bool) -> None:
    topology = {"level": "block", "required": required}
    job = elsewhere(scheduling={"queueName": "team", "topology": topology})
    [pods] = workload(job, None)["spec"]["podSets"]
    assert pods["topologyRequest"] == {
        "required" if required else "preferred": "cloud.google.com/gce-topology-block",
        "podIndexLabel": "kueue.x-k8s.io/pod-group-pod-index",
    }


@pytest.mark.parametrize("kind", ["annotations", "labels"])
def test_pods_in_the_worker_cluster_belong_to_the_copy(kind: str) -> None:
    name = workload(elsewhere(), None)["metadata"]["name"]
    job = copied(name, kind=kind)
    pod = manifests.pod(job, Identity(0, 3))
    assert pod["metadata"]["labels"][GROUP] == kueue_group(job) == name
    assert job.spec_hash == elsewhere().spec_hash


@pytest.mark.parametrize("name", ["../../nodes/n", "a" * 64, "A", ""], ids=str.__len__)
def test_annotation_that_names_no_pod_group_is_ignored(name: str) -> None:
    document = stored_job(**QUEUED)
    document["metadata"]["annotations"] = {PREBUILT: name}
    assert kueue_group(DDPJob.parse(document)) == kueue_group(fresh_job(**QUEUED))
    document["metadata"]["labels"] = {PREBUILT: "of-the-label"}
    assert kueue_group(DDPJob.parse(document)) == "of-the-label"


@pytest.mark.parametrize("kind", ["annotations", "labels"])
def test_job_for_another_cluster_keeps_its_own_workload(kind: str) -> None:
    """Otherwise its author could have the operator delete or change another Workload."""
    document = stored_job(managedBy="kueue.x-k8s.io/multikueue", **QUEUED)
    document["metadata"][kind] = {PREBUILT: "of-somebody-else"}
    assert reference(DDPJob.parse(document)) == reference(elsewhere())


def test_pods_outside_the_group_of_a_copy_have_groups_of_their_own() -> None:
    job = copied("of-somebody-else", replicas=3, elastic={"minReplicas": 2})
    pods = [manifests.pod(job, Identity(slot, 0)) for slot in range(3)]
    groups = [pod["metadata"]["labels"][GROUP] for pod in pods]
    assert groups == ["of-somebody-else", "of-somebody-else", f"digits-{UID}-0-0-2-0"]


def copy_of(made: Json, annotations: Json | None = None) -> Json:
    """Return a Workload as MultiKueue creates it in a worker cluster."""
    metadata = made["metadata"]
    annotations = {**metadata["annotations"], **(annotations or {})}
    copied = {name: metadata[name] for name in ("namespace", "name")}
    return {**made, "metadata": {**copied, "annotations": annotations, "labels": ORIGIN}}


def test_copy_begins_with_the_failures_of_other_clusters() -> None:
    known = {name: FULL_STATUS[name] for name in ("failures", "restarts", "disruptions")}
    wanted = {"managedBy": "kueue.x-k8s.io/multikueue", **QUEUED}
    made = workload(DDPJob.parse(stored_job(status=FULL_STATUS, **wanted)), None)
    job = copied(made["metadata"]["name"])
    status = first_status(job, copy_of(made))
    assert status is not None
    written = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert known.items() <= written.items()
    assert (status.attempt, status.phase, status.bookkeeping) == (
        0,
        "Pending",
        job.status.bookkeeping,
    )
    assert first_status(job, copy_of(workload(elsewhere(), None))) is None
    assert first_status(job, made) is None, "no copy"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"failures": 7}', '{"restarts": "many"}'])
def test_copy_begins_in_spite_of_malformed_failures(text: str) -> None:
    made = copy_of(workload(elsewhere(), None), {"ddp-operator.io/earlier-failures": text})
    status = first_status(copied(made["metadata"]["name"]), made)
    assert status is None or not status.failures


@pytest.mark.parametrize(
    ("labels", "annotations", "expected"),
    [
        (ORIGIN, {OF: "digits"}, True),
        ({}, {OF: "digits"}, False),
        (ORIGIN, {OF: "another"}, False),
        (ORIGIN, {}, False),
    ],
    ids=["copy", "not copied", "of another job", "of another kind"],
)
def test_only_a_copy_made_for_the_job_is_its_own(
    labels: dict[str, str], annotations: dict[str, str], expected: bool
) -> None:
    job = copied("digits-0a1b2c-0")
    stored = {"metadata": {"labels": labels, "annotations": annotations}}
    assert is_copy_for(job, stored) is expected
    assert not is_copy_for(job, {"metadata": {}})


def test_workload_names_its_job() -> None:
    assert workload(elsewhere(), None)["metadata"]["annotations"][OF] == "digits"


def test_queue_group_does_not_rename_the_workload() -> None:
    job = with_status(elsewhere(), queue_group=2)
    assert workload(job, None)["metadata"]["name"] == f"digits-{UID}-0" == kueue_group(job)
