"""The analysis in a line."""

from datetime import UTC, datetime
from typing import Final

from ddp_operator.api.values.text import clean, counted
from ddp_operator.hang.stacks import in_spans
from ddp_operator.hang.traces.findings import Finding, TraceAnalysis
from ddp_operator.hang.traces.records import Call, Op
from ddp_operator.hang.traces.waits import Collective

HEADLINE: Final = 200
"""Most characters of the headline."""
_GROUP: Final = 60


def headline(analysis: TraceAnalysis, *, live: bool = False) -> str:
    """Return the answer in one line of at most 200 characters.

    `live`: the dumps are of running ranks, so a rank without one did not answer.
    """
    first, *further = (_sentence(finding, analysis, live=live) for finding in analysis.findings)
    line = clean(first, HEADLINE)
    for sentence in further:
        longer = f"{line}; {clean(sentence, HEADLINE)}"
        if len(longer) > HEADLINE:
            break
        line = longer
    return line


def _sentence(finding: Finding, analysis: TraceAnalysis, *, live: bool) -> str:
    collective, ranks = finding.collective, in_spans(finding.ranks)
    if collective is None:
        return f"no rank waits in a collective, as {counted(len(analysis.dumps), 'dump')} show"
    if finding.kind == "mismatch":
        return _difference(finding, collective)
    name, since = name_of(collective), f"since {_clock(collective.since_us)}"
    waiting = counted(len(finding.waiting), "rank")
    wait = f"{waiting} wait{'s' if len(finding.waiting) == 1 else ''}"
    with_dump = set(finding.ranks) <= set(analysis.dumps)
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
    return ", ".join(f"{in_spans(sorted(each.by_rank))} in {name_of(each)}" for each in operations)


def _difference(finding: Finding, collective: Collective) -> str:
    """Return how the named ranks' operation differs from that of the others."""
    where = group_of(collective.group, collective.description)
    own = collective.by_rank[finding.ranks[0]]
    if not finding.waiting:
        each = (f"{in_spans([rank])} {call_of(collective.by_rank[rank])}" for rank in finding.ranks)
        return f"ranks differ in collective {collective.seq} of {where}: {', '.join(each)}"
    ranks, other = in_spans(finding.ranks), collective.by_rank[finding.waiting[0]]
    count = counted(len(finding.waiting), "rank")
    if own.name != other.name:
        entered = f"{own.name} as collective {collective.seq} of {where}"
        return f"{ranks} entered {entered}, {count} entered {other.name}"
    tensors = _tensors(own.call), _tensors(other.call)
    return f"{ranks} entered {name_of(collective)} with {tensors[0]}, {count} with {tensors[1]}"


def call_of(op: Op) -> str:
    """Return text such as `all_reduce Float 4x8`."""
    return f"{op.name} {_tensors(op.call)}".rstrip()


def name_of(collective: Collective) -> str:
    """Return text such as `all_reduce 1203 of the default group`."""
    name = clean(collective.name, 40) or "operation"
    group = group_of(collective.group, collective.description)
    if collective.is_p2p:
        other = "send" if collective.name == "recv" else "recv"
        return f"the {other} for the {name} of {in_spans(sorted(collective.by_rank))} in {group}"
    return f"{name} {collective.seq} of {group}"


def group_of(name: str, description: str) -> str:
    """Return text such as `the default group` or `group 3 (tp)`."""
    description = clean(description, _GROUP)
    if description == "default_pg":
        return "the default group"
    known = description and description != "undefined"
    return f"group {clean(name, _GROUP)}{f' ({description})' if known else ''}"


def _tensors(call: Call) -> str:
    """Return text such as `Float 4x8, 16`."""
    return f"{call.dtypes} {call.shapes}".strip()


def _clock(us: int) -> str:
    time = time_of(us)
    return f"{time:%H:%M:%S}" if time else "an unknown time"


def time_of(us: int) -> datetime | None:
    """Return a time of microseconds since 1970; None: it is unknown."""
    try:
        return datetime.fromtimestamp(us / 1e6, UTC) if us > 0 else None
    except (ValueError, OverflowError, OSError):
        return None
