"""Gangs on four nodes with one GPU each, scheduled by a real KAI Scheduler."""

from typing import Any

import pytest
from ddp_operator.kube import PODS, ApiClient
from ddp_operator.ports import NotFoundError

from tests.gang_schedulers.kai.conftest import GPU
from tests.gang_schedulers.kai.scheduler import GROUPS
from tests.good_manifests import Json, container, job, template
from tests.integration.conftest import new_namespace
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.queues.conftest import playing
from tests.integration.queues.nodes import POOL, NodePool
from tests.integration.queues.queue import SINGLE
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("pool", "queues", "life", "shared_operator")


class Users:
    """Creates gangs on the nodes of a test, with one GPU for each pod."""

    def __init__(self, jobs: Jobs, pool: str) -> None:
        self.jobs = jobs
        self.pool = pool

    async def create(
        self, name: str, replicas: int, queue: str = "guest", priority: str = "low", **spec: Any
    ) -> None:
        """Create a gang in one of the test's queues."""
        pods = template(
            container(resources={"limits": {GPU: 1}}),
            nodeSelector={POOL: self.pool},
            priorityClassName=priority,
        )
        scheduling = {"gang": "kai", "queueName": f"{self.pool}-{queue}"}
        manifest = job(replicas=replicas, template=pods, scheduling=scheduling, **spec)
        await self.jobs.create(manifest, name=name)

    async def run(self, name: str, replicas: int, **spec: Any) -> dict[str, Json]:
        """Create a gang, wait until it runs, and return its pods."""
        await self.create(name, replicas, **spec)
        await self.jobs.until_phase("Running", name)
        return await self.jobs.pods(name)

    async def placed(self, name: str) -> set[str]:
        """Return the pods of a job that have a node and are not deleted."""
        pods = await self.jobs.pods(name)
        live = await self.jobs.live_pods(name)
        return {pod for pod in live & pods.keys() if "nodeName" in pods[pod]["spec"]}

    async def until_placed(self, name: str, count: int) -> None:
        """Wait until this number of pods of a job have a node."""

        async def holds() -> bool:
            return len(await self.placed(name)) == count

        await eventually(holds, interval_seconds=0.1, describe=lambda: f"{count} pods of {name}")

    async def run_plain_gang(self, client: ApiClient, *names: str) -> dict[str, Json]:
        """Run a gang that keeps KAI's own rules for lost pods, and return its pods."""
        namespace = self.jobs.namespace
        group = {
            "apiVersion": f"{GROUPS.group}/{GROUPS.version}",
            "kind": "PodGroup",
            "metadata": {"name": f"{namespace}-plain"},
            "spec": {"minMember": len(names), "queue": f"{self.pool}-guest"},
        }
        await client.request("POST", GROUPS.path(namespace=namespace), body=group)
        for name in names:
            await client.request("POST", PODS.path(namespace=namespace), body=self._plain(name))

        pods: dict[str, Json] = {}

        async def run() -> bool:
            pods.update(
                {name: await client.request("GET", _path(namespace, name)) for name in names}
            )
            return all(pod["status"]["phase"] == "Running" for pod in pods.values())

        await eventually(run, interval_seconds=0.1)
        return pods

    def _plain(self, name: str) -> Json:
        annotations = {
            "pod-group-name": f"{self.jobs.namespace}-plain",
            "kai.scheduler/skip-podgrouper": "true",
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "schedulerName": "kai-scheduler",
                "nodeSelector": {POOL: self.pool},
                "containers": [container(resources={"limits": {GPU: 1}})],
            },
        }

    async def until_refused(self, name: str) -> None:
        """Wait until the scheduler has found no room for a job."""
        await self.jobs.until(lambda status: status.reason == "Unschedulable", name)


def _path(namespace: str, pod: str) -> str:
    return PODS.path(namespace=namespace, name=pod)


async def is_gone(client: ApiClient, namespace: str, pod: str) -> bool:
    """Return whether a pod no longer exists."""
    try:
        await client.request("GET", _path(namespace, pod))
    except NotFoundError:
        return True
    return False


@pytest.fixture
def users(jobs: Jobs, namespace: str) -> Users:
    return Users(jobs, namespace)


async def test_gang_waits_until_all_of_its_pods_fit(users: Users, admin: ApiClient) -> None:
    await users.run("first", 1)
    await users.create("job", 4)
    await users.until_refused("job")
    assert await users.placed("job") == set()
    # Three nodes are free, and the waiting gang does not block them.
    await users.run("small", 2)
    assert await users.placed("job") == set()
    await users.jobs.delete("first")
    await users.jobs.delete("small")
    status = await users.jobs.until_phase("Running")
    assert await users.placed("job") == {f"job-0-{index}" for index in range(4)}
    assert (status.restarts, status.disruptions) == (0, 0)
    path = GROUPS.path(namespace=users.jobs.namespace)
    groups = (await admin.request("GET", path))["items"]
    assert len(groups) == 1, "KAI's pod grouper makes none"


async def test_gang_is_apart_from_another_of_its_name(
    users: Users, admin: ApiClient, namespace: str
) -> None:
    async with new_namespace(admin) as other:
        others, kubelet = Users(Jobs(admin, other), namespace), FakeKubelet(admin, other)
        kubelet.binds = False
        async with playing(kubelet):
            await others.run("job", 1)
            await users.run("filler", 1)
            await users.create("job", 3)
            await users.until_refused("job")
            assert await users.placed("job") == set()
            await users.jobs.delete("filler")
            await users.jobs.until_phase("Running")
            assert await others.placed("job") == {"job-0-0"}


async def test_survivors_of_a_lost_node_stay(
    users: Users, admin: ApiClient, pool: NodePool, kubelet: FakeKubelet
) -> None:
    kept = await users.run("job", 2, **SINGLE)
    evicted = await users.run_plain_gang(admin, "plain-0", "plain-1")
    for lost in (kept["job-0-1"], evicted["plain-1"]):
        await pool.remove(lost["spec"]["nodeName"])
        await kubelet.finish(lost["metadata"]["name"])
    # KAI would have evicted the job's survivor first.
    await eventually(lambda: is_gone(admin, users.jobs.namespace, "plain-0"))
    status = await users.jobs.until(lambda s: s.phase == "Running" and s.disruptions > 0)
    assert (status.attempt, status.restarts, status.disruptions) == (0, 0, 1)
    assert await users.placed("job") == {"job-0-0", "job-0-1-r1"}
    survivor = (await users.jobs.pods())["job-0-0"]
    assert survivor["metadata"]["uid"] == kept["job-0-0"]["metadata"]["uid"]


@pytest.mark.parametrize(
    "urgent", [{"priority": "high"}, {"queue": "owner"}], ids=["preempted", "reclaimed"]
)
async def test_evicted_gang_waits_and_returns_whole(users: Users, urgent: Json) -> None:
    await users.run("job", 4)
    await users.run("urgent", 2, **urgent)
    await users.until_refused("job")
    assert await users.placed("job") == set(), "two free nodes are too few"
    status = await users.jobs.status("urgent")
    assert (status.restarts, status.disruptions) == (0, 0)
    await users.jobs.delete("urgent")
    status = await users.jobs.until_phase("Running")
    assert len(await users.placed("job")) == 4
    assert (status.restarts, status.disruptions) == (0, 1)


async def test_gang_of_priority_100_needs_quota(users: Users) -> None:
    await users.create("job", 2, priority="fixed")
    status = await users.jobs.until(lambda status: status.reason == "Unschedulable")
    assert "NonPreemptibleOverQuota" in status.message
    await users.run("other", 2, queue="owner", priority="fixed")
    assert await users.placed("job") == set()
