"""Topology on sixty-four labelled nodes, with the real scheduler."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final

import pytest
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.kube import ApiClient, check_served

from tests import cluster
from tests.good_manifests import Json, container, job, template
from tests.integration import pod_groups
from tests.integration.conftest import new_namespace
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.operator_process import OperatorProcess, flawless_operator
from tests.integration.scheduled_nodes import add_node, with_scheduler
from tests.waiting import eventually

TOPOLOGY: Final = "cloud.google.com/gce-topology-"
BLOCKS, SUB_BLOCKS, HOSTS = 4, 4, 4
"""Blocks of the cluster, sub-blocks of each block, hosts of each sub-block."""
DEVICE: Final = "example.com/device"
"""Each node has one, and each pod requests one."""


@pytest.fixture(scope="module")
def control_plane() -> Iterator[cluster.ControlPlane]:
    with with_scheduler(prepare) as running:
        yield running


async def prepare(client: ApiClient) -> None:
    await asyncio.gather(
        *(add_host(client, number) for number in range(BLOCKS * SUB_BLOCKS * HOSTS))
    )


async def add_host(client: ApiClient, number: int) -> None:
    """Add a node with one device."""
    sub_block, block = number // HOSTS, number // (HOSTS * SUB_BLOCKS)
    places = {"block": f"block-{block}", "subblock": f"sub-{sub_block}", "host": f"host-{number}"}
    labels = {TOPOLOGY + level: place for level, place in places.items()}
    await add_node(client, f"node-{number}", labels, {DEVICE: "1"})


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
    """The user of a new namespace; its pods release their nodes at the end."""
    assert placing_operator.running
    async with new_namespace(admin) as namespace:
        jobs = Jobs(admin, namespace)
        yield jobs
        for name in ("filler", "job"):
            if await jobs.exists(name):
                await jobs.discard(name)


def a_job(replicas: int, *, pod: Json | None = None, **topology: Any) -> Json:
    """Return a job with pods that need a node each."""
    pods = template(container(resources={"limits": {DEVICE: 1}}), **(pod or {}))
    if not topology:
        return job(replicas=replicas, template=pods)
    # Pods that differ cannot swap ranks, so the job does not wait for launchers to order them.
    overrides = [{"indexes": ["0"], "nprocPerNode": 2}]
    scheduling = {"topology": topology}
    return job(replicas=replicas, template=pods, scheduling=scheduling, overrides=overrides)


def is_placed(pod: Json) -> bool:
    return "nodeName" in pod["spec"]


async def nodes_of(jobs: Jobs, *, count: int, name: str = "job") -> list[int]:
    """Wait until so many pods of a job have a node, and return the nodes' numbers."""
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
    """Run all pods of a job; return its status when it is Running."""
    kubelet = FakeKubelet(admin, jobs.namespace)
    for pod in await jobs.pods(name):
        await kubelet.run(pod)
    return await jobs.until_phase("Running", name)


async def test_sixteen_pods_run_in_one_block(users: Jobs, admin: ApiClient) -> None:
    await users.create(a_job(16, level="block", required=True))
    assert len(blocks(await nodes_of(users, count=16))) == 1
    status = await run(users, admin)
    assert status.placement == "16 hosts, 4 sub-blocks, 1 block"
    message = await users.until_told("Spread")
    assert message.startswith("the pods run in 4 sub-blocks: 4 in sub-")
    assert message.endswith(" and 4 elsewhere")


async def test_job_too_large_for_a_block_reports_its_cause(users: Jobs) -> None:
    await users.create(a_job(17, level="block", required=True))
    assert len(blocks(await nodes_of(users, count=16))) == 1
    status = await users.until(lambda status: status.reason == "Unschedulable")
    assert status.phase == "Pending"
    assert "didn't match pod affinity" in status.message
    assert "didn't match pod affinity" in await users.until_told("Unschedulable")
    assert status.placement == ""


async def test_job_too_large_for_its_preferred_block_uses_two(
    users: Jobs, admin: ApiClient
) -> None:
    await users.create(a_job(17, level="block"))
    assert len(blocks(await nodes_of(users, count=17))) == 2
    status = await run(users, admin)
    assert status.placement.endswith(" 2 blocks")
    assert (await users.until_told("Spread")).startswith("the pods run in 2 blocks: 16 in block-")


async def test_pods_follow_the_first_into_a_block_without_room(users: Jobs) -> None:
    """Reproduce what README warns of: nothing counts places before the first pod is placed."""
    first = {f"{TOPOLOGY}block": "block-0"}
    await users.create(a_job(13, pod={"nodeSelector": first}), name="filler")
    assert blocks(await nodes_of(users, count=13, name="filler")) == {0}
    [(key, value)] = first.items()
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
    preferred = {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]
    }
    pod = {"affinity": {"nodeAffinity": preferred}}
    await users.create(a_job(4, pod=pod, level="block", required=True))
    assert blocks(await nodes_of(users, count=3)) == {0}, "three blocks are empty"
    status = await users.until(lambda status: status.reason == "Unschedulable")
    assert "didn't match pod affinity" in status.message


async def test_of_two_native_gangs_with_room_for_one_the_other_waits(
    users: Jobs, admin: ApiClient
) -> None:
    if not await check_served(admin, pod_groups.NATIVE):
        pytest.skip(f"this server does not offer {pod_groups.NATIVE}: Kubernetes 1.37 does")
    gang = a_job(40)
    gang["spec"]["scheduling"] = {"gang": "native"}
    await users.create(gang, name="filler")
    await nodes_of(users, count=40, name="filler")
    await users.create(gang)
    status = await users.until(lambda status: status.reason == "Unschedulable")
    assert status.phase == "Pending"
    assert not any(is_placed(pod) for pod in (await users.pods("job")).values())
    await users.discard("filler")
    await nodes_of(users, count=40)
