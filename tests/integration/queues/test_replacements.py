"""A job keeps its place in the queue of a real Kueue, whatever happens to its pods."""

import asyncio
from typing import Any

import pytest
from ddp_operator.kube import ApiClient

from tests.good_manifests import Json
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.operator_process import OperatorProcess
from tests.integration.queues.queue import (
    SINGLE,
    Queue,
    admission,
    is_true,
    new_queue,
    next_second,
    queued_job,
    until_ungated,
    workload_of,
)
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("kueue", "operator")


async def run_before_another(jobs: Jobs, queue: Queue, **spec: Any) -> Json:
    """Start the job `job` and another one that waits for its quota; return the first Workload."""
    await jobs.create(queued_job(**spec))
    await jobs.until_phase("Running")
    await next_second()
    await jobs.create(queued_job(), name="other")
    await jobs.until(lambda status: status.reason == "Queued", "other")
    return await workload_of(queue, "job")


async def keeps_its_place(jobs: Jobs, queue: Queue, before: Json) -> None:
    """The job runs again in the same Workload with the same quota, and the other one waits."""
    await jobs.until_phase("Running")
    assert admission(await workload_of(queue, "job")) == admission(before)
    assert (await jobs.status("other")).reason == "Queued"
    await queue.until_used(2)


@pytest.mark.usefixtures("life")
@pytest.mark.parametrize("scope", ["Gang", "Pod"])
async def test_a_container_that_fails(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue, scope: str
) -> None:
    before = await run_before_another(jobs, queue, restart={"scope": scope})
    await kubelet.fail("job-0-1")
    await jobs.until(lambda status: status.restarts == 1)
    await keeps_its_place(jobs, queue, before)
    await jobs.until_gone("job-0-1")
    kept = "job-0-0" in await jobs.live_pods()
    assert kept == (scope == "Pod")


@pytest.mark.usefixtures("life")
async def test_a_pod_that_is_deleted(jobs: Jobs, queue: Queue) -> None:
    before = await run_before_another(jobs, queue, **SINGLE)
    for pod in ("job-0-1", "job-0-1-r1"):
        await jobs.delete_pod(pod)
        await jobs.until_gone(pod)
        await keeps_its_place(jobs, queue, before)
    assert (await jobs.status()).restarts == 0


async def test_a_pod_on_a_node_that_never_answers_again(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    """Nobody plays the kubelet of the first two pods: they stay Running for good."""
    manifest = queued_job(**SINGLE)
    manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    await jobs.create(manifest)
    await until_ungated(jobs, "job-0-0", "job-0-1")
    for pod in ("job-0-0", "job-0-1"):
        await kubelet.run(pod)
    await jobs.until_phase("Running")
    before = await workload_of(queue, "job")
    await jobs.delete_pod("job-0-1")
    await jobs.until_gone("job-0-1")
    await until_ungated(jobs, "job-0-0", "job-0-1-r1")
    await kubelet.run("job-0-1-r1")
    await jobs.until_phase("Running")
    assert admission(await workload_of(queue, "job")) == admission(before)


@pytest.mark.usefixtures("life")
async def test_a_pod_that_ends_well_when_told_to_gives_its_place_back(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue, operator: OperatorProcess
) -> None:
    before = await run_before_another(jobs, queue, **SINGLE)
    operator.kill()
    # Before the kubelet in `life` ends it with 143, and after the deletion by the pod's clock.
    await kubelet.succeed("job-0-1", in_seconds=60)
    await jobs.delete_pod("job-0-1")
    operator.start()
    await jobs.until_told("Restarting")
    await jobs.until(lambda status: status.attempt == 1)
    await jobs.until_phase("Running", "other")
    after = await workload_of(queue, "job")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


@pytest.mark.usefixtures("life")
async def test_preempted_twice_it_comes_back_to_its_old_place(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    before = await run_before_another(jobs, queue)
    for number in (1, 2):
        await jobs.create(queued_job(urgent=True), name=f"urgent-{number}")
        await jobs.until_phase("Running", f"urgent-{number}")
        await jobs.until(lambda status: status.reason == "Queued")
        for pod in await jobs.live_pods(f"urgent-{number}"):
            await kubelet.succeed(pod)
        await jobs.until_phase("Running")
        assert (await jobs.status("other")).reason == "Queued"
    after = await workload_of(queue, "job")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert (await jobs.status()).disruptions == 2


@pytest.mark.usefixtures("life")
async def test_a_deactivated_workload_stays_so_until_it_is_active_again(
    jobs: Jobs, queue: Queue
) -> None:
    before = await run_before_another(jobs, queue)
    await queue.set_active(before["metadata"]["name"], False)
    await jobs.until_phase("Running", "other")
    status = await jobs.until(lambda status: status.reason == "Queued")
    assert (status.restarts, status.disruptions) == (0, 1)
    await jobs.delete("other")
    await jobs.collect("other")
    await queue.until_used(0)
    await asyncio.sleep(1)  # time in which it must not start
    assert (await jobs.status()).reason == "Queued"
    await queue.set_active(before["metadata"]["name"], True)
    await jobs.until_phase("Running")
    assert (await workload_of(queue, "job"))["metadata"]["uid"] == before["metadata"]["uid"]


@pytest.mark.usefixtures("life")
async def test_a_workload_that_is_deleted_queues_again_behind_the_others(
    jobs: Jobs, queue: Queue
) -> None:
    before = await run_before_another(jobs, queue)
    await queue.delete_workload(before["metadata"]["name"])
    await jobs.until_phase("Running", "other")
    await jobs.until(lambda status: status.reason == "Queued")
    after = await workload_of(queue, "job")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


@pytest.mark.usefixtures("life")
@pytest.mark.parametrize("away", [False, True], ids=["", "while the operator is away"])
async def test_a_running_job_that_is_deleted_leaves_nothing(
    jobs: Jobs, queue: Queue, operator: OperatorProcess, *, away: bool
) -> None:
    await run_before_another(jobs, queue)
    if away:
        operator.kill()
    await jobs.delete()
    await jobs.collect()
    if away:
        operator.start()
    await jobs.until_gone("job-0-0", "job-0-1")
    await jobs.until_phase("Running", "other")


async def test_a_job_that_is_deleted_in_the_queue_is_never_admitted(
    jobs: Jobs, queue: Queue
) -> None:
    """No pod can hold quota after that, not even until Kubernetes collects it."""
    await run_in_queue_without_kubelet(jobs, queue)
    await jobs.delete("other")
    await jobs.collect("other")

    async def gone() -> bool:
        return not await jobs.pods("other")

    await eventually(gone)


async def run_in_queue_without_kubelet(jobs: Jobs, queue: Queue) -> None:
    """Have the pods of `job` admitted, and those of `other` wait."""
    await jobs.create(queued_job())
    await until_ungated(jobs, "job-0-0", "job-0-1")
    await jobs.create(queued_job(), name="other")
    await jobs.until(lambda status: status.reason == "Queued", "other")
    await queue.until_used(2)


@pytest.mark.usefixtures("life")
async def test_a_running_job_that_is_suspended_gives_its_quota_back(
    jobs: Jobs, queue: Queue
) -> None:
    before = await run_before_another(jobs, queue)
    await jobs.set_spec(suspend=True)
    await jobs.until_phase("Suspended")
    await jobs.until_gone("job-0-0", "job-0-1")
    await jobs.until_phase("Running", "other")
    await jobs.set_spec(suspend=False)
    await jobs.until(lambda status: status.reason == "Queued")
    after = await workload_of(queue, "job")
    assert after["metadata"]["name"] != before["metadata"]["name"]


@pytest.mark.usefixtures("life")
async def test_a_job_that_fails_gives_its_quota_back(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    await run_before_another(jobs, queue, restart={"maxRestarts": 0})
    await kubelet.fail("job-0-0")
    await jobs.until_phase("Failed")
    await jobs.until_phase("Running", "other")
    workloads = await queue.workloads()
    assert [is_true(each, "Finished") for name, each in workloads.items() if "other" not in name]


@pytest.mark.usefixtures("life")
async def test_spares_are_admitted_with_the_group(
    admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    queue = await new_queue(admin, jobs.namespace, chips=3)
    await jobs.create(queued_job(spares=1, **SINGLE))
    await jobs.until(lambda status: status.ready == "2/2 +0" and status.phase == "Running")
    await queue.until_used(3)
    before = await workload_of(queue, "job")
    assert sum(each["count"] for each in before["spec"]["podSets"]) == 3
    await kubelet.fail("job-0-2")
    await jobs.until_pods("job-0-0", "job-0-1", "job-0-2-r1")
    await jobs.until_gone("job-0-2")
    await until_ungated(jobs, "job-0-0", "job-0-1", "job-0-2-r1")
    assert admission(await workload_of(queue, "job")) == admission(before)
    for pod in ("job-0-0", "job-0-1"):
        await kubelet.succeed(pod)
    await jobs.until_phase("Succeeded")
    await queue.until_used(0)
