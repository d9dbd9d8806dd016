"""Pods that a job can do without, in a queue of a real Kueue: it preempts them first."""

import pytest
from ddp_operator.kube import ApiClient

from tests.good_manifests import Json
from tests.integration.elastic import ELASTIC, LEAST, MOST, Launchers, until_size
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.queues.queue import (
    SINGLE,
    admission,
    is_true,
    new_queue,
    queued_job,
    until_ungated,
    workload_of,
)
from tests.integration.queues.test_queues import complete

pytestmark = pytest.mark.usefixtures("kueue", "operator", "life")


def waiting(workloads: dict[str, Json]) -> list[str]:
    """Return the Workloads of the job that wait for quota."""
    return [
        name
        for name, workload in workloads.items()
        if name.startswith("job-")
        and not any(is_true(workload, state) for state in ("QuotaReserved", "Finished"))
    ]


async def test_elastic_job_grows_by_each_pod_and_lends_those_first(
    admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    queue = await new_queue(admin, jobs.namespace, chips=MOST)
    others = {"small": 1, "large": MOST - LEAST - 1}
    for name, replicas in others.items():
        await jobs.create(queued_job(replicas=replicas, **SINGLE), name=name)
        await jobs.until_phase("Running", name)
    async with Launchers() as launchers:
        kubelet.ip = "127.0.0.1"
        await jobs.create(queued_job(statusPort=launchers.port, **ELASTIC))
        status = await until_size(jobs, LEAST)
        assert status.world is not None
        group = status.world.members
        place = admission(await workload_of(queue))
        for name, size in (("small", LEAST + 1), ("large", MOST)):
            await complete(jobs, kubelet, name)
            await until_size(jobs, size)

        urgent = queued_job(urgent=True, replicas=MOST - LEAST, **SINGLE)
        await jobs.create(urgent, name="urgent")
        await jobs.until_phase("Running", "urgent")
        status = await until_size(jobs, LEAST)
        assert status.world is not None
        assert (status.world.members, await queue.used()) == (group, MOST)
        await queue.until_workloads(lambda all_: len(waiting(all_)) == MOST - LEAST)
        await complete(jobs, kubelet, "urgent")
        status = await until_size(jobs, MOST)
        assert (status.attempt, status.restarts) == (0, 0)
        assert 1 <= status.disruptions <= MOST - LEAST
        assert admission(await workload_of(queue)) == place
        await complete(jobs, kubelet)
        await queue.until_used(0)


async def test_spare_is_preempted_before_its_group(admin: ApiClient, jobs: Jobs) -> None:
    queue = await new_queue(admin, jobs.namespace, chips=3)
    await jobs.create(queued_job(spares=1, **SINGLE))
    await until_ungated(jobs, "job-0-0", "job-0-1", "job-0-2")
    workloads = sorted((await queue.workloads()).items(), key=lambda each: len(each[0]))
    [group, spare] = [admission(workload) for _, workload in workloads]
    # Kueue knows only whole seconds, and of one second it preempts any first.
    assert group[1] < spare[1]
    await jobs.create(queued_job(urgent=True, replicas=1, **SINGLE), name="urgent")
    await jobs.until_phase("Running", "urgent")
    assert admission(await workload_of(queue)) == group
    status = await jobs.status()
    assert (status.attempt, status.restarts, status.disruptions) == (0, 0, 0)
