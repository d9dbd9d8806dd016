"""Runs of the tests' scripts."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path

from tests.trainer.library.forkserver import DEVICE_VARIABLE, SCRIPT_VARIABLE
from tests.trainer.support.pods import Job, Pod, job
from tests.trainer.support.preloaded import SCRIPT


def on(device: str, *, script: str = "one model") -> dict[str, str]:
    """Variables that make ranks run a script on a device, "cpu", "stream" or "cuda"."""
    return {DEVICE_VARIABLE: device, SCRIPT_VARIABLE: script}


def script_job(
    folder: Path,
    *,
    ranks: int,
    nodes: int = 1,
    device: str = "cpu",
    script: str = "one model",
    variables: dict[str, str] | None = None,
) -> AbstractContextManager[Job]:
    """A job that runs a script."""
    return job(
        folder,
        nodes=nodes,
        local_world_size=ranks // nodes,
        forkserver=SCRIPT,
        extra_environment={**on(device, script=script), **(variables or {})},
    )


def run_to_its_end(of: Job, *more: str) -> Pod:
    """The one pod of a job, which ends well."""
    [pod] = of.start_all("--max-restarts", "1000", "--trace-samples", str(of.traces), *more)
    assert pod.wait() == 0, pod.log
    return pod


def resume_after_step_6(of: Job, *arguments: str) -> Pod:
    """Kill the one pod of a job once step 6 is saved; its successor, which ends well."""
    [first] = of.start_all(*arguments)
    first.wait_for_log("(step 6)")
    for pid in first.rank_pids():
        os.kill(pid, signal.SIGKILL)
    first.kill()
    [second] = of.start_all()
    assert second.wait() == 0, second.log
    assert "resuming from checkpoint" in second.log
    return second
