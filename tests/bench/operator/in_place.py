"""From a killed rank to all new processes of a restart in place, of up to 500 launchers.

No Kubernetes: the operator's engine works on a cluster in memory. Its pods are launchers,
processes of this machine, each with an address of its own. All that passes between them is real:
the failed launcher's report to that of node rank 0, which the operator polls, and the operator's
requests to each. The ranks are shells that note when they began and sleep, so that only
the operator and the launchers are measured. All of them share the machine's cores here; in a
cluster each launcher has cores of its own, and each new process imports torch.

The clock starts with the kill, which a launcher notices by the kernel's signal. The other ranks end
at once on SIGTERM; or they take some time, as ranks with GPUs do; or all are killed at the same
moment, as a lost peer fails those that wait for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ddp_operator.engine.engine import Engine
from ddp_operator.engine.trainers.requests import HttpTrainers
from ddp_operator.ports import Key, Manifest

from tests.bench.benchmark import BenchmarkError, Outcome, Settings, spread
from tests.bench.server.control_plane import say
from tests.bench.server.launchers import LauncherCluster
from tests.ports import free_port
from tests.unit.engine.fakes import SETTINGS
from tests.waiting import eventually

SIZES = (50, 200, 500)
_DEADLINE_SECONDS = 600.0
"""For 500 launchers to be up on a machine that does other things too."""
_KEY = Key("default", "train")
_LINGER_SECONDS = 2
_RANK = """
trap 'if read seconds < "$0/linger"; then sleep $seconds; fi; exit' TERM
echo $$ > "$0/$DDP_GENERATION.$RANK"
sleep 1000000 & wait
"""
"""Writes a file when it begins. On SIGTERM it takes as long as another file says, if any."""
ONE, SLOW, ALL = (
    "a rank is killed, the others end at once",
    f"a rank is killed, the others take {_LINGER_SECONDS} s to end",
    "all ranks are killed",
)


@dataclass(frozen=True)
class Restart:
    """The cost of one restart of all ranks."""

    seconds: float
    """From the kill until the last new process ran."""
    cpu_seconds: float
    """CPU time of the operator."""


def measure(settings: Settings) -> Outcome:
    """Kill a rank of jobs of several sizes, one job after another."""
    found: dict[str, dict[int, list[Restart]]] = {what: {} for what in (ONE, SLOW, ALL)}
    for pods in SIZES:
        folder = settings.scratch / str(pods)
        folder.mkdir()
        try:
            for what, restarts in asyncio.run(_restarts(pods, settings.repeat, folder)).items():
                found[what][pods] = restarts
        except AssertionError as error:
            raise BenchmarkError(f"{pods} launchers: {error}") from error
    lines = [
        "launchers    processes of this machine; a rank of each: a shell that sleeps",
        "operator     its engine in one process; a cluster in memory",
        f"repetitions  {settings.repeat}, in turns; shown: median (min-max)",
        "",
        *table(found),
    ]
    return Outcome("\n".join(lines), found)


def table(found: Mapping[str, Mapping[int, Sequence[Restart]]]) -> list[str]:
    """Return the lines of each cause of a restart, one for each number of launchers."""
    lines = [f"{'launchers':12}{'all run after, s':>24}{'CPU of the operator, s':>26}"]
    for what, by_size in found.items():
        lines.append(what)
        for pods, restarts in by_size.items():
            seconds = spread([restart.seconds for restart in restarts], 2)
            cpu = median(restart.cpu_seconds for restart in restarts)
            lines.append(f"{pods:>10}  {seconds:>24}{cpu:>26.2f}")
    return lines


async def _restarts(pods: int, repeat: int, folder: Path) -> dict[str, list[Restart]]:
    job = _Job(pods, folder)
    with job.running():
        say(f"{pods} launchers: starting")
        await job.start()
        try:
            found: dict[str, list[Restart]] = {what: [] for what in (ONE, SLOW, ALL)}
            for number in range(repeat):
                for what, restarts in found.items():
                    restarts.append(await job.restart(what))
                    took = f"{restarts[-1].seconds:.2f} s"
                    say(f"{pods} launchers, {number + 1} of {repeat}, {what}: {took}")
            return found
        finally:
            await job.engine.stop()


class _Job:
    """The job, its launchers and its operator."""

    def __init__(self, pods: int, folder: Path) -> None:
        self._pods = pods
        self._folder = folder
        self._cluster = LauncherCluster(
            folder, ["--no-preload", "--", "sh", "-c", _RANK, str(folder)]
        )
        self.engine = Engine(self._cluster, settings=SETTINGS, trainers=HttpTrainers())
        self._generation = 0
        self._cluster.tell = self.engine.pods_changed

    @contextmanager
    def running(self) -> Iterator[None]:
        """Leave no process behind."""
        try:
            yield
        finally:
            self._cluster.stop()

    async def start(self) -> None:
        """Until all ranks run, and the operator listens."""
        self.engine.start()
        self.engine.job_changed(self._cluster.store_job(_manifest(self._pods)))
        await self._until(self._runs, "the job runs")
        await self._until(lambda: bool(self._status["bookkeeping"].get("launcher")), "an answer")

    async def restart(self, what: str) -> Restart:
        """Kill a rank, or all."""
        killed = range(self._pods) if what == ALL else [self._pods // 2]
        victims = [int(self._file(self._generation, rank).read_text()) for rank in killed]
        linger = self._folder / "linger"
        if what == SLOW:
            linger.write_text(f"{_LINGER_SECONDS}\n")
        else:
            linger.unlink(missing_ok=True)
        cpu, killed_at = time.process_time(), time.time()
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        self._generation += 1
        await self._until(self._runs, f"generation {self._generation} runs")
        cpu = time.process_time() - cpu
        begun = [self._file(self._generation, rank).stat().st_mtime for rank in range(self._pods)]
        return Restart(max(begun) - killed_at, cpu)

    def _runs(self) -> bool:
        """Tell whether all ranks of this generation run, and the operator knows."""
        if self._cluster.ended():
            raise AssertionError(f"launchers have ended: {self._cluster.ended()}")
        phase = self._status.get("phase")
        if phase != "Running" or self._status.get("readyReplicas") != self._pods:
            return False
        return all(self._file(self._generation, rank).exists() for rank in range(self._pods))

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        await eventually(
            condition,
            timeout_seconds=_DEADLINE_SECONDS,
            interval_seconds=0.25,  # the machine is for others
            describe=lambda: f"{what}: {self._status}",
        )

    def _file(self, generation: int, rank: int) -> Path:
        return self._folder / f"{generation}.{rank}"

    @property
    def _status(self) -> dict[str, Any]:
        return self._cluster.jobs[_KEY].get("status") or {}


def _manifest(pods: int) -> Manifest:
    template = {"spec": {"containers": [{"name": "trainer", "image": "x"}]}}
    return {
        "apiVersion": "ddp-operator.io/v1alpha1",
        "kind": "DDPJob",
        "metadata": {
            "namespace": _KEY.namespace,
            "name": _KEY.name,
            "uid": "u1",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "replicas": pods,
            "statusPort": free_port(),
            "restart": {
                "scope": "InPlace",
                "maxRestarts": 1000,
                "backoff": {"initialSeconds": 0},
            },
            "template": template,
        },
    }
