"""Makes all ranks stop, save, or leave the group at the same step.

A signal, or the news of another group, reaches ranks at different moments, and their clocks differ.
So ranks regularly sum their votes. The sum begins before a step's computation and is read after it,
so that its time is hidden by the computation.
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
"""Time between votes: short compared with a pod's grace period, and many small steps."""
_ROUNDING = 1e-9
"""More than the rounding error of a sum of a million shares, and less than one share."""


class StopSignal:
    """Remembers that this rank must stop; a second signal changes nothing."""

    def __init__(self, *, within_seconds: float, leave_seconds: float = 0.0) -> None:
        """`within_seconds`: time from the signal until the process must have saved and ended.

        `leave_seconds`: time for the others to continue without this rank before all must stop.
        """
        self.within_seconds = within_seconds
        self._leave_seconds = min(leave_seconds, within_seconds / 2)
        self.told_at = math.inf
        """Time of the signal (monotonic)."""

    @property
    def deadline(self) -> float:
        """Return the time by which the process must have ended (monotonic)."""
        return self.told_at + self.within_seconds

    def told(self) -> bool:
        """Return whether this rank must stop."""
        return self.told_at < math.inf

    def vote(self, ranks: int) -> float:
        """Return this rank's vote, among `ranks` ranks, to stop all of them: a sum of 1 decides.

        A rank that must stop now has a full vote. A rank that gives the others time to continue
        without it has a share of one, so that all stop if all of them were signalled.
        """
        if time.monotonic() >= self.told_at + self._leave_seconds:
            return 1.0
        return 1 / ranks if self.told() else 0.0

    def listen(self) -> None:
        """Remember a signal from now on, instead of ending the process at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)

    def _remember(self, _signal: int, _frame: FrameType | None) -> None:
        self.told_at = min(self.told_at, time.monotonic())


def is_carried(votes: float) -> bool:
    """Return whether the sum of all ranks' votes makes them stop."""
    return votes > 1 - _ROUNDING


class Votes:
    """Regular votes of a group's ranks on whether to stop, save or leave the group."""

    def __init__(
        self,
        group: Group,
        *,
        stop: Callable[[int], float],
        save: Callable[[], bool],
        leave: Callable[[], bool] = lambda: False,
    ) -> None:
        """`stop`: this rank's vote among a number of ranks, see `StopSignal.vote`.

        `save`, `leave`: this rank's wish; one rank is enough.
        """
        self._group = group
        self._wants = stop, save, leave
        self._every_steps = 1
        self._voted_at = -math.inf
        """The step before which the last vote began; the same on all ranks."""
        self._counts = torch.zeros(4)
        self._wait: Callable[[], None] | None = None
        self.stop = False
        """True if all had to stop when the last vote began; the same on all ranks."""
        self.save = False
        """True if any rank wanted to save then; the same on all ranks."""
        self.leave = False
        """True if any rank knew of a newer group then; the same on all ranks."""
        self.has_end = False
        """True if any rank has no data after the step; the same on all ranks."""

    def begin(self, step: int, *, has_end: bool | None = None) -> None:
        """Begin a vote, if it is time, before the computation that follows `step`.

        `has_end`: whether this rank has no data after that computation, if each rank knows only its
        own; then each step has a vote. None: all ranks know.
        """
        self.stop = self.save = self.leave = self.has_end = False
        # Not at multiples of the interval: it changes, and no step might be one for a long time.
        if has_end is not None or step - self._voted_at >= self._every_steps:
            self._voted_at = step
            # In new memory: the result for a step that is tried again may still arrive.
            stop, save, leave = self._wants
            wants = stop(self._group.size), save(), leave(), bool(has_end)
            self._counts = torch.tensor(wants, dtype=torch.float64)
            self._wait = self._group.start_sum(self._counts)

    def read(self) -> None:
        """Wait for the result of the vote; without a vote, all answers are False."""
        if self._wait is not None:
            self._wait()
            self._wait = None
            stop, save, leave, has_end = self._counts.tolist()
            self.stop = is_carried(stop)
            self.save, self.leave, self.has_end = save > 0, leave > 0, has_end > 0

    def pace(self, step_seconds: float) -> None:
        """Set how often to vote; all ranks must call this with the same value at the same step."""
        self._every_steps = max(1, int(_INTERVAL_SECONDS / max(step_seconds, 1e-9)))
