"""Jobs that wait for each other in a queue of a real Kueue."""

from functools import partial
from pathlib import Path

import pytest
import yaml
from ddp_client.remote.cluster import Cluster
from ddp_client.remote.queues import queue_state
from ddp_client.views.job.queueing import UNKNOWN
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_operator.kube import ApiClient, load_credentials

from tests.cluster.kueue import Kueue
from tests.integration.conftest import Ddp, Kubectl
from tests.integration.jobs import Jobs
from tests.integration.kubelet import HOSTNAME, FakeKubelet
from tests.integration.operator_process import OperatorProcess
from tests.integration.queues.explained import explained
from tests.integration.queues.nodes import BLOCK, new_topology_queue
from tests.integration.queues.queue import NAME, Queue, next_second, queued_job, was_let_go
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("kueue", "operator", "life")

EXAMPLE = Path(__file__).parents[3] / "manifests/examples/queue.yaml"
FAILURE = 'failed calling webhook "mpod.kb.io"'


async def complete(jobs: Jobs, kubelet: FakeKubelet, name: str = "job") -> None:
    """Complete all pods of a running job."""
    await jobs.until_phase("Running", name)
    for pod in await jobs.live_pods(name):
        await kubelet.succeed(pod)
    await jobs.until_phase("Succeeded", name)


async def wait_behind(jobs: Jobs, *names: str) -> None:
    """Start the job `job`, and others that wait in this order for its quota."""
    await jobs.create(queued_job())
    await jobs.until_phase("Running")
    await next_second()  # Kueue orders jobs of one second by their UIDs
    for name in names:
        await jobs.create(queued_job(), name=name)
        await jobs.until(lambda status: status.reason == "Queued", name)
        await next_second()


async def _have_ended(jobs: Jobs) -> bool:
    pods = (await jobs.pods()).values()
    return all(map(was_let_go, pods))


async def test_jobs_wait_in_order_and_show_their_position(
    admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    async def position(name: str) -> str:
        job = JobSnapshot.read(await jobs.get(name))
        return (await queue_state(Cluster(admin), job)).position

    await wait_behind(jobs, "second", "third")
    status = await jobs.status("third")
    assert status.message.startswith("2 of 2 pods wait in spec.scheduling.queueName (team)")
    assert await position("second") == "quota; it is next in queue team"
    assert (await position("third")).startswith("1 job ahead in queue team, 1 in all")
    await complete(jobs, kubelet)
    await jobs.until_phase("Running", "second")
    assert await position("third") == "quota; it is next in queue team"
    await complete(jobs, kubelet, "second")
    await complete(jobs, kubelet, "third")
    await queue.until_used(0)
    await queue.until_finished()
    status = await jobs.status()
    assert (status.restarts, status.disruptions) == (0, 0)
    assert "NotQueued" not in await jobs.events()


async def test_preempted_job_returns_uncharged_before_later_jobs(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    await wait_behind(jobs, "later")
    await jobs.create(queued_job(urgent=True), name="urgent")
    await jobs.until_phase("Running", "urgent")
    status = await jobs.until(lambda status: status.reason == "Queued")
    assert (status.phase, status.restarts, status.disruptions) == ("Pending", 0, 1)
    assert "Preempted to accommodate a workload" in status.failures[-1].message
    await queue.until_used(2)
    await complete(jobs, kubelet, "urgent")
    await jobs.until_phase("Running")
    assert (await jobs.status("later")).reason == "Queued"
    await complete(jobs, kubelet)
    status = await jobs.status()
    assert (status.restarts, status.disruptions) == (0, 1)
    await complete(jobs, kubelet, "later")
    await queue.until_used(0)
    await queue.until_finished()


async def test_job_suspended_in_the_queue_runs_after_it_is_resumed(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    await wait_behind(jobs, "second", "third")
    await jobs.set_spec("second", suspend=True)
    await jobs.until_phase("Suspended", "second")
    await complete(jobs, kubelet)
    # Without the suspension, it would be next.
    await complete(jobs, kubelet, "third")
    await queue.until_used(0)
    await jobs.set_spec("second", suspend=False)
    await complete(jobs, kubelet, "second")
    await queue.until_used(0)


async def test_job_deleted_in_the_queue_is_skipped(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    await wait_behind(jobs, "second", "third")
    await jobs.delete("second")
    await complete(jobs, kubelet)
    await complete(jobs, kubelet, "third")
    await queue.until_used(0)
    workloads = await queue.until_workloads(lambda all_: len(all_) == 2)
    assert not any(name.startswith("second") for name in workloads)


async def test_job_after_its_time_to_live_leaves_nothing(
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
    await queue.until_workloads(lambda all_: len(all_) == 1)
    await complete(jobs, kubelet, "second")


@pytest.mark.nightly
async def test_jobs_run_after_an_outage_of_kueue(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue, kueue: Kueue, operator: OperatorProcess
) -> None:
    await wait_behind(jobs, "second")
    earlier = len(operator.log)
    with kueue.away():
        await complete(jobs, kubelet)
        await jobs.create(queued_job(), name="third")
        await eventually(lambda: FAILURE in operator.log[earlier:])
    await complete(jobs, kubelet, "second")
    await complete(jobs, kubelet, "third")
    for name in ("second", "third"):
        status = await jobs.status(name)
        assert (status.restarts, status.disruptions) == (0, 0)
    await queue.until_used(0)


@pytest.mark.nightly
async def test_job_evicted_while_the_operator_is_away_returns(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue, operator: OperatorProcess
) -> None:
    await wait_behind(jobs)
    operator.kill()
    await queue.drain()
    await eventually(partial(_have_ended, jobs))  # Kueue's finalizer keeps the pods
    operator.start()
    await jobs.until(lambda status: status.reason == "Queued")
    await queue.until_used(0)
    await queue.reopen()
    await complete(jobs, kubelet)
    status = await jobs.status()
    assert (status.restarts, status.disruptions) == (0, 1)
    await queue.until_used(0)


@pytest.mark.nightly
async def test_finished_jobs_stay_finished_after_restarts(
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


@pytest.mark.nightly
async def test_two_jobs_of_the_example_run_one_after_the_other(
    jobs: Jobs, kubelet: FakeKubelet, kubectl: Kubectl
) -> None:
    *_, manifest = yaml.safe_load_all(EXAMPLE.read_text())
    first = manifest["metadata"]["name"]
    await kubectl("apply", "--filename", str(EXAMPLE))
    try:
        await jobs.until_phase("Running", first)
        await jobs.create(manifest, name="second")
        await jobs.until(lambda status: status.reason == "Queued", "second")
        await complete(jobs, kubelet, first)
        await complete(jobs, kubelet, "second")
    finally:
        await kubectl("delete", "clusterqueue/training", "resourceflavor/any-node", "--wait=false")


async def test_held_queue_is_the_cause_of_a_wait(
    admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    await queue.hold()
    await jobs.create(queued_job())
    await jobs.until(lambda status: status.reason == "Queued")
    state = await explained(admin, jobs, lambda state: "is stopped" in state.message)
    assert state.message == (
        f"ClusterQueue {jobs.namespace} is inactive: Can't admit new workloads: is stopped"
    )
    assert state.position == ""
    await queue.reopen()
    await complete(jobs, kubelet)


async def test_job_larger_than_its_queue_shows_the_cause(
    admin: ApiClient, jobs: Jobs, queue: Queue
) -> None:
    await jobs.create(queued_job(replicas=3))
    await jobs.until(lambda status: status.reason == "Queued")
    state = await explained(admin, jobs, lambda state: "maximum capacity" in state.message)
    assert state.message.startswith("couldn't assign")
    assert await queue.used() == 0


async def test_user_without_rights_sees_an_unknown_queue(
    jobs: Jobs, queue: Queue, as_operator: Path
) -> None:
    await queue.hold()
    await jobs.create(queued_job())
    await jobs.until(lambda status: status.reason == "Queued")
    job = JobSnapshot.read(await jobs.get())
    async with ApiClient(load_credentials(kubeconfig=str(as_operator))) as client:
        assert await queue_state(Cluster(client), job) == UNKNOWN


async def test_job_reports_that_its_pods_cannot_be_created(
    jobs: Jobs, queue: Queue, kueue: Kueue, ddp: Ddp
) -> None:
    with kueue.away():
        await jobs.create(queued_job())
        status = await jobs.until(lambda status: status.reason == "APIServerError")
        assert FAILURE in status.message
        assert FAILURE in await jobs.until_told("APIServerError")
        result = await ddp("why", "job")
    assert result.exit_code == 0
    explanation = " ".join(result.stdout.split())
    assert FAILURE in explanation
    assert "pods start" not in explanation
    status = await jobs.until_phase("Running")
    assert (status.restarts, status.disruptions) == (0, 0)
    await queue.until_used(2)


@pytest.mark.parametrize("level", ["block", pytest.param("sub-block", marks=pytest.mark.nightly)])
async def test_required_topology_is_the_cause_of_a_wait(
    admin: ApiClient, jobs: Jobs, level: str
) -> None:
    """The queue's nodes are in blocks, but no node exists."""
    await new_topology_queue(admin, jobs.namespace, levels=(BLOCK, HOSTNAME))
    topology = {"level": level, "required": True}
    await jobs.create(queued_job(scheduling={"queueName": NAME, "topology": topology}))
    await explained(admin, jobs, lambda state: " level" in state.message)
