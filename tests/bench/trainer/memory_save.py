"""How long training waits for a snapshot in memory, against one copy of the state in memory.

The first snapshots need new files, all later ones write to files that the launcher has freed.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from ddp_trainer.memory.saving import Saver
from ddp_trainer.memory.volume import FREE, SLOTS, Volume
from ddp_trainer.process_group.current_assignment import CurrentAssignment
from ddp_trainer.settings.environment import Environment
from torch import Tensor

from tests.bench.benchmark import BenchmarkError, Outcome, Settings, spread
from tests.trainer.memory.pods import variables

AIM_RATIO = 1.0
SAVES = 3
"""Of each kind in a repetition."""
_TENSORS, _NUMBERS = 240, 1 << 20
"""1 GB: parameters and AdamW's two averages."""
_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class Turn:
    """A copy and the save after it, in seconds."""

    copied: float
    saved: float


def measure(settings: Settings) -> Outcome:
    """Copy and save the same state in turns."""
    state = {str(index): torch.rand(_NUMBERS) for index in range(_TENSORS)}
    size = sum(tensor.nbytes for tensor in state.values())
    room = os.statvfs(_MEMORY)
    if room.f_bavail * room.f_frsize < 2 * SLOTS * size:
        raise BenchmarkError(f"{_MEMORY} has no room for {SLOTS} snapshots of {size >> 20} MiB")
    copy = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    fresh: list[Turn] = []
    freed: list[Turn] = []
    with tempfile.TemporaryDirectory(dir=_MEMORY) as directory:
        env = variables(Path(directory), size=8 * size)
        volume = Volume.from_env(env)
        assert volume is not None
        saver = Saver(volume, CurrentAssignment(Environment.from_env(env)))
        steps = itertools.count()
        folder = volume.own(0)
        for _ in range(settings.repeat):
            for each in folder.iterdir() if folder.exists() else ():
                each.unlink()
            for _ in range(SLOTS):
                copied = _copy(state, copy)
                fresh.append(Turn(copied, _save(saver, next(steps), state)))
            for _ in range(SAVES):
                oldest = min(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
                oldest.rename(folder / FREE)
                copied = _copy(state, copy)
                freed.append(Turn(copied, _save(saver, next(steps), state)))
    ratio = median(turn.saved / turn.copied for turn in freed)
    lines = [
        f"state        {size / 1e6:.0f} MB, {_TENSORS} tensors; {torch.get_num_threads()} threads",
        f"repetitions  {settings.repeat}, in turns; shown: median (min-max)",
        "",
        f"{'':22}{'copy, s':>20}{'save, s':>20}{'ratio':>18}",
        _row("save to a new file", fresh),
        _row("save to a freed file", freed),
        "",
        f"aim: ratio of a freed file ≤ {AIM_RATIO:g} {'met' if ratio <= AIM_RATIO else 'MISSED'}",
    ]
    data = {"fresh": [asdict(turn) for turn in fresh], "freed": [asdict(turn) for turn in freed]}
    return Outcome("\n".join(lines), {"stateMB": size / 1e6, **data})


def _copy(state: Mapping[str, Tensor], to: Mapping[str, Tensor]) -> float:
    began = time.perf_counter()
    for name, tensor in state.items():
        to[name].copy_(tensor)
    return time.perf_counter() - began


def _save(saver: Saver, step: int, state: object) -> float:
    began = time.perf_counter()
    if not saver.save(step, state, replicated=False):
        raise BenchmarkError("a snapshot was not saved")
    return time.perf_counter() - began


def _row(title: str, turns: Sequence[Turn]) -> str:
    copied = spread([turn.copied for turn in turns], 2)
    saved = spread([turn.saved for turn in turns], 2)
    ratio = spread([turn.saved / turn.copied for turn in turns], 2)
    return f"{title:22}{copied:>20}{saved:>20}{ratio:>18}"
