"""Tests of MultiKueue: the Workload in the manager cluster, and pods in a worker cluster."""

from collections import Counter
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.multikueue import workload
from ddp_operator.job.pods.schedulers.kueue import kueue_group
from ddp_operator.job.pods.state import Identity

from tests.unit.job.builders import UID, fresh_job, stored_job, with_status

ROLE = "kueue.x-k8s.io/role-hash"
GROUP = "kueue.x-k8s.io/pod-group-name"
QUEUED: dict[str, Any] = {"scheduling": {"queueName": "team"}}


def elsewhere(**spec: Any) -> DDPJob:
    return fresh_job(managedBy="kueue.x-k8s.io/multikueue", **QUEUED | spec)


def copied(name: str, **spec: Any) -> DDPJob:
    """Return a job as MultiKueue creates it in a worker cluster."""
    document = stored_job(**QUEUED, **spec)
    document["metadata"]["labels"] = {"kueue.x-k8s.io/prebuilt-workload-name": name}
    return DDPJob.parse(document)


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        ({"replicas": 3}, {"pods": 3}),
        ({"replicas": 2, "spares": 1, "restart": {"scope": "Pod"}}, {"pods": 3}),
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
    ids=["equal", "with a spare", "overrides"],
)
def test_workload_has_the_roles_of_the_pods(spec: dict[str, Any], counts: dict[str, int]) -> None:
    job = elsewhere(**spec)
    pod_sets = workload(job, None)["spec"]["podSets"]
    assert [(one["name"], one["count"]) for one in pod_sets] == [*counts.items()]
    pods = [manifests.pod(job, Identity(slot, 0)) for slot in range(sum(counts.values()))]
    assert Counter(pod["metadata"]["annotations"][ROLE] for pod in pods) == counts
    for one in pod_sets:
        assert one["template"]["spec"] in [pod["spec"] for pod in pods]


def test_job_owns_the_workload() -> None:
    made = workload(elsewhere(), None)
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("DDPJob", UID, True)
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


def test_pods_in_the_worker_cluster_belong_to_the_copy() -> None:
    name = workload(elsewhere(), None)["metadata"]["name"]
    job = copied(name)
    pod = manifests.pod(job, Identity(0, 3))
    assert pod["metadata"]["labels"][GROUP] == kueue_group(job) == name
    assert job.spec_hash == elsewhere().spec_hash


def test_queue_group_does_not_rename_the_workload() -> None:
    job = with_status(elsewhere(), queue_group=2)
    assert workload(job, None)["metadata"]["name"] == f"digits-{UID}-0"
