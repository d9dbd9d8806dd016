"""Launchers keep the snapshots of their ranks, and restore them after a restart or a loss."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.trainer.support.pods import until
from tests.trainer.support.worlds import WorldJob, WorldPod, world_job


class MemoryJob:
    """Pods with a volume in memory each."""

    def __init__(self, job: WorldJob, volumes: Path, *, nodes: int, local_world_size: int) -> None:
        self.job = job
        self.volumes = volumes
        self.sizes: dict[str, Any] = {"nodes": nodes, "local_world_size": local_world_size}

    def start(self, node_rank: int, *, generation: int = 1, copies: int = 1) -> WorldPod:
        name = f"pod-{len(self.job.pods)}"
        variables = {
            "DDP_GENERATION": str(generation),
            "DDP_MEMBERS": f"0-{self.sizes['nodes'] - 1}" if node_rank == 0 else "",
            "DDP_MEMORY_DIR": str(self.volumes / name),
            "DDP_MEMORY_BYTES": str(1 << 20),
            "DDP_MEMORY_COPIES": str(copies),
            "MASTER_ADDR": "127.0.0.1",
        }
        (self.volumes / name).mkdir()
        rank = ["-m", "tests.trainer.launcher.memory.rank", str(self.job.folder)]
        address = f"127.0.0.{1 + node_rank}"
        return self.job.start(
            node_rank,
            variables=variables,
            command=["--no-preload", "--", sys.executable, *rank, address],
            index=node_rank,
            **self.sizes,
        )

    def save(self, step: int) -> None:
        """Let all ranks save a step, and wait until all pods know that it is complete."""
        self.job.folder.joinpath(f"save-{step}").touch()
        until(lambda: self.memory().get("step") == step, f"step {step} to be complete")

        def is_alone() -> bool:
            alive = [pod.name for pod in self.job.pods if pod.process.poll() is None]
            left = [each for pod in alive for each in self.volumes.glob(f"{pod}/*/**/*.snapshot")]
            return bool(left) and all(f"-{step}-" in each.name for each in left)

        until(is_alone, "earlier steps to be released")

    def memory(self) -> dict[str, Any]:
        leader = next(pod for pod in reversed(self.job.pods) if pod.address == "127.0.0.1")
        assert leader.process.poll() is None, leader.log
        found: dict[str, Any] = leader.news()["memory"]
        return found

    def restart(self, pods: list[WorldPod], generation: int) -> None:
        """Do what the operator does: all begin the next generation."""
        for start in (False, True):
            for node_rank, pod in enumerate(pods):
                told: dict[str, Any] = {"start": start, "nodes": len(pods)}
                if node_rank == 0:
                    told["members"] = f"0-{len(pods) - 1}"
                ended = partial(_has_ended, pod, generation, node_rank, told)
                until(ended, f"{pod.name} to end its ranks")


def _has_ended(pod: WorldPod, generation: int, node_rank: int, told: dict[str, Any]) -> bool:
    status, answer = pod.put(generation, node_rank, query="?wait=5", **told)
    assert status == 200
    return bool(answer["ended"])


@contextmanager
def memory_job(folder: Path, *, nodes: int, local_world_size: int = 1) -> Iterator[MemoryJob]:
    volumes = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        with world_job(folder) as job:
            yield MemoryJob(job, volumes, nodes=nodes, local_world_size=local_world_size)
    finally:
        shutil.rmtree(volumes)


def test_ranks_that_die_resume_from_memory_in_their_pods(tmp_path: Path) -> None:
    with memory_job(tmp_path, nodes=2, local_world_size=2) as job:
        pods = [job.start(0), job.start(1)]
        for pod in pods:
            began = pod.wait_for(1)
            assert (began["path"], began["reason"]) == (None, "no pod has a snapshot")
        for step in (5, 6, 7):
            job.save(step)
        memory = job.memory()
        assert (memory["copies"], memory["bytes"]) == (1, 2000)
        assert memory["restored"]["generation"] == 1
        number = pods[0].news()["number"]
        pods[1].end(1, 3, local_rank=1)
        assert pods[0].news(after=number, wait=25)["failures"][0]["nodeRank"] == 1
        job.restart(pods, 2)
        for pod in pods:
            began = pod.wait_for(2)
            assert (began["step"], began["resumed"]) == (7, 1)
            assert "/own/" in began["path"], "nothing is fetched"
        assert job.memory()["restored"]["step"] == 7
        assert job.memory()["step"] == 7
        job.save(8)
        job.job.finish()
        assert [pod.wait() for pod in pods] == [0, 0]


def test_a_pod_that_replaces_node_rank_0_fetches_its_snapshots(tmp_path: Path) -> None:
    with memory_job(tmp_path, nodes=3) as job:
        pods = [job.start(node_rank) for node_rank in range(3)]
        for pod in pods:
            pod.wait_for(1)
        job.save(5)
        pods[0].process.send_signal(signal.SIGKILL)
        pods[0].process.wait()
        pods[0] = job.start(0, generation=2)
        pods[0].wait_to_listen()
        job.restart(pods, 2)
        for node_rank, pod in enumerate(pods):
            began = pod.wait_for(2)
            assert (began["step"], began["rank"]) == (5, node_rank)
        assert "/restored/" in pods[0].wait_for(2)["path"]
        assert job.memory()["restored"] == {
            **job.memory()["restored"],
            "generation": 2,
            "step": 5,
            "reason": "",
        }
        job.save(6)
        until(lambda: not [*job.volumes.glob("*/restored/*")], "the fetched snapshot to go")
        job.job.finish()
        assert [pod.wait() for pod in pods] == [0, 0, 0]


def test_a_pod_that_cannot_write_its_volume_trains_without(tmp_path: Path) -> None:
    with memory_job(tmp_path, nodes=1) as job:
        (job.volumes / "pod-0").mkdir()
        (job.volumes / "pod-0" / "copies").touch()
        pod = job.job.start(
            0,
            nodes=1,
            variables={
                "DDP_MEMORY_DIR": str(job.volumes / "pod-0"),
                "DDP_MEMORY_BYTES": "1000",
                "DDP_MEMORY_COPIES": "0",
            },
        )
        pod.wait_for(1)
        assert "memory: no snapshots are kept" in pod.log
        assert "memory" not in pod.news()
        job.job.finish()
        assert pod.wait() == 0


def test_a_wrong_variable_is_an_error_of_configuration(tmp_path: Path) -> None:
    with memory_job(tmp_path, nodes=1) as job:
        pod = job.job.start(0, nodes=1, variables={"DDP_MEMORY_DIR": str(job.volumes)})
        assert pod.wait() == 64
        assert pod.message["error"] == "DDP_MEMORY_COPIES is '': set it to a whole number"
