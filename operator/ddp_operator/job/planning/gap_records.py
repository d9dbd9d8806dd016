"""`status.gaps`: since when nothing trains in which node ranks, and why.

It is the only clock for them, and complete for a group of any size.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter

from ddp_operator.api.constants import MAX_REPLICAS
from ddp_operator.api.status import MAX_GAPS, DDPJobStatus, GapReason, GapRecord
from ddp_operator.api.values.text import in_ranges
from ddp_operator.job.membership.world import read_slots
from ddp_operator.job.pods.observed import Gap

Start = tuple[GapReason, datetime]
_Clocks = dict[int, list[int]]
"""Node ranks by the second in which their gaps began."""


def known(status: DDPJobStatus) -> dict[int, Start]:
    """Return reason and start of all gaps on record, by node rank."""
    found: dict[int, Start] = {}
    room = MAX_REPLICAS  # the record may have been edited by hand
    for gap in status.gaps:
        node_ranks = read_slots(gap.node_ranks)[:room] if room else ()
        room -= len(node_ranks)
        since = gap.since.astimezone(UTC)  # times of one zone are compared ten times as fast
        found.update(dict.fromkeys(node_ranks, (gap.reason, since)))
    return found


def stored(status: DDPJobStatus) -> tuple[Gap, ...]:
    """Return all gaps on record."""
    return tuple(Gap(node_rank, *start) for node_rank, start in known(status).items())


def record(gaps: Iterable[Gap]) -> tuple[GapRecord, ...]:
    """Return the record of all gaps, with few entries.

    If there are too many, the reason with the most entries counts in longer spans of time: 2 s,
    4 s, and so on. Gaps that began in one span count from the last of them. So a gap may last
    longer than it should, by less than a span, and never shorter: a pod that starts is not given up
    early. Longer spans consist of shorter ones, so repeating this moves no clock any further.
    """
    by_reason: dict[GapReason, _Clocks] = {}
    for (reason, start), same in groupby(gaps, key=attrgetter("reason", "since")):
        node_ranks = by_reason.setdefault(reason, {}).setdefault(int(start.timestamp()), [])
        node_ranks.extend(gap.node_rank for gap in same)
    spans = dict.fromkeys(by_reason, 1)
    entries = {reason: len(clocks) for reason, clocks in by_reason.items()}
    while sum(entries.values()) > MAX_GAPS:
        reason = max(entries, key=lambda reason: entries[reason])
        span = spans[reason] = 2 * spans[reason]
        entries[reason] = len({since // span for since in by_reason[reason]})
    return tuple(
        GapRecord(
            reason=reason,
            since=datetime.fromtimestamp(since, UTC),
            node_ranks=in_ranges(sorted(node_ranks)),
        )
        for reason, clocks in sorted(by_reason.items())
        for since, node_ranks in _merged(clocks, span=spans[reason])
    )


def with_reason(
    status: DDPJobStatus, node_ranks: Sequence[int], reason: GapReason, now: datetime
) -> DDPJobStatus:
    """Return the status with this reason at these node ranks: pods were created or refused."""
    if not node_ranks:
        return status
    gaps = {gap.node_rank: gap for gap in stored(status)}
    for node_rank in node_ranks:
        if node_rank not in gaps or gaps[node_rank].reason != reason:
            gaps[node_rank] = Gap(node_rank, reason, now)
    return status.updated(gaps=record(gaps.values()))


def _merged(clocks: _Clocks, *, span: int) -> Iterator[tuple[int, list[int]]]:
    """Yield the node ranks of each span of seconds, with the last second in which one began."""
    for _, starts in groupby(sorted(clocks), key=lambda since: since // span):
        *_, last = times = list(starts)
        yield last, [node_rank for since in times for node_rank in clocks[since]]
