"""The cost of a waiting spare: CPU time, wake-ups and memory of its launcher and of the process
with torch that its ranks will be forked from.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import torch

from tests.bench.benchmark import BenchmarkError, Outcome, Settings, spread
from tests.bench.server.process import memory_mb
from tests.trainer.support.pods import until
from tests.trainer.support.worlds import WorldPod, world_job

_SECONDS = 60.0
"""How long each is watched: longer than anything that it does again and again."""
_QUIET_SECONDS = 3.0


def measure(settings: Settings) -> Outcome:
    """Watch one spare after the other."""
    found = [_measure(settings.scratch / str(number)) for number in range(settings.repeat)]
    rows = [
        ("CPU milliseconds a minute", "cpu", 1),
        ("wake-ups a second", "wakes", 2),
        ("memory of its own, MB", "memory", 0),
    ]
    lines = [
        f"torch        {torch.__version__}; a launcher without a place, and its fork server",
        f"repetitions  {settings.repeat}, each for {_SECONDS:.0f} s; shown: median (min-max)",
        "",
        *(f"{title:28}{spread([one[key] for one in found], n):>26}" for title, key, n in rows),
    ]
    return Outcome("\n".join(lines), {"spares": found})


def _measure(folder: Path) -> Mapping[str, float]:
    folder.mkdir()
    with world_job(folder, flags=()) as job:
        pod = job.start(None)
        pids = _processes(pod)
        _wait_for_quiet(pids)
        before = [_used(pid) for pid in pids]
        began = time.monotonic()
        time.sleep(_SECONDS)
        seconds = time.monotonic() - began
        after = [_used(pid) for pid in pids]
        memory = sum(memory_mb(pid, "Pss_Anon", file="smaps_rollup") for pid in pids)
        if pod.process.poll() is not None or _processes(pod) != pids:
            raise BenchmarkError(f"the spare is not what it was: {pod.log}")
    cpu, wakes = (
        sum(new[i] - old[i] for old, new in zip(before, after, strict=True)) for i in (0, 1)
    )
    return {"cpu": cpu * 1e3 * 60 / seconds, "wakes": wakes / seconds, "memory": memory}


def _processes(pod: WorldPod) -> list[int]:
    """The launcher and its child."""
    children = Path(f"/proc/{pod.process.pid}/task/{pod.process.pid}/children")
    until(lambda: bool(children.read_text()), "what forks ranks")
    return [pod.process.pid, *map(int, children.read_text().split())]


def _wait_for_quiet(pids: list[int]) -> None:
    """Until the imports are over."""

    def is_quiet() -> bool:
        before = sum(_used(pid)[0] for pid in pids)
        time.sleep(_QUIET_SECONDS)
        return sum(_used(pid)[0] for pid in pids) - before < 0.1 * _QUIET_SECONDS

    until(is_quiet, "the imports")


def _used(pid: int) -> tuple[float, int]:
    """Of all its threads: seconds on a CPU, and how often one was given one."""
    seconds, times = 0.0, 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        nanoseconds, _, turns = map(int, (task / "schedstat").read_text().split())
        seconds, times = seconds + nanoseconds / 1e9, times + turns
    return seconds, times
