"""Trying again for what is not there yet, with an end, and a word in the log meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from ddp_trainer.exit_codes import MovedError, RendezvousTimeoutError, StoppedError
from ddp_trainer.system.backoff import Backoff

_SHORTEST_SECONDS = 0.005
_LARGE_GROUP_RANKS = 500
"""Together they ask rank 0's store for 10,000 answers a second at most; smaller groups for less."""
_FIRST_LOG_SECONDS = 1.0
_LOG_EVERY_SECONDS = 5.0

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


class NotYetError(Exception):
    """Worth another try until the deadline; the message says what is being waited for."""


def pauses(ranks: int) -> Backoff:
    """Return the pauses of one of so many ranks, all of which ask rank 0: ever longer ones."""
    shortest = 0.05 * min(1.0, ranks / _LARGE_GROUP_RANKS)
    return Backoff(
        shortest_seconds=max(shortest, _SHORTEST_SECONDS), longest_seconds=1.0, per_doubling=32
    )


class Wait:
    """A wait with an end, and a log line now and then while it lasts."""

    def __init__(
        self,
        timeout_seconds: float,
        told_to_stop: Callable[[], bool],
        *,
        is_vain: Callable[[], bool] = lambda: False,
    ) -> None:
        """`timeout_seconds` from now it ends; `told_to_stop`: a reason to end it before.

        `is_vain`: whether what it waits for is of no use any more.
        """
        self._timeout_seconds = timeout_seconds
        self._told_to_stop = told_to_stop
        self._is_vain = is_vain
        self._begin = time.monotonic()
        self._next_log = self._begin + _FIRST_LOG_SECONDS

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._begin

    def pause(self, reason: str, *, ranks: int = _LARGE_GROUP_RANKS) -> None:
        """Sleep a little before another try; `reason`: what is missing.

        `ranks`: how many do the same meanwhile, at most.

        Raises:
            RendezvousTimeoutError: the time is up.
            StoppedError: this rank was told to stop meanwhile.
            MovedError: it waits in vain.
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
