"""From `kill -9` of a rank to the next step of all ranks: `join` against torchrun's restart.

The trainer's launcher forks a new rank, or (`--no-preload`) starts it as a command, and the
survivor sends it the state. torchrun restarts all processes of the node, and these read a
checkpoint. All train the same model on the same machine, with steps of the same length, and are
hit half way between two checkpoints.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.bench.benchmark import Outcome, Settings, spread
from tests.bench.scripts.ranks import RANKS, environment, started, wait_until
from tests.bench.scripts.resuming_ddp import CHECKPOINT_EVERY_STEPS, STEP_SECONDS

AIM_SECONDS = 1.0
"""Of our own, on top of a new process's start."""
KILL_AFTER_STEP = CHECKPOINT_EVERY_STEPS * 5 // 2
PATIENCE_SECONDS = 60.0
"""A longer recovery counts as this long, and the table marks it."""
_PREPARE = "from tests.bench.scripts import joined_ddp; joined_ddp.prepare()"
_POLL_SECONDS = 0.002
_STEPS = 100_000
"""Never reached: what was measured is stopped."""


@dataclass(frozen=True)
class Recovery:
    """The cost of one kill."""

    seconds: float
    """Until every rank had begun a step that none had begun before: so all before it were done."""
    steps_again: int
    """Steps that were complete and had to be done again."""
    in_time: bool = True


def measure(settings: Settings) -> Outcome:
    """Kill a rank of either, in turns."""
    starts: list[float] = []
    found: dict[str, list[Recovery]] = {}
    for i in range(settings.repeat):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", _PREPARE], check=True)
        starts.append(time.monotonic() - began)
        for name, kill in (
            ("script, rank 1", lambda folder: _of_script(folder, victim=1)),
            ("script, rank 0", lambda folder: _of_script(folder, victim=0)),
            ("script, a command", lambda folder: _of_script(folder, "--no-preload", victim=1)),
            ("torchrun, rank 1", _of_torchrun),
        ):
            folder = settings.scratch / f"{name.replace(', ', '-').replace(' ', '-')}-{i}"
            folder.mkdir()
            found.setdefault(name, []).append(kill(folder))
    met = all(
        recovery.in_time and recovery.seconds <= AIM_SECONDS + start and not recovery.steps_again
        for name, recoveries in found.items()
        if name.startswith("script")
        for recovery, start in zip(recoveries, starts, strict=True)
    )
    lines = [
        f"torch        {torch.__version__}, {RANKS} ranks in one pod, gloo, one thread each",
        f"repetitions  {settings.repeat}, in turns; shown: median (min-max)",
        f"a step takes {STEP_SECONDS} s and more; checkpoints every {CHECKPOINT_EVERY_STEPS} steps",
        "",
        f"{'killed':18}{'s to the next step':>22}{'steps again':>18}",
        *(_row(name, recoveries) for name, recoveries in found.items()),
        f"{'a new Python':18}{spread(starts, 2):>22}   until it joins",
        "",
        f"aim: script ≤ {AIM_SECONDS} s and its process's start, no step again: "
        f"{'met' if met else 'MISSED'}",
    ]
    return Outcome("\n".join(lines), {"processStartSeconds": starts, **found})


def _row(name: str, recoveries: list[Recovery]) -> str:
    seconds = spread([recovery.seconds for recovery in recoveries], 2)
    again = spread([float(recovery.steps_again) for recovery in recoveries], 0)
    late = sum(not recovery.in_time for recovery in recoveries)
    told = f"  {late} gave none in {PATIENCE_SECONDS:.0f} s" if late else ""
    return f"{name:18}{seconds:>22}{again:>18}{told}"


def _of_script(folder: Path, *flags: str, victim: int) -> Recovery:
    command = [
        *("-m", "ddp_trainer.launch", *flags, "--", sys.executable),
        *("-m", "tests.bench.scripts.joined_ddp", str(folder), str(_STEPS)),
    ]
    variables = {**environment(), "DDP_CHECKPOINT_DIR": str(folder / "checkpoints")}
    log = folder / "log"
    with started(command, variables, log=log) as launcher:
        return _killed(launcher, folder, log, victim)


def _of_torchrun(folder: Path) -> Recovery:
    # One is not enough: new processes find the addresses of dead ones in the store, and fail.
    command = [
        *("-m", "torch.distributed.run", f"--nproc-per-node={RANKS}", "--max-restarts=20"),
        *("--standalone", "-m", "tests.bench.scripts.resuming_ddp", str(folder), str(_STEPS)),
    ]
    log = folder / "log"
    with started(command, {**os.environ, "OMP_NUM_THREADS": "1"}, log=log) as agent:
        return _killed(agent, folder, log, victim=1)


def _killed(process: subprocess.Popen[bytes], folder: Path, log: Path, victim: int) -> Recovery:
    ranks = range(RANKS)
    wait_until(
        lambda: min(_last_step(folder, rank) for rank in ranks) >= KILL_AFTER_STEP, process, log
    )
    os.kill(_begun(folder, victim)[-1]["pid"], signal.SIGKILL)
    killed = time.monotonic()
    before = {rank: len(_begun(folder, rank)) for rank in ranks}
    highest = max(_last_step(folder, rank) for rank in ranks)

    def new(rank: int) -> list[int]:
        return [entry["step"] for entry in _begun(folder, rank)[before[rank] :]]

    def recovered() -> bool:
        return all(max(new(rank), default=0) > highest for rank in ranks)

    def over() -> bool:
        return recovered() or time.monotonic() - killed > PATIENCE_SECONDS

    wait_until(over, process, log, poll_seconds=_POLL_SECONDS)
    if not recovered():
        return Recovery(PATIENCE_SECONDS, 0, in_time=False)
    seconds = time.monotonic() - killed
    # Who begins a step has completed the one before.
    return Recovery(seconds, max(highest - min(new(0)), 0))


def _begun(folder: Path, rank: int) -> list[dict[str, int]]:
    path = folder / f"begun.rank{rank}"
    if not path.exists():
        return []
    # A line that is being written is none yet.
    lines = path.read_text().rpartition("\n")[0].splitlines()
    return [json.loads(line) for line in lines]


def _last_step(folder: Path, rank: int) -> int:
    return max((entry["step"] for entry in _begun(folder, rank)), default=0)
