"""The verdict on the traces of a hanging job, in words and as an object."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final

from ddp_operator.api.values.text import clean, counted
from ddp_operator.hang.stacks import in_spans
from ddp_operator.hang.traces import Dump, Trace, TraceAnalysis, dump_of
from ddp_operator.hang.traces.waits import Collective
from ddp_operator.hang.traces.words import call_of, group_of, headline, name_of, time_of
from ddp_protocol.message import Bounds, Count, Message

from ddp_client.views.job.diagnosis import Diagnosis

_MOST_RANKS: Final = 8
"""Most ranks that are shown with their last operation."""
_REMEDIES: Final = {
    "missing": "find out where {ranks} {is_}: kubectl ddp stacks NAME, the log, the node",
    "alone": "look for a collective that only {ranks} {calls}, such as one below `if rank == 0`",
    "mismatch": "compare what the script does on {ranks} and on the others before this operation",
    "deadlock": "call the collectives of different groups in the same order on all ranks",
    "incomplete": "look for Xid errors and hung kernels on the nodes of {ranks}",
    "unseen": "read the log of {ranks}: the process may have ended before it wrote a dump",
    "nobody": "check the network between the nodes; NCCL_DEBUG=INFO shows its connections",
    "no-wait": "kubectl ddp stacks NAME shows where the ranks are",
}


_Reason = Annotated[str, Bounds(0, 4096)]


@dataclass(frozen=True, kw_only=True)
class _RankDump:
    rank: Count
    trace: Trace


@dataclass(frozen=True, kw_only=True)
class ReducedDumps(Message):
    """The output of `python -m ddp_trainer.flight_recorder`."""

    MAX_BYTES: ClassVar[int] = 8 * 1024 * 1024
    """2 KB for each of 4,096 dumps, as many as that program reads."""

    ranks: Annotated[tuple[_RankDump, ...], Bounds(0, 4096)]
    unreadable: Annotated[Mapping[str, _Reason], Bounds(0, 4096)] = field(default_factory=dict)
    """The reasons, by name of the file."""

    def by_rank(self) -> Mapping[int, Dump]:
        """Return the dumps by rank.

        Raises:
            InvalidMessageError: one refers to a call that it does not have.
        """
        return {each.rank: dump_of(each.trace) for each in self.ranks}


def diagnosis(verdict: TraceAnalysis, unreadable: Mapping[str, str]) -> Diagnosis:
    """Return the verdict in words; `unreadable`: the reasons, by name of the file."""
    result = Diagnosis(headline(verdict))
    for finding in verdict.findings:
        for collective in (finding.collective, *finding.others):
            if collective is not None:
                result.evidence += _shown(collective)
    for rank, (group, op, at) in [*verdict.last.items()][:_MOST_RANKS]:
        where = f", at {clean(at)}" if at else ""
        name = f"{clean(op.name, 40)} {op.seq} of {group_of(group.key[0], group.description)}"
        result.evidence.append(f"rank {rank} last entered {name}{where}")
    if verdict.waiting:
        count = f"{len(verdict.waiting)} of {counted(len(verdict.dumps), 'rank')}"
        result.evidence.append(f"{count} with a dump wait in an operation")
    for collective, stalled in _stalled(verdict):
        result.evidence.append(
            f"{in_spans(stalled)} recorded no completion of {name_of(collective)}, which others "
            "completed: the GPU may have stopped"
        )
    if verdict.absent:
        result.evidence.append(f"{in_spans(verdict.absent)}: no dump")
    if verdict.older:
        result.evidence.append(
            f"{in_spans(verdict.older)}: not judged, the dump is older than others"
        )
    result.evidence += (f"{clean(name, 100)}: {reason}" for name, reason in unreadable.items())
    result.evidence = [clean(each) for each in result.evidence]
    for finding in verdict.findings:
        remedy = _REMEDIES[finding.kind].format(
            ranks=in_spans(finding.ranks),
            is_="are" if len(finding.ranks) > 1 else "is",
            calls="call" if len(finding.ranks) > 1 else "calls",
        )
        result.remedies.append(remedy)
    if verdict.stalled:
        ranks = in_spans(sorted(verdict.stalled))
        result.remedies.append(_REMEDIES["incomplete"].format(ranks=ranks))
    return result


def as_dict(verdict: TraceAnalysis, unreadable: Mapping[str, str]) -> dict[str, Any]:
    """Return the verdict as plain values: times as text in UTC, None for unknown."""
    return {
        "headline": headline(verdict),
        "ranks": verdict.ranks,
        "findings": [
            {
                "kind": finding.kind,
                "ranks": finding.ranks,
                "waiting": finding.waiting,
                "collective": finding.collective and _collective(finding.collective),
                "others": [_collective(each) for each in finding.others],
            }
            for finding in verdict.findings
        ],
        "waiting": verdict.waiting,
        "stalled": [
            {"ranks": ranks, "collective": _collective(collective)}
            for collective, ranks in _stalled(verdict)
        ],
        "last_operations": [
            {
                "rank": rank,
                "group": group.key[0],
                "sequence": op.seq,
                "operation": op.name,
                "entered_at": _time(op.created_us),
                "place": at,
            }
            for rank, (group, op, at) in verdict.last.items()
        ],
        "dumps": verdict.dumps,
        "no_dump": verdict.absent,
        "older_dump": verdict.older,
        "unreadable": dict(unreadable),
    }


def _shown(collective: Collective) -> Iterable[str]:
    """Yield which ranks entered an operation with which tensors."""
    parts: dict[str, list[int]] = defaultdict(list)
    for rank, op in sorted(collective.by_rank.items()):
        parts[call_of(op)].append(rank)
    entered = len(collective.by_rank)
    yield f"{entered} of {counted(collective.size, 'rank')} entered {name_of(collective)}"
    for call, ranks in [*parts.items()][:_MOST_RANKS]:
        yield f"{in_spans(ranks)}: {call}"
    if len(parts) > _MOST_RANKS:
        yield f"{counted(len(parts) - _MOST_RANKS, 'more kind')} of tensors"


def _stalled(verdict: TraceAnalysis) -> list[tuple[Collective, list[int]]]:
    by_operation: dict[tuple[str, int], tuple[Collective, list[int]]] = {}
    for rank, collective in sorted(verdict.stalled.items()):
        key = collective.group, collective.seq
        by_operation.setdefault(key, (collective, []))[1].append(rank)
    return [*by_operation.values()]


def _time(us: int) -> str | None:
    time = time_of(us)
    return time.isoformat() if time else None


def _collective(collective: Collective) -> dict[str, Any]:
    parts: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for rank, op in sorted(collective.by_rank.items()):
        parts[op.name, op.call.dtypes, op.call.shapes].append(rank)
    return {
        "operation": collective.name,
        "sequence": collective.seq,
        "group": collective.group,
        "description": collective.description,
        "size": collective.size,
        "since": _time(collective.since_us),
        "entered": [
            {"ranks": ranks, "operation": name, "dtypes": dtypes, "shapes": shapes}
            for (name, dtypes, shapes), ranks in parts.items()
        ],
    }
