"""New code in running pods: the operator's engine, and launchers as processes of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ddp_client import AsyncLocalClient
from ddp_client.sdk import AsyncJob
from ddp_operator.api.code import PARTS_VOLUME, Code
from ddp_operator.api.constants import ANNOTATION_CODE
from ddp_operator.api.status import DDPJobStatus
from ddp_protocol.code_archive import SENT, digest_of, unpack
from ddp_protocol.code_packing import make, pack

from tests.waiting import eventually

SCRIPT = """
import os, pathlib, time
work = pathlib.Path(os.environ["DDP_CODE_DIR"]) / "work"
print("rank", os.environ["RANK"], "has", (work / "version").read_text(), flush=True)
while not pathlib.Path(__file__).with_name("end").exists():
    time.sleep(0.05)
"""
REPORTS = SCRIPT.replace(
    "while not",
    """
version = int((work / "version").read_text().split()[1])
if os.environ["RANK"] == "0":
    status = pathlib.Path(os.environ["DDP_STATUS_FILE"])
    status.with_suffix(".new").write_text('{"step": %d, "loss": %d}' % (100 // version, version))
    status.with_suffix(".new").rename(status)
while version == 1 and not""",
)
"""Its first version trains on after step 100, and its second one ends at step 50."""
PODS = 2
EDITS = 3


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AsyncLocalClient]:
    async with asyncio.timeout(240), AsyncLocalClient(workdir=tmp_path / "pods") as client:
        yield client


def archive(version: int) -> tuple[Code, bytes]:
    made = make({"version": (f"version {version}".encode(), False)})
    return Code(f"{digest_of(made)}-{version:04}", 1), pack(made)


def manifest(folder: Path, script: Path) -> dict[str, Any]:
    """Return a job with pods that each have a folder here, by its name."""
    launcher = ["python", "-m", "ddp_trainer.launch", "--no-preload", "--"]
    container = {
        "name": "trainer",
        "image": "any",
        "command": [*launcher, "python", str(script)],
        "env": [{"name": "DDP_CODE_DIR", "value": f"{folder}/$(DDP_POD)"}],
    }
    volumes = [{"name": PARTS_VOLUME, "projected": {"sources": []}}]
    return {
        "apiVersion": "ddp-operator.io/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": "edited", "annotations": {ANNOTATION_CODE: str(archive(1)[0])}},
        "spec": {
            "replicas": PODS,
            "restart": {"maxRestarts": 0},
            "template": {"spec": {"containers": [container], "volumes": volumes}},
        },
    }


async def begin(client: AsyncLocalClient, tmp_path: Path, text: str) -> tuple[AsyncJob, list[Path]]:
    """Start a job with the first version of the code; return the folders of its pods, too."""
    script = tmp_path / "train.py"
    script.write_text(text)
    folders = [tmp_path / "code" / f"edited-0-{index}" for index in range(PODS)]
    first, packed = archive(1)
    for folder in folders:
        folder.mkdir(parents=True)
        unpack(packed, first.id, folder)
    return await client.apply(manifest(tmp_path / "code", script)), folders


async def send(client: AsyncLocalClient, job: AsyncJob, folders: list[Path], version: int) -> None:
    """Send a version to the pods, and ask for it."""
    code, packed = archive(version)
    for folder in folders:
        (folder / SENT / code.id).write_bytes(packed)
    change = {"metadata": {"annotations": {ANNOTATION_CODE: str(code)}}}
    stored = await job.read()
    await client._backend.patch(stored.key, stored.uid, change)


async def until_answered(job: AsyncJob) -> None:
    """Wait until the operator knows that the launchers restart processes in their pods."""

    async def answered() -> bool:
        return (await job.status()).bookkeeping.launcher == "InPlace"

    await eventually(answered, interval_seconds=0.1)


async def until_printed(job: AsyncJob, version: int) -> None:
    wanted = {f"rank {rank} has version {version}" for rank in range(PODS)}

    async def printed() -> bool:
        return wanted <= {line.text async for line in job.logs()}

    await eventually(printed, interval_seconds=0.1)


async def test_processes_restart_with_each_new_code(
    client: AsyncLocalClient, tmp_path: Path
) -> None:
    job, folders = await begin(client, tmp_path, SCRIPT)
    await until_printed(job, 1)
    await until_answered(job)
    for version in range(2, EDITS + 2):
        await send(client, job, folders, version)
        await until_printed(job, version)
    (tmp_path / "end").touch()
    status: DDPJobStatus = await job.wait(timeout=60)
    assert (status.phase, status.attempt) == ("Succeeded", 0)
    assert (status.restarts, status.disruptions, status.failures) == (0, 0, ())
    assert status.world is not None
    assert status.world.generation == EDITS
    printed = [line.text async for line in job.logs() if "has version" in line.text]
    assert len(printed) == PODS * (EDITS + 1), "each version started once in each pod"


async def test_result_is_that_of_new_code_that_ends_at_once(
    client: AsyncLocalClient, tmp_path: Path
) -> None:
    job, folders = await begin(client, tmp_path, REPORTS)
    await until_answered(job)

    async def reported() -> bool:
        progress = (await job.status()).progress
        return progress is not None and progress.step == 100

    await eventually(reported, interval_seconds=0.1)
    await send(client, job, folders, 2)
    status: DDPJobStatus = await job.wait(timeout=60)
    assert (status.phase, status.attempt) == ("Succeeded", 0)
    result = await job.result()
    assert (result.step, result.loss) == (50, 2)
    assert [row.step for row in result.rows] == [50]
