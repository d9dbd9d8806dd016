"""Gangs on four nodes with one chip each, scheduled by Coscheduling."""

from typing import Any

import pytest
from ddp_operator.kube import ApiClient

from tests.gang_schedulers.coscheduling import SCHEDULER
from tests.good_manifests import container, job, template
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.pod_groups import COSCHEDULING, group_of
from tests.integration.queues.nodes import POOL
from tests.integration.queues.queue import CHIP, SINGLE
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("pool", "life", "shared_operator")


@pytest.fixture
def users(jobs: Jobs) -> "Users":
    return Users(jobs)


class Users:
    """Creates gangs with one node for each pod, and finds their nodes."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs

    async def create(self, name: str, replicas: int, **spec: Any) -> None:
        """Create a gang for the test's nodes."""
        pods = template(
            container(resources={"limits": {CHIP: 1}}),
            nodeSelector={POOL: self.jobs.namespace},
            schedulerName=SCHEDULER,
        )
        scheduling = {"gang": "coscheduling"}
        manifest = job(replicas=replicas, template=pods, scheduling=scheduling, **spec)
        await self.jobs.create(manifest, name=name)

    async def placed(self, name: str) -> set[str]:
        """Return the pods of a job that have a node, including deleted ones."""
        pods = await self.jobs.pods(name)
        return {pod for pod, manifest in pods.items() if "nodeName" in manifest["spec"]}

    async def until_refused(self, name: str) -> None:
        """Wait until the scheduler has found no room for a job."""
        await self.jobs.until(lambda status: status.reason == "Unschedulable", name)


async def test_gang_waits_until_all_of_its_pods_fit(users: Users) -> None:
    await users.create("first", 2)
    await users.jobs.until_phase("Running", "first")
    await users.create("job", 3)
    await users.until_refused("job")
    assert await users.placed("job") == set()
    # Two nodes are free, and the waiting gang does not block them.
    await users.create("small", 2)
    await users.jobs.until_phase("Running", "small")
    assert await users.placed("job") == set()
    await users.jobs.delete("first")
    await users.jobs.delete("small")
    status = await users.jobs.until_phase("Running")
    assert await users.placed("job") == {f"job-0-{index}" for index in range(3)}
    assert (status.restarts, status.disruptions) == (0, 0)


async def test_gang_restarts_in_the_same_group(
    users: Users, admin: ApiClient, kubelet: FakeKubelet
) -> None:
    await users.create("job", 3, restart={"scope": "Gang", "backoff": {"initialSeconds": 0}})
    await users.jobs.until_phase("Running")
    before = await group_of(admin, COSCHEDULING, users.jobs.namespace)
    await kubelet.fail("job-0-1")
    await users.jobs.until_pods(*(f"job-1-{index}" for index in range(3)))
    status = await users.jobs.until_phase("Running")
    assert (status.attempt, status.restarts) == (1, 1)
    after = await group_of(admin, COSCHEDULING, users.jobs.namespace)
    assert before is not None
    assert after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def test_failed_pod_is_replaced_in_its_gang(users: Users, kubelet: FakeKubelet) -> None:
    await users.create("job", 3, **SINGLE)
    await users.jobs.until_phase("Running")
    pods = await users.jobs.pods()
    await kubelet.fail("job-0-1")
    await users.jobs.until_pods("job-0-0", "job-0-1-r1", "job-0-2")
    status = await users.jobs.until(lambda s: s.phase == "Running" and s.restarts == 1)
    now = await users.jobs.pods()
    assert status.attempt == 0
    for kept in ("job-0-0", "job-0-2"):
        assert now[kept]["metadata"]["uid"] == pods[kept]["metadata"]["uid"]


async def test_after_a_restart_one_of_two_gangs_has_all_nodes(
    users: Users, kubelet: FakeKubelet
) -> None:
    restart = {"scope": "Gang", "backoff": {"initialSeconds": 0}}
    await users.create("first", 3, restart=restart)
    await users.jobs.until_phase("Running", "first")
    await users.create("job", 3, restart=restart)
    await users.until_refused("job")
    await kubelet.fail("first-0-1")
    placed: dict[str, set[str]] = {}

    async def one_has_all() -> bool:
        nonlocal placed
        placed = {name: await users.placed(name) for name in ("first", "job")}
        live = {name: placed[name] & await users.jobs.live_pods(name) for name in placed}
        return sorted(map(len, live.values())) == [0, 3]

    await users.jobs.until(lambda status: status.restarts == 1, "first")
    await eventually(one_has_all, interval_seconds=0.1, describe=lambda: f"{placed} are placed")
    [winner] = [name for name, pods in placed.items() if pods & await users.jobs.live_pods(name)]
    await users.jobs.until_phase("Running", winner)
    await users.jobs.delete(winner)
    [other] = placed.keys() - {winner}
    await users.jobs.until_phase("Running", other)
