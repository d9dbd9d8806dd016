"""Requests of a pod to the launcher of node rank 0."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TypeVar

from ddp_protocol.message import from_json, to_json

from ddp_trainer.launcher.memory.own_steps import Pod
from ddp_trainer.launcher.memory.protocol.messages import (
    MAX_ANSWER_BYTES,
    Decision,
    KeysAnswer,
    KeysReport,
)
from ddp_trainer.launcher.memory.protocol.peers import Call, NoAnswerError
from ddp_trainer.process_group.admission import Request
from ddp_trainer.process_group.assignment import Assignment
from ddp_trainer.system.logs import DistinctErrors

_T = TypeVar("_T")

_logger = logging.getLogger(__name__)


class LeaderClient:
    """Asks the node rank 0 of any generation."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._errors = DistinctErrors(_logger, "memory: node rank 0 does not answer")

    def report(self, assignment: Assignment, report: KeysReport) -> KeysAnswer | None:
        """Report what this pod holds; None: there is no answer."""
        body = to_json(report).encode()
        request = Request(method="POST", target="/memory/keys", body=body)
        return self._ask(assignment, request, KeysAnswer)

    def decision(self, assignment: Assignment, pod: Pod) -> Decision | None:
        """Ask what this pod's ranks resume from; None: it is not decided yet."""
        target = (
            f"/memory/restore?generation={pod.generation}"
            f"&first={pod.ranks.start}&count={len(pod.ranks)}"
        )
        return self._ask(assignment, Request(method="GET", target=target), Decision)

    def _ask(self, assignment: Assignment, request: Request, kind: type[_T]) -> _T | None:
        host = assignment.master_address or assignment.master_addr
        try:
            answer = self._call(host, request, MAX_ANSWER_BYTES)
            if answer.status == HTTPStatus.OK:
                return from_json(kind, answer.body)
            if answer.status not in (HTTPStatus.ACCEPTED, HTTPStatus.CONFLICT):  # not yet
                text = answer.body.decode(errors="replace").strip()
                raise NoAnswerError(f"HTTP status {answer.status}: {text:.200}")
        except (NoAnswerError, ValueError, RecursionError) as error:
            self._errors.log(error)
        return None
