"""Waits for a group's collectives that end when the group is given up.

When a process dies with a message half sent, gloo forgets whoever waits for the other half: only
the group's timeout ends that wait, and nothing wakes the waiting thread earlier. So the training
never waits in gloo itself, but for a result that either gloo or the end of the group brings.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures

from torch import Tensor
from torch import distributed as dist
from torch.futures import Future

from ddp_trainer.exit_codes import BrokenGroupError

_Settle = Callable[[Exception | None], None]
"""Told once how a collective ended; None: well."""


class Waits:
    """All waits of one rank in one group."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: set[_Settle] = set()
        self._reason: str | None = None

    def give_up(self, reason: str) -> None:
        """End all waits, those to come too, with a BrokenGroupError; from any thread."""
        with self._lock:
            self._reason = reason
            pending, self._pending = self._pending, set()
        for settle in pending:
            settle(BrokenGroupError(reason))

    def wait(self, work: dist.Work) -> None:
        """Wait until a collective has ended.

        Raises:
            BrokenGroupError: the group was given up meanwhile.
            RuntimeError: whatever the collective failed of.
        """
        if work.is_completed():
            work.wait()
            return
        ended: futures.Future[None] = futures.Future()

        def settle(error: Exception | None) -> None:
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        self._settle_at_the_end(work.get_future(), settle)
        ended.result()

    def guard(self, future: Future[Tensor]) -> Future[Tensor]:
        """The same result for whoever waits for a future, such as DDP for a hook's."""
        ended: Future[Exception | None] = Future()

        def value(_: Future[Exception | None]) -> Tensor:
            error = ended.value()
            if error is not None:
                raise error
            return future.value()

        self._settle_at_the_end(future, ended.set_result)
        return ended.then(value)

    def _settle_at_the_end(self, future: Future[Tensor], settle: _Settle) -> None:
        with self._lock:
            reason = self._reason
            if reason is None:
                self._pending.add(settle)
        if reason is not None:
            settle(BrokenGroupError(reason))
        else:
            future.add_done_callback(lambda done: self._end(done, settle))

    def _end(self, future: Future[Tensor], settle: _Settle) -> None:
        with self._lock:
            if settle not in self._pending:
                return
            self._pending.discard(settle)
        try:
            future.value()
        except Exception as error:
            settle(error)
        else:
            settle(None)
