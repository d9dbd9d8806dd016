"""Waits for a group's collectives; the waits end when the group is given up.

When a process dies with a message half sent, gloo forgets the rank that waits for the other half.
Only the group's timeout ends that wait; nothing wakes the thread earlier. So the training never
waits inside gloo. It waits for a result that comes either from gloo or from the end of the group.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from functools import partial
from typing import Any

from torch import Tensor
from torch import distributed as dist
from torch.futures import Future

from ddp_trainer.exit_codes import BrokenGroupError
from ddp_trainer.system.threads import start_thread

_Settle = Callable[[Exception | None], None]
"""Called once with the error of a collective; None: it succeeded."""


def value_of(future: Future[Any]) -> Tensor:
    """Return the value of a completed future: a hook's tensor, or the only one of a collective.

    Raises:
        RuntimeError: the error with which it failed.
    """
    value = future.value()
    tensor: Tensor = value[0] if isinstance(value, list) else value
    return tensor


def future_of(work: dist.Work | Future[Any]) -> Future[Any]:
    """Return the future of a collective; a future is returned unchanged.

    gloo's reduce_scatter, send and recv have none, so a thread waits for their end.
    """
    if not isinstance(work, dist.Work):
        return work
    try:
        return work.get_future()
    except RuntimeError:
        future: Future[Any] = Future()
        start_thread("ddp: waits for a collective", lambda: _settle_when_done(work, future))
        return future


def _settle_when_done(work: dist.Work, future: Future[Any]) -> None:
    try:
        work.wait()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(None)


class PendingWork:
    """The collectives for which one rank waits in one group."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: set[_Settle] = set()
        self._given_up = False
        self.failure: Exception | None = None
        """Error of the first wait that failed; DDP does not report why a hook failed."""

    def give_up(self, reason: str) -> None:
        """End all present and later waits with a BrokenGroupError; callable from any thread."""
        error = BrokenGroupError(reason)
        with self._lock:
            self._given_up = True
            self.failure = self.failure or error
            pending, self._pending = self._pending, set()
        for settle in pending:
            settle(error)

    def wait(self, work: dist.Work | Future[Any]) -> None:
        """Wait until a collective or a future has completed.

        Raises:
            BrokenGroupError: the group was given up.
            RuntimeError: the error with which the collective failed.
        """
        future = future_of(work)
        if future.done():
            future.value()
            return
        self.begin(future)()

    def begin(self, work: dist.Work | Future[Any]) -> Callable[[], None]:
        """Return a function that waits like `wait`; a failure is noted as soon as it happens."""
        future = future_of(work)
        ended: futures.Future[None] = futures.Future()

        def settle(error: Exception | None) -> None:
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        self._settle_at_the_end(future, settle)
        return ended.result

    def fail(self, error: Exception) -> None:
        """Note the error of a collective that could not begin."""
        self._note(error)

    def guard(
        self,
        future: Future[Any],
        *,
        instead: Any,
        value: Callable[[Future[Any]], Any] = value_of,
    ) -> Future[Any]:
        """Return a future for which DDP can wait; it completes with the `value` of `future`.

        If `future` fails, or the group ends first, the value is `instead` and `failure` is set.
        """
        ended: Future[Any] = Future()

        def settle(error: Exception | None) -> None:
            ended.set_result(value(future) if error is None else instead)

        self._settle_at_the_end(future, settle)
        return ended

    def _settle_at_the_end(self, future: Future[Any], settle: _Settle) -> None:
        with self._lock:
            given_up = self._given_up
            if not given_up:
                self._pending.add(settle)
        if given_up:
            settle(self.failure)
        else:
            future.add_done_callback(partial(self._end, settle=settle))

    def _end(self, future: Future[Any], settle: _Settle) -> None:
        error: Exception | None = None
        try:
            future.value()
        except Exception as failure:
            error = failure
        with self._lock:
            if settle not in self._pending:
                return
            self._pending.discard(settle)
        if error is not None:
            self._note(error)
        settle(error)

    def _note(self, error: Exception) -> None:
        # Its traceback holds buckets of gradients, and the next group allocates its own.
        error.with_traceback(None)
        with self._lock:
            self.failure = self.failure or error
