"""A large state in memory, on a volume or in other ranks: pauses of saves, and a killed pod's cost.

The same model in four ways: `memory.save` with our launchers, also in six pods of three uneven
blocks that lose the largest; `torch.save` to a folder with torchrun; `join` with its checkpoints
(DDP); `join` with a copy in another rank (FSDP2). Pods are processes of this machine, and a spare
waits. It gets its place as soon as the other pod is killed: what Kubernetes and the operator add is
in `operator-lost-pod`.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import torch

from tests.bench.benchmark import BenchmarkError, Outcome, Settings
from tests.bench.large_pods import (
    SCRIPT,
    Joined,
    Pods,
    events_in,
    in_blocks,
    in_memory,
    kill,
)
from tests.bench.reports.memory_loss import (
    BLOCK_LOST,
    IN_MEMORY,
    RANKS,
    Event,
    Run,
    Subject,
    table,
)
from tests.bench.scripts.large_state import EVERY_STEPS
from tests.bench.server.control_plane import say
from tests.ports import free_port
from tests.trainer.support.worlds import world_job

STATE_MB = 2000
"""Of all ranks together, unless the command line says otherwise."""
SAVES = 6
"""Complete ones before the loss: two to new files, four to freed ones."""
_POLL_SECONDS = 0.05
_PATIENCE_SECONDS = 300.0
_SPARE = RANKS
"""Number of the spare agent."""
_BLOCK_BYTES = 512
"""Unit of st_blocks."""


class _Torchrun(Pods):
    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        self._folder = folder
        self._command = command
        self._port = free_port()
        self.agents = [self._start(number) for number in range(RANKS)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        variables = {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "LOGLEVEL": "INFO",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        with self._log(number).open("wb") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={RANKS}"),
                    *("--nproc-per-node=1", "--max-restarts=20", "--rdzv-backend=c10d"),
                    *(f"--rdzv-endpoint=127.0.0.1:{self._port}", "--rdzv-id=bench"),
                    *(f"--rdzv-conf=is_host={number == 0}", "--local-addr=127.0.0.1"),
                    *self._command,
                ],
                env={**os.environ, **variables},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _log(self, number: int) -> Path:
        return self._folder / f"agent-{number}.log"

    def first(self) -> tuple[subprocess.Popen[bytes], str]:
        return self.agents[0], self._log(0).read_text(errors="replace")

    def spare_is_ready(self) -> bool:
        if len(self.agents) == RANKS:  # while the others train, no place is left for it
            self.agents.append(self._start(_SPARE))
        return "Rendezvous'ing" in self._log(_SPARE).read_text(errors="replace")

    def complete(self) -> Mapping[int, float]:
        newest = self._folder / "newest"
        return {int(newest.read_text()): newest.stat().st_mtime} if newest.exists() else {}

    def lose(self) -> None:
        kill(self.agents[1])


def _torchrun(folder: Path, megabytes: int) -> Iterator[Pods]:
    pods = _Torchrun(folder, (*SCRIPT, "torch", str(megabytes), str(folder), "127.0.0.1"))
    try:
        yield pods
    finally:
        for agent in pods.agents:
            kill(agent)


def _joined(way: str, folder: Path, megabytes: int) -> Iterator[Pods]:
    command = ("--", sys.executable, *SCRIPT, way, str(megabytes), str(folder), "127.0.0.1")
    variables = {
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    with world_job(folder) as job:
        pods = [
            job.start(node_rank, command=command, variables=variables) for node_rank in (0, 1, None)
        ]
        yield Joined(pods, folder, saves=way == "join")


Start = Callable[[Path, int], AbstractContextManager[Pods]]
WAYS: Mapping[str, Start] = {
    IN_MEMORY: contextmanager(in_memory),
    BLOCK_LOST: contextmanager(in_blocks),
    "torch.save": contextmanager(_torchrun),
    "join": contextmanager(lambda *of: _joined("join", *of)),
    "join, FSDP2": contextmanager(lambda *of: _joined("sharded-join", *of)),
}


def measure(settings: Settings) -> Outcome:
    """Kill a pod of each, in turns."""
    state_mb = settings.state_mb or STATE_MB
    runs: dict[str, list[Run]] = {way: [] for way in WAYS}
    for number in range(settings.repeat):
        for way, start in WAYS.items():
            say(f"{way}: {number + 1} of {settings.repeat}")
            folder = settings.scratch / f"{way.replace(', ', '-').replace(' ', '-')}-{number}"
            folder.mkdir()
            runs[way].append(run(folder, state_mb // RANKS, start))
            shutil.rmtree(folder)
    return table(runs, Subject(state_mb=state_mb, torch=torch.__version__, every_steps=EVERY_STEPS))


def run(folder: Path, megabytes: int, start: Start) -> Run:
    """Train, kill a pod or a block half way between two saves, and wait for the next step.

    Raises:
        BenchmarkError: that took too long, or a process ended.
    """
    complete: dict[int, float] = {}
    most = largest = 0
    try:
        with start(folder, megabytes) as pods:
            for _ in _polls(pods):
                for step, at in pods.complete().items():
                    complete.setdefault(step, at)
                taken, size = _usage(pods)
                most, largest = max(most, taken), max(largest, size)
                if _is_due(events_in(folder), complete, pods.ranks) and pods.spare_is_ready():
                    break
            lost_at = time.time()
            pods.lose()
            for _ in _polls(pods):
                ended = Run(
                    events=events_in(folder),
                    lost_at=lost_at,
                    complete=complete,
                    most_bytes=most,
                    snapshot_bytes=largest,
                    ranks=pods.ranks,
                )
                if ended.recovered() is not None:
                    return ended
            raise AssertionError("unreachable")
    except AssertionError as error:
        raise BenchmarkError(str(error)) from error


def _polls(pods: Pods) -> Iterator[None]:
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        process, log = pods.first()
        if process.poll() is not None or time.monotonic() > until:
            raise BenchmarkError(f"pod 0 ended or hangs: {log[-2000:]}")
        yield
        time.sleep(_POLL_SECONDS)


def _is_due(found: Sequence[Event], complete: Collection[int], ranks: int) -> bool:
    """Return True half an interval after the last of enough saves; `complete`: their steps."""
    steps = min(
        max((one.step for one in found if (one.kind, one.rank) == ("done", rank)), default=0)
        for rank in range(ranks)
    )
    return len(complete) >= SAVES and steps >= max(complete) + EVERY_STEPS // 2


def _usage(pods: Pods) -> tuple[int, int]:
    """Return the most bytes of a pod's volume in memory, and of a file in any."""
    most = largest = 0
    for pod in pods.volumes.iterdir() if pods.volumes else ():
        taken = 0
        for path in pod.rglob("*"):
            with suppress(FileNotFoundError):  # it is renamed or removed just now
                if stat.S_ISREG((status := path.lstat()).st_mode):
                    taken += status.st_blocks * _BLOCK_BYTES
                    largest = max(largest, status.st_size)
        most = max(most, taken)
    return most, largest
