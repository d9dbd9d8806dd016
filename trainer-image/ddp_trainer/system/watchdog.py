"""Ends the process when a call that nothing can interrupt does not return.

A thread that waits for a GPU, or in NCCL's initialisation, hears nobody: no exception reaches it. A
new process in its place is the only way on, and the launcher starts one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Watchdog:
    """The deadline of one group's life, of which there is at most one at a time."""

    def __init__(self, end: Callable[[str], object]) -> None:
        """`end` is called in a thread with what was waited for; it does not return."""
        self._end = end
        self._lock = threading.Lock()
        self._at = math.inf
        self._timer: threading.Timer | None = None
        self._blocks: list[threading.Timer | None] = []
        self._over = False

    def within(self, seconds: float, what: str) -> None:
        """From here on there is so much time, unless there is less already."""
        with self._lock:
            at = time.monotonic() + seconds
            if at < self._at and not self._over:
                self._cancel()
                self._at = at
                self._timer = self._start(seconds, what)

    def over(self) -> None:
        """The group is left: whoever sets a deadline from here on comes too late."""
        with self._lock:
            self._over = True
            self._cancel()
            for timer in filter(None, self._blocks):
                timer.cancel()

    @contextmanager
    def during(self, seconds: float, what: str) -> Iterator[None]:
        """The block has so much time, beside other deadlines; from any thread."""
        with self._lock:
            timer = None if self._over else self._start(seconds, what)
            self._blocks.append(timer)
        try:
            yield
        finally:
            with self._lock:
                self._blocks.remove(timer)
            if timer is not None:
                timer.cancel()

    def _start(self, seconds: float, what: str) -> threading.Timer:
        timer = threading.Timer(seconds, self._end, [what])
        timer.name = "watchdog"
        timer.daemon = True
        timer.start()
        return timer

    def _cancel(self) -> None:
        self._at = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
