"""Finished jobs stay finished, as jobs of other operators did not in public incidents."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.kube import SERVICES, ApiClient

from tests.cluster import ControlPlane
from tests.good_manifests import job
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet, run_all, start
from tests.integration.operator_process import OperatorProcess, running_operator
from tests.waiting import eventually


@pytest.fixture
async def operator(
    control_plane: ControlPlane, jobs: Jobs, tmp_path: Path
) -> AsyncIterator[OperatorProcess]:
    """An operator that a test may kill."""
    log = tmp_path / "operator.log"
    with running_operator(control_plane.kubeconfig, log, namespace=jobs.namespace) as process:
        await process.serving()
        yield process


async def next_operator(operator: OperatorProcess, jobs: Jobs) -> None:
    """Kill the operator, and wait until a new one has handled all jobs, so also a new one."""
    operator.kill()
    operator.start()
    await jobs.create(job("witness"))
    await jobs.until_pods("witness-0-0", name="witness")


async def failed_job(jobs: Jobs, kubelet: FakeKubelet, **spec: object) -> DDPJobStatus:
    """Create a job that fails after the one restart that it may have."""
    await start(jobs, kubelet, restart={"maxRestarts": 1}, **spec)
    await kubelet.fail("job-0-0")
    await kubelet.finish_deleted("job-0-0", "job-0-1")
    await jobs.until_pods("job-1-0", "job-1-1")
    await run_all(jobs, kubelet)
    await kubelet.fail("job-1-1")
    status = await jobs.until_phase("Failed")
    assert (status.reason, status.restarts) == ("MaxRestartsExceeded", 1)
    return status


async def test_late_failure_does_not_restart_a_finished_job(
    operator: OperatorProcess, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    await start(jobs, kubelet, successPolicy="Rank0", cleanPodPolicy="None")
    await kubelet.succeed("job-0-0")
    finished = await jobs.until_phase("Succeeded")
    await kubelet.fail("job-0-1")
    await next_operator(operator, jobs)
    after = await jobs.status()
    assert (after.phase, after.message) == ("Succeeded", finished.message)
    assert (after.attempt, after.restarts, after.disruptions) == (0, 0, 0)
    assert after.completion_time == finished.completion_time
    assert after.failures == ()
    assert (await jobs.pods()).keys() == {"job-0-0", "job-0-1"}


async def test_failed_job_without_its_objects_stays_failed(
    operator: OperatorProcess, admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    failed = await failed_job(jobs, kubelet)
    for pod in await jobs.pods():
        await kubelet.finish(pod)
    await admin.request("DELETE", SERVICES.path(namespace=jobs.namespace, name="job"))
    await next_operator(operator, jobs)
    after = await jobs.status()
    assert (after.phase, after.restarts, after.attempt) == ("Failed", 1, 1)
    assert after.failures == failed.failures
    assert await jobs.pods() == {}


async def test_failed_job_that_its_ttl_deletes_does_not_come_back(
    operator: OperatorProcess, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    await failed_job(jobs, kubelet, ttlSecondsAfterFinished=1)

    async def gone() -> bool:
        return not await jobs.exists()

    await eventually(gone, interval_seconds=0.1)
    for pod in await jobs.pods():
        await kubelet.finish(pod)
    await next_operator(operator, jobs)
    assert not await jobs.exists()
    assert await jobs.pods() == {}
