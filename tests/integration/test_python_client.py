"""The Python client with a real operator and API server, asynchronous and in a thread."""

import asyncio
from typing import Any

import pytest
from ddp_client import AsyncClient, Client
from ddp_client.sdk import AsyncJob, JobFailedError, JobGoneError, WaitTimeoutError
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.kube import CONFIG_MAPS, ApiClient
from ddp_operator.ports import InvalidError, NotFoundError

from tests import cluster
from tests.good_manifests import job as manifest
from tests.integration.jobs import Jobs
from tests.integration.kubelet import FakeKubelet, run_all
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("shared_operator")


def train(steps: int) -> None:
    """Print the argument. The function is sent, but no kubelet runs it."""
    print(steps)


async def until(job: AsyncJob, phase: str) -> DDPJobStatus:
    async for status in job.watch(timeout=120):
        if status.phase == phase:
            return status
    raise AssertionError(f"the job ended before it was {phase}")


async def test_function_runs_from_submission_to_deletion(
    control_plane: cluster.ControlPlane, admin: ApiClient, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    async with AsyncClient(kubeconfig=control_plane.kubeconfig, namespace=jobs.namespace) as client:
        job = await client.run(
            train, arguments={"steps": 3}, name="job", replicas=2, image="registry.example/t:1"
        )
        pods = await jobs.until_pods("job-0-0", "job-0-1")
        (volume,) = [v for v in pods["job-0-0"]["spec"]["volumes"] if "configMap" in v]
        path = CONFIG_MAPS.path(namespace=jobs.namespace, name=volume["configMap"]["name"])
        assert "def train(steps: int)" in str((await admin.request("GET", path))["data"])

        with pytest.raises(WaitTimeoutError):
            await job.wait(timeout=0.1)
        await run_all(jobs, kubelet)
        await until(job, "Running")
        phases: list[str] = []
        waiting = asyncio.create_task(
            job.wait(timeout=120, on_progress=lambda status: phases.append(status.phase))
        )
        await kubelet.succeed("job-0-0")
        await kubelet.succeed("job-0-1")
        assert (await waiting).phase == "Succeeded"
        assert (phases[0], phases[-1]) == ("Running", "Succeeded")

        await job.delete()
        with pytest.raises(JobGoneError):
            await job.status()

        async def gone() -> bool:
            try:
                await admin.request("GET", path)
            except NotFoundError:
                return True
            return False

        await eventually(gone, describe=lambda: "its ConfigMap stays")


async def test_client_stops_resumes_and_reports_failure_and_refusal(
    control_plane: cluster.ControlPlane, jobs: Jobs, kubelet: FakeKubelet
) -> None:
    def program() -> dict[str, Any]:
        found: dict[str, Any] = {}
        with Client(kubeconfig=control_plane.kubeconfig, namespace=jobs.namespace) as client:
            job = client.apply(manifest(replicas=2, restart={"maxRestarts": 0}))
            job.stop()
            found["stopped"] = job.read().spec.suspend
            job.resume()
            loop.call_soon_threadsafe(resumed.set)
            try:
                job.wait(timeout=120)
            except JobFailedError as error:
                found["failed"] = str(error.diagnosis)
            found["jobs"] = [job.name for job in client.jobs()]
            try:
                client.apply(manifest("bad", replicas=-1))
            except InvalidError as error:
                found["refused"] = error.message
        return found

    loop, resumed = asyncio.get_running_loop(), asyncio.Event()
    running = asyncio.create_task(asyncio.to_thread(program))
    async with asyncio.timeout(120):
        await resumed.wait()
    await jobs.until(lambda status: status.is_true("PodsCreated"))
    await run_all(jobs, kubelet)
    await kubelet.fail(sorted(await jobs.live_pods())[1], message="ValueError: bad batch")
    found = await running
    assert found["stopped"] is True
    assert "last words\n  ValueError: bad batch\n" in found["failed"]
    assert found["jobs"] == ["job"]
    assert "spec.replicas" in found["refused"]
