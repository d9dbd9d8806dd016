"""Jobs whose topology a real Kueue cannot give them."""

from typing import Any

import pytest
from ddp_operator.kube import ApiClient, Resource
from ddp_operator.kube.client import MERGE_PATCH

from tests.integration.jobs import Jobs
from tests.integration.queues.explained import explained
from tests.integration.queues.queue import CHIP, Queue, queued_job

pytestmark = pytest.mark.usefixtures("kueue", "operator", "life", "queue", "blocks")

API = ("kueue.x-k8s.io", "v1beta2")
BLOCK = "cloud.google.com/gce-topology-block"
HOST = "kubernetes.io/hostname"


@pytest.fixture
async def blocks(admin: ApiClient, namespace: str, queue: Queue) -> None:
    """A queue with quota for nodes in blocks, of which there is none yet."""
    del queue

    async def create(plural: str, kind: str, **spec: Any) -> None:
        body = {
            "apiVersion": "/".join(API),
            "kind": kind,
            "metadata": {"name": namespace},
            "spec": spec,
        }
        await admin.request("POST", Resource(*API, plural).path(), body=body)

    await create("topologies", "Topology", levels=[{"nodeLabel": BLOCK}, {"nodeLabel": HOST}])
    flavor = {"nodeLabels": {"pool": namespace}, "topologyName": namespace}
    await create("resourceflavors", "ResourceFlavor", **flavor)
    quota = {"name": namespace, "resources": [{"name": CHIP, "nominalQuota": 2}]}
    groups = [{"coveredResources": [CHIP], "flavors": [quota]}]
    await admin.request(
        "PATCH",
        Resource(*API, "clusterqueues").path(name=namespace),
        body={"spec": {"resourceGroups": groups}},
        content_type=MERGE_PATCH,
    )


@pytest.mark.parametrize(
    ("level", "cause"),
    [
        ("block", "no node of the queue has the level of spec.scheduling.topology"),
        ("sub-block", "the queue's nodes lack the level of spec.scheduling.topology"),
    ],
)
async def test_a_required_topology_is_the_cause_of_a_wait(
    admin: ApiClient, jobs: Jobs, level: str, cause: str
) -> None:
    topology = {"level": level, "required": True}
    await jobs.create(queued_job(scheduling={"queueName": "team", "topology": topology}))
    found = await explained(admin, jobs, lambda state: state.cause.startswith(cause))
    assert "choose another spec.scheduling.topology.level" in found.remedies[0]
    assert found.position == ""
