"""Pods with a large state and their spares, as processes of this machine, and how they are lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Protocol

from ddp_protocol.copies import fingerprint, order_by_domain
from ddp_trainer.memory.volume import SLOTS

from tests.bench.benchmark import BenchmarkError
from tests.bench.reports.memory_loss import BLOCKS, LOST_BLOCK, RANKS, Event, events
from tests.bench.scripts.large_state import EVERY_STEPS
from tests.bench.server.process import descendants
from tests.trainer.support.memory_jobs import MemoryJob, memory_job
from tests.trainer.support.pods import until
from tests.trainer.support.worlds import WorldPod

SCRIPT = ("-m", "tests.bench.scripts.large_state")
_COPIES = 1
_FILES = SLOTS * (1 + _COPIES)
_TMPFS = "/dev/shm"


class Pods(Protocol):
    """Pods of one rank and spares that train."""

    ranks: int = RANKS
    volumes: Path | None = None
    """Folder of their volumes in memory."""

    def first(self) -> tuple[subprocess.Popen[bytes], str]:
        """Return the process of a pod that is not lost, and its log."""
        ...

    def spare_is_ready(self) -> bool:
        """Return True if the spares could take places."""
        ...

    def complete(self) -> Mapping[int, float]:
        """Return saves that are complete, and since when, or now if that is not known."""
        ...

    def lose(self) -> None:
        """Kill a pod, or a block, with all it has in memory, and give its places to the spares."""
        ...


class Launchers(Pods):
    """Pods with our launcher; the last ones are spares."""

    def __init__(self, pods: Sequence[WorldPod]) -> None:
        self.pods = pods

    def first(self) -> tuple[subprocess.Popen[bytes], str]:
        return self.pods[0].process, self.pods[0].log

    def spare_is_ready(self) -> bool:
        for spare in self.pods[self.ranks :]:
            spare.wait_to_listen()
            status, answer = spare.put(1, None)
            if status != 200 or not answer["ended"]:
                return False
        return True


class InMemory(Launchers):
    """Pods that save in memory; those of `lost` are killed."""

    def __init__(self, job: MemoryJob, *, ranks: int = RANKS, lost: Sequence[int] = (1,)) -> None:
        super().__init__(
            [
                *(job.start(node_rank) for node_rank in range(ranks)),
                *(job.start(None, slot=ranks + number) for number in range(len(lost))),
            ]
        )
        self.ranks = ranks
        self._job = job
        self._lost = lost
        self._order = ""
        self.volumes = job.volumes
        self.pods[0].wait_to_listen()

    def place_copies(self, blocks: str) -> None:
        """Send the order of the pods' blocks, as the operator does."""
        self._order = ",".join(map(str, order_by_domain([(block,) for block in blocks])))
        status, _ = self.pods[0].put(1, 0, nodes=self.ranks, copyOrder=self._order)
        assert status == 200, self.pods[0].log
        until(
            lambda: self.pods[0].news()["copyOrder"] == fingerprint(self._order),
            "the order for copies",
        )

    def complete(self) -> Mapping[int, float]:
        step = self._job.memory().get("step")
        return {} if step is None else {step: time.time()}

    def lose(self) -> None:
        group, spares = list(self.pods[: self.ranks]), self.pods[self.ranks :]
        for node_rank in self._lost:
            kill(group[node_rank].process)
            shutil.rmtree(self._job.volumes / group[node_rank].name)
        for node_rank, spare in zip(self._lost, spares, strict=True):
            group[node_rank] = spare
        self._job.restart(group, 2, self._order)


class Joined(Launchers):
    """Pods with ranks that form their group again by themselves."""

    def __init__(self, pods: Sequence[WorldPod], folder: Path, *, saves: bool) -> None:
        super().__init__(pods)
        self._folder = folder
        self._saves = saves

    def complete(self) -> Mapping[int, float]:
        if not self._saves:  # each step is copied: it is complete when the next one is done
            steps = {one.step - 1: one.at for one in events_in(self._folder) if one.rank == 0}
            return {step: at for step, at in steps.items() if step and step % EVERY_STEPS == 0}
        found = {}
        for path in self._folder.glob("checkpoints/step-*/manifest.json"):
            with suppress(FileNotFoundError):  # a newer one replaces it
                found[int(path.parent.name.removeprefix("step-"))] = path.stat().st_mtime
        return found

    def lose(self) -> None:
        first, lost, spare = self.pods
        kill(lost.process)
        for node_rank, pod in enumerate((first, spare)):
            status, _ = pod.tell(2, node_rank, broken=True)
            assert status == 200, pod.log


def in_memory(folder: Path, megabytes: int) -> Iterator[Pods]:
    """Yield two pods that save in memory; one is lost."""
    with _memory_job(folder, megabytes, RANKS) as job:
        yield InMemory(job)


def in_blocks(folder: Path, megabytes: int) -> Iterator[Pods]:
    """Yield pods in blocks; one block is lost. All ranks together have the same state."""
    ranks = len(BLOCKS)
    with _memory_job(folder, megabytes * RANKS // ranks, ranks) as job:
        lost = [node_rank for node_rank, block in enumerate(BLOCKS) if block == LOST_BLOCK]
        pods = InMemory(job, ranks=ranks, lost=lost)
        pods.place_copies(BLOCKS)
        yield pods


def _memory_job(folder: Path, megabytes: int, ranks: int) -> AbstractContextManager[MemoryJob]:
    """Return a job of pods with this state each.

    Raises:
        BenchmarkError: there is no room for it.
    """
    size = _FILES * int((megabytes + 1) * 1.01e6)
    room = os.statvfs(_TMPFS)
    if room.f_bavail * room.f_frsize < ranks * size:
        raise BenchmarkError(f"{_TMPFS} has no room for {ranks * size / 1e6:.0f} MB")
    command = ("--", sys.executable, *SCRIPT, "memory", str(megabytes))
    return memory_job(folder, nodes=ranks, command=command, size=size)


def events_in(folder: Path) -> list[Event]:
    """Return what all ranks have written so far."""
    return [event for path in folder.glob("events.rank*") for event in events(path.read_text())]


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a launcher or an agent with all its processes."""
    process.send_signal(signal.SIGSTOP)
    for pid in descendants(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()
