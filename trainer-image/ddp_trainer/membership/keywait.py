"""Waiting in a store for a key: it tells when the key is set, and nobody has to ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import Store

from ddp_trainer.membership.retry import Wait
from ddp_trainer.membership.sockets import Connections

_LOOK_SECONDS = 0.1
"""How often to see whether there is reason to go on; asks nobody else."""
_MOMENT_SECONDS = 0.005
"""For a key that is set."""
_PROBE_SECONDS = 5.0
"""How often to see that the store still answers."""
_ANSWER_SECONDS = 10.0
"""A store that takes longer to answer a request is gone, or something else listens there."""
_FAREWELL_SECONDS = 1.0
"""For a thread whose connection was cut."""


def wait_for_key(
    key: str,
    store: Store,
    probe: Callable[[timedelta], TCPStore],
    to_store: Connections,
    wait: Wait,
    what: Callable[[], str],
) -> None:
    """Wait until a key is set; `what` tells what is missing.

    `probe` makes another connection to the same store. `to_store` is cut where this fails.

    Raises:
        RendezvousTimeoutError, StoppedError: as `Wait.look` says.
        DistNetworkError, DistStoreError: the store is gone, or does not answer.
    """
    waiting = _Waiting(key, store, seconds=wait.seconds_left)
    prober = _Prober(key, probe)
    try:
        if waiting.ended(within_seconds=_MOMENT_SECONDS):
            return
        while True:
            wait.look(what())
            if waiting.ended(within_seconds=_LOOK_SECONDS):
                return
            prober.expect_answer()
    except BaseException:
        to_store.cut()
        waiting.join()
        raise


class _Prober:
    """Sees now and then that a store answers: one that is frozen ends no request."""

    def __init__(self, key: str, connect: Callable[[timedelta], TCPStore]) -> None:
        self._key = key
        self._connect = connect
        self._connections = Connections()
        self._store: TCPStore | None = None
        self._asked_at = time.monotonic()

    def expect_answer(self) -> None:
        """Ask, if it is time; raises DistNetworkError where there is no answer."""
        if time.monotonic() - self._asked_at < _PROBE_SECONDS:
            return
        with self._connections.cut_unless_done_within(_ANSWER_SECONDS):
            self._store = self._store or self._connect(timedelta(seconds=_ANSWER_SECONDS))
            self._store.check([self._key])
        self._asked_at = time.monotonic()


class _Waiting:
    """A wait in a thread of its own: torch's ends by nothing but the key, or when its time is up.

    To end it early all the time would cost requests, and a warning of torch's each time.
    """

    def __init__(self, key: str, store: Store, *, seconds: float) -> None:
        self._key = key
        self._store = store
        # Whoever waits for this one gives up first.
        self._timeout = timedelta(seconds=seconds + 2 * _ANSWER_SECONDS)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._wait, name="rendezvous", daemon=True)
        self._thread.start()

    def ended(self, *, within_seconds: float) -> bool:
        """Wait a little; whether the key is set, or else raises what went wrong."""
        self._thread.join(within_seconds)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait for the thread of a wait that was cut."""
        self._thread.join(_FAREWELL_SECONDS)

    def _wait(self) -> None:
        try:
            self._store.wait([self._key], self._timeout)
        except Exception as error:
            self._error = error
