"""How a run is told to stop, and how all its ranks stop at the same step.

A signal reaches the ranks at different moments. Each rank puts what it knows into a sum over all
ranks now and then; the sum is begun before a step's computation and read after it, so that its time
hides behind the computation.
"""

from __future__ import annotations

import signal
from types import FrameType

import torch
from torch import distributed as dist

from ddp_trainer.group import Group

_INTERVAL_SECONDS = 0.25
"""Between votes: little of what a pod has to save before it is killed, a lot of small steps."""


class StopSignal:
    """Remembers that this rank was told to stop; being told twice changes nothing."""

    def __init__(self) -> None:
        self._told = False

    def told(self) -> bool:
        """Whether this rank was told to stop."""
        return self._told

    def listen(self) -> None:
        """From here on a signal is remembered instead of ending the process at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)

    def _remember(self, _signal: int, _frame: FrameType | None) -> None:
        self._told = True


class StopVotes:
    """Asks all ranks of a group, every few steps, whether any of them was told to stop."""

    def __init__(self, stop: StopSignal, group: Group) -> None:
        self._stop = stop
        self._group = group
        self._every_steps = 1
        self._count = torch.zeros(1)
        self._work: dist.Work | None = None

    def begin(self, step: int) -> None:
        """Begin to ask, if it is time, before the computation that follows `step`."""
        if step % self._every_steps == 0:
            self._count.fill_(self._stop.told())
            self._work = self._group.start_sum(self._count)

    def say_stop(self) -> bool:
        """Whether any rank was told to stop when the vote began; the same answer on all ranks."""
        if self._work is None:
            return False
        self._work.wait()
        self._work = None
        return bool(self._count.item() > 0)

    def pace(self, step_seconds: float) -> None:
        """Ask no more often than is of use; all ranks must be told the same at the same step."""
        self._every_steps = max(1, int(_INTERVAL_SECONDS / max(step_seconds, 1e-9)))
