"""Runs of the test's script."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path

from tests.trainer.library.forkserver import ARGUMENTS_VARIABLE, DEVICE_VARIABLE
from tests.trainer.pods import Job, Pod, job

LAUNCHER = "tests.trainer.library.launch"


def script_job(
    folder: Path,
    *arguments: str,
    ranks: int,
    nodes: int = 1,
    device: str = "cpu",
    variables: dict[str, str] | None = None,
) -> AbstractContextManager[Job]:
    """A job that runs the script on a device, "cpu" or "stream"."""
    environment = {DEVICE_VARIABLE: device, ARGUMENTS_VARIABLE: json.dumps(arguments)}
    return job(
        folder,
        nodes=nodes,
        local_world_size=ranks // nodes,
        launcher=LAUNCHER,
        extra_environment={**environment, **(variables or {})},
    )


def run_to_its_end(of: Job) -> Pod:
    """The one pod of a job, which ends well."""
    [pod] = of.start_all("--max-restarts", "1000")
    assert pod.wait() == 0, pod.log
    return pod
