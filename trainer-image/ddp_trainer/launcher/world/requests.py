"""Handles requests to the status server about the group: assignments, news and failures."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import parse_qs

from ddp_protocol.message import InvalidMessageError, to_json
from ddp_protocol.world import LEAD_SECONDS, FailureReport, WorldAnswer

from ddp_trainer.launcher.status_server.bounded_http import BoundedHandler
from ddp_trainer.launcher.world.rank_environment import RankEnvironment
from ddp_trainer.launcher.world.state import LONGEST_WAIT_SECONDS, GroupState
from ddp_trainer.process_group.assignment import Assignment

_JSON = "application/json"
_ENDED_SECONDS = 1
"""Default time to wait for the previous ranks to end before answering a new assignment. Operators
that do not set a time give up after two seconds."""
_LONGEST_LEAD_SECONDS = 600
"""Longest promise to ask again. It ends: an operator that made one may be gone."""


class WorldRequests:
    """Answers requests that carry the job's token."""

    def __init__(self, world: GroupState, rank_environment: RankEnvironment) -> None:
        """`world`: state of the group. `rank_environment`: checks assignments for this pod."""
        self._world = world
        self._rank_environment = rank_environment

    def put_assignment(self, request: BoundedHandler) -> None:
        """PUT /world: set the assignment of this pod; the answer may take some seconds."""
        try:
            asked = _query(request)
            most, otherwise = LONGEST_WAIT_SECONDS, _ENDED_SECONDS
            wait = _number(asked, "wait", most=most, otherwise=otherwise)
        except ValueError as error:
            request.refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        content = request.content(most=Assignment.MAX_BYTES)
        try:
            told = Assignment.read(content)
        except InvalidMessageError as error:
            request.refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        if why := self._rank_environment.why_unfit(told):
            request.refuse(HTTPStatus.BAD_REQUEST, why)
            return
        code = HTTPStatus.OK if self._world.accept(told) else HTTPStatus.CONFLICT
        ended = self._world.is_ready_for(told, wait_seconds=wait)
        answer = WorldAnswer(self._world.assignment.generation, ended, self._world.is_led)
        request.answer(code, to_json(answer), _JSON)

    def get_news(self, request: BoundedHandler) -> None:
        """GET /world: return failed pods and the restart scope, perhaps after some seconds."""
        try:
            asked = _query(request)
            after = _number(asked, "after")
            wait = _number(asked, "wait", most=LONGEST_WAIT_SECONDS)
            lead = _number(asked, "lead", most=_LONGEST_LEAD_SECONDS, otherwise=LEAD_SECONDS)
        except ValueError as error:
            request.refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        news = self._world.news(
            after=after,
            wait_seconds=wait,
            lead_seconds=lead,
            has_hung_up=lambda: request.has_hung_up,
        )
        request.answer(HTTPStatus.OK, to_json(news), _JSON)

    def post_failure(self, request: BoundedHandler) -> None:
        """POST /failures: record that a pod's ranks have failed permanently."""
        content = request.content(most=FailureReport.MAX_BYTES)
        try:
            report = FailureReport.read(content)
        except InvalidMessageError as error:
            request.refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        refusal = self._world.note(report)
        if refusal is None:
            request.answer(HTTPStatus.ACCEPTED, "", "text/plain; charset=utf-8")
        else:
            request.answer(HTTPStatus.CONFLICT, to_json(refusal), _JSON)


def _query(request: BoundedHandler) -> dict[str, list[str]]:
    return parse_qs(request.path.partition("?")[2], max_num_fields=4)


def _number(
    asked: dict[str, list[str]], name: str, *, most: int = 2**63, otherwise: int = 0
) -> int:
    text = asked.get(name, [str(otherwise)])[-1]
    if not text.isdecimal() or int(text) > most:
        raise ValueError(f"{name}: set it to a whole number from 0 to {most}")
    return int(text)
