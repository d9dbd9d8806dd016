"""Names the rank that a hanging job waits for, from its launchers' answers to GET /traces.

The flight recorders' dumps name it exactly. Where torch records nothing, the stacks do, if most
ranks wait in torch.distributed and a few are elsewhere.

A rank also shows the dump that torch wrote when a collective timed out, even if it has ended since.
Launchers reduce all of it. What a launcher may answer is limited, and what those of a job may.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from ddp_protocol.message import Bounds, Count, InvalidMessageError, Message

from ddp_operator.api.values.text import clean
from ddp_operator.hang import stacks
from ddp_operator.hang.result import NOTHING_KNOWN, Hang, HangKind
from ddp_operator.hang.stacks import Stack
from ddp_operator.hang.traces import (
    Dump,
    Finding,
    TooMuchEffortError,
    Trace,
    TraceAnalysis,
    analyse,
    dump_of,
    headline,
)

_SENTENCE: Final = 165
"""Most characters, so that a message with the step has at most 200."""
_MOST_OPERATIONS: Final = 80_000
"""Limit of a job's operations: nine in each of six groups of 1,000 ranks."""
_OF_GROUP: Final = 4
"""A group takes as much memory as so many operations."""
_CAUSES: Final[tuple[HangKind, ...]] = ("stopped", "kernel", "gil", "ended")
"""Kinds that launchers report; another word is one of a later release."""


@dataclass(frozen=True, kw_only=True)
class _RankTrace:
    """A launcher's report of a rank."""

    rank: Count
    stack: Annotated[tuple[stacks.ReportedFrame, ...], Bounds(0, 2)] = ()
    """The innermost frame, and the innermost one outside of libraries."""
    waits: bool = False
    trace: Trace | None = None
    timed_out: bool = False
    problem: Annotated[str, Bounds(0, 300)] = ""
    cause: Annotated[str, Bounds(0, 64)] = ""


@dataclass(frozen=True, kw_only=True)
class TracesAnswer(Message):
    """The answer to GET /traces."""

    ranks: Annotated[tuple[_RankTrace, ...], Bounds(0, 1024)]


@dataclass(frozen=True)
class RankEvidence:
    """The evidence of one rank."""

    rank: int
    dump: Dump | None = None
    stack: Stack = ()
    """The innermost frame of the main thread, and the innermost one outside of libraries."""
    waits: bool = False
    """It waits for other ranks."""
    problem: str = ""
    """Why it did not answer."""
    cause: HangKind | None = None
    """What keeps it, if its problem says so."""
    timed_out: bool = False
    """The dump is from when a collective timed out."""


class TooMuchError(Exception):
    """The launchers of a job show more than the operator reads."""


class Room:
    """How many operations the launchers of a job may still show."""

    def __init__(self) -> None:
        self._left = _MOST_OPERATIONS

    def dump(self, trace: Trace) -> Dump:
        """Return the operations of a rank.

        Raises:
            TooMuchError: the ranks have too many.
            InvalidMessageError: the trace is invalid.
        """
        for each in trace.groups:
            self._left -= _OF_GROUP + len(each.collectives) + len(each.transfers)
        if self._left < 0:
            raise TooMuchError("its ranks show too many operations")
        return dump_of(trace)


def explain_answers(answers: Iterable[tuple[Sequence[int], bytes | str]]) -> Hang:
    """Return the ranks that the others wait for, from the launchers' answers with their ranks.

    Text in place of an answer says why there is none.

    Raises:
        TooMuchError: the answers show too many operations, or too complex waits.
    """
    evidence: list[RankEvidence] = []
    room = Room()
    for ranks, answer in answers:
        if isinstance(answer, str) and answer.startswith("HTTP status"):
            # An older launcher (404), or one that is busy (409): it runs, and its ranks may, too.
            # Without their evidence they would seem to be absent, and their node to be broken.
            return NOTHING_KNOWN
        evidence += read(answer, ranks, room)
    return explain(evidence)


def read(answer: bytes | str, ranks: Iterable[int], room: Room) -> list[RankEvidence]:
    """Read a launcher's answer about its ranks; text says why there is none.

    Raises:
        TooMuchError: the job has no room left.
    """
    found: Mapping[int, RankEvidence] = {}
    cause: HangKind = "unreachable"
    problem = "its launcher did not answer"
    if isinstance(answer, bytes):
        try:
            reported = {each.rank: each for each in TracesAnswer.read(answer).ranks}
            wanted = (reported[rank] for rank in ranks if rank in reported)
            found = {each.rank: _one(each, room) for each in wanted}
            problem, cause = "its process has ended", "ended"
        except InvalidMessageError:
            problem, cause = "its launcher's answer is invalid", "unknown"
    return [found.get(rank) or RankEvidence(rank, problem=problem, cause=cause) for rank in ranks]


def _one(said: _RankTrace, room: Room) -> RankEvidence:
    # `no answer within 5 s: it is stopped`: the reason is enough.
    problem = clean(said.problem, 100).rpartition(": ")[2]
    cause = next((kind for kind in _CAUSES if kind == said.cause), None)
    if said.timed_out and cause == "ended":
        problem, cause = "", None  # it ended because of the time-out
    return RankEvidence(
        said.rank,
        room.dump(said.trace) if said.trace else None,
        stacks.frames(said.stack),
        said.waits,
        problem,
        cause,
        said.timed_out,
    )


def explain(evidence: Sequence[RankEvidence]) -> Hang:
    """Return the ranks that the others wait for; nothing if the evidence shows nothing.

    Raises:
        TooMuchError: the waits are too complex.
    """
    by_rank = {each.rank: each for each in evidence}
    dumps = {each.rank: each.dump for each in evidence if each.dump}
    if dumps:
        try:
            analysis = analyse(dumps)
        except TooMuchEffortError:
            raise TooMuchError("the waits of its ranks are too complex") from None
        # A launcher ends the other ranks of a pod: one that has no dump then explains nothing.
        timed_out = any(each.timed_out for each in evidence)
        ended = timed_out and any(
            rank in by_rank and by_rank[rank].cause == "ended" for rank in analysis.ranks
        )
        if analysis.findings[0].kind != "no-wait" and not ended:
            return _explained(analysis, by_rank)
        if timed_out:
            return NOTHING_KNOWN
    return _by_stacks(evidence)


def _explained(analysis: TraceAnalysis, by_rank: Mapping[int, RankEvidence]) -> Hang:
    first = by_rank.get(analysis.ranks[0]) if len(analysis.ranks) == 1 else None
    where = _whereabouts(first) if first else ""
    kinds = {kind for finding in analysis.findings for kind in _kinds(finding, by_rank)}
    wait = headline(analysis, live=True)
    return Hang(analysis.ranks, _joined(wait, where), _only(kinds), wait)


def _kinds(finding: Finding, by_rank: Mapping[int, RankEvidence]) -> Iterable[HangKind]:
    """Yield what keeps the ranks that a finding names."""
    if finding.kind == "nobody":
        yield "network"
    elif finding.kind in ("mismatch", "deadlock", "alone"):
        yield "script"
    else:
        otherwise: HangKind = "device" if finding.kind == "incomplete" else "script"
        for rank in finding.ranks:
            # A rank of a group that is none of the job's has no evidence.
            yield (by_rank[rank].cause or otherwise) if rank in by_rank else "unknown"


def _only(kinds: Collection[HangKind]) -> HangKind:
    return next(iter(kinds)) if len(kinds) == 1 else "unknown"


def _by_stacks(evidence: Sequence[RankEvidence]) -> Hang:
    silent = [each for each in evidence if each.problem and not each.stack]
    if len(silent) == len(evidence):
        return NOTHING_KNOWN
    order = stacks.places({each.rank: each.stack for each in evidence if each.stack})
    if not order:
        return NOTHING_KNOWN
    ranks: tuple[int, ...] = ()
    many = order[0][1]
    waiting = {each.rank for each in evidence if each.waits}
    if 2 * len(many) > len(evidence) and waiting.issuperset(many):
        ranks = tuple(sorted({each.rank for each in evidence} - {*many}))
    where = _whereabouts(silent[0]) if len(silent) == 1 else ""
    kinds: set[HangKind] = {each.cause or "script" for each in evidence if each.rank in ranks}
    sentence = stacks.sentence(order, len(evidence)).rstrip(".")
    return Hang(ranks, _joined(sentence, where), _only(kinds), sentence)


def _whereabouts(each: RankEvidence) -> str:
    """Return where a rank is, such as `it is at data.py:7 in load`."""
    shown = place(each)
    return shown if each.problem or not shown else f"it is {shown}"


def place(each: RankEvidence) -> str:
    """Return where a rank is, such as `in wait, at data.py:7 in load`, or its problem."""
    found = ""
    if each.stack:
        inner, own = each.stack[0], each.stack[-1]
        found = f"at {stacks.place((own,))}"
        found = found if own == inner else f"in {inner[2]}, {found}"
    return ", ".join(filter(None, (each.problem, found)))


def _joined(sentence: str, where: str) -> str:
    return clean(f"{sentence}; {where}" if where else sentence, _SENTENCE)
