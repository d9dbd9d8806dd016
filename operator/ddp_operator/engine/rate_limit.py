"""Turns for writes that many jobs want to make and nobody waits for."""

import asyncio
from typing import Final

from ddp_operator.ports import Key

_UNUSED_SECONDS: Final = 60.0
"""How long a turn that nobody takes, since its job is gone, is remembered."""


class Turns:
    """Gives jobs their turns in the order in which they ask, at most so many a second in all.

    Belongs to the event loop that it is used in.
    """

    def __init__(self, *, per_second: float) -> None:
        self._seconds = 1 / per_second
        self._next = float("-inf")
        self._turns: dict[Key, float] = {}  # ordered by time

    def wait_seconds(self, key: Key) -> float:
        """How long a job has to wait for its turn, 0.0 when it has come; it stays its turn until
        it is `taken`.
        """
        now = asyncio.get_running_loop().time()
        turn = self._turns.get(key)
        if turn is None:
            self._forget_unused(now)
            turn = self._turns[key] = max(self._next, now)
            self._next = turn + self._seconds
        return max(turn - now, 0.0)

    def taken(self, key: Key) -> None:
        """A job has written, be it out of turn: for its next write it asks anew."""
        self._turns.pop(key, None)

    def _forget_unused(self, now: float) -> None:
        while self._turns:
            oldest = next(iter(self._turns))
            if self._turns[oldest] + _UNUSED_SECONDS > now:
                return
            del self._turns[oldest]
