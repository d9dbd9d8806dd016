"""A job keeps its quota in the queue of a real Kueue when it loses pods."""

import asyncio
from typing import Any

import pytest
from ddp_operator.kube import ApiClient

from tests.good_manifests import Json
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet
from tests.integration.operator_process import OperatorProcess
from tests.integration.queues.explained import explained
from tests.integration.queues.queue import (
    SINGLE,
    Queue,
    admission,
    is_true,
    next_second,
    queued_job,
    until_ungated,
    workload_of,
)
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("kueue", "operator")


async def run_before_another(jobs: Jobs, queue: Queue, **spec: Any) -> Json:
    """Start the job `job` and a job `other` that waits for its quota; return the first Workload."""
    await jobs.create(queued_job(**spec))
    await jobs.until_phase("Running")
    await next_second()
    await jobs.create(queued_job(), name="other")
    await jobs.until(lambda status: status.reason == "Queued", "other")
    return await workload_of(queue, "job")


async def until_runs_again(jobs: Jobs, queue: Queue, before: Json) -> None:
    """Wait until the job runs again with the same quota, while the other one waits."""
    await jobs.until_phase("Running")
    assert admission(await workload_of(queue, "job")) == admission(before)
    assert (await jobs.status("other")).reason == "Queued"
    await queue.until_used(2)


@pytest.mark.usefixtures("life")
@pytest.mark.parametrize("scope", [pytest.param("Gang", marks=pytest.mark.nightly), "Pod"])
async def test_job_with_a_failed_container_keeps_its_quota(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue, scope: str
) -> None:
    before = await run_before_another(jobs, queue, restart={"scope": scope})
    await kubelet.fail("job-0-1")
    await jobs.until(lambda status: status.restarts == 1)
    await until_runs_again(jobs, queue, before)
    await jobs.until_gone("job-0-1")
    kept = "job-0-0" in await jobs.live_pods()
    assert kept == (scope == "Pod")


@pytest.mark.usefixtures("life")
async def test_job_with_a_deleted_pod_keeps_its_quota(jobs: Jobs, queue: Queue) -> None:
    before = await run_before_another(jobs, queue, **SINGLE)
    for pod in ("job-0-1", "job-0-1-r1"):
        await jobs.delete_pod(pod)
        await jobs.until_gone(pod)
        await until_runs_again(jobs, queue, before)
    assert (await jobs.status()).restarts == 0


@pytest.mark.nightly
async def test_pod_on_a_silent_node_is_replaced(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    """No kubelet ends the first two pods, so they stay Running."""
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


@pytest.mark.nightly
@pytest.mark.usefixtures("life")
async def test_deleted_pod_that_exits_with_0_gives_its_quota_back(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue, operator: OperatorProcess
) -> None:
    before = await run_before_another(jobs, queue, **SINGLE)
    operator.kill()
    # Before the kubelet of `life` ends it with 143, but after the deletion by its node's clock.
    await kubelet.succeed("job-0-1", in_seconds=60)
    await jobs.delete_pod("job-0-1")
    operator.start()
    await jobs.until_told("Restarting")
    await jobs.until(lambda status: status.attempt == 1)
    await jobs.until_phase("Running", "other")
    after = await workload_of(queue, "job")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


@pytest.mark.usefixtures("life")
async def test_deactivated_workload_stays_inactive_until_activated(
    admin: ApiClient, jobs: Jobs, queue: Queue
) -> None:
    before = await run_before_another(jobs, queue)
    name = before["metadata"]["name"]
    await queue.set_active(name, False)
    await jobs.until_phase("Running", "other")
    status = await jobs.until(lambda status: status.reason == "Queued")
    assert (status.restarts, status.disruptions) == (0, 1)
    state = await explained(admin, jobs, lambda state: "deactivated" in state.message)
    assert f"kubectl delete workloads.kueue.x-k8s.io {name}" in state.remedy
    await jobs.delete("other")
    await jobs.collect("other")
    await queue.until_used(0)
    await asyncio.sleep(1)  # the job must not start in this time
    assert (await jobs.status()).reason == "Queued"
    await queue.set_active(name, True)
    await jobs.until_phase("Running")
    assert (await workload_of(queue, "job"))["metadata"]["uid"] == before["metadata"]["uid"]


@pytest.mark.usefixtures("life")
async def test_job_with_a_deleted_workload_queues_behind_others(jobs: Jobs, queue: Queue) -> None:
    before = await run_before_another(jobs, queue)
    await queue.delete_workload(before["metadata"]["name"])
    await jobs.until_phase("Running", "other")
    await jobs.until(lambda status: status.reason == "Queued")
    after = await workload_of(queue, "job")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


@pytest.mark.usefixtures("life")
@pytest.mark.parametrize(
    "away",
    [False, pytest.param(True, marks=pytest.mark.nightly)],
    ids=["", "while the operator is away"],
)
async def test_deleted_running_job_leaves_nothing(
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


async def test_job_deleted_in_the_queue_is_never_admitted(jobs: Jobs, queue: Queue) -> None:
    """None of its pods holds quota, not even until the garbage collector deletes it."""
    await jobs.create(queued_job())
    await until_ungated(jobs, "job-0-0", "job-0-1")
    await jobs.create(queued_job(), name="other")
    await jobs.until(lambda status: status.reason == "Queued", "other")
    await queue.until_used(2)
    await jobs.delete("other")
    await jobs.collect("other")

    async def gone() -> bool:
        return not await jobs.pods("other")

    await eventually(gone)


@pytest.mark.usefixtures("life")
async def test_suspended_running_job_gives_its_quota_back(jobs: Jobs, queue: Queue) -> None:
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
async def test_failed_job_gives_its_quota_back(
    jobs: Jobs, kubelet: FakeKubelet, queue: Queue
) -> None:
    await run_before_another(jobs, queue, restart={"maxRestarts": 0})
    await kubelet.fail("job-0-0")
    await jobs.until_phase("Failed")
    await jobs.until_phase("Running", "other")
    workloads = await queue.workloads()
    assert [is_true(each, "Finished") for name, each in workloads.items() if "other" not in name]
