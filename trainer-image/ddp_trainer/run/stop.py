"""Makes all ranks stop, save, or leave the group at the same step.

A signal, or the news of another group, reaches ranks at different moments, and their clocks differ.
So ranks regularly sum their votes. The sum begins before a step's computation and is read after it,
so that its time is hidden by the computation.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from ddp_trainer.collectives.group import Group

_INTERVAL_SECONDS = 0.25
"""Time between votes: short compared with a pod's grace period, and many small steps."""
_ROUNDING = 1e-9
"""More than the rounding error of a sum of a million shares, and less than one share."""


_logger = logging.getLogger(__name__)

_Handler = Callable[[int, FrameType | None], Any] | int | None


class StopSignal:
    """Remembers that this rank must stop; a second Ctrl-C interrupts it at once."""

    def __init__(self, *, within_seconds: float, leave_seconds: float = 0.0) -> None:
        """`within_seconds`: time from the signal until the process must have saved and ended.

        `leave_seconds`: time for the others to continue without this rank before all must stop.
        """
        self.within_seconds = within_seconds
        self._leave_seconds = min(leave_seconds, within_seconds / 2)
        self.told_at = math.inf
        """Time of the signal (monotonic)."""
        self._was_interrupted = False
        self._warned = False
        self._before: dict[int, _Handler] = {}
        """The handlers that this one replaced, by signal."""

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
        """Remember a signal from now on, instead of ending the process at once.

        A handler of the script is still called. Only the main thread may set handlers; in another
        one, signals keep their effect.
        """
        if threading.current_thread() is not threading.main_thread():
            if not self._warned:
                self._warned = True
                _logger.warning(
                    "join() was not called in the main thread: SIGTERM will end this process "
                    "without a last save"
                )
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            if number == signal.SIGINT and signal.getsignal(number) == signal.SIG_IGN:
                continue  # started in a shell's background, where Ctrl-C is for other programs
            if number not in self._before:
                self._before[number] = signal.signal(number, self._remember)

    def ignore_no_more(self) -> None:
        """Give signals the effect that they had before `listen`."""
        for number, before in self._before.items():
            # A handler that the script has set since then stays.
            if signal.getsignal(number) == self._remember:
                signal.signal(number, before if before is not None else signal.SIG_DFL)
        self._before.clear()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.told_at = min(self.told_at, time.monotonic())
        before = self._before.get(number)
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)
        if number == signal.SIGINT:
            if self._was_interrupted:
                raise KeyboardInterrupt
            self._was_interrupted = True


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

    def begin(self, step: int, *, begins_epoch: bool = False, has_end: bool | None = None) -> None:
        """Begin a vote, if it is time, before the computation that follows `step`.

        The first step of an epoch always has one, since an evaluation may have taken long.
        `has_end`: whether this rank has no data after that computation, if each rank knows only its
        own; then each step has a vote. None: all ranks know.
        """
        self.stop = self.save = self.leave = self.has_end = False
        # Not at multiples of the interval: it changes, and no step might be one for a long time.
        is_due = begins_epoch or step - self._voted_at >= self._every_steps
        if has_end is not None or is_due:
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

    @property
    def next_step(self) -> float:
        """The step before or after which something of a vote is due; the same on all ranks."""
        return self._voted_at + (1 if self._wait is not None else self._every_steps)

    def pace(self, step_seconds: float) -> None:
        """Set how often to vote; all ranks must call this with the same value at the same step."""
        self._every_steps = max(1, int(_INTERVAL_SECONDS / max(step_seconds, 1e-9)))
