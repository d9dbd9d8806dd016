"""Threads that may be inside of torch when their process ends.

When Python has shut down, a thread that wants its lock back is ended there and then: its stack is
unwound, C++ that does not allow that included, and the process aborts («terminate called without an
active exception»). So a process that ends in order waits for them first, for a while.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from weakref import WeakSet

_LAST_SECONDS = 2.0
"""Long for a request on a connection that was cut, or for the end of a group that everybody left.
Whoever takes longer waits for what may never come."""

_started: WeakSet[threading.Thread] = WeakSet()


def start_thread(name: str, target: Callable[[], object]) -> threading.Thread:
    """Start a thread that keeps no process from ending, but is waited for a little."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    _started.add(thread)
    thread.start()
    return thread


@atexit.register
def wait_for_all() -> None:
    """Wait until all have ended, if they do so soon."""
    until = time.monotonic() + _LAST_SECONDS
    for thread in list(_started):
        thread.join(max(until - time.monotonic(), 0.0))
