"""What the time of a step is spent on, and where the waiting for other ranks begins.

All ranks end a step at the same moment, because they wait for each other's gradients; only the time
before that wait tells a slow rank from those that it holds up.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.autograd import Variable


class Phase(StrEnum):
    """What time can be spent on."""

    DATA = "data"
    COMPUTE = "compute"
    COMMUNICATION = "communication"
    """Waiting for other ranks included; what hides behind the computation is not."""
    CHECKPOINT = "checkpoint"


class Moment(Protocol):
    """A point on a device's timeline; torch.cuda.Event is one."""

    def query(self) -> bool:
        """Whether the device has come so far."""

    def elapsed_time(self, end: Self, /) -> float:
        """Milliseconds up to `end`."""


class StepTimer:
    """One rank's stopwatch: each lap ends where the next one begins."""

    def __init__(self, mark: Callable[[], Moment]) -> None:
        """`mark` tells the present moment, of the device that computes; see `moments_of`."""
        self._mark = mark
        self._last = mark()
        self._pending: deque[tuple[Phase, Moment]] = deque()
        self._own_before = 0.0
        self.seconds = dict.fromkeys(Phase, 0.0)
        """By phase, since the beginning."""

    def restart(self) -> None:
        """What was done since the last lap belongs to no phase."""
        self._pending.clear()
        self._last = self._mark()

    def note(self, phase: Phase) -> None:
        """All since the last lap was `phase`; for places where collectives may be under way.

        The device is asked nothing: CUDA's events keep Python's lock while they ask the driver, and
        a thread that has to abort a collective could not run until they have their answer.
        """
        self._pending.append((phase, self._mark()))

    def lap(self, phase: Phase) -> None:
        """All since the last lap was `phase`; adds up the laps that the device has ended."""
        self.note(phase)
        # A GPU is behind: its times are read when it has come so far, never waited for.
        while self._pending and self._pending[0][1].query():
            phase, moment = self._pending.popleft()
            self.seconds[phase] += self._last.elapsed_time(moment) / 1e3
            self._last = moment

    def lap_before_waiting(self, loss: Tensor) -> None:
        """End a lap of computing when this rank's gradients are there.

        To be called before `loss.backward()`, which ends when those of all ranks are there.
        """

        def when_backward_begins(_gradient: Tensor) -> None:
            # Callbacks run at the end, in the order of queueing: DDP queues its wait after this.
            Variable._execution_engine.queue_callback(partial(self.note, Phase.COMPUTE))

        loss.register_hook(when_backward_begins)  # type: ignore[no-untyped-call]

    def own_seconds(self) -> float:
        """This rank's own time since the last call: what no other rank can be blamed for."""
        own = self.seconds[Phase.DATA] + self.seconds[Phase.COMPUTE]
        since, self._own_before = own - self._own_before, own
        return since


def moments_of(device: torch.device) -> Callable[[], Moment]:
    """How to mark moments of a device that is told its work in advance, as GPUs are, or is not."""
    return _gpu_moment if device.type == "cuda" else _HostMoment


class _HostMoment:
    def __init__(self) -> None:
        self._time = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Self, /) -> float:
        return (end._time - self._time) * 1e3


def _gpu_moment() -> Moment:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
