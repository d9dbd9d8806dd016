"""A queue of names that need work."""

import asyncio
from collections import deque
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

KeyT = TypeVar("KeyT")

_NEWS_SECONDS: Final = 1.0
"""Longest wait of a name that failed and was added meanwhile."""

_BURST_SECONDS: Final = 2.0
"""A name that was not given out for so long begins another burst. Longer than any rest."""


class QueueClosedError(Exception):
    """The queue gives out no more names."""


class _Turn(NamedTuple):
    """When a name was last given out, and how often before in the same burst."""

    at: float
    earlier: int


class WorkQueue(Generic[KeyT]):
    """Names to work on, each by one worker at a time.

    - A name that already waits is not queued twice.
    - A name that is added while a worker has it is given out again when that worker is done.
    - `add_after` keeps the earlier of two times; `add` makes a delayed name due at once.
    - `add_rested` also makes a name due at once, unless it was given out just now. In a burst of
      changes it rests longer each time, so that the work does not grow with the changes.
    - A name that fails waits longer each time, until it succeeds or is added again.

    Belongs to the event loop that it is used in.
    """

    def __init__(
        self, *, first_backoff_seconds: float = 0.1, last_backoff_seconds: float = 60.0
    ) -> None:
        self._first_backoff_seconds = first_backoff_seconds
        self._last_backoff_seconds = last_backoff_seconds
        self._ready: deque[KeyT] = deque()
        self._queued: set[KeyT] = set()
        self._active: set[KeyT] = set()
        self._again: set[KeyT] = set()
        self._timers: dict[KeyT, asyncio.TimerHandle] = {}
        self._turns: dict[KeyT, _Turn] = {}  # the latest ones last
        self._failures: dict[KeyT, int] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        """Names that wait for a worker now, without delayed ones."""
        return len(self._ready)

    def add(self, key: KeyT) -> None:
        """Request work on a name now."""
        if timer := self._timers.pop(key, None):
            timer.cancel()
        if key in self._active:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.append(key)
            self._wake_one()

    def add_after(self, key: KeyT, seconds: float) -> None:
        """Request work on a name after so many seconds, or earlier if already requested."""
        if key in self._queued or key in self._again:
            return
        loop = asyncio.get_running_loop()
        known = self._timers.get(key)
        if known is not None:
            if known.when() <= loop.time() + seconds:
                return
            known.cancel()
        self._timers[key] = loop.call_later(seconds, self.add, key)

    def add_rested(self, key: KeyT, *, first_seconds: float, most_seconds: float) -> None:
        """Request work on a name once it has rested since it was last given out, or now if it has:
        `first_seconds` at first, twice as long each time in a burst, `most_seconds` at most.
        """
        turn, now = self._turns.get(key), asyncio.get_running_loop().time()
        rest = min(first_seconds * 2.0 ** min(turn.earlier, 30), most_seconds) if turn else 0.0
        if turn is None or turn.at + rest <= now:
            self.add(key)
        else:
            self.add_after(key, turn.at + rest - now)

    async def get(self) -> KeyT:
        """Take the next name. The caller must call `done` or `failed` with it afterwards.

        Raises `QueueClosedError` once the queue is closed.
        """
        while not self._closed and not self._ready:
            getter = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            except asyncio.CancelledError:
                if getter.done() and not getter.cancelled():
                    self._wake_one()  # this getter was woken in vain; wake another
                raise
        if self._closed:
            raise QueueClosedError
        key = self._ready.popleft()
        self._queued.discard(key)
        self._active.add(key)
        self._note_turn(key)
        return key

    def done(self, key: KeyT) -> None:
        """Report that the work on a name succeeded."""
        self._failures.pop(key, None)
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def failed(self, key: KeyT, *, retry_after_seconds: float | None = None) -> float:
        """Report that the work on a name failed. Return the seconds until it comes again."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        backoff: float = self._first_backoff_seconds * 2 ** min(failures, 30)
        seconds = max(min(backoff, self._last_backoff_seconds), retry_after_seconds or 0.0)
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            seconds = min(seconds, _NEWS_SECONDS)
        self.add_after(key, seconds)
        return seconds

    def close(self) -> None:
        """Give out no more names, and wake all waiting getters."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        while self._getters:
            self._wake_one()

    def _note_turn(self, key: KeyT) -> None:
        now = asyncio.get_running_loop().time()
        last = self._turns.pop(key, None)
        earlier = last.earlier + 1 if last and now < last.at + _BURST_SECONDS else 0
        self._turns[key] = _Turn(now, earlier)
        # Forget two for each new one: names that are never added again must not pile up.
        for oldest in list(islice(self._turns, 2)):
            if self._turns[oldest].at + _BURST_SECONDS < now:
                del self._turns[oldest]

    def _wake_one(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return
