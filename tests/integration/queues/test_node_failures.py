"""Nodes fail that Kueue has chosen for a job.

The cases are those of test/e2e/tas/hotswap_test.go of https://github.com/kubernetes-sigs/kueue
(0.17), with a DDPJob instead of a JobSet or Job. Kueue's feature gates for them are on by default:
TASFailedNodeReplacement, TASFailedNodeReplacementFailFast, TASReplaceNodeOnPodTermination and
TASReplaceNodeOnNodeTaints.
"""

from collections.abc import AsyncIterator

import pytest
from ddp_operator.api.constants import LABEL_INDEX
from ddp_operator.kube import ApiClient

from tests.good_manifests import Json
from tests.integration.jobs import Jobs
from tests.integration.kubelet import HOSTNAME, FakeKubelet
from tests.integration.operator_process import OperatorProcess
from tests.integration.queues.nodes import NodePool, assigned, new_pool, new_topology_queue
from tests.integration.queues.queue import (
    NAME,
    SINGLE,
    Queue,
    admission,
    is_true,
    queued_job,
    workload_of,
)
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("kueue", "pool", "queue", "operator", "life")

FAILURES = ("Unknown", "NoExecute", "NoSchedule")
"""The status of a silent node, and effects of taints."""
DAILY = FAILURES[0]


@pytest.fixture
async def pool(admin: ApiClient, namespace: str) -> AsyncIterator[NodePool]:
    """Four nodes in two sub-blocks of one block."""
    async with new_pool(admin, namespace) as pool:
        yield pool


@pytest.fixture
async def queue(admin: ApiClient, namespace: str) -> Queue:
    """The queue `team` over these nodes."""
    return await new_topology_queue(admin, namespace)


def near_job(level: str, **spec: object) -> Json:
    """Return a job that needs all its pods in one domain of this level."""
    topology = {"level": level, "required": True}
    return queued_job(**{"scheduling": {"queueName": NAME, "topology": topology}, **SINGLE, **spec})


async def nodes_of(jobs: Jobs) -> dict[int, str]:
    """Return the nodes of a job's running pods, by index."""
    return {
        int(pod["metadata"]["labels"][LABEL_INDEX]): pod["spec"]["nodeName"]
        for pod in (await jobs.pods()).values()
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


async def assigned_to(jobs: Jobs, node: str) -> set[str]:
    """Return the pods that Kueue has admitted to a node and that have not ended."""
    return {
        name
        for name, pod in (await jobs.pods()).items()
        if (pod["spec"].get("nodeSelector") or {}).get(HOSTNAME) == node
        and pod["status"]["phase"] in ("Pending", "Running")
        and "deletionTimestamp" not in pod["metadata"]
    }


async def runs_on(jobs: Jobs, queue: Queue, *nodes: str) -> Json:
    """Wait until Kueue has chosen exactly these nodes and pods run there; return the Workload."""
    chosen_and_used: object = None
    workload: Json = {}

    async def holds() -> bool:
        nonlocal chosen_and_used, workload
        workload = await workload_of(queue)
        chosen_and_used = chosen, used = assigned(workload), await nodes_of(jobs)
        return sorted(chosen) == sorted(used.values()) == sorted(nodes)

    await eventually(
        holds, interval_seconds=0.1, describe=lambda: f"chosen and used: {chosen_and_used}"
    )
    return workload


async def until_run(jobs: Jobs, pods: int) -> None:
    """Wait until this number of pods runs."""

    async def holds() -> bool:
        return len(await nodes_of(jobs)) == pods

    await eventually(holds, interval_seconds=0.1)


async def fail_under_pod(
    jobs: Jobs, pool: NodePool, kubelet: FakeKubelet, node: str, how: str
) -> None:
    """Let a node fail, with the pod on it."""
    [index] = [index for index, name in (await nodes_of(jobs)).items() if name == node]
    [pod] = [name for name in await jobs.live_pods() if name.startswith(f"job-0-{index}")]
    kubelet.cordoned.add(node)
    if how == "Unknown":
        await pool.set_ready(node, how)
        await jobs.delete_pod(pod)  # as Kubernetes does after five minutes
    else:
        await pool.taint(node, how)
        if how == "NoSchedule":  # this taint does not end the pod
            await kubelet.fail(pod, exit_code=139)


@pytest.mark.parametrize(
    "how",
    [pytest.param(how, marks=() if how == DAILY else pytest.mark.nightly) for how in FAILURES],
)
async def test_another_node_of_the_block_replaces_a_failed_one(
    jobs: Jobs,
    queue: Queue,
    pool: NodePool,
    kubelet: FakeKubelet,
    operator: OperatorProcess,
    how: str,
) -> None:
    """The job keeps its quota if Kueue drops the node before the replacement pod exists."""
    await jobs.create(near_job("block", replicas=3))
    before = await runs_on(jobs, queue, *pool.names[:3])
    nodes = await nodes_of(jobs)
    assert [nodes[rank] for rank in range(3)] == assigned(before)
    assert await assigned_to(jobs, pool.names[1]) == {"job-0-1"}
    operator.freeze()
    await fail_under_pod(jobs, pool, kubelet, pool.names[1], how)

    async def is_dropped() -> bool:
        return pool.names[1] not in assigned(await workload_of(queue))

    await eventually(is_dropped, interval_seconds=0.1)
    operator.thaw()
    after = await runs_on(jobs, queue, pool.names[0], *pool.names[2:])
    assert admission(after) == admission(before)
    assert (await nodes_of(jobs))[1] == pool.names[3]
    assert (await jobs.status()).restarts == (1 if how == "NoSchedule" else 0)


@pytest.mark.nightly
@pytest.mark.parametrize("how", FAILURES)
async def test_replacement_before_kueue_drops_the_node_runs_elsewhere(
    jobs: Jobs, queue: Queue, pool: NodePool, kubelet: FakeKubelet, how: str
) -> None:
    """Kueue 0.17 may admit the pod to that node and then ends it. If that changes the Workload
    while Kueue looks for another node, Kueue looks twice. It then finds that this job itself uses
    the node that it chose first, and evicts the job.
    """
    await jobs.create(near_job("block", replicas=3))
    before = await runs_on(jobs, queue, *pool.names[:3])
    await fail_under_pod(jobs, pool, kubelet, pool.names[1], how)
    after = await runs_on(jobs, queue, pool.names[0], *pool.names[2:])
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert await assigned_to(jobs, pool.names[1]) == set()
    assert (await jobs.status()).restarts == (1 if how == "NoSchedule" else 0)


@pytest.mark.nightly
async def test_job_without_another_node_in_its_sub_block_moves(
    jobs: Jobs, queue: Queue, pool: NodePool, kubelet: FakeKubelet
) -> None:
    await jobs.create(near_job("sub-block"))
    before = await runs_on(jobs, queue, *pool.names[:2])
    await fail_under_pod(jobs, pool, kubelet, pool.names[0], "NoExecute")
    after = await runs_on(jobs, queue, *pool.names[2:])
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert (await jobs.status()).restarts == 0


@pytest.mark.nightly
async def test_job_that_lost_two_nodes_waits_until_they_recover(
    jobs: Jobs, queue: Queue, pool: NodePool
) -> None:
    await jobs.create(near_job("block", replicas=3))
    before = await runs_on(jobs, queue, *pool.names[:3])
    for node in pool.names[:2]:
        await pool.taint(node, "NoExecute")
    await jobs.until(lambda status: status.reason == "Queued")
    await queue.until_used(0)
    for node in pool.names[:2]:
        await pool.taint(node, "")
    after = await workload_of(queue)
    await until_run(jobs, 3)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert (await jobs.status()).restarts == 0


@pytest.mark.nightly
async def test_node_that_fails_before_its_pod_starts_is_replaced(
    jobs: Jobs, queue: Queue, pool: NodePool, kubelet: FakeKubelet
) -> None:
    """Kueue ends a pod that waits for such a node, because no other controller does."""
    kubelet.cordoned.add(pool.names[1])
    await jobs.create(near_job("block", replicas=3))
    await until_run(jobs, 2)
    before = await workload_of(queue)
    await pool.set_ready(pool.names[1], "Unknown")
    after = await runs_on(jobs, queue, pool.names[0], *pool.names[2:])
    assert admission(after) == admission(before)
    status = await jobs.status()
    assert (status.restarts, is_true(after, "Evicted")) == (0, False)


@pytest.mark.nightly
async def test_job_that_avoids_a_node_queues_again_without_it(
    jobs: Jobs, queue: Queue, pool: NodePool, kubelet: FakeKubelet
) -> None:
    """Kueue considers the node healthy and would keep the pod there."""
    await jobs.create(near_job("block", replicas=3, restart={"scope": "Pod"}))
    before = await runs_on(jobs, queue, *pool.names[:3])
    kubelet.cordoned.add(pool.names[1])  # a scheduler obeys the affinity
    await kubelet.fail("job-0-1", message="CUDA error: uncorrectable ECC error encountered")
    after = await runs_on(jobs, queue, pool.names[0], *pool.names[2:])
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    status = await jobs.status()
    assert (status.restarts, status.bookkeeping.barred_nodes) == (0, (pool.names[1],))
