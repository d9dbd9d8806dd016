"""Starts threads that may be inside torch code when their process ends.

After Python's shutdown, a thread that needs Python's lock is ended at once. Its stack is unwound,
including C++ frames that do not allow it, and the process aborts ("terminate called without an
active exception"). So a process that ends normally first waits for these threads, for a while.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from weakref import WeakSet

_LAST_SECONDS = 2.0
"""Long enough for a request on a closed connection, or for the end of a group that all ranks left.
A thread that takes longer may wait forever."""

_started: WeakSet[threading.Thread] = WeakSet()


def start_thread(name: str, target: Callable[[], object]) -> threading.Thread:
    """Start a daemon thread for which the process waits a short time when it ends."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    _started.add(thread)
    thread.start()
    return thread


@atexit.register
def wait_for_all() -> None:
    """Wait for all these threads, for a limited time."""
    until = time.monotonic() + _LAST_SECONDS
    for thread in list(_started):
        thread.join(max(until - time.monotonic(), 0.0))
