"""The launcher in an image that was built without this project, and in one that cannot have it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.e2e.jobs import RESTRICTED_CONTAINER, RESTRICTED_POD, Job
from tests.e2e.kubectl import Kubectl

SCRIPT = """
import os, sys, time

names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")
print("rank", *(os.environ[name] for name in names))

def train():
    while not os.path.exists("/checkpoints/end"):
        time.sleep(0.1)

train()
sys.exit(7 if os.environ["RANK"] == "3" else 0)
"""


def launched(name: str, command: list[str], **fields: Any) -> Any:
    """A job of two pods of two ranks with an image that has no launcher."""
    container = {
        "name": "trainer",
        "image": "plain-python:dev",
        "command": command,
        "securityContext": RESTRICTED_CONTAINER,
        **fields,
    }
    return {
        "apiVersion": "ddp-operator.io/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": name},
        "spec": {
            "replicas": 2,
            "nprocPerNode": 2,
            "launcher": "inject",
            "restart": {"scope": "Gang", "maxRestarts": 0},
            "template": {"spec": {"securityContext": RESTRICTED_POD, "containers": [container]}},
        },
    }


@pytest.fixture(scope="module")
def jobs(shared: Kubectl) -> dict[str, Job]:
    """Both jobs, applied at once."""
    nowhere = [{"name": "PATH", "value": "/nowhere"}]
    shared.apply(
        launched("any-image", ["python3", "-c", SCRIPT]),
        launched("without-python", ["/bin/true"], env=nowhere),
    )
    return {name: Job(shared, name) for name in ("any-image", "without-python")}


def test_the_launcher_runs_in_an_image_that_was_built_without_it(jobs: dict[str, Job]) -> None:
    job = jobs["any-image"]
    for rank in range(4):
        node, local_rank = divmod(rank, 2)
        said = f"rank {rank} {local_rank} 4 any-image-0-0.any-image"
        job.log_with(f"any-image-0-{node}", said)

    where = ("--kubeconfig", str(job.kubectl.kubeconfig), "-n", job.kubectl.namespace)
    command = (sys.executable, "-m", "ddp_client.cli", *where, "stacks", "any-image")
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "in train" in shown.stdout
    assert "did not answer" not in shown.stdout

    for node in (0, 1):
        job.kubectl.run("exec", f"any-image-0-{node}", "--", "touch", "/checkpoints/end")
    status = job.wait_until("Failed")
    [failure] = status.failures
    assert (failure.index, failure.rank, failure.exit_code) == (1, 3, 7)
    words = ["rank 3 ended with exit code 7", "rank 3 1 4 any-image-0-0.any-image"]
    assert failure.message.splitlines() == words, "the end, and what it printed last"


def test_a_job_whose_image_has_no_python_says_so(jobs: dict[str, Job]) -> None:
    status = jobs["without-python"].wait_until("Failed")
    assert "spec.launcher: inject needs Python 3.11 or newer in the image" in status.message
    assert (status.restarts, status.attempt) == (0, 0)
