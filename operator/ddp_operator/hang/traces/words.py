"""The verdict in words and as an object."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from ddp_client.views.job.diagnosis import Diagnosis
from ddp_operator.hang.stacks import in_spans
from ddp_operator.api.values.text import clean, counted
from ddp_operator.hang.traces.analysis import Finding, Verdict
from ddp_operator.hang.traces.records import Call, Op
from ddp_operator.hang.traces.waits import Collective

HEADLINE: Final = 200
"""Most characters of the headline."""
_GROUP: Final = 60
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


def headline(verdict: Verdict, *, live: bool = False) -> str:
    """Return the answer in one line of at most 200 characters.

    `live`: the dumps are of running ranks, so a rank without one did not answer.
    """
    first, *further = (_sentence(finding, verdict, live=live) for finding in verdict.findings)
    line = clean(first, HEADLINE)
    for sentence in further:
        longer = f"{line}; {clean(sentence, HEADLINE)}"
        if len(longer) > HEADLINE:
            break
        line = longer
    return line


def diagnosis(verdict: Verdict, unreadable: Mapping[str, str]) -> Diagnosis:
    """Return the verdict in words; `unreadable`: the reasons, by name of the file."""
    said = Diagnosis(headline(verdict))
    for finding in verdict.findings:
        for collective in (finding.collective, *finding.others):
            if collective is not None:
                said.evidence += _shown(collective)
    for rank, (group, op, at) in [*verdict.last.items()][:_MOST_RANKS]:
        where = f", at {clean(at)}" if at else ""
        name = f"{clean(op.name, 40)} {op.seq} of {_group(group.key[0], group.description)}"
        said.evidence.append(f"rank {rank} last entered {name}{where}")
    if verdict.waiting:
        count = f"{len(verdict.waiting)} of {counted(len(verdict.dumps), 'rank')}"
        said.evidence.append(f"{count} with a dump wait in an operation")
    for collective, stalled in _stalled(verdict):
        said.evidence.append(
            f"{in_spans(stalled)} recorded no completion of {_name(collective)}, which others "
            "completed: the GPU may have stopped"
        )
    if verdict.absent:
        said.evidence.append(f"{in_spans(verdict.absent)}: no dump")
    if verdict.older:
        said.evidence.append(
            f"{in_spans(verdict.older)}: not judged, the dump is older than others"
        )
    said.evidence += (f"{clean(name, 100)}: {reason}" for name, reason in unreadable.items())
    said.evidence = [clean(each) for each in said.evidence]
    for finding in verdict.findings:
        remedy = _REMEDIES[finding.kind].format(
            ranks=in_spans(finding.ranks),
            is_="are" if len(finding.ranks) > 1 else "is",
            calls="call" if len(finding.ranks) > 1 else "calls",
        )
        said.remedies.append(remedy)
    if verdict.stalled:
        ranks = in_spans(sorted(verdict.stalled))
        said.remedies.append(_REMEDIES["incomplete"].format(ranks=ranks))
    return said


def as_dict(verdict: Verdict, unreadable: Mapping[str, str]) -> dict[str, Any]:
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


def _sentence(finding: Finding, verdict: Verdict, *, live: bool) -> str:
    collective, ranks = finding.collective, in_spans(finding.ranks)
    if collective is None:
        return f"no rank waits in a collective, as {counted(len(verdict.dumps), 'dump')} show"
    if finding.kind == "mismatch":
        return _difference(finding, collective)
    name, since = _name(collective), f"since {_clock(collective.since_us)}"
    waiting = counted(len(finding.waiting), "rank")
    wait = f"{waiting} wait{'s' if len(finding.waiting) == 1 else ''}"
    with_dump = set(finding.ranks) <= set(verdict.dumps)
    absent = "did not come" if live else "left no dump"
    unseen = "may not have entered the operation" if with_dump else absent
    return {
        "missing": f"{ranks} did not enter {name}; {wait} {since}",
        "alone": f"only {ranks} entered {name}, {since}; {waiting} did not",
        "deadlock": f"deadlock {since}: {_cycle(finding)}; each waits for another",
        "incomplete": f"{ranks} entered {name} and never saw it complete, {since}: GPU stopped",
        "unseen": f"{ranks} {unseen}; {wait} in {name} {since}",
        "nobody": f"all {collective.size} ranks entered {name} alike {since}, and it does not "
        "complete: the network or NCCL, not a rank",
    }[finding.kind]


def _cycle(finding: Finding) -> str:
    operations = [each for each in (finding.collective, *finding.others) if each is not None]
    return ", ".join(f"{in_spans(sorted(each.by_rank))} in {_name(each)}" for each in operations)


def _difference(finding: Finding, collective: Collective) -> str:
    """Return how the named ranks' operation differs from that of the others."""
    where = _group(collective.group, collective.description)
    own = collective.by_rank[finding.ranks[0]]
    if not finding.waiting:
        each = (f"{in_spans([rank])} {_call(collective.by_rank[rank])}" for rank in finding.ranks)
        return f"ranks differ in collective {collective.seq} of {where}: {', '.join(each)}"
    ranks, other = in_spans(finding.ranks), collective.by_rank[finding.waiting[0]]
    count = counted(len(finding.waiting), "rank")
    if own.name != other.name:
        entered = f"{own.name} as collective {collective.seq} of {where}"
        return f"{ranks} entered {entered}, {count} entered {other.name}"
    tensors = _tensors(own.call), _tensors(other.call)
    return f"{ranks} entered {_name(collective)} with {tensors[0]}, {count} with {tensors[1]}"


def _call(op: Op) -> str:
    return f"{op.name} {_tensors(op.call)}".rstrip()


def _shown(collective: Collective) -> Iterable[str]:
    """Yield which ranks entered an operation with which tensors."""
    parts: dict[str, list[int]] = defaultdict(list)
    for rank, op in sorted(collective.by_rank.items()):
        parts[_call(op)].append(rank)
    entered = len(collective.by_rank)
    yield f"{entered} of {counted(collective.size, 'rank')} entered {_name(collective)}"
    for call, ranks in [*parts.items()][:_MOST_RANKS]:
        yield f"{in_spans(ranks)}: {call}"
    if len(parts) > _MOST_RANKS:
        yield f"{counted(len(parts) - _MOST_RANKS, 'more kind')} of tensors"


def _stalled(verdict: Verdict) -> list[tuple[Collective, list[int]]]:
    found: dict[tuple[str, int], tuple[Collective, list[int]]] = {}
    for rank, collective in sorted(verdict.stalled.items()):
        key = collective.group, collective.seq
        found.setdefault(key, (collective, []))[1].append(rank)
    return [*found.values()]


def _name(collective: Collective) -> str:
    """Return text such as `all_reduce 1203 of the default group`."""
    name = clean(collective.name, 40) or "operation"
    group = _group(collective.group, collective.description)
    if collective.is_p2p:
        other = "send" if collective.name == "recv" else "recv"
        return f"the {other} for the {name} of {in_spans(sorted(collective.by_rank))} in {group}"
    return f"{name} {collective.seq} of {group}"


def _group(name: str, description: str) -> str:
    description = clean(description, _GROUP)
    if description == "default_pg":
        return "the default group"
    known = description and description != "undefined"
    return f"group {clean(name, _GROUP)}{f' ({description})' if known else ''}"


def _tensors(call: Call) -> str:
    """Return text such as `Float 4x8, 16`."""
    return f"{call.dtypes} {call.shapes}".strip()


def _clock(us: int) -> str:
    time = _datetime(us)
    return f"{time:%H:%M:%S}" if time else "an unknown time"


def _time(us: int) -> str | None:
    time = _datetime(us)
    return time.isoformat() if time else None


def _datetime(us: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(us / 1e6, UTC) if us > 0 else None
    except (ValueError, OverflowError, OSError):
        return None


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
