"""Names the rank that a hanging job waits for, from its launchers' answers to GET /traces.

The flight recorders' dumps name it exactly. Where torch records nothing, the stacks do, if most
ranks wait in torch.distributed and a few are elsewhere.

A rank also shows the dump that torch wrote when a collective timed out, even if it has ended since.
It is compressed, and comes from a pod: what it expands to is limited for each rank and each job.
"""

import base64
import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddp_operator.job.failure.hang import NOTHING_KNOWN, Hang, HangKind
from ddp_operator.views import stacks
from ddp_operator.views.stacks import Frame, Stack
from ddp_operator.views.text import clean
from ddp_operator.views.traces import (
    Dump,
    DumpError,
    Finding,
    Verdict,
    analyse,
    headline,
    read_dump,
)

_LIBRARIES: Final = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ")
_WAITS: Final = "/torch/distributed/"
_BACKWARD: Final = "_engine_run_backward"
"""DDP waits for its collectives inside of the backward pass."""
_SENTENCE: Final = 165
"""Most characters, so that a message with the step has at most 200."""
_MOST_OF_RANK: Final = 8 * 1024 * 1024
"""Limit of a dump from a time-out; launchers have the same."""
_MOST_OF_JOB: Final = 32 * 1024 * 1024
"""Limit of a job's dumps from a time-out: those of about 100 ranks with torch's 2,000 operations,
which take ten seconds to read."""
_CAUSES: Final[tuple[HangKind, ...]] = ("stopped", "kernel", "gil", "ended")
"""Kinds that launchers report; another word is one of a later release."""


@dataclass(frozen=True)
class RankEvidence:
    """What one rank showed."""

    rank: int
    dump: Dump | None = None
    stack: Stack = ()
    """Of the main thread, the innermost frame first."""
    problem: str = ""
    """Why it did not answer."""
    cause: HangKind | None = None
    """What keeps it, if its problem says so."""
    timed_out: bool = False
    """The dump is from when a collective timed out."""


class Room:
    """How many bytes the dumps of a job's time-out may still expand to."""

    def __init__(self) -> None:
        self._left = _MOST_OF_JOB

    def expand(self, packed: object) -> bytes:
        """Return the bytes of base64 of zlib's format; none if they are invalid or too many."""
        try:
            data = zlib.decompressobj()
            found = data.decompress(base64.b64decode(str(packed)), min(self._left, _MOST_OF_RANK))
        except (ValueError, zlib.error):
            return b""
        self._left = max(self._left - len(found), 1)  # 0 would be no limit
        return found if data.eof else b""


def explain_answers(answers: Iterable[tuple[Sequence[int], bytes | str]]) -> Hang:
    """Return the ranks that the others wait for, from the launchers' answers with their ranks.

    Text in place of an answer says why there is none.
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


def read(answer: bytes | str, ranks: Iterable[int], room: Room | None = None) -> list[RankEvidence]:
    """Read a launcher's answer about its ranks; text says why there is none. `room`: for a job's
    dumps.
    """
    room = room or Room()
    found: Mapping[int, Any] = {}
    cause: HangKind = "unreachable"
    problem = "its launcher did not answer"
    if isinstance(answer, bytes):
        try:
            found = {each["rank"]: each for each in json.loads(answer)["ranks"]}
            problem, cause = "its process has ended", "ended"
        except (ValueError, TypeError, KeyError, RecursionError):
            problem, cause = "its launcher's answer is invalid", "unknown"
    return [
        _one(rank, found[rank], room)
        if rank in found
        else RankEvidence(rank, problem=problem, cause=cause)
        for rank in ranks
    ]


def _one(rank: int, said: Mapping[str, Any], room: Room) -> RankEvidence:
    threads = stacks.parse(str(said.get("stack") or ""))
    # Later, a rank that was late may have entered the collective.
    dump = _dump(room.expand(said["dump"])) if said.get("dump") else None
    timed_out = dump is not None
    dump = dump or _dump(str(said.get("trace") or "").encode(errors="replace"))
    # `no answer within 5 s: it is stopped`: the reason is enough.
    problem = clean(said.get("problem") or "", 100).rpartition(": ")[2]
    cause = next((kind for kind in _CAUSES if kind == said.get("cause")), None)
    if timed_out and cause == "ended":
        problem, cause = "", None  # it ended because of the time-out
    return RankEvidence(rank, dump, threads[0] if threads else (), problem, cause, timed_out)


def _dump(data: bytes) -> Dump | None:
    try:
        return read_dump(data) if data else None
    except DumpError:
        return None  # as if torch recorded nothing


def explain(evidence: Sequence[RankEvidence]) -> Hang:
    """Return the ranks that the others wait for; nothing if the evidence shows nothing."""
    by_rank = {each.rank: each for each in evidence}
    dumps = {each.rank: each.dump for each in evidence if each.dump}
    if dumps:
        verdict = analyse(dumps)
        # A launcher ends the other ranks of a pod: one that has no dump then explains nothing.
        timed_out = any(each.timed_out for each in evidence)
        ended = timed_out and any(
            rank in by_rank and by_rank[rank].cause == "ended" for rank in verdict.ranks
        )
        if verdict.findings[0].kind != "no-wait" and not ended:
            return _explained(verdict, by_rank)
        if timed_out:
            return NOTHING_KNOWN
    return _by_stacks(evidence)


def _explained(verdict: Verdict, by_rank: Mapping[int, RankEvidence]) -> Hang:
    first = by_rank.get(verdict.ranks[0]) if len(verdict.ranks) == 1 else None
    where = _whereabouts(first) if first else ""
    kinds = {kind for finding in verdict.findings for kind in _kinds(finding, by_rank)}
    wait = headline(verdict, live=True)
    return Hang(verdict.ranks, _joined(wait, where), _only(kinds), wait)


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
    found = [
        stacks.Found(
            each.rank,
            "",
            threads=(each.stack,) if each.stack else (),
            problem="" if each.stack else each.problem or "it shows no stack",
        )
        for each in evidence
    ]
    order = stacks.places(found)
    if not order:
        return NOTHING_KNOWN
    ranks: tuple[int, ...] = ()
    most, many = order[0]
    if 2 * len(many) > len(evidence) and any(map(_is_wait, most)):
        ranks = tuple(sorted({each.rank for each in evidence} - {*many}))
    where = _whereabouts(silent[0]) if len(silent) == 1 else ""
    kinds: set[HangKind] = {each.cause or "script" for each in evidence if each.rank in ranks}
    sentence = stacks.sentence(order, len(found)).rstrip(".")
    return Hang(ranks, _joined(sentence, where), _only(kinds), sentence)


def _is_wait(frame: Frame) -> bool:
    file, _, function = frame
    return _WAITS in file or function == _BACKWARD


def _whereabouts(each: RankEvidence) -> str:
    """Return where a rank is, such as `it is at data.py:7 in load`."""
    shown = place(each)
    return shown if each.problem or not shown else f"it is {shown}"


def place(each: RankEvidence) -> str:
    """Return where a rank is, such as `in wait, at data.py:7 in load`, or its problem."""
    found = ""
    if each.stack:
        inner = each.stack[0]
        own = next((frame for frame in each.stack if not _is_of_library(frame)), inner)
        found = f"at {stacks.place((own,))}"
        found = found if own == inner else f"in {inner[2]}, {found}"
    return ", ".join(filter(None, (each.problem, found)))


def _is_of_library(frame: Frame) -> bool:
    return any(part in frame[0] for part in _LIBRARIES)


def _joined(sentence: str, where: str) -> str:
    return clean(f"{sentence}; {where}" if where else sentence, _SENTENCE)
