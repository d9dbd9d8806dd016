"""Measures the phases of a step, and when waiting for other ranks begins.

All ranks end a step at the same moment, because they wait for each other's gradients. Only the time
before that wait shows which rank is slow.
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
    """The phases of a step."""

    DATA = "data"
    COMPUTE = "compute"
    COMMUNICATION = "communication"
    """Includes waiting for other ranks, but not communication that overlaps with computation."""
    CHECKPOINT = "checkpoint"


class Moment(Protocol):
    """A point on a device's timeline; torch.cuda.Event is one."""

    def query(self) -> bool:
        """Return True if the device has reached this point."""

    def elapsed_time(self, end: Self, /) -> float:
        """Return the milliseconds from this point to `end`."""


class StepTimer:
    """One rank's stopwatch: each lap ends where the next one begins."""

    def __init__(self) -> None:
        self._at = time.perf_counter()
        self._own_before = 0.0
        self.seconds = dict.fromkeys(Phase, 0.0)
        """By phase, since the beginning."""

    def restart(self) -> None:
        """Ignore the time since the last lap: it belongs to no phase."""
        self._at = time.perf_counter()

    def note(self, phase: Phase) -> None:
        """Assign the time since the last lap to `phase`; safe while collectives run."""
        now = time.perf_counter()
        self.seconds[phase] += now - self._at
        self._at = now

    lap = note

    def lap_before_waiting(self, loss: Tensor) -> None:
        """End a compute lap when this rank's own gradients are ready.

        Call it before `loss.backward()`, which returns when the gradients of all ranks are ready.
        """

        def when_backward_begins(_gradient: Tensor) -> None:
            # Callbacks run at the end of backward in queue order; DDP queues its wait after this.
            Variable._execution_engine.queue_callback(partial(self.note, Phase.COMPUTE))

        loss.register_hook(when_backward_begins)  # type: ignore[no-untyped-call]

    def own_seconds(self) -> float:
        """Return this rank's own time since the last call in seconds, without waiting times."""
        own = self.seconds[Phase.DATA] + self.seconds[Phase.COMPUTE]
        since, self._own_before = own - self._own_before, own
        return since


class DeviceTimer(StepTimer):
    """A stopwatch of a device that executes work asynchronously, as GPUs do."""

    def __init__(self, mark: Callable[[], Moment]) -> None:
        """`mark`: marks the current point on the device's timeline."""
        super().__init__()
        self._mark = mark
        self._last = mark()
        self._pending: deque[tuple[Phase, Moment]] = deque()

    def restart(self) -> None:
        """Ignore the time since the last lap: it belongs to no phase."""
        self._pending.clear()
        self._last = self._mark()

    def note(self, phase: Phase) -> None:
        """Assign the time since the last lap to `phase`; safe while collectives run.

        It does not query the device. CUDA's events hold Python's lock while they query the driver;
        meanwhile a thread that must abort a collective could not run.
        """
        self._pending.append((phase, self._mark()))

    def lap(self, phase: Phase) -> None:
        """Assign the time since the last lap to `phase`, and add up laps that are over."""
        self.note(phase)
        # A GPU lags behind: read its times once it has reached them, and never wait for it.
        while self._pending and self._pending[0][1].query():
            phase, moment = self._pending.popleft()
            self.seconds[phase] += self._last.elapsed_time(moment) / 1e3
            self._last = moment


def timer_of(device: torch.device) -> StepTimer:
    """Return a stopwatch for the work of a device."""
    return DeviceTimer(_gpu_moment) if device.type == "cuda" else StepTimer()


def _gpu_moment() -> Moment:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
