"""Brings the snapshots from which this pod's ranks resume in one generation.

It runs beside the start of the ranks, and is usually ready before they ask.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from ddp_trainer.launcher.memory.checksums import DamagedCopyError
from ddp_trainer.launcher.memory.own_steps import Pod
from ddp_trainer.launcher.memory.protocol.messages import (
    MAX_REPORT_BYTES,
    MAX_TEXT,
    PIECE_BYTES,
    Decision,
    Source,
)
from ddp_trainer.launcher.memory.protocol.peers import Call, NoAnswerError
from ddp_trainer.launcher.memory.store import NoRoomError, Store, WrongPieceError
from ddp_trainer.memory.volume import Key, SnapshotName
from ddp_trainer.process_group.admission import Request

_DECISION_SECONDS = 100.0
"""How long to wait for node rank 0: less than a rank waits for an answer."""
_FETCH_SECONDS = 60.0
"""How long to retry while no pod gives a snapshot."""
_AGAIN_SECONDS = 0.5
_AT_ONCE = 4

_logger = logging.getLogger(__name__)


class _FailedError(Exception):
    """The pod cannot restore what its group resumes from."""


@dataclass(frozen=True, kw_only=True)
class Restored:
    """The result for this pod's ranks."""

    key: Key | None = None
    """None: there is nothing to restore."""
    paths: Mapping[int, Path] = field(default_factory=dict)
    """The snapshot of each rank."""
    reason: str = ""
    """Why there is nothing to restore, or why that failed."""
    failed: bool = False
    """True: other ranks may resume from snapshots, so the ranks of this pod must not start without
    them."""


class Restoring:
    """The restore of one generation, in a thread of its own."""

    def __init__(
        self,
        pod: Pod,
        store: Store,
        call: Call,
        *,
        decide: Callable[[], Decision | None],
        decided: Callable[[Key | None], None],
        is_current: Callable[[], bool],
        ended: Callable[[], None] = lambda: None,
        ask_seconds: float = _AGAIN_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`decide`: asks node rank 0; returns None if it has not decided yet.

        `decided`: called with the decision before anything is fetched.
        `is_current`: returns False if the group has restarted meanwhile.
        `ended`: called when there is a result.
        `ask_seconds`: interval between questions to node rank 0.
        """
        self._pod = pod
        self._ask_seconds = ask_seconds
        self._store = store
        self._call = call
        self._decide = decide
        self._decided = decided
        self._is_current = is_current
        self._ended = ended
        self._sleep = sleep
        self._ready = threading.Event()
        self._result = Restored()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self.run, name="memory-restore", daemon=True).start()

    def result(self, *, wait_seconds: float) -> Restored | None:
        """Return the result; None: there is none yet."""
        return self._result if self._ready.wait(wait_seconds) else None

    def run(self) -> None:
        """Ask for the decision and fetch what is missing."""
        try:
            result = self._restore()
        except (_FailedError, OSError) as error:
            result = Restored(reason=str(error)[:MAX_TEXT], failed=True)
            _logger.warning("memory: cannot restore snapshots: %s", result.reason)
        self._result = result
        self._ready.set()
        self._ended()

    def _restore(self) -> Restored:
        decision = self._wait_for_decision()
        names = [_name(source) for source in decision.sources]
        if len({(name.key, name.replicated) for name in names}) > 1:
            raise _FailedError("node rank 0 named snapshots that do not belong together")
        replicated = bool(names) and names[0].replicated
        if names and not replicated and [name.rank for name in names] != [*self._pod.ranks]:
            raise _FailedError("node rank 0 named snapshots of other ranks")
        key = names[0].key if names else None
        self._decided(key)
        if key is None:
            _logger.info("memory: nothing to resume from: %s", decision.reason)
            return Restored(reason=decision.reason)
        if replicated:
            path = self._any_of(key, decision.sources)
            paths = dict.fromkeys(self._pod.ranks, path)
        else:
            with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="memory-fetch") as pool:
                found = pool.map(lambda source: self._path([source]), decision.sources)
                paths = dict(zip(self._pod.ranks, found, strict=True))
        _logger.info("memory: resuming from step %d of generation %d", key.step, key.generation)
        return Restored(key=key, paths=paths)

    def _wait_for_decision(self) -> Decision:
        until = time.monotonic() + _DECISION_SECONDS
        while time.monotonic() < until:
            if not self._is_current():
                raise _FailedError("the group has restarted")
            decision = self._decide()
            if decision is not None:
                return decision
            self._sleep(self._ask_seconds)
        raise _FailedError(f"node rank 0 did not decide within {_DECISION_SECONDS:g} s")

    def _any_of(self, key: Key, sources: Sequence[Source]) -> Path:
        """Return the path of any replicated snapshot of the key."""
        for file in self._store.files():
            if file.name.key == key and file.name.replicated:
                return file.path
        return self._path(sources)

    def _path(self, sources: Sequence[Source]) -> Path:
        """Return the path of one of these snapshots; fetch it if none is here."""
        until, why = time.monotonic() + _FETCH_SECONDS, "no pod has it"
        damaged: set[str] = set()
        while self._is_current():
            for source in sources:
                for host in ("", *source.hosts):
                    try:
                        if host:
                            self._fetch(source, host)
                        elif self._store.drop_damaged(_name(source)):
                            raise DamagedCopyError("the copy in this pod is damaged")
                        if file := self._store.find(_name(source)):
                            return self._store.keep_for_rank(file)
                    except DamagedCopyError as error:
                        why = str(error)
                        damaged.add(host)
                        _logger.warning("memory: %s: not used: %s", source.name, why)
                    except (NoAnswerError, NoRoomError, WrongPieceError, OSError) as error:
                        why = f"{host}: {error}"
            if damaged and damaged.issuperset(host for source in sources for host in source.hosts):
                raise _FailedError(f"all copies of {sources[0].name} are damaged: {why}")
            if time.monotonic() > until:
                raise _FailedError(f"cannot fetch {sources[0].name}: {why}")
            self._sleep(_AGAIN_SECONDS)
        raise _FailedError("the group has restarted")

    def _fetch(self, source: Source, host: str) -> None:
        name, size, begin = _name(source), source.bytes, time.monotonic()
        received = self._store.receive(name, b"", offset=0, total=size, restored=True)
        while received < size:
            request = Request(method="GET", target=f"/memory/{name}?offset={received}")
            answer = self._call(host, request, PIECE_BYTES)
            if answer.status != HTTPStatus.OK or not answer.body:
                raise NoAnswerError(f"HTTP status {answer.status}")
            received = self._store.receive(
                name, answer.body, offset=received, total=size, restored=True
            )
        file = self._store.find(name)
        if file and source.checksum is not None and file.checksum != source.checksum:
            self._store.drop(lambda one: one == name, only_of_other_pods=True)
            request = Request(method="POST", target=f"/memory/{name}")
            with contextlib.suppress(NoAnswerError):  # so that no other pod fetches it
                self._call(host, request, MAX_REPORT_BYTES)
            raise DamagedCopyError(f"the copy in {host} is damaged")
        _logger.info("memory: fetched %s from %s in %.1f s", name, host, time.monotonic() - begin)


def _name(source: Source) -> SnapshotName:
    name = SnapshotName.parse(source.name)
    if name is None:
        raise _FailedError(f"node rank 0 named {source.name[:80]!r}, which is no snapshot")
    return name


def to_rank(restored: Restored, rank: int) -> str:
    """Return the answer to a rank.

    Only a rank that another process replaced in its group asks after newer steps are complete. Its
    peers give it their state.
    """
    path, reason = restored.paths.get(rank), restored.reason
    if path is not None and not path.exists():
        path, reason = None, "newer steps are complete by now"
    key = restored.key if path else None
    return json.dumps(
        {
            "path": str(path) if path else None,
            "step": key.step if key else None,
            "generation": key.generation if key else None,
            "reason": reason,
        }
    )
