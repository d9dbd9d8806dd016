"""A queue of work that a thread does in order, like a stream of a GPU."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import torch

from tests.trainer.support.device_errors import DeviceError


class Stream:
    """Does queued work later. An error stops it permanently, like an error of CUDA."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[Callable[[], None]] = deque()
        self._queued = 0
        self._done = 0
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None

    def queue(self, work: Callable[[], None]) -> None:
        with self._changed:
            if self._thread is None:  # not before: a process that is forked has no threads
                self._thread = threading.Thread(target=self._run, name="stream", daemon=True)
                self._thread.start()
            self._queue.append(work)
            self._queued += 1
            self._changed.notify_all()

    def record(self) -> Mark:
        """Mark the end of the work queued so far."""
        with self._changed:
            return Mark(self, self._queued)

    def synchronize(self, number: int | None = None) -> None:
        """Wait until it has done this much, by default all; the stream itself does not wait."""
        if threading.current_thread() is self._thread:
            return
        with self._changed:
            until = self._queued if number is None else number
            self._changed.wait_for(lambda: self._done >= until or self._failure is not None)
            self._raise()

    def has_done(self, number: int) -> bool:
        with self._changed:
            self._raise()
            return self._done >= number

    def _raise(self) -> None:
        if self._failure is not None:
            raise DeviceError(f"CUDA error: {self._failure}") from self._failure

    def _run(self) -> None:
        with torch.no_grad():
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: bool(self._queue))
                    work = self._queue.popleft()
                try:
                    work()
                except Exception as error:
                    with self._changed:
                        self._failure = error
                        self._changed.notify_all()
                    return
                del work  # it refers to its group, which is released without other references
                with self._changed:
                    self._done += 1
                    self._changed.notify_all()


class Mark:
    def __init__(self, stream: Stream, number: int) -> None:
        self._stream = stream
        self._number = number

    def query(self) -> bool:
        """Return whether the stream has reached it."""
        return self._stream.has_done(self._number)

    def synchronize(self) -> None:
        self._stream.synchronize(self._number)
