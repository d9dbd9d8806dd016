"""NVLink domains on 54 nodes in three sub-blocks, with the real scheduler and garbage collector."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest
from ddp_operator.kube import NAMESPACES, NODES, PODS, ApiClient
from ddp_operator.ports import NotFoundError

from tests import cluster
from tests.good_manifests import Json, job
from tests.integration import nvidia_driver
from tests.integration.conftest import new_namespace
from tests.integration.jobs import Jobs
from tests.integration.nvidia_driver import Driver, domain_of
from tests.integration.operator_process import OperatorProcess, flawless_operator
from tests.integration.scheduled_nodes import add_node, with_scheduler
from tests.waiting import eventually

SUB_BLOCKS, NODES_OF_ONE = 3, 18
LABELS: Final = {
    "cloud.google.com/gke-accelerator": "nvidia-gb200",
    "gke.networks.io/accelerator-network-profile": "auto",
    "kubernetes.io/arch": "arm64",
}
A4X: Final = {"type": "nvidia-gb200", "count": 4, "network": "auto"}


@pytest.fixture(scope="module")
def control_plane() -> Iterator[cluster.ControlPlane]:
    with with_scheduler(prepare) as running:
        yield running


async def prepare(client: ApiClient) -> None:
    await nvidia_driver.install(client)
    await asyncio.gather(*(add_a4x(client, number) for number in range(SUB_BLOCKS * NODES_OF_ONE)))


async def add_a4x(client: ApiClient, number: int) -> None:
    """Add an A4X with four GPUs, four network cards and a channel."""
    name = f"node-{number}"
    place = {"cloud.google.com/gce-topology-subblock": f"sub-{number // NODES_OF_ONE}"}
    await add_node(client, name, {**LABELS, **place}, {"nvidia.com/gpu": "4"})
    await nvidia_driver.publish(client, name, cards=4)


@pytest.fixture(scope="module")
def operator(
    control_plane: cluster.ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """An operator for all tests of this module."""
    log = tmp_path_factory.mktemp("operator") / "log"
    with flawless_operator(control_plane.kubeconfig, log, namespace=None) as process:
        yield process


@pytest.fixture
async def driver(admin: ApiClient) -> AsyncIterator[Driver]:
    """NVIDIA's driver. No pod ever loses its connections."""
    async with nvidia_driver.running(admin) as running:
        yield running
        assert running.cut == []


@pytest.fixture
async def users(admin: ApiClient, operator: OperatorProcess, driver: Driver) -> AsyncIterator[Jobs]:
    """The user of a new namespace."""
    assert operator.running
    del driver
    async with new_namespace(admin) as namespace:
        yield Jobs(admin, namespace)


async def placed(jobs: Jobs, count: int, name: str = "job") -> dict[str, int]:
    """Wait until so many live pods of a job have nodes; return the nodes' numbers."""
    nodes: dict[str, int] = {}

    async def enough() -> bool:
        nonlocal nodes
        pods = {
            pod: item["spec"]["nodeName"]
            for pod, item in (await jobs.pods(name)).items()
            if "nodeName" in item["spec"] and "deletionTimestamp" not in item["metadata"]
        }
        nodes = {pod: int(node.rpartition("-")[2]) for pod, node in pods.items()}
        return len(nodes) == count

    await eventually(enough, interval_seconds=0.1, describe=lambda: f"{len(nodes)} are placed")
    return nodes


async def started(users: Jobs, admin: ApiClient, name: str = "job") -> Json:
    """Start a job of two pods, and return its domain as the driver keeps it."""
    await users.create(job(replicas=2, accelerator=A4X), name=name)
    await placed(users, 2, name)
    domain = await domain_of(admin, users.namespace, name)
    assert domain is not None
    return domain


async def end_pods(users: Jobs, admin: ApiClient, name: str = "job") -> None:
    """Remove a job's pods, as kubelets do."""
    now = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
    for pod in await users.pods(name):
        await admin.request("DELETE", PODS.path(namespace=users.namespace, name=pod), body=now)


async def until_pods_end(users: Jobs, name: str = "job") -> None:
    """Wait until all pods of a job are terminating."""

    async def none_lives() -> bool:
        return not await users.live_pods(name)

    await eventually(none_lives, interval_seconds=0.1)
    assert await users.pods(name)


async def until_gone(admin: ApiClient, namespace: str, name: str = "job") -> None:
    """Wait until a job's domain is gone."""

    async def gone() -> bool:
        return await domain_of(admin, namespace, name) is None

    await eventually(gone, interval_seconds=0.2, describe=lambda: f"the domain of {name} stays")


async def test_pods_spares_and_successors_share_a_domain(users: Jobs, admin: ApiClient) -> None:
    spec: dict[str, Any] = {"replicas": 16, "spares": 1, "restart": {"scope": "Pod"}}
    await users.create(job(**spec, accelerator=A4X))
    first = await placed(users, 17)
    [sub_block] = {node // NODES_OF_ONE for node in first.values()}
    assert len(set(first.values())) == 17, "each pod claims all network cards of its node"
    domain = await domain_of(admin, users.namespace)
    assert domain is not None
    assert domain["spec"]["numNodes"] == 17
    lost = first["job-0-3"]
    await admin.request("DELETE", NODES.path(name=f"node-{lost}"))
    now = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
    await admin.request("DELETE", PODS.path(namespace=users.namespace, name="job-0-3"), body=now)

    async def replaced() -> bool:
        return (await users.live_pods()) - first.keys() != set()

    await eventually(replaced, interval_seconds=0.1)
    second = await placed(users, 17)
    assert {node // NODES_OF_ONE for node in second.values()} == {sub_block}
    assert lost not in second.values()
    assert await domain_of(admin, users.namespace) == domain, "the domain was changed"
    await users.delete()
    await until_pods_end(users)
    await end_pods(users, admin)
    await until_gone(admin, users.namespace)
    await add_node_again(admin, lost)


async def add_node_again(admin: ApiClient, number: int) -> None:
    """Return a lost node, for the next test."""
    for name in (await admin.request("GET", nvidia_driver.SLICES.path()))["items"]:
        if name["spec"].get("nodeName") == f"node-{number}":
            path = nvidia_driver.SLICES.path(name=name["metadata"]["name"])
            await admin.request("DELETE", path)
    await add_a4x(admin, number)


async def test_domain_outlives_the_pods_of_a_deleted_job(users: Jobs, admin: ApiClient) -> None:
    domain = await started(users, admin)
    await started(users, admin, "other")
    await users.delete()
    await until_pods_end(users)
    await users.delete("other")
    await until_pods_end(users, "other")
    await end_pods(users, admin, "other")
    # The operator has looked at both by then.
    await until_gone(admin, users.namespace, "other")
    assert await domain_of(admin, users.namespace) == domain
    await end_pods(users, admin)
    await until_gone(admin, users.namespace)


async def test_job_deleted_without_an_operator_leaves_its_domain(
    users: Jobs, admin: ApiClient, operator: OperatorProcess
) -> None:
    domain = await started(users, admin)
    operator.freeze()
    try:
        await users.delete()
        await until_pods_end(users)
        await end_pods(users, admin)
        await users.create(job(replicas=2, accelerator=A4X))
        assert await domain_of(admin, users.namespace) == domain
    finally:
        operator.thaw()

    async def next_job_has_its_own() -> bool:
        found = await domain_of(admin, users.namespace)
        return found is not None and found["metadata"]["uid"] != domain["metadata"]["uid"]

    await eventually(next_job_has_its_own, interval_seconds=0.2)
    await placed(users, 2)
    await users.delete()
    await until_pods_end(users)
    await end_pods(users, admin)
    await until_gone(admin, users.namespace)


async def test_namespace_that_ends_keeps_the_domain_until_pods_are_gone(
    users: Jobs, admin: ApiClient, operator: OperatorProcess
) -> None:
    domain = await started(users, admin)
    path = NAMESPACES.path(name=users.namespace)
    operator.freeze()
    try:
        await admin.request("DELETE", path)
        await until_pods_end(users)

        async def waits_for_pods() -> bool:
            conditions = (await admin.request("GET", path))["status"].get("conditions") or ()
            return any("pods" in c["message"] for c in conditions if c["status"] == "True")

        await eventually(waits_for_pods, interval_seconds=0.2)
        assert await domain_of(admin, users.namespace) == domain
        await end_pods(users, admin)

        async def ended() -> bool:
            try:
                await admin.request("GET", path)
            except NotFoundError:
                return True
            return False

        await eventually(ended, interval_seconds=0.2)
    finally:
        operator.thaw()
