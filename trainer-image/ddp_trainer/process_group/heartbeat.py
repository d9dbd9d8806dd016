"""Notices a frozen rank although its connections are open.

A dead process closes its connections, and ranks that wait for it notice at once. A frozen one
(stopped, swapping, node or network gone) closes nothing, and its peers would wait until the group's
timeout. So a thread of every rank regularly writes to rank 0's store that its process runs. Rank 0
watches all of them. The others watch rank 0 and receive from it the numbers of lost ranks. Rank 0
also notices a new process that replaces a member: the member then counts as dead, even if its
connections look healthy.

The operator may know first, because a lost node closes no connection either.

A rank that runs but waits in its training is not found here; the group's timeout ends that wait. A
rank that left the training before the others is found: see `end_of_training`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import Store

from ddp_trainer.process_group.end_of_training import Objection, ScriptProgress
from ddp_trainer.process_group.rendezvous.membership import Membership
from ddp_trainer.system.liveness import Silence
from ddp_trainer.system.threads import start_thread

_LONGEST_INTERVAL_SECONDS = 1.0
_BEATS_PER_TIMEOUT = 4
_WORD_SECONDS = 0.1
"""Time between checks of the assignment file; each costs one `stat`."""
_LOST = "lost"
_NO_BEAT = -1
"""Counter of a rank that has not sent a heartbeat yet."""


def interval(timeout_seconds: float) -> float:
    """Return the seconds between heartbeats, so that several fit into the timeout."""
    return min(_LONGEST_INTERVAL_SECONDS, timeout_seconds / _BEATS_PER_TIMEOUT)


class Heartbeat:
    """The heartbeat threads of one rank in one group."""

    def __init__(
        self,
        membership: Membership,
        *,
        rank: int,
        size: int,
        timeout_seconds: float,
        on_lost: Callable[[str], None],
        is_broken: Callable[[], bool] = lambda: False,
        script_progress: Callable[[], ScriptProgress] = tuple,
    ) -> None:
        """`on_lost` is called once, in a thread, with a sentence that names the lost rank.

        `timeout_seconds`: 0 switches heartbeats off. `is_broken`: returns whether the operator has
        replaced a lost rank, which its peers may not have noticed yet. `script_progress`: returns
        the progress of this rank.
        """
        self._membership = membership
        self._rank = rank
        self._watched = list(range(1, size)) if rank == 0 else [0]
        self._timeout_seconds = timeout_seconds
        self._on_lost = on_lost
        self._is_broken = is_broken
        self._objection = Objection(rank, script_progress, patience_seconds=timeout_seconds)
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._beats = 0

    def start(self) -> None:
        """Start to send heartbeats and to watch those of others."""
        self._threads.append(start_thread("ddp: listens to the operator", self._expect_word))
        if self._timeout_seconds <= 0:
            return
        self._threads.append(start_thread("ddp: sends heartbeats", self._run))
        if self._rank != 0:
            # A request to the store never returns while rank 0, which hosts it, is frozen.
            self._threads.append(start_thread("ddp: watches rank 0", self._expect_answers))

    def stop(self, *, wait_seconds: float = 0.0) -> None:
        """Stop; wait at most `wait_seconds` for a request in progress."""
        self._stopped.set()
        until = time.monotonic() + wait_seconds
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))

    def _run(self) -> None:
        try:
            lost = self._watch(self._membership.connect(timedelta(seconds=self._timeout_seconds)))
        except (DistNetworkError, DistStoreError):
            lost = "rank 0 does not answer: its store is gone"
        if lost is not None:
            self._tell(lost)

    def _expect_answers(self) -> None:
        silence = Silence(timeout_seconds=self._timeout_seconds, now=time.monotonic())
        while not self._stopped.wait(interval(self._timeout_seconds)):
            if silence.look({0: self._beats}, now=time.monotonic()):
                self._tell(_sentence([0], self._timeout_seconds))

    def _expect_word(self) -> None:
        while not self._stopped.wait(_WORD_SECONDS):
            if self._is_broken():
                self._tell("the operator has replaced a lost pod")

    def _tell(self, lost: str) -> None:
        if not self._stopped.is_set():
            self._stopped.set()
            self._on_lost(lost)

    def _watch(self, membership: Membership) -> str | None:
        store = membership.store
        silence = Silence(timeout_seconds=self._timeout_seconds, now=time.monotonic())
        while not self._stopped.wait(interval(self._timeout_seconds)):
            store.set(_beat_key(self._rank), str(self._beats))
            if self._rank != 0 and store.check([_LOST]):
                return store.get(_LOST).decode()
            counters = {rank: _beats_of(rank, store) for rank in self._watched}
            lost: str | None = None
            if silent := silence.look(counters, now=time.monotonic()):
                lost = _sentence(silent, self._timeout_seconds)
            elif self._rank == 0 and membership.has_successor():
                lost = "a new process has replaced a rank"
            if lost is not None:
                if self._rank == 0:
                    store.set(_LOST, lost)
                return lost
            self._objection.look(store, now=time.monotonic())
            self._beats += 1
        return None


def _beats_of(rank: int, store: Store) -> int:
    return int(store.get(_beat_key(rank))) if store.check([_beat_key(rank)]) else _NO_BEAT


def _beat_key(rank: int) -> str:
    return f"beat/{rank}"


def _sentence(ranks: list[int], seconds: float) -> str:
    names = ", ".join(str(rank) for rank in ranks)
    return f"rank {names} has been frozen or unreachable for {seconds:g} s"
