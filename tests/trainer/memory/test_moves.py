"""Another pod takes the place of one while rank 0 pauses; no step is repeated, bit for bit."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.trainer.memory.moving import EVERY, MORE
from tests.trainer.support.memory_jobs import MemoryJob, memory_job
from tests.trainer.support.pods import until
from tests.trainer.support.worlds import WorldPod

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
_NODES, _RANKS = 2, 2


def command(kind: str) -> list[str]:
    return ["--", sys.executable, "-m", "tests.trainer.memory.moving", kind]


def steps_of(folder: Path, rank: int) -> list[tuple[int, int]]:
    """Return the generation and number of each step that a rank completed."""
    path = folder / f"{rank}.steps"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(line.split()[0]), int(line.split()[1])) for line in lines]


def trains(job: MemoryJob) -> tuple[list[WorldPod], WorldPod]:
    """Return the pods of a group that has saved, and a successor that is ready."""
    pods = [job.start(node_rank) for node_rank in range(_NODES)]
    successor = job.start(None)
    for pod in (*pods, successor):
        pod.wait_to_listen()
    until(lambda: successor.put(1, None, query="?wait=5")[1]["ended"], "the successor")
    until(lambda: (job.memory().get("step") or 0) >= EVERY, "a complete step")
    return pods, successor


def ask_to_pause(leader: WorldPod, *, pause: bool = True) -> None:
    assert leader.put(1, 0, pause=pause)[0] == 200


def wait_for_pause(leader: WorldPod) -> int:
    """Return the step after which rank 0 pauses."""
    until(lambda: bool(leader.news()["pause"] == "Paused"), "rank 0 to pause")
    step = leader.news()["memory"]["step"]
    assert isinstance(step, int)
    return step


@pytest.mark.parametrize(
    ("kind", "leaves"),
    [("sharded", 1), ("sharded", 0), ("replicated", 1)],
    ids=["sharded", "sharded, rank 0", "replicated"],
)
def test_pod_moves_without_a_repeated_step(tmp_path: Path, kind: str, leaves: int) -> None:
    with memory_job(tmp_path, nodes=_NODES, local_world_size=_RANKS, command=command(kind)) as job:
        pods, successor = trains(job)
        ask_to_pause(pods[0])
        paused = wait_for_pause(pods[0])
        assert paused % EVERY == 0
        assert all(pod.process.poll() is None for pod in pods), "they trained until now"
        left, pods[leaves] = pods[leaves], successor
        left.process.send_signal(signal.SIGTERM)
        left.wait()
        job.restart(pods, 2, graceSeconds=0)
        codes = [pod.wait() for pod in pods]
        logs = "\n".join(pod.log for pod in pods)
        assert codes == [0] * _NODES, logs
    for rank in range(_NODES * _RANKS):
        before = [(1, step) for step in range(1, paused + 1)]
        after = [(2, step) for step in range(paused + 1, paused + MORE + 1)]
        assert steps_of(tmp_path, rank) == before + after
        assert f"rank {rank} ends as without a move\n" in logs, logs


def test_training_continues_after_a_withdrawn_pause(tmp_path: Path) -> None:
    with memory_job(
        tmp_path, nodes=_NODES, local_world_size=_RANKS, command=command("sharded")
    ) as job:
        pods, _ = trains(job)
        ask_to_pause(pods[0])
        paused = wait_for_pause(pods[0])
        ask_to_pause(pods[0], pause=False)
        last = _NODES * _RANKS - 1
        until(lambda: len(steps_of(tmp_path, last)) > paused + EVERY, "more steps")
        assert pods[0].news()["pause"] == ""
        for rank in range(_NODES * _RANKS):
            steps = [step for _, step in steps_of(tmp_path, rank)]
            assert steps == [*range(1, len(steps) + 1)]
        assert os.listdir(job.volumes / pods[0].name).count("pause") == 0
