"""Gangs as Coscheduling places them on four nodes with one chip each."""

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
    """Creates gangs of pods that take a node each, and looks where they are."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs

    async def create(self, name: str, replicas: int, **spec: Any) -> None:
        """Create a gang in the test's nodes."""
        pods = template(
            container(resources={"limits": {CHIP: 1}}),
            nodeSelector={POOL: self.jobs.namespace},
            schedulerName=SCHEDULER,
        )
        scheduling = {"gang": "coscheduling"}
        manifest = job(replicas=replicas, template=pods, scheduling=scheduling, **spec)
        await self.jobs.create(manifest, name=name)

    async def placed(self, name: str) -> set[str]:
        """Return the pods of a job that have a node, deleted ones included."""
        pods = await self.jobs.pods(name)
        return {pod for pod, manifest in pods.items() if "nodeName" in manifest["spec"]}

    async def until_refused(self, name: str) -> None:
        """Wait until the scheduler has found no room for a job."""
        await self.jobs.until(lambda status: status.reason == "Unschedulable", name)


async def test_a_gang_waits_until_all_of_it_fits(users: Users) -> None:
    await users.create("first", 2)
    await users.jobs.until_phase("Running", "first")
    await users.create("job", 3)
    await users.until_refused("job")
    assert await users.placed("job") == set()
    # Two nodes are free, and the gang that waits keeps nobody from them.
    await users.create("small", 2)
    await users.jobs.until_phase("Running", "small")
    assert await users.placed("job") == set()
    await users.jobs.delete("first")
    await users.jobs.delete("small")
    status = await users.jobs.until_phase("Running")
    assert await users.placed("job") == {f"job-0-{index}" for index in range(3)}
    assert (status.restarts, status.disruptions) == (0, 0)


async def test_a_gang_restarts(users: Users, admin: ApiClient, kubelet: FakeKubelet) -> None:
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


async def test_one_pod_is_replaced_in_its_gang(users: Users, kubelet: FakeKubelet) -> None:
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


async def test_of_two_gangs_one_has_all_nodes_after_a_restart(
    users: Users, kubelet: FakeKubelet
) -> None:
    restart = {"scope": "Gang", "backoff": {"initialSeconds": 0}}
    await users.create("first", 3, restart=restart)
    await users.jobs.until_phase("Running", "first")
    await users.create("job", 3, restart=restart)
    await users.until_refused("job")
    await kubelet.fail("first-0-1")
    found: dict[str, set[str]] = {}

    async def one_has_all() -> bool:
        nonlocal found
        found = {name: await users.placed(name) for name in ("first", "job")}
        live = {name: found[name] & await users.jobs.live_pods(name) for name in found}
        return sorted(map(len, live.values())) == [0, 3]

    await users.jobs.until(lambda status: status.restarts == 1, "first")
    await eventually(one_has_all, interval_seconds=0.1, describe=lambda: f"{found} are placed")
    [winner] = [name for name, pods in found.items() if pods & await users.jobs.live_pods(name)]
    await users.jobs.until_phase("Running", winner)
    await users.jobs.delete(winner)
    [other] = found.keys() - {winner}
    await users.jobs.until_phase("Running", other)


async def test_a_deleted_job_leaves_no_group(users: Users, admin: ApiClient) -> None:
    await users.create("job", 2)
    await users.jobs.until_phase("Running")
    assert await group_of(admin, COSCHEDULING, users.jobs.namespace)
    await users.jobs.delete()

    async def gone() -> bool:
        groups = await admin.request("GET", COSCHEDULING.path(namespace=users.jobs.namespace))
        return not (groups["items"] or await users.jobs.pods())

    await eventually(gone, interval_seconds=0.2, describe=lambda: "its PodGroup or pods stay")
