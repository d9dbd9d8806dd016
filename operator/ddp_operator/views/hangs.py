"""Names the rank that a hanging job waits for, from its launchers' answers to GET /traces.

The flight recorders' dumps name it exactly. Where torch records nothing, the stacks do, if most
ranks wait in torch.distributed and a few are elsewhere.
"""

import json
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


def explain_answers(answers: Iterable[tuple[Sequence[int], bytes | str]]) -> Hang:
    """Return the ranks that the others wait for, from the launchers' answers with their ranks.

    Text in place of an answer says why there is none.
    """
    evidence: list[RankEvidence] = []
    for ranks, answer in answers:
        if isinstance(answer, str) and answer.startswith("HTTP status"):
            # An older launcher (404), or one that is busy (409): it runs, and its ranks may, too.
            # Without their evidence they would seem to be absent, and their node to be broken.
            return NOTHING_KNOWN
        evidence += read(answer, ranks)
    return explain(evidence)


def read(answer: bytes | str, ranks: Iterable[int]) -> list[RankEvidence]:
    """Read a launcher's answer about its ranks; text says why there is none."""
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
        _one(rank, found[rank])
        if rank in found
        else RankEvidence(rank, problem=problem, cause=cause)
        for rank in ranks
    ]


def _one(rank: int, said: Mapping[str, Any]) -> RankEvidence:
    threads = stacks.parse(str(said.get("stack") or ""))
    dump = None
    if trace := str(said.get("trace") or ""):
        try:
            dump = read_dump(trace.encode(errors="replace"))
        except DumpError:
            dump = None  # as if torch recorded nothing
    # `no answer within 5 s: it is stopped`: the reason is enough.
    problem = clean(said.get("problem") or "", 100).rpartition(": ")[2]
    cause = next((kind for kind in _CAUSES if kind == said.get("cause")), None)
    return RankEvidence(rank, dump, threads[0] if threads else (), problem, cause)


def explain(evidence: Sequence[RankEvidence]) -> Hang:
    """Return the ranks that the others wait for; nothing if the evidence shows nothing."""
    by_rank = {each.rank: each for each in evidence}
    dumps = {each.rank: each.dump for each in evidence if each.dump}
    if dumps:
        verdict = analyse(dumps)
        if verdict.findings[0].kind != "no-wait":
            return _explained(verdict, by_rank)
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
