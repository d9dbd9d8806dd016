"""Ends the process when a call that cannot be interrupted does not return.

No exception reaches a thread that waits for a GPU or in NCCL's initialization. Only a new process
helps; the launcher starts one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Watchdog:
    """Deadlines for the calls of one group."""

    def __init__(self, end: Callable[[str], object]) -> None:
        """`end`: called in a thread with a description of the call; it does not return."""
        self._end = end
        self._lock = threading.Lock()
        self._at = math.inf
        self._timer: threading.Timer | None = None
        self._blocks: list[threading.Timer | None] = []
        self._over = False

    def within(self, seconds: float, what: str) -> None:
        """Set the deadline to `seconds` from now, unless it is already earlier."""
        with self._lock:
            at = time.monotonic() + seconds
            if at < self._at and not self._over:
                self._cancel()
                self._at = at
                self._timer = self._start(seconds, what)

    def over(self) -> None:
        """Cancel all deadlines, and ignore new ones: the group is left."""
        with self._lock:
            self._over = True
            self._cancel()
            for timer in filter(None, self._blocks):
                timer.cancel()

    @contextmanager
    def during(self, seconds: float, what: str) -> Iterator[None]:
        """Give the block its own deadline, in addition to others; callable from any thread."""
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
