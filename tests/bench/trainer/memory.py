"""Memory of a pod of two ranks: the trainer's launcher and ranks, against torchrun and a bare loop.

Anonymous memory alone: what is mapped from files, libraries above all, the whole machine shares.
Pages that forked processes share are divided among them (Pss_Anon of /proc/PID/smaps_rollup).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import Popen

import torch

from tests.bench.benchmark import BenchmarkError, Outcome, Settings, spread
from tests.bench.scripts.ranks import RANKS, environment, started, wait_until
from tests.bench.server.process import descendants, memory_mb

WORKLOAD = "digits"
STEP = 40
"""When memory is read: buckets, optimizer and threads are all there."""
_ENDLESS = "1000000"
_TORCHRUN = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
BARE = [*_TORCHRUN, "-m", "tests.bench.scripts.bare_ddp", WORKLOAD, _ENDLESS]
TRAINER = ["-m", "ddp_trainer.launch", "--workload", WORKLOAD, "--epochs", _ENDLESS]


def measure(settings: Settings) -> Outcome:
    """Start pods of both kinds, in turns."""
    bare: list[Mapping[str, float]] = []
    ours: list[Mapping[str, float]] = []
    for i in range(settings.repeat):
        bare.append(_measure(BARE, settings.scratch / f"bare-{i}.log", _bare_part))
        ours.append(_measure(TRAINER, settings.scratch / f"trainer-{i}.log", _trainer_part))
    rows = [
        ("launcher", "torchrun's agent", "launcher"),
        ("where ranks are forked", None, "forkserver"),
        ("a rank", "rank", "rank"),
        ("the pod", "pod", "pod"),
    ]
    lines = [
        f"torch        {torch.__version__}, {RANKS} ranks, gloo; {WORKLOAD}, at step {STEP}",
        f"repetitions  {settings.repeat}, interleaved; shown: median (min-max), MB",
        "",
        f"{'':24}{'torchrun, by hand':>26}{'trainer':>26}",
    ]
    for title, of_bare, of_ours in rows:
        left = spread([one[of_bare] for one in bare], 0) if of_bare is not None else "-"
        right = spread([one[of_ours] for one in ours], 0)
        lines.append(f"{title:24}{left:>26}{right:>26}")
    return Outcome("\n".join(lines), {"bare": bare, "trainer": ours})


def _measure(
    command: list[str], log: Path, part: Callable[[int, Popen[bytes]], str]
) -> Mapping[str, float]:
    """MB by part of the pod; `rank` is the mean of the ranks."""
    with started(command, environment(), log=log) as process:
        wait_until(lambda: f"step {STEP}" in log.read_text(errors="replace"), process, log)
        sizes: dict[str, list[float]] = {}
        for pid in [process.pid, *descendants(process.pid)]:
            sizes.setdefault(part(pid, process), []).append(
                memory_mb(pid, "Pss_Anon", file="smaps_rollup")
            )
    if len(sizes.get("rank", [])) != RANKS:
        raise BenchmarkError(f"{len(sizes.get('rank', []))} ranks found instead of {RANKS}")
    found = {name: sum(values) for name, values in sizes.items()}
    return {**found, "rank": found["rank"] / RANKS, "pod": sum(found.values())}


def _bare_part(pid: int, agent: Popen[bytes]) -> str:
    return "torchrun's agent" if pid == agent.pid else "rank"


def _trainer_part(pid: int, launcher: Popen[bytes]) -> str:
    if pid == launcher.pid:
        return "launcher"
    name = Path(f"/proc/{pid}/comm").read_text()
    return "rank" if name.startswith("ddp-rank-") else "forkserver"
