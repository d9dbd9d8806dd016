"""A rank is lost from a job with a large state: what its successor waits for, and in what memory.

The survivor hands over all of it: weights and AdamW's two averages of each. Beside it, how long
gloo takes to broadcast as many bytes between two processes of this machine, at once.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.bench.benchmark import BenchmarkError, Outcome, Settings, spread
from tests.bench.scripts.ranks import RANKS, environment, run_to_the_end, started, wait_until
from tests.bench.server.process import memory_mb
from tests.bench.trainer.recovery import child_named

WIDTH, LAYERS = 9216, 4
_WORKLOAD = (
    *("--workload=synthetic", "--workload-option=samples=4000", "--batch-size=1"),
    *(f"--workload-option=width={WIDTH}", f"--workload-option=layers={LAYERS}"),
)
_HANDED_OVER = re.compile(r"rank 0's state, ([\d.]+) MB in ([\d.]+) s")
_KILL_AT_STEP = 3
_BARE_BROADCAST = """
import os, sys, time, torch
from torch import distributed as dist
dist.init_process_group("gloo")
data = torch.ones(int(float(sys.argv[1]) * 1e6), dtype=torch.uint8)
dist.barrier()
began = time.perf_counter()
dist.broadcast(data, src=0)
dist.barrier()
if dist.get_rank() == 0:
    print("broadcast took", time.perf_counter() - began, flush=True)
dist.destroy_process_group()
os._exit(0)
"""


@dataclass(frozen=True)
class Transfer:
    """The cost of one loss."""

    state_mb: float
    to_next_step: float
    """Seconds from the kill to the end of the next step."""
    handed_over: float
    """Seconds of that in which the state travelled."""
    broadcast: float
    """Seconds that gloo alone takes for as much."""
    giver_grew_mb: float
    """By how much the most memory that the survivor ever had has grown."""


def measure(settings: Settings) -> Outcome:
    """Kill one of two ranks."""
    found = [_measure(settings.scratch / str(i)) for i in range(settings.repeat)]
    state_mb = found[0].state_mb
    rows = [
        ("kill to the end of the next step, s", [one.to_next_step for one in found]),
        ("... while the state is sent, s", [one.handed_over for one in found]),
        ("gloo's broadcast of as much, s", [one.broadcast for one in found]),
        ("ratio of the two", [one.handed_over / one.broadcast for one in found]),
        ("survivor's peak memory grew by, MB", [one.giver_grew_mb for one in found]),
        ("... by the state", [one.giver_grew_mb / one.state_mb for one in found]),
    ]
    lines = [
        f"torch        {torch.__version__}, {RANKS} ranks in one pod, gloo, one thread each",
        f"state        {state_mb:.0f} MB: {LAYERS} layers, {WIDTH} wide, AdamW",
        f"repetitions  {settings.repeat}; shown: median (min-max)",
        "",
        *(f"{title:40}{spread(values, 2):>26}" for title, values in rows),
        "",
        f"aim: memory above the state ≤ 0.1: "
        f"{'met' if all(one.giver_grew_mb <= 0.1 * one.state_mb for one in found) else 'MISSED'}",
    ]
    return Outcome("\n".join(lines), {"transfers": [vars(one) for one in found]})


def _measure(folder: Path) -> Transfer:
    folder.mkdir()
    log = folder / "log"
    command = ["-m", "ddp_trainer.launch", *_WORKLOAD, "--log-every-steps=1"]
    with started(command, environment(), log=log) as launcher:

        def last_step() -> int:
            steps = re.findall(r" step (\d+)/", log.read_text(errors="replace"))
            return int(steps[-1]) if steps else 0

        wait_until(lambda: last_step() >= _KILL_AT_STEP, launcher, log)
        survivor, victim = (child_named(launcher, f"ddp-rank-{rank}") for rank in (0, 1))
        peak = memory_mb(survivor, "VmHWM")
        killed_at, before = time.monotonic(), last_step()
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: last_step() > before + 1, launcher, log, poll_seconds=0.01)
        seconds = time.monotonic() - killed_at
        grew = memory_mb(survivor, "VmHWM") - peak
    handed_over = _HANDED_OVER.findall(log.read_text(errors="replace"))
    if not handed_over:
        raise BenchmarkError("no state was handed over")
    state_mb, travelled = map(float, handed_over[-1])
    return Transfer(
        state_mb=state_mb,
        to_next_step=seconds,
        handed_over=travelled,
        broadcast=_broadcast(state_mb, folder / "broadcast.log"),
        giver_grew_mb=grew,
    )


def _broadcast(megabytes: float, log: Path) -> float:
    program = [sys.executable, "-c", _BARE_BROADCAST, str(megabytes)]
    run_to_the_end(["-m", "ddp_trainer.launch", "--", *program], environment(), log=log)
    return float(log.read_text().split("broadcast took")[1].split()[0])
