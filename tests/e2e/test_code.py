"""A folder that travels to the pods, and is edited while its job runs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.e2e.jobs import TRAINER_IMAGE, Job, force_delete
from tests.e2e.kubectl import Kubectl
from tests.e2e.test_kubectl_ddp import Ddp, ddp

__all__ = ["ddp"]

SCRIPT = """\
import time
import torch
from torch import distributed as dist
from lib.version import VERSION

dist.init_process_group("gloo")
versions = torch.full((1,), float(VERSION))
dist.all_reduce(versions)
size = dist.get_world_size()
assert versions == VERSION * size, "old and new code met in one group"
print(f"rank {dist.get_rank()} of {size} trains version {VERSION} at {time.time():.3f}", flush=True)
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.1)
"""
PODS = 3
EDITS = 4


def write(project: Path, version: int) -> None:
    (project / "lib").mkdir(parents=True, exist_ok=True)
    (project / "train.py").write_text(SCRIPT)
    (project / "lib" / "version.py").write_text(f"VERSION = {version}\n")
    (project / ".gitignore").write_text("data/\n")
    (project / "data").mkdir(exist_ok=True)
    (project / "data" / "large").write_bytes(bytes(1000))


def trains(job: Job, version: int, *pods: str) -> float:
    """Wait until a version trains in all pods; return when its last rank did, in seconds."""
    times: list[float] = []
    for rank, pod in enumerate(pods):
        _, _, rest = job.log_with(pod, f" trains version {version} at ").rpartition(
            f"rank {rank} of {PODS} trains version {version} at "
        )
        times.append(float(rest.splitlines()[0]))
    return max(times)


def edit(job: Job, ddp: Ddp, project: Path, versions: Iterable[int]) -> list[float]:
    """Send versions one after the other; return the seconds from each command to its first step.

    Pods of a node on this machine share its clock.
    """
    pods = sorted(job.uids())
    seconds: list[float] = []
    for version in versions:
        write(project, version)
        begin = time.time()
        sent = ddp("run", "--into", job.name, "--workdir", str(project), "--yes", "--detach")
        assert sent.returncode == 0, sent.stderr
        seconds.append(trains(job, version, *pods) - begin)
    return seconds


def stored_code(job: Job) -> list[str]:
    """Return the names of the ConfigMaps with code of a job."""
    owned = job.kubectl.items("configmaps", "-l", f"ddp-operator.io/job-name={job.name}")
    return [one["metadata"]["name"] for one in owned]


def test_edited_code_restarts_in_the_same_pods(kubectl: Kubectl, ddp: Ddp, tmp_path: Path) -> None:
    project = tmp_path / "project"
    write(project, 1)
    made = ddp(
        *("run", "edited", "--image", TRAINER_IMAGE, "--replicas", str(PODS)),
        *("--launcher", "bundled", "--workdir", str(project), "--yes", "--detach"),
        *("--", "python", "train.py"),
    )
    assert made.returncode == 0, made.stderr
    job = Job(kubectl, "edited")
    pods = [f"edited-0-{index}" for index in range(PODS)]
    trains(job, 1, *pods)
    job.wait_until_launcher_answers()
    before = job.uids()
    edit(job, ddp, project, range(2, EDITS + 2))
    assert job.uids() == before
    status = job.wait_until("Running")
    assert (status.attempt, status.restarts, status.disruptions) == (0, 0, 0)
    assert status.world is not None
    assert status.world.generation == EDITS
    files = kubectl.run("exec", pods[0], "--", "ls", "-A").split()
    assert sorted(files) == [".gitignore", "lib", "train.py"]

    force_delete(job, pods[1])
    trains(job, EDITS + 1, pods[0], f"{pods[1]}-r1", pods[2])
    assert len(stored_code(job)) == 3, "what runs, what ran before, and what the pods mount"
    assert ddp("delete", "edited", "--yes").returncode == 0


@pytest.mark.nightly
def test_large_folder_travels_through_a_claim(
    kubectl: Kubectl, ddp: Ddp, claim: Callable[[str], str], tmp_path: Path
) -> None:
    project, volume = tmp_path / "project", f"pvc/{claim('code')}"
    write(project, 1)
    (project / "vocabulary.bin").write_bytes(random.Random(1).randbytes(12 * 2**20))
    made = ddp(
        *("run", "large", "--image", TRAINER_IMAGE, "--replicas", str(PODS)),
        *("--launcher", "bundled", "--workdir", str(project), "--code-volume", volume),
        *("--yes", "--detach", "--", "python", "train.py"),
    )
    assert made.returncode == 0, made.stderr
    assert "the code is in claim code" in made.stderr
    job = Job(kubectl, "large")
    pods = [f"large-0-{index}" for index in range(PODS)]
    trains(job, 1, *pods)
    job.wait_until_launcher_answers()
    before = job.uids()
    edit(job, ddp, project, [2])
    assert job.uids() == before
    size = kubectl.run("exec", pods[0], "--", "wc", "-c", "vocabulary.bin").split()[0]
    assert int(size) == 12 * 2**20
    force_delete(job, pods[1])
    trains(job, 2, pods[0], f"{pods[1]}-r1", pods[2])

    again = ddp(
        *("run", "again", "--image", TRAINER_IMAGE, "--workdir", str(project)),
        *("--code-volume", volume, "--yes", "--wait", "--", "test", "-f", "vocabulary.bin"),
    )
    assert again.returncode == 0, again.stderr
    assert "claim code already has this code" in again.stderr
    uploads = kubectl.items("pods", "-l", "app.kubernetes.io/name=ddp-code-upload")
    assert all(pod["metadata"].get("deletionTimestamp") for pod in uploads)
    assert ddp("delete", "large", "--yes").returncode == 0


def test_packages_that_cannot_be_installed_end_the_job_at_once(
    kubectl: Kubectl, ddp: Ddp, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print('never')\n")
    (tmp_path / "requirements.txt").write_text("this is no requirement\n")
    ended = ddp(
        *("run", "unmet", "--image", TRAINER_IMAGE, "--workdir", str(tmp_path)),
        *(
            "--pip",
            str(tmp_path / "requirements.txt"),
            "--yes",
            "--wait",
            "--",
            "python",
            "train.py",
        ),
    )
    assert ended.returncode == 3, ended.stderr
    status = Job(kubectl, "unmet").status()
    assert (status.reason, status.restarts) == ("ConfigurationError", 0)
    assert "pip install -r requirements.txt failed" in status.message
