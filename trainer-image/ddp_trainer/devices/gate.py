"""Keeps results of collectives from being used before they are complete.

A device that executes work asynchronously, like a GPU, lets `backward()` return while the gradients
are still on their way. The optimizer's step is queued behind them. If a peer is lost, collectives
end only by aborting the group. The device then continues as if they had succeeded, and the work
queued behind them uses data that never arrived. torch's own protection, TORCH_NCCL_BLOCKING_WAIT,
does not cover the futures for which DDP waits (documentation of `Work.get_future`).

So the host waits here before it queues work that cannot be undone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from ddp_trainer.exit_codes import BrokenGroupError, LostDeviceError
from ddp_trainer.system.backoff import Backoff

pause_after = Backoff(shortest_seconds=50e-6, longest_seconds=500e-6, per_doubling=64).after
"""The shortest pause is about the resolution of the kernel's timers. A device idles on average for
half of a pause, which is negligible beside a step that took that long."""
_STOP_SECONDS = 5.0
"""How long a rank that must stop still waits here. It needs the rest of a spot node's 15 s to leave
the group and to save."""


class Event(Protocol):
    """A point in the queue of a device."""

    def query(self) -> bool:
        """Return whether the device has reached this point; raise if the device has failed.

        Returns at once, even if the device or other threads are blocked.
        """


class Gate:
    """The gate between the collectives of one group and the code that reads their results."""

    def __init__(
        self,
        record: Callable[[], Event] | None,
        failure: Callable[[], Exception | None],
        *,
        timeout_seconds: float,
        told_to_stop: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`record` marks the end of the work queued on this rank's device.

        None: the device executes work at once, and collectives have been waited for. `failure`
        returns the error that broke the group, or None. It must return the error before an
        incomplete collective can be released.
        """
        self._record = record
        self._failure = failure
        self._timeout_seconds = timeout_seconds
        self._told_to_stop = told_to_stop
        self._clock = clock
        self._sleep = sleep

    def wait(self) -> None:
        """Return when this rank's device has done all queued work and the group is not broken.

        Raises:
            BrokenGroupError: the device needed longer than the group's timeout.
            Exception: the error that broke the group.
        """
        if self._record is not None:
            self._wait_for(self._record())
        # After the event, because an abort of the group may have completed it.
        failure = self._failure()
        if failure is not None:
            raise failure

    def _wait_for(self, event: Event) -> None:
        begin = self._clock()
        until = begin + self._timeout_seconds
        while not event.query():
            failure = self._failure()
            if failure is not None:
                raise failure
            now = self._clock()
            if now >= until:
                raise BrokenGroupError(
                    f"work on this rank's device took more than {self._timeout_seconds:g} s: a "
                    "collective or the device hangs"
                )
            if self._told_to_stop():
                until = min(until, now + _STOP_SECONDS)
            self._sleep(pause_after(now - begin))


def expect(event: Event, *, within_seconds: float, what: str) -> None:
    """Wait for a device that no other rank blocks.

    Raises:
        LostDeviceError: it did not reach the event in time; `what` describes the awaited work.
    """
    begin = time.monotonic()
    while not event.query():
        waited = time.monotonic() - begin
        if waited >= within_seconds:
            raise LostDeviceError(f"this rank's device did not {what} within {within_seconds:g} s")
        time.sleep(pause_after(waited))
