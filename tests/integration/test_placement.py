"""Sixty-four nodes with the labels of a topology, placed on by the real scheduler."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final

import pytest
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.kube import NODES, ApiClient, check_served, load_credentials
from ddp_operator.kube.client import MERGE_PATCH

from tests import cluster
from tests.good_manifests import Json, container, job, template
from tests.integration import pod_groups
from tests.integration.conftest import install_crd, new_namespace
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.operator_process import OperatorProcess, flawless_operator
from tests.skipping import skip_or_fail
from tests.waiting import eventually

TOPOLOGY: Final = "cloud.google.com/gce-topology-"
BLOCKS, SUB_BLOCKS, HOSTS = 4, 4, 4
"""Of the cluster, of each block, of each sub-block."""
DEVICE: Final = "example.com/device"
"""A node has one, and each pod takes one."""


@pytest.fixture(scope="module")
def control_plane() -> Iterator[cluster.ControlPlane]:
    """One of its own: a scheduler would take the pods of other tests, too."""
    try:
        with cluster.control_plane(controllers=True, scheduler=True) as running:
            asyncio.run(prepare(running))
            yield running
    except cluster.ClusterUnavailableError as reason:
        skip_or_fail("API SERVER WITH A SCHEDULER", reason)


async def prepare(running: cluster.ControlPlane) -> None:
    async with ApiClient(load_credentials(kubeconfig=str(running.kubeconfig))) as client:
        await install_crd(client)
        await asyncio.gather(
            *(add_node(client, number) for number in range(BLOCKS * SUB_BLOCKS * HOSTS))
        )


async def add_node(client: ApiClient, number: int) -> None:
    """A node that no kubelet runs: Ready, with room for one pod that takes a device."""
    sub_block, block = number // HOSTS, number // (HOSTS * SUB_BLOCKS)
    places = {"block": f"block-{block}", "subblock": f"sub-{sub_block}", "host": f"host-{number}"}
    name = f"node-{number}"
    labels = {TOPOLOGY + level: place for level, place in places.items()}
    metadata = {"name": name, "labels": {**labels, "kubernetes.io/hostname": name}}
    body: Json = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    await client.request("POST", NODES.path(), body=body)
    room = {"cpu": "8", "memory": "8Gi", "pods": "110", DEVICE: "1"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"capacity": room, "allocatable": room, "conditions": [ready]}
    path = NODES.path(name=name)
    change = {"status": status}
    await client.request("PATCH", f"{path}/status", body=change, content_type=MERGE_PATCH)
    # The server taints each new node as not ready, and no controller is there to see that it is.
    untainted = {"spec": {"taints": None}}
    await client.request("PATCH", path, body=untainted, content_type=MERGE_PATCH)


@pytest.fixture(scope="module")
def placing_operator(
    control_plane: cluster.ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """An operator for all tests of this module."""
    log = tmp_path_factory.mktemp("operator") / "log"
    with flawless_operator(control_plane.kubeconfig, log, namespace=None) as process:
        yield process


@pytest.fixture
async def users(admin: ApiClient, placing_operator: OperatorProcess) -> AsyncIterator[Jobs]:
    """A user of a namespace of its own, whose pods give back their nodes in the end."""
    assert placing_operator.running
    async with new_namespace(admin) as namespace:
        jobs = Jobs(admin, namespace)
        yield jobs
        for name in ("filler", "job"):
            if await jobs.exists(name):
                await jobs.discard(name)


def asking(replicas: int, *, pod: Json | None = None, **topology: Any) -> Json:
    """A job of pods that take a node each."""
    pods = template(container(resources={"limits": {DEVICE: 1}}), **(pod or {}))
    scheduling = {"topology": topology} if topology else {}
    return job(replicas=replicas, template=pods, scheduling=scheduling)


def is_placed(pod: Json) -> bool:
    return "nodeName" in pod["spec"]


async def nodes_of(jobs: Jobs, *, count: int, name: str = "job") -> list[int]:
    """The numbers of the nodes that the pods of a job were given, once so many were."""
    placed: list[Json] = []

    async def enough() -> bool:
        nonlocal placed
        placed = [pod for pod in (await jobs.pods(name)).values() if is_placed(pod)]
        return len(placed) == count

    await eventually(enough, interval_seconds=0.05, describe=lambda: f"{len(placed)} are placed")
    return [int(pod["spec"]["nodeName"].rpartition("-")[2]) for pod in placed]


def blocks(nodes: Sequence[int]) -> set[int]:
    return {node // (HOSTS * SUB_BLOCKS) for node in nodes}


async def run(jobs: Jobs, admin: ApiClient, name: str = "job") -> DDPJobStatus:
    """Play the kubelets of a job's pods; returns its status when all of them run."""
    kubelet = FakeKubelet(admin, jobs.namespace)
    for pod in await jobs.pods(name):
        await kubelet.run(pod)
    return await jobs.until_phase("Running", name)


async def test_a_job_of_sixteen_lands_in_one_block(users: Jobs, admin: ApiClient) -> None:
    await users.create(asking(16, level="block", required=True))
    assert len(blocks(await nodes_of(users, count=16))) == 1
    status = await run(users, admin)
    assert status.placement == "16 hosts, 4 sub-blocks, 1 block"
    told = await users.until_told("Spread")
    assert told.startswith("the pods run in 4 sub-blocks: 4 in sub-")
    assert told.endswith(" and 4 elsewhere")


async def test_a_job_that_no_block_can_take_says_why_it_waits(users: Jobs) -> None:
    await users.create(asking(17, level="block", required=True))
    assert len(blocks(await nodes_of(users, count=16))) == 1
    status = await users.until(lambda status: status.reason == "Unschedulable")
    assert status.phase == "Pending"
    assert "didn't match pod affinity" in status.message
    assert "didn't match pod affinity" in await users.until_told("Unschedulable")
    assert status.placement == ""


async def test_what_is_preferred_is_together_as_far_as_it_goes(
    users: Jobs, admin: ApiClient
) -> None:
    await users.create(asking(17, level="block"))
    assert len(blocks(await nodes_of(users, count=17))) == 2
    status = await run(users, admin)
    assert status.placement.endswith(" 2 blocks")
    assert (await users.until_told("Spread")).startswith("the pods run in 2 blocks: 16 in block-")


async def test_pods_follow_the_first_one_also_where_there_is_no_room(users: Jobs) -> None:
    """What README warns of: nobody counts before the first pod is placed."""
    first = {f"{TOPOLOGY}block": "block-0"}
    await users.create(asking(13, pod={"nodeSelector": first}), name="filler")
    assert blocks(await nodes_of(users, count=13, name="filler")) == {0}
    [(key, value)] = first.items()
    wish = {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
    wishes = {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": wish}]
    }
    pod = {"affinity": {"nodeAffinity": wishes}}
    await users.create(asking(4, pod=pod, level="block", required=True))
    assert blocks(await nodes_of(users, count=3)) == {0}, "three blocks are empty"
    status = await users.until(lambda status: status.reason == "Unschedulable")
    assert "didn't match pod affinity" in status.message


async def test_of_two_native_gangs_with_room_for_one_the_other_gets_no_node(
    users: Jobs, admin: ApiClient
) -> None:
    if not await check_served(admin, pod_groups.NATIVE):
        pytest.skip(f"this server does not offer {pod_groups.NATIVE}: Kubernetes 1.37 does")
    gang = asking(40)
    gang["spec"]["scheduling"] = {"gang": "native"}
    await users.create(gang, name="filler")
    await nodes_of(users, count=40, name="filler")
    await users.create(gang)
    status = await users.until(lambda status: status.reason == "Unschedulable")
    assert status.phase == "Pending"
    assert not any(is_placed(pod) for pod in (await users.pods("job")).values())
    await users.discard("filler")
    await nodes_of(users, count=40)
