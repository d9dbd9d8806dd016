"""Pods of one job on one machine, each with a volume in memory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ddp_trainer.memory.volume import SnapshotName

from tests.ports import free_port
from tests.trainer.support.pods import until
from tests.trainer.support.worlds import WorldJob, WorldPod, world_job


class MemoryJob:
    """Pods with a volume in memory each."""

    def __init__(
        self, job: WorldJob, volumes: Path, command: Sequence[str], *, size: int, **sizes: int
    ) -> None:
        """`command`: of the ranks; the job's folder and their launcher's address are added.

        `size`: bytes of a volume.
        """
        self.job = job
        self.volumes = volumes
        self.command = command
        self.size = size
        self.sizes: dict[str, Any] = sizes
        self.master_port = free_port()

    def start(
        self,
        node_rank: int | None,
        *,
        generation: int = 1,
        copies: int = 1,
        slot: int | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> WorldPod:
        """Start a pod with an empty volume; None: a spare. `slot`: of a second spare."""
        if slot is None:
            slot = self.sizes["nodes"] if node_rank is None else node_rank
        name = f"pod-{len(self.job.pods)}"
        variables = {
            **(variables or {}),
            "DDP_GENERATION": str(generation),
            "DDP_MEMBERS": f"0-{self.sizes['nodes'] - 1}" if node_rank == 0 else "",
            "DDP_MEMORY_DIR": str(self.volumes / name),
            "DDP_MEMORY_BYTES": str(self.size),
            "DDP_MEMORY_COPIES": str(copies),
            "MASTER_PORT": str(self.master_port),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        (self.volumes / name).mkdir()
        address = f"127.0.0.{1 + slot}"
        return self.job.start(
            node_rank,
            variables=variables,
            command=[*self.command, str(self.job.folder), address],
            index=slot,
            **self.sizes,
        )

    def wait_until_complete(self, step: int) -> None:
        """Wait until all pods know that a step is complete."""
        until(lambda: self.memory().get("step") == step, f"step {step} to be complete")

        def is_alone() -> bool:
            alive = [pod.name for pod in self.job.pods if pod.process.poll() is None]
            left = [each for pod in alive for each in self.volumes.glob(f"{pod}/*/**/*.snapshot")]
            names = [SnapshotName.parse(each.name) for each in left]
            return {name.key.step for name in names if name} == {step}

        until(is_alone, "earlier steps to be released")

    def memory(self) -> dict[str, Any]:
        """Return what node rank 0 reports about snapshots; nothing until it has read its volume."""
        leader = next(pod for pod in reversed(self.job.pods) if pod.address == "127.0.0.1")
        assert leader.process.poll() is None, leader.log
        found: dict[str, Any] = leader.news().get("memory", {})
        return found

    def restart(
        self, pods: list[WorldPod], generation: int, copy_order: str = "", **more: Any
    ) -> None:
        """Do what the operator does: all begin the next generation. `more`: of the assignments."""
        slots = ",".join(str(int(pod.address.rpartition(".")[2]) - 1) for pod in pods)
        for start in (False, True):
            for node_rank, pod in enumerate(pods):
                settings: dict[str, Any] = {"start": start, "nodes": len(pods), **more}
                settings |= dict.fromkeys(("masterAddr", "masterAddress"), pods[0].address)
                if node_rank == 0:
                    settings |= {"members": slots, "copyOrder": copy_order}
                ended = partial(_has_ended, pod, generation, node_rank, settings)
                until(ended, f"{pod.name} to end its ranks")


def _has_ended(pod: WorldPod, generation: int, node_rank: int, settings: dict[str, Any]) -> bool:
    status, answer = pod.put(generation, node_rank, query="?wait=5", **settings)
    assert status == 200
    return bool(answer["ended"])


@contextmanager
def memory_job(
    folder: Path,
    *,
    nodes: int,
    local_world_size: int = 1,
    command: Sequence[str],
    size: int = 1 << 20,
) -> Iterator[MemoryJob]:
    """Create a job; its pods and volumes are removed at the end in any case."""
    volumes = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        with world_job(folder) as job:
            sizes = {"nodes": nodes, "local_world_size": local_world_size}
            yield MemoryJob(job, volumes, command, size=size, **sizes)
    finally:
        shutil.rmtree(volumes)
