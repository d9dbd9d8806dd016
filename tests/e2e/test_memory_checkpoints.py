"""A plain script resumes from the memory of its pods: no volume, no checkpoint of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
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
STEPS = 400
ENDLESS = "memory-1"
"""The job that trains until it is deleted, so that it does not end before it has saved again."""


@dataclass(frozen=True)
class Disturbed:
    """A job that has just lost a pod or a rank."""

    job: Job
    step: int
    """The newest complete step before the loss."""
    uids: dict[str, str]
    """Its pods before the loss."""


LOSSES: Mapping[str, Callable[[Job], None]] = {
    "memory-0": lambda job: force_delete(job, "memory-0-0-0"),
    "memory-1": lambda job: force_delete(job, "memory-1-0-1"),
    "memory-rank": lambda job: kill_rank(job, "memory-rank-0-2"),
}
"""The jobs' names, and what each loses."""


@pytest.fixture(scope="module")
def disturbed(shared: Kubectl) -> dict[str, Disturbed]:
    """The example under a name for each loss, applied at once; each has lost its pod or rank."""
    for manifest in manifests_in(EXAMPLE):
        names = LOSSES if manifest["kind"] == "DDPJob" else [manifest["metadata"]["name"]]
        for name in names:
            shared.apply(_small(manifest, name))
    jobs = {name: Job(shared, name) for name in LOSSES}
    found: dict[str, Disturbed] = {}

    def disturb_all() -> bool:
        for name, job in jobs.items():
            # Each as soon as it has some complete steps: it does not wait for the others.
            if name not in found and _can_be_disturbed(job):
                found[name] = Disturbed(job, complete(job), job.uids())
                LOSSES[name](job)
        return len(found) == len(LOSSES)

    wait_for(disturb_all, what="complete steps of all jobs", describe=found.keys)
    return found


def _can_be_disturbed(job: Job) -> bool:
    answers = job.status().bookkeeping.launcher == "InPlace"
    return answers and complete(job) >= 4 * INTERVAL


def _small(manifest: Any, name: str) -> Any:
    """Return a manifest under a name; a job's pods request little and take fewer steps."""
    manifest = deepcopy(manifest)
    manifest["metadata"]["name"] = name
    if manifest["kind"] == "DDPJob":
        [container] = manifest["spec"]["template"]["spec"]["containers"]
        container["resources"]["requests"] = {"cpu": "50m", "memory": "128Mi"}
        steps = 1_000_000 if name == ENDLESS else STEPS
        container["env"] = [{"name": "STEPS", "value": str(steps)}]
    return manifest


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


def test_job_without_rank_0_resumes_from_memory_and_completes(
    disturbed: dict[str, Disturbed],
) -> None:
    """Rank 0's pod has the launcher that decides."""
    job = disturbed["memory-0"].job
    until_resumed(disturbed["memory-0"], lost=0)
    status = job.wait_until("Succeeded")
    assert (status.attempt, status.restarts, status.disruptions) == (0, 0, 1)
    job.log_with("memory-0-0-0-r1", f"rank 0 step {STEPS}/{STEPS}")


def test_job_without_another_pod_resumes_from_memory_and_saves_again(
    disturbed: dict[str, Disturbed],
) -> None:
    job = disturbed[ENDLESS].job
    step = until_resumed(disturbed[ENDLESS], lost=1)
    wait_for(lambda: complete(job) > step, what="newer complete steps", describe=job.status)
    status = job.status()
    assert (status.attempt, status.restarts, status.disruptions) == (0, 0, 1)
    job.kubectl.run("delete", "ddpjob", job.name, "--wait=false")


def until_resumed(disturbed: Disturbed, *, lost: int) -> int:
    """Wait until a job that lost a pod has resumed from memory, with its other pods; return the
    step.
    """
    job, uids = disturbed.job, disturbed.uids
    names = [f"{job.name}-0-{at}" + ("-r1" if at == lost else "") for at in range(PODS)]
    logs = [begun(job, pod, starts=1 if at == lost else 2) for at, pod in enumerate(names)]
    resumed = {begins(log)[-1] for log in logs}
    assert len(resumed) == 1, "all ranks resume at the same step"
    [step] = resumed
    assert step % INTERVAL == 0
    # A save that was still being copied is lost with the pod, and the steps since.
    survivors = logs[:lost] + logs[lost + 1 :]
    assert disturbed.step <= step <= max(last_saved(log) for log in survivors)
    now = job.uids()
    assert [now[pod] for pod in names if pod in uids] == [uids[p] for p in names if p in uids]
    record = wait_for(lambda: restored(job), what="the restore in the status", describe=job.status)
    assert (record.restored_step, record.restore_reason) == (step, "")
    assert "RestoredFromMemory" in {event["reason"] for event in job.events()}
    return step


def test_killed_rank_resumes_from_its_own_pod(disturbed: dict[str, Disturbed]) -> None:
    name = "memory-rank"
    job = disturbed[name].job
    resumed = {begins(begun(job, f"{name}-0-{index}", starts=2))[-1] for index in range(PODS)}
    assert len(resumed) == 1
    assert resumed.pop() >= disturbed[name].step
    assert job.uids() == disturbed[name].uids
    status = job.wait_until("Succeeded")
    assert (status.attempt, status.restarts + status.disruptions) == (0, 1)
    [failure] = status.failures
    assert failure.action == "RestartInPlace"
