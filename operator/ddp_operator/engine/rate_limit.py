"""Rate limit for status writes that nobody waits for, shared by all jobs."""

import asyncio
from typing import Final

from ddp_operator.ports import Key

_UNUSED_SECONDS: Final = 60.0
"""How long a slot is kept that no job uses, since the job is gone."""


class RateLimiter:
    """Gives jobs slots in the order in which they ask, at most `per_second` of them each second.

    Belongs to the event loop that it is used in.
    """

    def __init__(self, *, per_second: float) -> None:
        self._seconds = 1 / per_second
        self._next = float("-inf")
        self._reserved: dict[Key, float] = {}  # ordered by time

    def wait_seconds(self, key: Key) -> float:
        """Return how long a job must wait for its slot; 0.0 if it may write now.

        The first call reserves the slot. It stays the job's until `reset`.
        """
        now = asyncio.get_running_loop().time()
        slot = self._reserved.get(key)
        if slot is None:
            self._forget_unused(now)
            slot = self._reserved[key] = max(self._next, now)
            self._next = slot + self._seconds
        return max(slot - now, 0.0)

    def reset(self, key: Key) -> None:
        """Release the slot of a job that has written: its next write reserves another one."""
        self._reserved.pop(key, None)

    def _forget_unused(self, now: float) -> None:
        while self._reserved:
            oldest = next(iter(self._reserved))
            if self._reserved[oldest] + _UNUSED_SECONDS > now:
                return
            del self._reserved[oldest]
