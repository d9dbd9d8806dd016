"""Virtual time: a clock that tests advance, and an event loop that follows it.

Thousands of histories of minutes and hours have to fit into a few minutes, so nothing sleeps.
Each operator process has its own loop, and ends with it.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

BEGINNING = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Clock:
    """Seconds since the history began, and how far the operator's own clock is off."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.operator_skew_seconds = 0.0

    def now(self) -> datetime:
        """Return the true time, which the API server and kubelets use."""
        return BEGINNING + timedelta(seconds=self.seconds)

    def operators_now(self) -> datetime:
        """Return the time of the operator's machine."""
        return self.now() + timedelta(seconds=self.operator_skew_seconds)


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop without I/O. Its timers fire as fast as the clock is advanced."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = count()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.halted = False

    def run_until(self, end: float) -> None:
        """Run everything that is due until the clock shows `end`, or until `halt`."""
        asyncio._set_running_loop(self)
        try:
            while not self.halted:
                if self._ready:
                    self._ready.popleft()._run()
                elif self._timers and self._timers[0][0] <= end:
                    when, _, timer = heapq.heappop(self._timers)
                    if not timer.cancelled():
                        self._clock.seconds = max(self._clock.seconds, when)
                        timer._run()
                else:
                    self._clock.seconds = max(self._clock.seconds, end)
                    return
        finally:
            asyncio._set_running_loop(None)

    def halt(self) -> None:
        """Run no further callback."""
        self.halted = True

    def cancel_tasks(self) -> None:
        """Cancel and unwind the tasks of a halted loop, so that none is reported as pending."""
        self._timers.clear()
        for task in self._tasks:
            task.cancel()
        asyncio._set_running_loop(self)
        try:
            while self._ready:
                self._ready.popleft()._run()
        finally:
            asyncio._set_running_loop(None)

    # What asyncio asks of a loop

    def time(self) -> float:
        return self._clock.seconds

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def run_in_executor(
        self, executor: Any, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Call it at once: it takes no virtual time."""
        del executor
        future: asyncio.Future[T] = self.create_future()
        future.set_result(func(*args))
        return future

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are skipped when they come due."""

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> "asyncio.Task[T]":
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.halted:
            raise AssertionError(f"the event loop was left an error: {context}")
