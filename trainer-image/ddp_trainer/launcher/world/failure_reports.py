"""Reports permanent failures of a pod's ranks to the launcher of node rank 0.

The operator polls that launcher. So it learns of a failure at once, while the failed pod still
runs, and the ranks can restart in it.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import NamedTuple

from ddp_protocol.message import from_json, to_json
from ddp_protocol.world import FAILURES_PATH, MESSAGE_BYTES, FailureReport, PodFailure

from ddp_trainer.launcher.output.last_words import (
    UNHANDLED,
    beginning,
    bytes_of,
    last_words,
)
from ddp_trainer.process_group.admission import Request, send
from ddp_trainer.settings.environment import Placement
from ddp_trainer.telemetry.termination import TerminationReport

_LEAST_BYTES = 128
"""An error gets at least this much, or the rest of its report is left out."""
_SIZES = (
    (MESSAGE_BYTES, MESSAGE_BYTES),
    (512, 512),
    (256, 512),
    (0, 512),
    (0, 256),
    (0, 192),
    (0, 0),
)
"""Sizes of messages to try, of earlier and of present failures: decisions depend on the latter."""
_NEWS_BYTES = 60 * 1024
"""Limit for all failures in one answer; the operator reads at most 64 KiB."""
_IN_FULL = 4
"""How many failures always keep their messages: the cause is among the first."""
_FOR_SECONDS = 10.0
"""How long to retry. A pod that is unreachable for longer is lost itself."""
_CALL_SECONDS = 2.0
_PAUSE_SECONDS = (0.1, 0.5)
"""Range of a random delay: a lost rank makes the ranks of all pods fail at the same moment."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a report is refused."""

    error: str
    generation: int | None = None
    """The receiver's generation, if that is the reason."""


class ReportResult(NamedTuple):
    """The result of a report for its sender."""

    refusal: str = ""
    """Empty: it was accepted, or is already outdated there."""
    is_final: bool = True
    """False: it may be accepted when it is sent again."""


def within_bounds(
    earlier: Sequence[PodFailure], present: Sequence[PodFailure]
) -> tuple[PodFailure, ...]:
    """Return all failures, with their messages shortened to fit one answer."""
    for of_earlier, of_present in _SIZES:
        kept = [*(shortened(one, of_earlier) for one in earlier), *present[:_IN_FULL]]
        kept += (shortened(one, of_present) for one in present[_IN_FULL:])
        if sum(len(to_json(one).encode(errors="replace")) for one in kept) < _NEWS_BYTES:
            break
    return tuple(kept)


def shortened(failure: PodFailure, size: int) -> PodFailure:
    """Return the failure with a message of at most `size` bytes."""
    if len(failure.message.encode(errors="replace")) <= size:
        return failure
    try:
        report = TerminationReport.from_json(failure.message)
    except ValueError:
        return replace(failure, message="")
    return replace(failure, message=message_of(report, size=size) if size else "")


def message_of(report: TerminationReport, *, size: int = MESSAGE_BYTES) -> str:
    """Return a pod's termination message of at most `size` bytes.

    Of a long error, it keeps the beginning. Of a rank's output, it keeps the exception. It leaves
    out metrics with long names.
    """
    error = report.error or ""
    bare = TerminationReport(exit_code=report.exit_code, rank=report.rank, printed=report.printed)
    for kept in (report, replace(report, metrics=None), bare):  # ranks may report anything
        room = _room(replace(kept, error=report.error), size)
        if room >= min(bytes_of(error), _LEAST_BYTES):
            break
    if bytes_of(error) > room:
        error = _shortened(report, room)
    return replace(kept, error=error or None).to_json()


def _room(report: TerminationReport, size: int) -> int:
    """Return the bytes that are left for the error of a report."""
    error = None if report.error is None else ""
    return size - len(replace(report, error=error).to_json().encode(errors="replace"))


def _shortened(report: TerminationReport, most: int) -> str:
    """Return a report's error in at most `most` bytes."""
    error = report.error or ""
    if not report.printed:
        return beginning(error, most, mark="")
    sentence, _, words = error.partition("\n")
    sentence = beginning(sentence, most // 2)
    most -= bytes_of(f"{sentence}\n")
    unhandled = report.exit_code in UNHANDLED
    return f"{sentence}\n{last_words([words.encode()], unhandled=unhandled, most=most)}".strip()


class Delivery:
    """Delivers a report from its own thread."""

    def __init__(self, deliver: Callable[[], ReportResult], *, done: Callable[[], None]) -> None:
        """`done`: called when there is an answer, or no answer in time."""
        self._deliver = deliver
        self._done = done
        self._given_up = False
        self.refusal = ""
        """Why it was refused; empty: it was accepted, or has no answer yet."""
        threading.Thread(
            target=self._carry, name="launcher: reports a failure", daemon=True
        ).start()

    def give_up(self) -> None:
        """Stop retrying."""
        self._given_up = True

    def _carry(self) -> None:
        until = time.monotonic() + _FOR_SECONDS
        answer = self._deliver()
        while not answer.is_final and time.monotonic() < until and not self._given_up:
            time.sleep(random.uniform(*_PAUSE_SECONDS))
            answer = self._deliver()
        self.refusal = answer.refusal
        self._done()


def deliver(report: FailureReport, host: str, placement: Placement) -> ReportResult:
    """Send a report to the launcher of node rank 0."""
    port = placement.leader_port or placement.status_port
    connection = http.client.HTTPConnection(host, port, timeout=_CALL_SECONDS)
    try:
        body = to_json(report).encode(errors="replace")
        send(connection, placement, Request(method="POST", target=FAILURES_PATH, body=body))
        response = connection.getresponse()
        if response.status == HTTPStatus.ACCEPTED:
            return ReportResult()
        if response.status == HTTPStatus.CONFLICT:
            return answer_of(from_json(Refusal, response.read(report.MAX_BYTES)), report)
        return ReportResult(f"node rank 0 answers with HTTP status {response.status}")
    except (OSError, http.client.HTTPException, ValueError) as error:
        return ReportResult(f"cannot reach node rank 0: {error}", is_final=False)
    finally:
        connection.close()


def answer_of(refusal: Refusal | None, report: FailureReport) -> ReportResult:
    """Return the sender's result for a report; `refusal` None: it was accepted."""
    if refusal is None:
        return ReportResult()
    if refusal.generation is None:
        return ReportResult(refusal.error)
    # A receiver that is ahead already has what this pod will receive: accepted. One that is behind
    # will catch up: retry.
    ahead = refusal.generation > report.generation
    return ReportResult() if ahead else ReportResult(refusal.error, is_final=False)
