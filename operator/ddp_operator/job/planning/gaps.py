"""Gaps: node ranks at which nothing trains, with reason and start time, and what to do about each.

`POLICY` says who may fill a gap, `_due` how long it may last. `gap_records` stores since when.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Failure, GapReason
from ddp_operator.job.failure import starts
from ddp_operator.job.failure.causes import vanished
from ddp_operator.job.membership.rank_order import is_first_due
from ddp_operator.job.membership.world import world_of
from ddp_operator.job.planning import gap_records
from ddp_operator.job.pods.environment import is_held
from ddp_operator.job.pods.observed import Gap, Observed
from ddp_operator.job.pods.schedulers.kueue import is_in_group
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
    """Return the gaps. Each keeps the time at which its reason was first seen. A launcher's silence
    is timed where it is heard, because it begins again when the way to all pods was blocked.
    """
    known = gap_records.known(job.status)
    found: list[Gap] = []
    for node_rank, reason, silent_since in _reasons(job, pods, known, now):
        before, since = known.get(node_rank), silent_since or now
        if before is not None and before[0] == reason and not silent_since:
            since = min(before[1], now)
        found.append(Gap(node_rank, reason, since))
    return tuple(found)


def overdue(job: DDPJob, pods: Observed, now: datetime) -> tuple[Failure, tuple[int, ...]] | None:
    """Return the failure of the first gap that lasted too long, and all node ranks like it."""
    late = [gap for gap in _timed(job, pods) if (due := _due(job, pods, gap)) and due <= now]
    if not late:
        return None
    first = late[0]
    pod = pods.current[first.node_rank]
    if first.reason == "Silent" and not pod.silent and reaches_none(job, pods):
        return starts.of_unreached(job, pod, first, now), ()
    failure = starts.of_gap(job, pods, late, now)
    return failure, tuple(gap.node_rank for gap in late if gap.reason == first.reason)


def next_due(job: DDPJob, pods: Observed) -> datetime | None:
    """Return when a gap will have lasted too long; None if none can."""
    dues = (_due(job, pods, gap) for gap in _timed(job, pods))
    return min((due for due in dues if due), default=None)


def reaches_none(job: DDPJob, pods: Observed) -> bool:
    """Return whether no launcher joins the present generation, so that the operator's own network
    is the likely cause, not a pod.
    """
    if pods.launchers.silent_since is not None:
        return True
    if not _silent_launchers(pods):
        return False
    generation = world_of(job).generation
    asked = [pod for pod in pods.current.values() if not pod.succeeded]
    start = all(in_present_group(job, pods, pod) for pod in asked)
    return not any(pods.launchers.knows(pod.key.name, generation, start=start) for pod in asked)


def _silent_launchers(pods: Observed) -> list[Gap]:
    """Return the gaps of pods whose launchers do not answer, though their nodes do."""
    silent = (gap for gap in pods.gaps if gap.reason == "Silent")
    return [gap for gap in silent if not pods.current[gap.node_rank].silent]


def unreached_since(job: DDPJob, pods: Observed) -> datetime | None:
    """Return since when no launcher answers; None: one does, or no pod of the group runs."""
    if not reaches_none(job, pods):
        return None
    if not any(pod.started and not pod.exit for pod in pods.current.values()):
        return None
    since = pods.launchers.silent_since
    return since or min(gap.since for gap in _silent_launchers(pods))


def _timed(job: DDPJob, pods: Observed) -> list[Gap]:
    """Return the gaps that may last only some time: few, even of thousands."""
    timed = [gap for gap in pods.gaps if gap.reason in _TIMED]
    notes = job.status.bookkeeping
    # If a launcher of this attempt has answered and nothing failed since, the last group trains on.
    # Otherwise nobody does, and perhaps the image has no launcher that could answer.
    trains_on = notes.launcher and notes.broken_since is None
    if trains_on and reaches_none(job, pods):
        silent = frozenset(_silent_launchers(pods))
        return [gap for gap in timed if gap not in silent]  # nothing is lost, so all may wait
    return timed


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
        seconds = UNSTARTABLE_SECONDS
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
    job: DDPJob, pods: Observed, known: Mapping[int, gap_records.Start], now: datetime
) -> Iterator[tuple[int, GapReason, datetime | None]]:
    """Yield node rank and reason of each gap, and since when its launcher is silent if that is the
    reason.
    """
    # All pods of a running group have acknowledged it, perhaps to an earlier operator.
    unreached = {} if job.status.is_true("Running") else pods.launchers.unreached_since
    for node_rank, pod in pods.current.items():
        if pod.succeeded:
            continue
        reason = _reason(pod)
        if reason == "Unscheduled" and pod.gated and is_in_group(job, pod.identity.slot):
            continue  # it waits for its queue, so the wait for a node has not begun
        told = unreached.get(pod.key.name) if reason in (None, "Starting") else None
        if told is not None and not in_present_group(job, pods, pod, started=True):
            yield node_rank, "Silent", told
        elif reason:
            yield node_rank, reason, None
    paused = job.status.is_paused(now)
    lost = {gone.index for gone in vanished(job, pods)} if pods.missing else ()
    for gone in pods.missing:
        refused = gone.index in known and known[gone.index][0] == "Refused"
        why: GapReason = "Lost" if gone.index in lost else "Refused" if refused else "Unscheduled"
        yield gone.index, "Paused" if paused else why, None


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
