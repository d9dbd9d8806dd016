"""The client on this machine, with short real processes."""

# ruff: noqa: PLC0415 - functions that are sent import what they need

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ddp_client import AsyncLocalClient, LocalClient
from ddp_client.local.machine import WorkdirInUseError
from ddp_client.remote.cluster import NoSuchJobError
from ddp_client.sdk import (
    AsyncJob,
    JobFailedError,
    JobGoneError,
    JobRequestError,
    ManifestError,
    NameTakenError,
)
from ddp_operator.api.status import DDPJobStatus


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AsyncLocalClient]:
    async with asyncio.timeout(120), AsyncLocalClient(workdir=tmp_path / "work") as client:
        yield client


def shell(script: str, **more: Any) -> dict[str, Any]:
    """Return the arguments of `run` for a shell script."""
    return {"command": ["sh", "-c", script], "name": "tiny", **more}


async def until(job: AsyncJob, phase: str) -> None:
    async for status in job.watch(timeout=60):
        if status.phase == phase:
            return
    raise AssertionError(f"it has ended before it was {phase}")


def count(steps: int, out: str) -> None:
    """Print steps and the rank."""
    import os

    for step in range(1, steps + 1):
        print(f"step {step}/{steps}")
    with open(f"{out}-{os.environ['RANK']}", "x") as file:
        file.write(os.environ["WORLD_SIZE"])


async def test_a_function_on_two_ranks(client: AsyncLocalClient, tmp_path: Path) -> None:
    arguments = {"steps": 3, "out": str(tmp_path / "rank")}
    job = await client.run(count, arguments=arguments, replicas=2)
    assert (await job.wait(timeout=60)).phase == "Succeeded"
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in (0, 1)] == ["2", "2"]
    lines = [line async for line in job.logs()]
    for rank in (0, 1):
        mine = [line.text for line in lines if line.rank == rank]
        assert mine == ["step 1/3", "step 2/3", "step 3/3"]
    assert [line.time for line in lines] == sorted(line.time for line in lines)
    assert [str(line) async for line in job.logs(ranks=[1], tail=1)] == ["1 | step 3/3"]
    assert [str(line) async for line in job.logs(since_seconds=3600, ranks=[0], tail=2)] == [
        "0 | step 2/3",
        "0 | step 3/3",
    ]
    assert "has succeeded" in (await job.why()).sentence


async def test_command_runs_in_the_folder_itself(client: AsyncLocalClient, tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    job = await client.run(command=["ls"], workdir=tmp_path)
    await job.wait(timeout=60)
    assert "here" in [line.text async for line in job.logs()]
    with pytest.raises(JobRequestError, match="pip: needs a cluster"):
        await client.run(command=["ls"], pip=tmp_path / "here")


async def test_this_machines_launcher_stands_for_an_injected_one(
    client: AsyncLocalClient,
) -> None:
    job = await client.run(**shell("exit", launcher="inject"))
    assert (await job.wait(timeout=60)).phase == "Succeeded"


async def test_failed_job_raises_with_a_diagnosis(client: AsyncLocalClient) -> None:
    job = await client.run(**shell("echo 'no such data' >&2; exit 64"))
    with pytest.raises(JobFailedError, match="ConfigurationError") as caught:
        await job.wait(timeout=60)
    assert "no such data" in str(caught.value.diagnosis)


async def test_logs_are_followed_through_a_restart(client: AsyncLocalClient) -> None:
    script = 'echo "attempt $DDP_ATTEMPT"; exec sleep 100'
    job = await client.run(**shell(f"[ $DDP_ATTEMPT = 1 ] && echo last && exit; {script}"))
    seen: list[str] = []
    async for line in job.logs(follow=True):
        seen.append(line.text)
        if line.text == "attempt 0":
            await until(job, "Running")
            await job.restart()
    assert seen == ["attempt 0", "last"]
    assert (await job.status()).restarts == 0


async def test_stop_and_resume(client: AsyncLocalClient) -> None:
    script = '[ -e "$MARK" ] && exit; touch "$MARK"; echo marked; exec sleep 100'
    mark = client.workdir / "mark"
    job = await client.run(**shell(script, env={"MARK": str(mark)}))
    assert (await anext(job.logs(follow=True))).text == "marked"
    await job.stop()
    await until(job, "Suspended")
    await job.resume()
    assert (await job.wait(timeout=60)).phase == "Succeeded"


async def test_delete(client: AsyncLocalClient) -> None:
    job = await client.run(**shell("exec sleep 100"))

    def delete(status: DDPJobStatus) -> None:
        if status.phase == "Running":
            tasks.append(asyncio.create_task(job.delete()))

    tasks: list[asyncio.Task[None]] = []
    with pytest.raises(JobGoneError):
        await job.wait(timeout=60, on_progress=delete)
    await asyncio.gather(*tasks)
    assert await client.jobs() == []
    with pytest.raises(NoSuchJobError):
        await client.job("tiny")


async def test_no_process_outlives_the_client(tmp_path: Path) -> None:
    async with AsyncLocalClient(workdir=tmp_path / "work") as client:
        job = await client.run(**shell("echo $$$$; exec sleep 1000"))
        line = await anext(job.logs(follow=True))
        os.kill(int(line.text), 0)
    with pytest.raises(ProcessLookupError):
        os.kill(int(line.text), 0)


async def test_workdir_serves_one_client_at_a_time(
    client: AsyncLocalClient, tmp_path: Path
) -> None:
    with pytest.raises(WorkdirInUseError, match="in use by another run"):
        async with AsyncLocalClient(workdir=client.workdir):
            pass
    for _ in range(2):
        async with AsyncLocalClient(workdir=tmp_path / "other"):
            pass


async def test_taken_name_is_refused(client: AsyncLocalClient) -> None:
    await client.run(**shell("exit"))
    with pytest.raises(NameTakenError, match="choose another name"):
        await client.run(**shell("exit"))


async def test_job_with_too_many_gpus_is_refused(client: AsyncLocalClient) -> None:
    job = await client.run(**shell("exit"))
    manifest = dict(await job.manifest())
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"nvidia.com/gpu": 64}}
    manifest["metadata"] = {"name": "other"}
    with pytest.raises(ManifestError, match="requests 64 GPUs in all"):
        await client.apply(manifest)


class TestSync:
    def test_without_await(self, tmp_path: Path) -> None:
        with LocalClient(workdir=tmp_path / "work") as client:
            job = client.run(**shell("echo said; exit 0"))
            assert [str(line) for line in job.logs(follow=True)] == ["0 | said"]
            assert job.wait(timeout=60).phase == job.status.phase == "Succeeded"
            assert client.workdir == tmp_path / "work"

    def test_closed_log_can_be_read_again(self, tmp_path: Path) -> None:
        with LocalClient(workdir=tmp_path / "work") as client:
            job = client.run(**shell("seq 5; exec sleep 100"))
            lines = job.logs(follow=True)
            assert next(lines).text == "1"
            lines.close()
            assert [line.text for line in job.logs()] == ["1", "2", "3", "4", "5"]
