"""Launchers and ranks resume from memory after a loss, bit for bit."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.trainer.support.memory_jobs import MemoryJob, memory_job
from tests.trainer.support.pods import until
from tests.trainer.support.worlds import WorldPod

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
_NODES, _RANKS = 2, 2
_LOST = 5
_SCRIPT = ("--", sys.executable, "-m", "tests.trainer.memory.restarting")
_PLAIN, _DCP = (*_SCRIPT, "plain"), (*_SCRIPT, "dcp")


def complete_after(step: int, job: MemoryJob) -> list[int]:
    """Wait until a step is complete; return the process IDs of the ranks, which wait."""
    for pod in job.job.pods:
        pod.wait_to_listen()
    for each in range(1, step + 1):
        job.wait_until_complete(each)
        if each < step:
            (job.job.folder / f"after-{each}").touch()
    return [int((job.job.folder / f"{rank}.1").read_text()) for rank in range(_NODES * _RANKS)]


def check_end(pods: list[WorldPod], generation: int) -> None:
    """Check that all ranks resume at the newest complete step and end as without a loss."""
    codes = [pod.wait() for pod in pods]
    logs = "\n".join(pod.log for pod in pods)
    assert codes == [0] * _NODES, logs
    for rank in range(_NODES * _RANKS):
        assert f"rank {rank} begins after step {_LOST} in generation {generation}\n" in logs, logs
        assert f"rank {rank} ends as without a loss\n" in logs, logs


def test_a_killed_rank_makes_all_resume_in_their_pods(tmp_path: Path) -> None:
    with memory_job(tmp_path, nodes=_NODES, local_world_size=_RANKS, command=_DCP) as job:
        pods = [job.start(node_rank) for node_rank in range(_NODES)]
        pids = complete_after(_LOST, job)
        number = pods[0].news()["number"]
        os.kill(pids[1], signal.SIGKILL)
        until(lambda: bool(pods[0].news(after=number, wait=25)["failures"]), "the failure")
        job.restart(pods, 2)
        check_end(pods, 2)


def test_a_lost_pod_resumes_from_the_memory_of_another(tmp_path: Path) -> None:
    with memory_job(tmp_path, nodes=_NODES, local_world_size=_RANKS, command=_PLAIN) as job:
        pods = [job.start(node_rank) for node_rank in range(_NODES)]
        pids = complete_after(_LOST, job)
        pods[0].process.kill()
        pods[0].process.wait()
        for pid in pids[:_RANKS]:
            os.kill(pid, signal.SIGKILL)
        pods[0] = job.start(0, generation=2)
        pods[0].wait_to_listen()
        job.restart(pods, 2)
        check_end(pods, 2)
