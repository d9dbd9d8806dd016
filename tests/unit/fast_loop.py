"""An event loop that does not wait for its timers."""

import asyncio
import selectors
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_SPEED = 50
"""How much faster time passes while sockets are open and silent. Data on loopback is late only when
the machine is busy, so a request's timeout does not expire before its response arrives."""


def loop_now() -> datetime:
    """Return a date and time by the clock of the running loop, for code that takes a clock."""
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=asyncio.get_running_loop().time())


class FastLoop(asyncio.SelectorEventLoop):
    """Advances its clock to the next timer as soon as no callback, socket or thread has work.

    Timeouts, backoffs and polls work as usual, and take hardly any time. Code under test must
    measure time with `loop.time()`. Processes are not waited for.
    """

    def __init__(self) -> None:
        self._idle = _Selector()
        super().__init__(self._idle)

    def time(self) -> float:
        """Return the loop's time, which includes all skipped seconds."""
        return super().time() + self._idle.skipped_seconds

    def run_in_executor(
        self, executor: Any, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Call a function in a thread; until it returns, time passes at its usual speed."""
        future = super().run_in_executor(executor, func, *args)
        self._idle.threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: asyncio.Future[Any]) -> None:
        self._idle.threads -= 1


class _Selector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.skipped_seconds = 0.0
        self.threads = 0
        """Number of threads with a function that has not returned yet."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not timeout or timeout < 0 or self.threads:
            return super().select(timeout)
        has_sockets = len(self.get_map()) > 1  # one wakes the loop up
        wait = timeout / _SPEED if has_sockets else 0
        events = super().select(wait)
        if not events:
            self.skipped_seconds += timeout - wait
        return events
