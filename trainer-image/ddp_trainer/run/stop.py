"""How a run is told to stop, and how all its ranks stop, save, or leave, at the same step.

A signal, or word of another group, reaches them at different moments, and their clocks differ. Each
rank puts what it knows into a sum over all ranks now and then; the sum is begun before a step's
computation and read after it, so that its time hides behind the computation.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from types import FrameType

import torch

from ddp_trainer.collectives.group import Group

_INTERVAL_SECONDS = 0.25
"""Between votes: little of what a pod has to save before it is killed, a lot of small steps."""
_ROUNDING = 1e-9
"""More than what sums of a million shares are off, and less than one of them."""


class StopSignal:
    """Remembers that this rank was told to stop; being told twice changes nothing."""

    def __init__(self, *, within_seconds: float, leave_seconds: float = 0.0) -> None:
        """`within_seconds` after being told the process has to end, everything saved.

        `leave_seconds`: what it gives the others to go on without it, before all have to stop.
        """
        self.within_seconds = within_seconds
        self._leave_seconds = min(leave_seconds, within_seconds / 2)
        self.told_at = math.inf
        """When it was told (monotonic)."""

    @property
    def deadline(self) -> float:
        """When the process has to have ended (monotonic)."""
        return self.told_at + self.within_seconds

    def told(self) -> bool:
        """Whether this rank was told to stop."""
        return self.told_at < math.inf

    def vote(self, ranks: int) -> float:
        """How much this rank, of so many, wants all of them to stop: at 1 they do.

        Who has to stop can say so alone. Who gives the others time to go on without it has a share:
        where all are told, there is nobody to go on.
        """
        if time.monotonic() >= self.told_at + self._leave_seconds:
            return 1.0
        return 1 / ranks if self.told() else 0.0

    def listen(self) -> None:
        """From here on a signal is remembered instead of ending the process at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)

    def _remember(self, _signal: int, _frame: FrameType | None) -> None:
        self.told_at = min(self.told_at, time.monotonic())


def is_carried(votes: float) -> bool:
    """Whether the sum of all ranks' votes has them stop."""
    return votes > 1 - _ROUNDING


class Votes:
    """Asks all ranks of a group, every few steps, whether to stop, save or leave the group."""

    def __init__(
        self,
        group: Group,
        *,
        stop: Callable[[int], float],
        save: Callable[[], bool],
        leave: Callable[[], bool] = lambda: False,
    ) -> None:
        """`stop`: this rank's vote among so many ranks, as `StopSignal.vote` has it.

        `save`, `leave`: what this rank wants; one rank that wants it is enough.
        """
        self._group = group
        self._wants = stop, save, leave
        self._every_steps = 1
        self._counts = torch.zeros(4)
        self._wait: Callable[[], None] | None = None
        self.stop = False
        """Whether all had to stop when the last vote began; the same on all ranks."""
        self.save = False
        """Whether any rank wanted to save then; the same on all ranks."""
        self.leave = False
        """Whether any rank knew then of another group, to be formed now; the same on all ranks."""
        self.has_end = False
        """Whether any rank has nothing to train on after the step; the same on all ranks."""

    def begin(self, step: int, *, has_end: bool | None = None) -> None:
        """Begin to ask, if it is time, before the computation that follows `step`.

        `has_end`: whether this rank has nothing to train on after that, where each rank knows it of
        itself alone: then it is always time. None: all ranks know.
        """
        self.stop = self.save = self.leave = self.has_end = False
        if has_end is not None or step % self._every_steps == 0:
            # Not in the same memory: the answers to a step that is tried again may yet come.
            stop, save, leave = self._wants
            wants = stop(self._group.size), save(), leave(), bool(has_end)
            self._counts = torch.tensor(wants, dtype=torch.float64)
            self._wait = self._group.start_sum(self._counts)

    def read(self) -> None:
        """Wait for the answers, if any were asked for; without, nobody wants anything."""
        if self._wait is not None:
            self._wait()
            self._wait = None
            stop, save, leave, has_end = self._counts.tolist()
            self.stop = is_carried(stop)
            self.save, self.leave, self.has_end = save > 0, leave > 0, has_end > 0

    def pace(self, step_seconds: float) -> None:
        """Ask no more often than is of use; all ranks must be told the same at the same step."""
        self._every_steps = max(1, int(_INTERVAL_SECONDS / max(step_seconds, 1e-9)))
