"""What collectives wrote is not used before it is known to be whole.

A device that is told its work in advance, as a GPU is, lets `backward()` return while the gradients
are still on their way, and the optimizer's step queues behind them. If a peer is lost, aborting the
group is the only way to end its collectives: the device then goes on as if they had ended well, and
whatever stands behind them computes with what never arrived. torch's documentation of
`Work.get_future` says that its own means against that, TORCH_NCCL_BLOCKING_WAIT, does not reach the
futures that DDP waits for.

So the host waits here, before it queues anything that cannot be taken back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from ddp_trainer.exit_codes import BrokenGroupError, LostDeviceError
from ddp_trainer.system.backoff import Backoff

pause_after = Backoff(shortest_seconds=50e-6, longest_seconds=500e-6, per_doubling=64).after
"""The shortest is about what the kernel's timers are good for; of the longest a device idles for
half on average: nothing beside the step that took so long."""
_STOP_SECONDS = 5.0
"""What a rank that was told to stop still waits here: of the 15 s of a pod on a spot node, it needs
the rest to leave the group and to save."""


class Event(Protocol):
    """A place in the queue of a device."""

    def query(self) -> bool:
        """Whether the device has come so far; raises if the device has failed.

        Returns at once, whatever the device and other threads wait for.
        """


class Gate:
    """Stands between the collectives of one group and whoever reads what they wrote."""

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
        """`record` marks the end of what this rank's device was told so far.

        None: the device does as it is told at once, and collectives have been waited for. `failure`
        is what broke the group, or None, from the moment on at which anything may release a
        collective that has not ended: it must be known before.
        """
        self._record = record
        self._failure = failure
        self._timeout_seconds = timeout_seconds
        self._told_to_stop = told_to_stop
        self._clock = clock
        self._sleep = sleep

    def wait(self) -> None:
        """Return when all that was queued on this rank's device is done, and the group is whole.

        Raises:
            BrokenGroupError: the device did not come so far within the group's timeout.
            Exception: what broke the group, whichever the connection reports.
        """
        if self._record is not None:
            self._wait_for(self._record())
        # Not before the event has come: it may have come because the group was aborted.
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
                    f"what this rank's device was told took more than {self._timeout_seconds:g} s: "
                    "a collective, or the device, hangs"
                )
            if self._told_to_stop():
                until = min(until, now + _STOP_SECONDS)
            self._sleep(pause_after(now - begin))


def expect(event: Event, *, within_seconds: float, what: str) -> None:
    """Wait for a device that nobody else keeps from coming so far.

    Raises:
        LostDeviceError: it has not, in that time; `what` says what it should have done.
    """
    begin = time.monotonic()
    while not event.query():
        waited = time.monotonic() - begin
        if waited >= within_seconds:
            raise LostDeviceError(f"this rank's device did not {what} within {within_seconds:g} s")
        time.sleep(pause_after(waited))
