"""Sends the snapshots of this pod to other pods, slowly enough not to disturb the training."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from ddp_trainer.launcher.memory.checksums import checksum_of
from ddp_trainer.launcher.memory.protocol.messages import (
    MAX_REPORT_BYTES,
    MAX_TEXT,
    PIECE_BYTES,
    Target,
)
from ddp_trainer.launcher.memory.protocol.peers import Call, NoAnswerError
from ddp_trainer.launcher.memory.store import Store
from ddp_trainer.memory.volume import Key, SnapshotName
from ddp_trainer.process_group.admission import Request
from ddp_trainer.system.backoff import Backoff

_AT_ONCE = 2
_BYTES_PER_SECOND = 1 << 30
_GIVE_UP_SECONDS = 60.0
"""How long a pod may refuse a copy, or not answer. One that is gone is replaced meanwhile."""
_RETRIES = Backoff(shortest_seconds=0.2, longest_seconds=5.0, per_doubling=4)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Copy:
    """A snapshot that another pod is to have."""

    name: SnapshotName
    target: Target


class Copying:
    """Sends copies in threads of its own, the oldest first."""

    def __init__(
        self,
        store: Store,
        call: Call,
        *,
        changed: Callable[[], None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`changed`: called when a copy is complete or given up."""
        self._store = store
        self._call = call
        self._changed = changed
        self._sleep = sleep
        self._condition = threading.Condition()
        self._wanted: Sequence[Copy] = ()
        self._running: set[Copy] = set()
        self._done: set[Copy] = set()
        self._given_up: dict[Key, str] = {}

    def start(self) -> None:
        """Start the threads."""
        for _ in range(_AT_ONCE):
            threading.Thread(target=self._run, name="memory-copies", daemon=True).start()

    def want(self, copies: Sequence[Copy]) -> None:
        """Set the copies that other pods are to have; others are no longer sent."""
        with self._condition:
            self._wanted = copies
            self._done.intersection_update(copies)
            keys = {copy.name.key for copy in copies}
            self._given_up = {key: why for key, why in self._given_up.items() if key in keys}
            self._condition.notify_all()

    def is_done(self, copy: Copy) -> bool:
        """Return True if the other pod has the copy."""
        return copy in self._done

    @property
    def given_up(self) -> dict[Key, str]:
        """The wanted snapshots that some pod did not accept in time, and why."""
        return dict(self._given_up)

    def _run(self) -> None:
        while True:
            with self._condition:
                copy = self._next()
                while copy is None:
                    self._condition.wait()
                    copy = self._next()
                self._running.add(copy)
            try:
                self._deliver(copy)
            finally:
                with self._condition:
                    self._running.discard(copy)
            self._changed()

    def _next(self) -> Copy | None:
        return next((copy for copy in self._wanted if self._is_due(copy)), None)

    def _is_due(self, copy: Copy) -> bool:
        return not (copy in self._done or copy in self._running or copy.name.key in self._given_up)

    def _is_wanted(self, copy: Copy) -> bool:
        return copy in self._wanted and copy.name.key not in self._given_up

    def _deliver(self, copy: Copy) -> None:
        begin = time.monotonic()
        while self._is_wanted(copy):
            why = self.attempt(copy)
            waited = time.monotonic() - begin
            if not why:
                return
            if waited > _GIVE_UP_SECONDS:
                step, node_rank = copy.name.key.step, copy.target.node_rank
                sentence = f"node rank {node_rank} did not take a copy of step {step}: {why}"
                _logger.warning("memory: %s", sentence)
                with self._condition:
                    if self._is_wanted(copy):
                        self._given_up[copy.name.key] = sentence[:MAX_TEXT]
                return
            self._sleep(_RETRIES.after(waited))

    def attempt(self, copy: Copy) -> str:
        """Send a copy; return why that failed; empty: the other pod has it."""
        file = self._store.find(copy.name)
        if file is None:
            return "it was released"
        try:
            with self._store.opened(file) as descriptor:
                received, theirs = self._send(copy, b"", 0, file.size)
                checksum = checksum_of(descriptor, size=received)
                while received < file.size:
                    if not self._is_wanted(copy):
                        return "it is not needed any more"
                    begin = time.monotonic()
                    piece = os.pread(descriptor, PIECE_BYTES, received)
                    expected = received + len(piece)
                    received, theirs = self._send(copy, piece, received, file.size)
                    if received != expected:
                        return "it does not keep what it receives"
                    checksum = zlib.crc32(piece, checksum)
                    slowest = len(piece) * _AT_ONCE / _BYTES_PER_SECOND
                    self._sleep(max(time.monotonic() - begin, slowest))
        except (OSError, NoAnswerError, ValueError, KeyError, TypeError) as error:
            return str(error) or type(error).__name__
        if theirs not in (None, checksum):
            return "its copy is damaged"
        with self._condition:
            self._done.add(copy)
        return ""

    def _send(self, copy: Copy, piece: bytes, offset: int, total: int) -> tuple[int, object]:
        """Return how many bytes the other pod has, and its checksum if these are all."""
        name = copy.name
        held = {
            str(file.name.key.step)
            for file in self._store.files()
            if (file.local_rank is not None or file.name == name)  # a rank may resume from a copy
            and (file.name.rank, file.name.key.generation) == (name.rank, name.key.generation)
        }
        target = (
            f"/memory/{name}?offset={offset}&total={total}&to={copy.target.node_rank}"
            f"&held={','.join(held)}"
        )
        request = Request(method="PUT", target=target, body=piece)
        answer = self._call(copy.target.host, request, MAX_REPORT_BYTES)
        if answer.status != HTTPStatus.OK:
            raise NoAnswerError(answer.body.decode(errors="replace").strip())
        document = json.loads(answer.body)
        return int(document["received"]), document.get("checksum")
