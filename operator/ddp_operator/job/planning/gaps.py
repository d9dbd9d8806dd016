"""Gaps: node ranks at which nothing trains, with reason and start time, and what to do about each.

This is the only clock for them. `POLICY` says who may fill a gap, `_due` how long it may last.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Final, NamedTuple

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import MAX_GAPS, DDPJobStatus, Failure, GapReason, GapRecord
from ddp_operator.job.failure import classes, starts
from ddp_operator.job.failure.causes import vanished
from ddp_operator.job.membership.rank_order import is_first_due
from ddp_operator.job.membership.world import world_of
from ddp_operator.job.pods.environment import is_held
from ddp_operator.job.pods.observed import Gap, Observed
from ddp_operator.job.pods.state import UNSTARTABLE_REASONS, PodState


class Policy(NamedTuple):
    """The ways to deal with gaps of one reason."""

    spare: bool = False
    """A spare takes over at once."""
    absent: bool = False
    """An elastic group may continue without it."""
    unplaced: bool = False
    """It holds no node. If others do, the gang is partly placed."""
    lost: bool = False
    """Its pod has failed or is leaving, which is decided at once."""


POLICY: Final[dict[GapReason, Policy]] = {
    "Paused": Policy(spare=True),
    "Refused": Policy(spare=True, absent=True, unplaced=True),
    "Unscheduled": Policy(spare=True, absent=True, unplaced=True),
    "CannotStart": Policy(spare=True, absent=True),
    "NotStarted": Policy(absent=True),
    "Initializing": Policy(absent=True),
    "Starting": Policy(),
    "Silent": Policy(),
    "Leaving": Policy(lost=True),
    "Failed": Policy(lost=True),
    "Lost": Policy(lost=True),
}

_TIMED: Final = frozenset[GapReason](("Silent", "CannotStart", "NotStarted"))
"""Reasons that last only until `_due`."""

UNSTARTABLE_SECONDS: Final = 300
"""How long a pod may lack its image, Secret or ConfigMap: time for a person to create it, or for a
registry to recover."""
_PULLS: Final = 3
"""Pulling the image may take so many times startTimeoutSeconds."""
UNREACHABLE_SECONDS: Final = 30
"""How long a launcher may not answer before its pod counts as lost. One that has just started, or
is on a swapping node, answers within seconds; processes get `RESTART_GRACE_SECONDS` to end."""
NODE_SECONDS: Final = 90
"""How long a node may not answer before its pods count as lost, if nobody else would evict them.
Kubelets restart within a minute."""


def find(job: DDPJob, pods: Observed, now: datetime) -> tuple[Gap, ...]:
    """Return the gaps. Each keeps the time at which its reason was first seen."""
    known = {gap.node_rank: gap for gap in job.status.gaps}
    found: list[Gap] = []
    for gap in _reasons(job, pods, known, now):
        before = known.get(gap.node_rank)
        if before is not None and before.reason == gap.reason and before.since < gap.since:
            gap = gap._replace(since=before.since)  # noqa: PLW2901
        found.append(gap)
    return tuple(found)


def record(gaps: Sequence[Gap]) -> tuple[GapRecord, ...]:
    """Return the gaps as stored: the oldest ones, up to the limit."""
    oldest_first = sorted(gaps, key=attrgetter("since", "node_rank"))
    return tuple(map(_record, sorted(oldest_first[:MAX_GAPS])))


@lru_cache(maxsize=4096)
def _record(gap: Gap) -> GapRecord:
    """Return a stored gap. The cache saves validating the same gaps at each plan."""
    return GapRecord(**gap._asdict())


def stored(status: DDPJobStatus) -> tuple[Gap, ...]:
    """Return the gaps on record."""
    return tuple(Gap(g.node_rank, g.reason, g.since, g.node) for g in status.gaps)


def with_reason(
    status: DDPJobStatus, node_ranks: Sequence[int], reason: GapReason, now: datetime
) -> DDPJobStatus:
    """Return the status with this reason at these node ranks: pods were created or refused."""
    if not node_ranks:
        return status
    known = {gap.node_rank: gap for gap in stored(status)}
    for node_rank in node_ranks:
        if node_rank not in known or known[node_rank].reason != reason:
            known[node_rank] = Gap(node_rank, reason, now)
    return status.updated(gaps=record(list(known.values())))


def overdue(job: DDPJob, pods: Observed, now: datetime) -> tuple[Failure, tuple[int, ...]] | None:
    """Return the failure of the first gap that lasted too long, and all node ranks like it."""
    late = [gap for gap in _timed(pods) if (due := _due(job, pods, gap)) and due <= now]
    if not late:
        return None
    first = late[0]
    failure = starts.of_gap(job, pods.current[first.node_rank], first, now)
    return failure, tuple(gap.node_rank for gap in late if gap.reason == first.reason)


def next_due(job: DDPJob, pods: Observed) -> datetime | None:
    """Return when a gap will have lasted too long; None if none can."""
    dues = (_due(job, pods, gap) for gap in _timed(pods))
    return min((due for due in dues if due), default=None)


def _timed(pods: Observed) -> list[Gap]:
    """Return the gaps that may last only some time: few, even of thousands."""
    return [gap for gap in pods.gaps if gap.reason in _TIMED]


def _due(job: DDPJob, pods: Observed, gap: Gap) -> datetime | None:
    pod = pods.current.get(gap.node_rank)
    if pod is None:
        return None
    start, since, seconds = job.spec.start_timeout_seconds, gap.since, 0
    if gap.reason == "Silent" and not pod.silent:
        seconds = UNREACHABLE_SECONDS
    elif gap.reason == "Silent":
        seconds, moved = NODE_SECONDS, job.status.progress
        if moved is not None and job.status.is_true("Running"):
            since = max(since, moved.updated_at)  # a step needs all ranks
    elif gap.reason == "CannotStart":
        seconds = max(UNSTARTABLE_SECONDS, start if classes.tells_nothing(pod) else 0)
    elif gap.reason == "NotStarted":
        seconds = start if pod.stage == "sandbox" else _PULLS * start
    return since + timedelta(seconds=seconds) if seconds else None


def in_present_group(job: DDPJob, pods: Observed, pod: PodState, *, started: bool = False) -> bool:
    """Return whether no process of an earlier generation runs in a pod. With `started`: and whether
    those of the present generation may run.
    """
    generation = world_of(job).generation
    held = started and (is_held(job, pod.identity) or is_first_due(job))
    if pod.generation >= generation and not held:
        return True
    return pods.launchers.knows(pod.key.name, generation, start=started)


def _reasons(
    job: DDPJob, pods: Observed, known: dict[int, GapRecord], now: datetime
) -> Iterator[Gap]:
    # All pods of a running group have acknowledged it, perhaps to an earlier operator.
    unreached = {} if job.status.is_true("Running") else pods.launchers.unreached_since
    for node_rank, pod in pods.current.items():
        if pod.succeeded:
            continue
        reason = _reason(pod)
        told = unreached.get(pod.key.name) if reason in (None, "Starting") else None
        if told is not None and not in_present_group(job, pods, pod):
            yield Gap(node_rank, "Silent", told, pod.node)
        elif reason:
            yield Gap(node_rank, reason, now, pod.node)
    paused = job.status.is_paused(now)
    lost = {gone.index for gone in vanished(job, pods)} if pods.missing else ()
    for gone in pods.missing:
        before = known.get(gone.index)
        refused = before is not None and before.reason == "Refused"
        why: GapReason = "Lost" if gone.index in lost else "Refused" if refused else "Unscheduled"
        yield Gap(gone.index, "Paused" if paused else why, now)


def _reason(pod: PodState) -> GapReason | None:
    if pod.failed:
        return "Lost" if pod.disrupted else "Failed"
    if pod.disrupted:
        return "Leaving"
    if pod.silent:
        return "Silent"
    if not pod.scheduled:
        return "Unscheduled"
    return None if pod.ready else _stage(pod)


def _stage(pod: PodState) -> GapReason:
    """Return how far a scheduled pod has started."""
    if pod.started is not None:
        return "Starting"
    if pod.waiting in UNSTARTABLE_REASONS:
        return "CannotStart"
    return "NotStarted" if pod.stage else "Initializing"
