"""Jobs that wait for each other in a queue of a real Kueue."""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from ddp_operator.client.cluster import Cluster
from ddp_operator.client.queues import place_in_queue, queue_state
from ddp_operator.kube import ApiClient, load_credentials
from ddp_operator.views.job.queueing import UNKNOWN
from ddp_operator.views.job.snapshot import JobSnapshot

from tests.cluster.kueue import Kueue
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.operator_process import OperatorProcess
from tests.integration.queues.explained import explained
from tests.integration.queues.queue import Queue, is_true, next_second, queued_job, was_let_go
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("kueue", "operator", "life")


async def complete(jobs: Jobs, kubelet: FakeKubelet, name: str = "job") -> None:
    """End all pods of a running job well."""
    await jobs.until_phase("Running", name)
    for pod in await jobs.live_pods(name):
        await kubelet.succeed(pod)
    await jobs.until_phase("Succeeded", name)


async def wait_behind(jobs: Jobs, *names: str) -> None:
    """Start the job `job`, and others that wait for its quota, in this order."""
    await jobs.create(queued_job())
    await jobs.until_phase("Running")
    for name in names:
        await jobs.create(queued_job(), name=name)
        await jobs.until(lambda status: status.reason == "Queued", name)
        await next_second()


async def _have_ended(jobs: Jobs) -> bool:
    pods = (await jobs.pods()).values()
    return all(map(was_let_go, pods))


async def test_a_job_is_admitted_and_gives_its_quota_back(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    await jobs.create(queued_job())
    await jobs.until_phase("Running")
    await queue.until_used(2)
    [workload] = (await queue.workloads()).values()
    assert is_true(workload, "Admitted")
    await complete(jobs, kubelet)
    await queue.until_used(0)
    [workload] = (await queue.workloads()).values()
    assert is_true(workload, "Finished")
    status = await jobs.status()
    assert (status.restarts, status.disruptions) == (0, 0)
    assert "NotQueued" not in await jobs.events()


async def test_jobs_wait_in_their_order_and_know_their_place(
    admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    async def place(name: str) -> str:
        return await place_in_queue(Cluster(admin), JobSnapshot.read(await jobs.get(name)))

    await wait_behind(jobs, "second", "third")
    status = await jobs.status("third")
    assert status.message.startswith("2 of 2 pods wait in spec.scheduling.queueName (team)")
    assert await place("second") == "quota; it is next in queue team"
    assert (await place("third")).startswith("1 job ahead in queue team, 1 in all")
    await complete(jobs, kubelet)
    await jobs.until_phase("Running", "second")
    assert await place("third") == "quota; it is next in queue team"
    await complete(jobs, kubelet, "second")
    await complete(jobs, kubelet, "third")
    await queue.until_used(0)


async def test_what_is_preempted_returns_uncharged(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    await jobs.create(queued_job())
    await jobs.until_phase("Running")
    await jobs.create(queued_job(urgent=True), name="urgent")
    await jobs.until_phase("Running", "urgent")
    status = await jobs.until(lambda status: status.reason == "Queued")
    assert (status.phase, status.restarts, status.disruptions) == ("Pending", 0, 1)
    assert "Preempted to accommodate a workload" in status.failures[-1].message
    await queue.until_used(2)
    await complete(jobs, kubelet, "urgent")
    await complete(jobs, kubelet)
    status = await jobs.status()
    assert (status.restarts, status.disruptions) == (0, 1)
    await queue.until_used(0)
    workloads = await queue.workloads()
    assert all(is_true(workload, "Finished") for workload in workloads.values())


async def test_a_job_is_suspended_in_the_queue_and_resumed(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    await wait_behind(jobs, "second", "third")
    await jobs.set_spec("second", suspend=True)
    await jobs.until_phase("Suspended", "second")
    await complete(jobs, kubelet)
    # It would be next.
    await complete(jobs, kubelet, "third")
    await queue.until_used(0)
    await jobs.set_spec("second", suspend=False)
    await complete(jobs, kubelet, "second")
    await queue.until_used(0)


async def test_a_job_is_deleted_in_the_queue(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    await wait_behind(jobs, "second", "third")
    await jobs.delete("second")
    await complete(jobs, kubelet)
    await complete(jobs, kubelet, "third")
    await queue.until_used(0)
    workloads = await queue.until_workloads(lambda found: len(found) == 2)
    assert not any(name.startswith("second") for name in workloads)


async def test_a_job_whose_time_to_live_is_over_leaves_nothing(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    await jobs.create(queued_job(ttlSecondsAfterFinished=0))
    await jobs.until_phase("Running")
    await jobs.create(queued_job(), name="second")
    await jobs.until(lambda status: status.reason == "Queued", "second")
    for pod in await jobs.live_pods():
        await kubelet.succeed(pod)
    await jobs.until_phase("Running", "second")
    await jobs.until_gone("job-0-0", "job-0-1")
    assert not await jobs.exists()
    await queue.until_workloads(lambda found: len(found) == 1)
    await complete(jobs, kubelet, "second")


async def test_kueue_is_away_for_a_while(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue, kueue: Kueue, operator: OperatorProcess
) -> None:
    await wait_behind(jobs, "second")
    with kueue.away():
        await complete(jobs, kubelet)
        await jobs.create(queued_job(), name="third")
        await eventually(lambda: 'failed calling webhook "mpod.kb.io"' in operator.log)
    await complete(jobs, kubelet, "second")
    await complete(jobs, kubelet, "third")
    for name in ("second", "third"):
        status = await jobs.status(name)
        assert (status.restarts, status.disruptions) == (0, 0)
    await queue.until_used(0)


async def test_the_operator_is_away_while_its_pods_are_evicted(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue, operator: OperatorProcess
) -> None:
    await wait_behind(jobs)
    operator.kill()
    await queue.drain()
    await eventually(partial(_have_ended, jobs))  # Kueue's finalizer keeps them for replacements
    operator.start()
    await jobs.until(lambda status: status.reason == "Queued")
    await queue.until_used(0)
    await queue.reopen()
    await complete(jobs, kubelet)
    status = await jobs.status()
    assert (status.restarts, status.disruptions) == (0, 1)
    await queue.until_used(0)


async def test_finished_jobs_never_come_back(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue, kueue: Kueue, operator: OperatorProcess
) -> None:
    await wait_behind(jobs, "second")
    await complete(jobs, kubelet)
    await jobs.until_phase("Running", "second")
    before = await queue.workloads()
    operator.kill()
    kueue.stop()
    kueue.start()
    operator.start()
    await complete(jobs, kubelet, "second")
    await jobs.create(queued_job(), name="third")
    await complete(jobs, kubelet, "third")
    after = await queue.workloads()
    assert len(after) == 3
    uid = {name: item["metadata"]["uid"] for name, item in after.items()}
    assert all(uid[name] == item["metadata"]["uid"] for name, item in before.items())


async def test_a_held_queue_is_the_cause_of_a_wait(
    admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    await queue.hold()
    await jobs.create(queued_job())
    await jobs.until(lambda status: status.reason == "Queued")
    found = await explained(admin, jobs, lambda state: "is stopped" in state.cause)
    assert found.cause == (
        f"ClusterQueue {jobs.namespace} is inactive: Can't admit new workloads: is stopped"
    )
    assert (found.position, len(found.remedies)) == ("", 1)
    assert "open the queue" in found.remedies[0]
    await queue.reopen()
    await complete(jobs, kubelet)


async def test_a_deactivated_workload_is_the_cause_of_a_wait(
    admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    await wait_behind(jobs, "second")
    [name] = (each for each in await queue.workloads() if each.startswith("second"))
    await explained(admin, jobs, lambda state: "insufficient unused quota" in state.cause, "second")
    await queue.set_active(name, False)
    found = await explained(admin, jobs, lambda state: "deactivated" in state.cause, "second")
    assert found.cause == f"Workload {name} is deactivated: somebody set its spec.active to false"
    assert f"kubectl patch workloads.kueue.x-k8s.io {name} " in found.remedies[0]
    await complete(jobs, kubelet)
    await queue.until_used(0)
    # The remedy helps.
    await queue.set_active(name, True)
    await complete(jobs, kubelet, "second")


async def test_a_job_that_is_too_large_for_its_queue_is_told_so(
    admin: ApiClient, jobs: Jobs, queue: Queue
) -> None:
    await jobs.create(queued_job(replicas=3))
    await jobs.until(lambda status: status.reason == "Queued")
    found = await explained(admin, jobs, lambda state: "maximum capacity" in state.cause)
    assert found.cause.startswith("the job is larger than the queue's quota: couldn't assign")
    assert found.position == ""
    assert "lower spec.replicas" in found.remedies[0]
    assert await queue.used() == 0


async def test_who_may_not_read_the_queue_learns_nothing_and_sees_no_error(
    jobs: Jobs, queue: Queue, as_operator: Path
) -> None:
    await queue.hold()
    await jobs.create(queued_job())
    await jobs.until(lambda status: status.reason == "Queued")
    job = JobSnapshot.read(await jobs.get())
    async with ApiClient(load_credentials(kubeconfig=str(as_operator))) as stranger:
        assert await queue_state(Cluster(stranger), job, datetime.now(UTC)) == UNKNOWN
