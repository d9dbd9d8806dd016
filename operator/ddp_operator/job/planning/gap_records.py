"""The record of gaps: since when nothing trains in which node ranks, and why.

It is the only clock for them. It is complete for a group of any size, and all decisions read it.
`status.gaps` shows some of the gaps to people.
"""

import heapq
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
from operator import attrgetter

from ddp_operator.api.constants import MAX_REPLICAS
from ddp_operator.api.status import (
    MAX_CLOCKS,
    MAX_GAPS,
    DDPJobStatus,
    GapClock,
    GapReason,
    GapRecord,
)
from ddp_operator.job.membership.world import format_slots, read_slots
from ddp_operator.job.pods.observed import Gap

Start = tuple[GapReason, datetime]
_Clocks = dict[int, list[int]]
"""Node ranks by the second in which their gaps began."""


def known(status: DDPJobStatus) -> dict[int, Start]:
    """Return reason and start of all gaps on record, by node rank."""
    clocks = status.bookkeeping.gap_clocks
    if not clocks:  # an earlier release stored only those for people
        return {gap.node_rank: (gap.reason, gap.since) for gap in status.gaps}
    found: dict[int, Start] = {}
    room = MAX_REPLICAS  # the record may have been edited by hand
    for clock in clocks:
        node_ranks = read_slots(clock.node_ranks)[:room] if room else ()
        room -= len(node_ranks)
        since = clock.since.astimezone(UTC)  # times of one zone are compared ten times as fast
        found.update(dict.fromkeys(node_ranks, (clock.reason, since)))
    return found


def stored(status: DDPJobStatus) -> tuple[Gap, ...]:
    """Return all gaps on record, with their nodes if `status.gaps` shows them."""
    nodes = {gap.node_rank: gap.node for gap in status.gaps}
    return tuple(Gap(rank, *start, nodes.get(rank, "")) for rank, start in known(status).items())


def record(gaps: Iterable[Gap]) -> tuple[GapClock, ...]:
    """Return the clocks of all gaps, with few entries.

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
    while sum(map(len, by_reason.values())) > MAX_CLOCKS:
        reason = max(by_reason, key=lambda reason: len(by_reason[reason]))
        spans[reason] *= 2
        by_reason[reason] = _merged(by_reason[reason], span=spans[reason])
    return tuple(
        GapClock(
            reason=reason,
            since=datetime.fromtimestamp(since, UTC),
            node_ranks=format_slots(sorted(node_ranks)),
        )
        for reason, clocks in sorted(by_reason.items())
        for since, node_ranks in sorted(clocks.items())
    )


def recorded(status: DDPJobStatus, gaps: Collection[Gap]) -> DDPJobStatus:
    """Return the status with these gaps. `status.gaps` shows the oldest ones to people."""
    oldest = heapq.nsmallest(MAX_GAPS, gaps, key=attrgetter("since", "node_rank"))
    status = status.updated(gaps=tuple(map(_shown, sorted(oldest))))
    return status.noting(gap_clocks=record(gaps))


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
    return recorded(status, gaps.values())


def _merged(clocks: _Clocks, *, span: int) -> _Clocks:
    """Return the clocks with those of each span of seconds as one, which is the last."""
    merged: _Clocks = {}
    for _, starts in groupby(sorted(clocks), key=lambda since: since // span):
        *_, last = times = list(starts)
        merged[last] = [node_rank for since in times for node_rank in clocks[since]]
    return merged


@lru_cache(maxsize=4096)
def _shown(gap: Gap) -> GapRecord:
    """Return a gap for people. The cache saves validating the same gaps at each plan."""
    return GapRecord(**gap._asdict())
