"""A pod whose ranks have failed for good says so to the launcher of node rank 0.

That is whom the operator listens to: it hears of a failure at once, and from a pod that still
lives, in which the ranks can start anew.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from http import HTTPStatus
from typing import TypeVar

from ddp_trainer.launcher.output.last_words import last_words
from ddp_trainer.process_group.admission import Request, send
from ddp_trainer.settings.environment import Placement
from ddp_trainer.telemetry.termination import TerminationReport
from ddp_trainer.telemetry.wire import from_json, to_json

PATH = "/failures"
"""What the launchers' status servers take them at."""
MAX_BYTES = 4096
MESSAGE_BYTES = 1536
"""As long as what a rank printed last, and what else its report says."""
_EARLIER_MESSAGE_BYTES = 512
"""What launchers of earlier versions take."""
_LEAST_BYTES = 128
_NEWS_BYTES = 60 * 1024
"""Of all failures that the operator is told of, which reads no answer of more than 64 KiB."""
_IN_FULL = 4
"""How many of them keep their messages however many there are: the cause is among the first."""
_LONGEST_NAME = 253
"""Of a pod, in characters (RFC 1123)."""
_LONGEST_TIME = 32
_FOR_SECONDS = 10.0
"""How long to try: a pod that cannot be reached for longer is lost itself."""
_CALL_SECONDS = 2.0
_PAUSE_SECONDS = (0.1, 0.5)
"""Drawn for each pod: a lost rank fails those of all pods in the same moment."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A pod's ranks have ended, and the pod does not start them again by itself."""

    pod: str
    """Its name, which no other pod of the job has had."""
    node_rank: int
    generation: int
    """The one in which they ran."""
    exit_code: int
    message: str
    """What the pod's termination message would be."""
    time: str
    """UTC, as in 2026-11-21T03:00:00Z."""


@dataclass(frozen=True, kw_only=True)
class FailureReport(Failure):
    """The same on its way."""

    job_uid: str
    attempt: int

    @classmethod
    def parse(cls, text: bytes) -> FailureReport:
        """Read what a launcher sends.

        Raises:
            ValueError: it is something else; the message says what is wrong.
        """
        report = from_json(cls, text)
        if not 0 < len(report.pod) <= _LONGEST_NAME:
            raise ValueError("pod: its name")
        if len(report.message.encode(errors="replace")) > MESSAGE_BYTES:
            raise ValueError(f"message: at most {MESSAGE_BYTES} bytes")
        if len(report.time) > _LONGEST_TIME:
            raise ValueError("time: UTC, as in 2026-11-21T03:00:00Z")
        return report

    def failure(self) -> Failure:
        """What it tells of."""
        return Failure(**{field.name: getattr(self, field.name) for field in fields(Failure)})


_Failed = TypeVar("_Failed", bound=Failure)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a report is not taken."""

    error: str
    generation: int | None = None
    """What is known there, where that is why."""


@dataclass(frozen=True)
class Answer:
    """What became of a report, to its sender."""

    refusal: str = ""
    """Empty: it was noted, or is old news there."""
    is_final: bool = True
    """False: it may be taken the next time."""


def within_bounds(earlier: Sequence[Failure], present: Sequence[Failure]) -> tuple[Failure, ...]:
    """All failures of the generations before and of this one, their messages as long as fits."""
    for size in (MESSAGE_BYTES, 256, 128, 0):
        kept = [*(shortened(one, size) for one in earlier), *present[:_IN_FULL]]
        kept += (shortened(one, size) for one in present[_IN_FULL:])
        if sum(len(to_json(one).encode(errors="replace")) for one in kept) < _NEWS_BYTES:
            break
    return tuple(kept)


def shortened(failure: _Failed, size: int) -> _Failed:
    """The same with a message of at most so many bytes."""
    if len(failure.message.encode(errors="replace")) <= size:
        return failure
    try:
        report = TerminationReport.from_json(failure.message)
    except ValueError:
        return replace(failure, message="")
    return replace(failure, message=message_of(report, size=size) if size else "")


def message_of(report: TerminationReport, *, size: int = MESSAGE_BYTES) -> str:
    """A termination message that fits a report: of a long error, only how it begins; of what a rank
    printed, less.
    """
    error = report.error or ""

    def with_error(characters: int) -> str:
        short = error[:characters]
        if report.printed:
            first, _, words = error.partition("\n")
            most = max(characters - len(first), 0)
            short = "\n".join([first, last_words([words.encode()], unhandled=True, most=most)])
        return replace(report, error=short.strip() or None).to_json()

    def size_with(characters: int) -> int:
        return len(with_error(characters).encode(errors="replace"))

    fits = bisect_right(range(len(error) + 1), size, key=size_with) - 1
    if fits < 0:  # ranks may report anything
        bare = TerminationReport(error=report.error, exit_code=report.exit_code)
        return message_of(bare, size=max(size, _LEAST_BYTES))
    return with_error(fits)


class Delivery:
    """A report on its way, which a thread carries."""

    def __init__(self, deliver: Callable[[], Answer], *, done: Callable[[], None]) -> None:
        """`done`: called when there is an answer, or none for too long."""
        self._deliver = deliver
        self._done = done
        self._given_up = False
        self.refusal = ""
        """Why it was not taken; empty: it was, or is on its way."""
        threading.Thread(target=self._carry, name="failure-report", daemon=True).start()

    def give_up(self) -> None:
        """Try no more."""
        self._given_up = True

    def _carry(self) -> None:
        until = time.monotonic() + _FOR_SECONDS
        answer = self._deliver()
        while not answer.is_final and time.monotonic() < until and not self._given_up:
            time.sleep(random.uniform(*_PAUSE_SECONDS))
            answer = self._deliver()
        self.refusal = answer.refusal
        self._done()


def deliver(report: FailureReport, host: str, placement: Placement) -> Answer:
    """Call the launcher of node rank 0."""
    connection = http.client.HTTPConnection(host, placement.status_port, timeout=_CALL_SECONDS)
    try:
        body = to_json(report).encode(errors="replace")
        send(connection, placement, Request(method="POST", target=PATH, body=body))
        response = connection.getresponse()
        if response.status == HTTPStatus.ACCEPTED:
            return Answer()
        if response.status == HTTPStatus.CONFLICT:
            return answer_of(from_json(Refusal, response.read(MAX_BYTES)), report)
        short = shortened(report, _EARLIER_MESSAGE_BYTES)
        if response.status == HTTPStatus.BAD_REQUEST and short != report:
            return deliver(short, host, placement)
        return Answer(f"node rank 0 answers with HTTP status {response.status}")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(f"node rank 0 cannot be told of it: {error}", is_final=False)
    finally:
        connection.close()


def answer_of(refusal: Refusal | None, report: FailureReport) -> Answer:
    """What comes of a report that was noted, or was not."""
    if refusal is None:
        return Answer()
    if refusal.generation is None:
        return Answer(refusal.error)
    # Who is ahead of this pod has been told what this pod will be told; who is behind will be.
    ahead = refusal.generation > report.generation
    return Answer() if ahead else Answer(refusal.error, is_final=False)
