"""Retries with a deadline and a log line now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from ddp_trainer.exit_codes import MovedError, RendezvousTimeoutError, StoppedError
from ddp_trainer.system.backoff import Backoff

_SHORTEST_SECONDS = 0.005
_LARGE_GROUP_RANKS = 500
"""So many ranks together send rank 0's store at most 10,000 requests a second; fewer send less."""
_FIRST_LOG_SECONDS = 1.0
_LOG_EVERY_SECONDS = 5.0

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


class NotYetError(Exception):
    """Worth another try until the deadline; the message says what the rank waits for."""


def pauses(ranks: int) -> Backoff:
    """Return growing pauses for one of so many ranks that all send requests to rank 0."""
    shortest = 0.05 * min(1.0, ranks / _LARGE_GROUP_RANKS)
    return Backoff(
        shortest_seconds=max(shortest, _SHORTEST_SECONDS), longest_seconds=1.0, per_doubling=32
    )


class Wait:
    """A wait with a deadline and a log line now and then."""

    def __init__(
        self,
        timeout_seconds: float,
        told_to_stop: Callable[[], bool],
        *,
        is_vain: Callable[[], bool] = lambda: False,
    ) -> None:
        """`timeout_seconds`: time until the deadline. `told_to_stop`: a reason to end before it.

        `is_vain`: returns whether the wait has lost its purpose.
        """
        self._timeout_seconds = timeout_seconds
        self._told_to_stop = told_to_stop
        self._is_vain = is_vain
        self._begin = time.monotonic()
        self._next_log = self._begin + _FIRST_LOG_SECONDS

    @property
    def seconds(self) -> float:
        """Seconds since the wait began."""
        return time.monotonic() - self._begin

    def pause(self, reason: str, *, ranks: int = _LARGE_GROUP_RANKS) -> None:
        """Sleep a little before another try; `reason`: what is missing.

        `ranks`: how many ranks wait at the same time, at most.

        Raises:
            RendezvousTimeoutError: the deadline has passed.
            StoppedError: this rank must stop.
            MovedError: `is_vain` returned True.
        """
        now = time.monotonic()
        if self._is_vain():
            raise MovedError("the group changes")
        if self._told_to_stop():
            raise StoppedError("told to stop while waiting for the other ranks")
        if now - self._begin > self._timeout_seconds:
            raise RendezvousTimeoutError(
                f"gave up after {self._timeout_seconds:.0f} s: {reason} "
                "(--rendezvous-timeout-seconds sets how long to wait)"
            )
        if now > self._next_log:
            self._next_log = now + _LOG_EVERY_SECONDS
            _logger.info(
                "still waiting after %.0f of %.0f s: %s",
                now - self._begin,
                self._timeout_seconds,
                reason,
            )
        time.sleep(pauses(ranks).after(now - self._begin))


def retry(attempt: Callable[[], _T], wait: Wait) -> _T:
    """Try until the attempt raises no `NotYetError`; raises what `Wait.pause` does."""
    while True:
        try:
            return attempt()
        except NotYetError as error:
            wait.pause(str(error))
