"""A plain script resumes from the memory of its pods: no volume, no checkpoint of its own."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from ddp_operator.api.status import MemoryCheckpointRecord

from tests.e2e.jobs import Job, force_delete, kill_rank, manifests_in
from tests.e2e.kubectl import Kubectl, wait_for

EXAMPLE = Path(__file__).parents[2] / "manifests" / "examples" / "memory-checkpoints.yaml"
INTERVAL = 5
"""Steps between two saves in the example."""
PODS = 3


LOSSES = ("memory-0", "memory-1", "memory-rank")
"""A job for each pod or rank that is lost."""


@pytest.fixture(scope="module", autouse=True)
def jobs(shared: Kubectl) -> dict[str, Job]:
    """The example under a name for each loss, applied at once."""
    for manifest in manifests_in(EXAMPLE):
        names = LOSSES if manifest["kind"] == "DDPJob" else [manifest["metadata"]["name"]]
        for name in names:
            shared.apply(_small(manifest, name))
    return {name: Job(shared, name) for name in LOSSES}


def _small(manifest: Any, name: str) -> Any:
    """Return a manifest under a name; a job's pods request little."""
    manifest = deepcopy(manifest)
    manifest["metadata"]["name"] = name
    if manifest["kind"] == "DDPJob":
        [container] = manifest["spec"]["template"]["spec"]["containers"]
        container["resources"]["requests"] = {"cpu": "50m", "memory": "128Mi"}
    return manifest


def saving(job: Job) -> Job:
    """Wait for some complete steps."""
    job.wait_until_launcher_answers()
    wait_for(lambda: complete(job) >= 4 * INTERVAL, what="complete steps", describe=job.status)
    return job


def complete(job: Job) -> int:
    """Return the newest complete step in the status; 0 before the first."""
    record = job.status().memory_checkpoint
    return (record and record.step) or 0


def restored(job: Job) -> MemoryCheckpointRecord | None:
    """Return what the status says of memory, as soon as a restart is in it."""
    record = job.status().memory_checkpoint
    return record if record and record.restored_at else None


def begins(log: str) -> list[int]:
    """Return the step after which each start of a pod's rank began."""
    return [int(step) for step in re.findall(r"begins after step (\d+)", log)]


def begun(job: Job, pod: str, *, starts: int) -> str:
    """Return a pod's log as soon as its rank has started so often."""

    def look() -> str | None:
        log = job.log(pod)
        return log if len(begins(log)) == starts else None

    return wait_for(look, what=f"{starts} starts in {pod}", describe=lambda: job.log(pod))


def last_saved(log: str) -> int:
    """Return the last step that a pod's rank has printed before its group broke."""
    first, *_ = re.split(r"begins after step [1-9]", log)
    return int(re.findall(r"step (\d+)/", first)[-1])


@pytest.mark.parametrize("lost", [0, 1])
def test_lost_pod_resumes_from_the_memory_of_another(jobs: dict[str, Job], lost: int) -> None:
    """Rank 0's pod has the launcher that decides, and any other pod only snapshots."""
    name = f"memory-{lost}"
    job = saving(jobs[name])
    before, uids = complete(job), job.uids()
    force_delete(job, f"{name}-0-{lost}")
    names = [f"{name}-0-{index}" + ("-r1" if index == lost else "") for index in range(PODS)]
    logs = [begun(job, pod, starts=1 if index == lost else 2) for index, pod in enumerate(names)]
    resumed = {begins(log)[-1] for log in logs}
    assert len(resumed) == 1, "all ranks resume at the same step"
    [step] = resumed
    assert step % INTERVAL == 0
    # A save that was still being copied is lost with the pod, and the steps since.
    assert before <= step <= max(last_saved(log) for log in logs[:lost] + logs[lost + 1 :])
    now = job.uids()
    assert [now[pod] for pod in names if pod in uids] == [uids[p] for p in names if p in uids]
    record = wait_for(lambda: restored(job), what="the restore in the status", describe=job.status)
    assert (record.restored_step, record.restore_reason, record.copies) == (step, "", 1)
    assert "RestoredFromMemory" in {event["reason"] for event in job.events()}
    wait_for(lambda: complete(job) > step, what="newer complete steps", describe=job.status)
    status = job.wait_until("Succeeded")
    assert (status.attempt, status.restarts, status.disruptions) == (0, 0, 1)
    job.log_with(names[0], "rank 0 step 600/600")


def test_killed_rank_resumes_from_its_own_pod(jobs: dict[str, Job]) -> None:
    name = "memory-rank"
    job = saving(jobs[name])
    before, uids = complete(job), job.uids()
    kill_rank(job, f"{name}-0-2")
    resumed = {begins(begun(job, f"{name}-0-{index}", starts=2))[-1] for index in range(PODS)}
    assert len(resumed) == 1
    assert resumed.pop() >= before
    assert job.uids() == uids
    status = job.wait_until("Succeeded")
    assert (status.attempt, status.restarts + status.disruptions) == (0, 1)
    [failure] = status.failures
    assert failure.action == "RestartInPlace"
