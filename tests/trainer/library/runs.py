"""Runs of the scripts in this folder."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from tests.trainer.library.forkserver import DEVICE_VARIABLE, SCRIPT_VARIABLE
from tests.trainer.support import fault_injection
from tests.trainer.support.fault_injection import FaultAt
from tests.trainer.support.pods import Job, Pod, job
from tests.trainer.support.preloaded import SCRIPT


class Undisturbed(Protocol):
    """Returns a run of a script without faults; each runs once a session."""

    def __call__(
        self,
        script: str = "one model",
        /,
        *flags: str,
        ranks: int,
        variables: Mapping[str, str] | None = None,
    ) -> Job: ...


def on(device: str, *, script: str = "one model") -> dict[str, str]:
    """Return variables that make ranks run a script on a device, "cpu", "stream" or "cuda"."""
    return {DEVICE_VARIABLE: device, SCRIPT_VARIABLE: script}


def script_job(
    folder: Path,
    *,
    ranks: int,
    nodes: int = 1,
    device: str = "cpu",
    script: str = "one model",
    variables: Mapping[str, str] | None = None,
) -> AbstractContextManager[Job]:
    """Return a job that runs a script."""
    return job(
        folder,
        nodes=nodes,
        local_world_size=ranks // nodes,
        forkserver=SCRIPT,
        extra_environment={**on(device, script=script), **(variables or {})},
    )


def run_to_its_end(of: Job, *more: str) -> Pod:
    """Run a job of one pod, which must complete."""
    [pod] = of.start_all("--max-restarts", "1000", "--trace-samples", str(of.traces), *more)
    assert pod.wait() == 0, pod.log
    return pod


def run_with_faults(
    folder: Path,
    plan: Sequence[FaultAt],
    *flags: str,
    ranks: int,
    device: str = "cpu",
    script: str = "one model",
    variables: Mapping[str, str] | None = None,
) -> Job:
    """Run a script in one pod; its ranks fail as planned and continue without a checkpoint."""
    folder.mkdir(exist_ok=True)
    faults = folder / "faults"
    environment = {**fault_injection.environment([*plan], faults), **(variables or {})}
    with script_job(
        folder, ranks=ranks, device=device, script=script, variables=environment
    ) as run:
        log = run_to_its_end(run, *flags).log
    fault_injection.assert_all_happened(plan, faults, log)
    assert "resuming from checkpoint" not in log
    return run


def log_of(run: Job) -> str:
    """Return the log of a job of one pod."""
    [pod] = run.pods
    return pod.log


def ends_of(log: str) -> set[str]:
    """Return digests of the states with which the ranks of a script ended."""
    return set(re.findall(r"ends with (\w+)", log))


def resume_after_step_6(of: Job, *arguments: str) -> Pod:
    """Kill the one pod of a job once step 6 is saved; return its successor, which completes."""
    [first] = of.start_all(*arguments)
    first.wait_for_log("(step 6)")
    for pid in first.rank_pids():
        os.kill(pid, signal.SIGKILL)
    first.kill()
    [second] = of.start_all()
    assert second.wait() == 0, second.log
    assert "resuming from checkpoint" in second.log
    return second
