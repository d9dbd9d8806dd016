"""Handles requests to the status server about snapshots in memory."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from http import HTTPStatus
from urllib.parse import parse_qs

from ddp_protocol.message import from_json, to_json

from ddp_trainer.launcher.memory.pod_memory import PodMemory
from ddp_trainer.launcher.memory.protocol.messages import (
    MAX_REPORT_BYTES,
    PIECE_BYTES,
    Inventory,
    KeysReport,
    RestoreRequest,
)
from ddp_trainer.launcher.memory.restoring import to_rank
from ddp_trainer.launcher.memory.store import NoRoomError, WrongPieceError
from ddp_trainer.launcher.status_server.bounded_http import BoundedHandler
from ddp_trainer.memory.volume import SLOTS, Key, SnapshotName
from ddp_trainer.process_group.admission import ANSWER_HEADER, answer_signature, is_loopback
from ddp_trainer.settings.environment import Placement

PATH = "/memory"
"""Path of all these requests."""
_WAIT_SECONDS = 20.0
"""How long a rank's request waits; the rank asks again."""
_LARGE_AT_ONCE = 8
_MOST_RANKS = 1 << 16

_logger = logging.getLogger(__name__)


class MemoryRequests:
    """Answers requests that are signed with the job's token."""

    def __init__(self, memory: PodMemory | None, placement: Placement) -> None:
        """`memory`: None: the pod's volume cannot be written."""
        self._memory = memory
        self._placement = placement
        self._large = threading.BoundedSemaphore(_LARGE_AT_ONCE)
        """Held while a piece of a snapshot is in memory: many would need more than the pod has."""

    @staticmethod
    def serves(path: str) -> bool:
        """Return True if a path is one of these."""
        return path == PATH or path.startswith(f"{PATH}/")

    def handle(self, request: BoundedHandler) -> None:
        """Answer a request that has shown the token."""
        method, path = request.command, request.path.partition("?")[0]
        try:
            if (method, path) == ("GET", PATH):
                self._get_inventory(request)
            elif self._memory is None:
                self._answer_without_volume(request)
            elif (method, path) == ("POST", f"{PATH}/keys"):
                self._post_keys(request, self._memory)
            elif (method, path) == ("GET", f"{PATH}/restore"):
                self._get_restore(request, self._memory)
            elif (method, path) == ("POST", f"{PATH}/restore"):
                self._post_restore(request, self._memory)
            elif name := SnapshotName.parse(path.removeprefix(f"{PATH}/")):
                if method == "PUT":
                    with self._large:
                        self._put_snapshot(request, self._memory, name)
                elif method == "GET":
                    self._get_snapshot(request, self._memory, name)
                elif method == "POST":
                    self._check_snapshot(request, self._memory, name)
                else:
                    self._refuse(request, HTTPStatus.METHOD_NOT_ALLOWED, "use GET, POST or PUT")
            else:
                self._refuse(request, HTTPStatus.NOT_FOUND, f"{path}: no such snapshot or request")
        except (ValueError, RecursionError) as error:
            self._refuse(request, HTTPStatus.BAD_REQUEST, str(error))

    def _get_inventory(self, request: BoundedHandler) -> None:
        memory = self._memory
        inventory = memory.inventory() if memory else Inventory(generation=0, usable=False)
        self._answer(request, to_json(inventory))

    def _answer_without_volume(self, request: BoundedHandler) -> None:
        """Answer a rank that nothing is restored; node rank 0 decides the same for the others."""
        reason = "the memory volume cannot be written"
        if (request.command, request.path) == ("POST", f"{PATH}/restore"):
            self._answer(request, json.dumps({"path": None, "reason": reason}))
        else:
            self._refuse(request, HTTPStatus.NOT_FOUND, reason)

    def _post_keys(self, request: BoundedHandler, memory: PodMemory) -> None:
        answer = memory.answer(from_json(KeysReport, _body(request)))
        if answer is None:
            self._refuse(request, HTTPStatus.CONFLICT, "this pod does not lead that generation")
        else:
            self._answer(request, to_json(answer))

    def _get_restore(self, request: BoundedHandler, memory: PodMemory) -> None:
        asked = _Query(request)
        generation = asked.number("generation", most=2**53)
        first = asked.number("first", most=_MOST_RANKS)
        ranks = range(first, first + asked.number("count", most=_MOST_RANKS))
        group = memory.group
        if group is None or group.leading is None or group.pod.generation != generation:
            self._refuse(request, HTTPStatus.CONFLICT, "this pod does not lead that generation")
            return
        decision = group.leading.decision(ranks)
        if decision is None:
            self._refuse(request, HTTPStatus.ACCEPTED, "not decided yet")
        else:
            self._answer(request, to_json(decision))

    def _post_restore(self, request: BoundedHandler, memory: PodMemory) -> None:
        asked, group = from_json(RestoreRequest, _body(request)), memory.group
        if not is_loopback(request.client_address[0]):
            self._refuse(request, HTTPStatus.FORBIDDEN, "only for this pod's own ranks")
            return
        if group is None or group.pod.generation != asked.generation:
            reason = "the launcher is in another generation"
        elif asked.rank not in group.pod.ranks:
            reason = f"rank {asked.rank} is not in this pod"
        else:
            restored = group.restoring.result(wait_seconds=_WAIT_SECONDS)
            if restored is None:
                self._answer(request, "{}", HTTPStatus.ACCEPTED)
            elif restored.failed:
                body = json.dumps({"reason": restored.reason})
                self._answer(request, body, HTTPStatus.SERVICE_UNAVAILABLE)
            else:
                self._answer(request, to_rank(restored, asked.rank))
            return
        self._answer(request, json.dumps({"reason": reason}), HTTPStatus.CONFLICT)

    def _put_snapshot(self, request: BoundedHandler, memory: PodMemory, name: SnapshotName) -> None:
        asked, piece = _Query(request), _body(request)
        total = asked.number("total", most=memory.volume.size)
        offset = asked.number("offset", most=total)
        held = {Key(name.key.generation, step) for step in asked.steps("held")}
        assignment = memory.world.assignment
        if asked.number("to", most=_MOST_RANKS) != assignment.node_rank:
            self._refuse(request, HTTPStatus.CONFLICT, "this pod has another node rank")
        elif name.key.generation != assignment.generation and not memory.resumed_from(name.key):
            self._refuse(request, HTTPStatus.CONFLICT, "this pod is in another generation")
        elif name.replicated or name.key not in held or not total:
            raise ValueError("only sharded snapshots that their pod holds are copied")
        else:
            try:
                memory.store.drop(
                    lambda one: (
                        one.rank == name.rank
                        and one.key.generation == name.key.generation
                        and one.key.step < name.key.step  # a repeated old request drops nothing
                        and one.key not in held
                    ),
                    only_of_other_pods=True,
                )
                received = self._receive(memory, name, piece, offset, total)
                document: dict[str, int] = {"received": received}
                if received == total and (file := memory.store.find(name)) and file.checksum:
                    document["checksum"] = file.checksum
                self._answer(request, json.dumps(document))
            except NoRoomError as error:
                self._refuse(request, HTTPStatus.INSUFFICIENT_STORAGE, str(error))
            except WrongPieceError as error:
                self._refuse(request, HTTPStatus.CONFLICT, str(error))
            except OSError as error:
                self._refuse(request, HTTPStatus.INTERNAL_SERVER_ERROR, str(error))

    @staticmethod
    def _receive(
        memory: PodMemory, name: SnapshotName, piece: bytes, offset: int, total: int
    ) -> int:
        # Those of the step that the group resumed from may be in other pods than before.
        resumed = memory.resumed_from(name.key)
        try:
            return memory.store.receive(
                name, piece, offset=offset, total=total, may_take_all=resumed
            )
        except NoRoomError:
            if not memory.release_moved(name.key):
                raise
            return memory.store.receive(name, piece, offset=offset, total=total)

    def _get_snapshot(self, request: BoundedHandler, memory: PodMemory, name: SnapshotName) -> None:
        offset = _Query(request).number("offset", most=memory.volume.size)
        file = memory.store.find(name)
        try:
            if file is None:
                raise FileNotFoundError(f"{name} is not here")
            with self._large, memory.store.opened(file) as descriptor:
                piece = os.pread(descriptor, PIECE_BYTES, offset)
                self._answer(request, piece, content_type="application/octet-stream")
        except FileNotFoundError as error:
            self._refuse(request, HTTPStatus.NOT_FOUND, str(error))

    def _check_snapshot(
        self, request: BoundedHandler, memory: PodMemory, name: SnapshotName
    ) -> None:
        """Release a copy if it is damaged, as a pod that has fetched it suspects."""
        with contextlib.suppress(OSError):
            if memory.store.drop_damaged(name):
                _logger.warning("memory: the copy %s was damaged in this pod: released it", name)
        self._answer(request, "{}")

    def _refuse(self, request: BoundedHandler, code: HTTPStatus, reason: str) -> None:
        self._answer(request, f"{reason}\n", code, content_type="text/plain; charset=utf-8")

    def _answer(
        self,
        request: BoundedHandler,
        content: str | bytes,
        code: HTTPStatus = HTTPStatus.OK,
        *,
        content_type: str = "application/json",
    ) -> None:
        body = content.encode(errors="replace") if isinstance(content, str) else content
        authorization = request.headers.get("Authorization")
        signature = answer_signature(self._placement, authorization, code, body)
        request.answer(code, body, content_type, {ANSWER_HEADER: signature})


class _Query:
    """The query of a request."""

    def __init__(self, request: BoundedHandler) -> None:
        self._values = parse_qs(
            request.path.partition("?")[2], max_num_fields=4, keep_blank_values=True
        )

    def number(self, name: str, *, most: int) -> int:
        """Return a whole number.

        Raises:
            ValueError: it is missing or out of bounds.
        """
        text = self._values.get(name, [""])[-1]
        if not (text.isdecimal() and text.isascii() and len(text) < 20 and int(text) <= most):
            raise ValueError(f"{name}: set it to a whole number from 0 to {most}")
        return int(text)

    def steps(self, name: str) -> list[int]:
        """Return a list of steps.

        Raises:
            ValueError: it is malformed or too long.
        """
        texts = self._values.get(name, [""])[-1].split(",")
        if len(texts) > 2 * SLOTS or not all(text.isdecimal() for text in texts):
            raise ValueError(f"{name}: set it to at most {2 * SLOTS} steps")
        return [int(text) for text in texts]


def _body(request: BoundedHandler) -> bytes:
    return request.content(most=PIECE_BYTES if request.command == "PUT" else MAX_REPORT_BYTES)
