"""Name the rank that makes the others wait, from the times that the trainer compares.

All ranks end a step together, so a slow one costs each step the same. A rank is named after several
comparisons, and stays named until it is clearly faster: one long step is no reason for either. If
two pods take turns as the slowest, the one that was it more often is named.
"""

from datetime import datetime
from typing import Final

from ddp_protocol.progress import PaceStatus

from ddp_operator.api import ranks
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus, Pace, SlowRank, SlowTurn
from ddp_operator.job.membership.world import members
from ddp_operator.job.pods.observed import Observed, identity_at
from ddp_operator.job.status.progress import Report
from ddp_operator.ports import Event

DEFAULT_FACTOR: Final = 1.5
"""Factor of jobs without `spec.restart.slowRank`."""
IN_A_ROW: Final = 3
"""Slow comparisons of a pod before its rank is named, and faster ones until it no longer is."""
_MIN_SECONDS: Final = 0.001
"""Least time that a slow rank adds to a step; less is noise."""
_MIN_PODS_WITH_TURNS: Final = 3
_MAX_RATIO: Final = 1000.0


def with_pace(
    job: DDPJob, status: DDPJobStatus, report: Report | None, pods: Observed
) -> tuple[DDPJobStatus, tuple[Event, ...]]:
    """Return the status with the comparison in a report, and the Events about the slow rank."""
    known, events = status.slow_rank, list[Event]()
    if known is not None and _pod_name(job, known.rank) != known.pod:
        status = status.updated(slow_rank=None)
        events.append(_over(known, "its pod was replaced"))
        known = None
    said = report.status.pace if report and report.status and report.concerns(job) else None
    before = status.bookkeeping.pace
    is_new = said is not None and (before is None or before.step != said.step)
    if report is None or said is None or not is_new or not said.others_seconds:
        return status, tuple(events)
    pod = _pod_name(job, said.rank)
    if not pod:
        return status, tuple(events)
    turns = _turns(job, said, pod, before, known, report.received)
    is_same = known is not None and known.pod == pod and bool(turns)
    faster = (before.faster_in_a_row if before else 0) + 1
    slow = known
    if known is None or is_same or faster >= IN_A_ROW:
        faster, slow = 0, _named(job, said, turns, known if is_same else None, pods)
    if known is not None and (slow is None or slow.pod != known.pod):
        events.append(_over(known, "it is no longer slow"))
    if slow is not None and (known is None or slow.pod != known.pod):
        events.append(Event("SlowRank", describe(slow), warning=True))
    pace = Pace(step=said.step, turns=turns, faster_in_a_row=faster)
    return status.updated(slow_rank=slow).noting(pace=pace), tuple(events)


def describe(slow: SlowRank) -> str:
    """Return one sentence: which rank is slow, where, and what it costs."""
    where = f" on node {slow.node}" if slow.node else ""
    return f"rank {slow.rank} (pod {slow.pod}{where}) is slow: {cost(slow)}"


def cost(slow: SlowRank) -> str:
    """Return what a slow rank costs each step, as the end of a sentence."""
    return (
        f"its own time per step is {slow.ratio:.3g} times the mean of the others, "
        f"{slow.seconds_per_step:.3g} s more"
    )


def _over(slow: SlowRank, why: str) -> Event:
    return Event("SlowRankOver", f"rank {slow.rank} (pod {slow.pod}) delays no step now: {why}")


def _turns(
    job: DDPJob,
    said: PaceStatus,
    pod: str,
    before: Pace | None,
    known: SlowRank | None,
    now: datetime,
) -> tuple[SlowTurn, ...]:
    """Return how often the slowest rank's pod was slow, and another pod with which it takes turns;
    nothing if no rank is slow now.

    A third pod begins again: if any pod may be the slowest, none is slow. In a job of two pods, one
    is slow only compared with the other, so turns are noise.
    """
    limit = _factor(job)
    if known is not None and known.pod == pod:
        limit = 1 + (limit - 1) / 2  # well below, so that it is not named again at once
    if _ratio(said) < limit or said.seconds - said.others_seconds < _MIN_SECONDS:
        return ()
    earlier = before.turns if before else ()
    new = SlowTurn(pod=pod, times=0, since=now.replace(microsecond=0))
    own = next((turn for turn in earlier if turn.pod == pod), new)
    others = tuple(turn for turn in earlier if turn.pod != pod)
    if len(others) > 1 or len(members(job)) < _MIN_PODS_WITH_TURNS:
        others = ()
    return own.updated(times=own.times + 1), *others


def _named(
    job: DDPJob,
    said: PaceStatus,
    turns: tuple[SlowTurn, ...],
    known: SlowRank | None,
    pods: Observed,
) -> SlowRank | None:
    """Return the rank that is slow after this comparison; None if none is. `known`: its pod was
    named before.
    """
    if not turns or (known is None and turns[0].times < IN_A_ROW):
        return None
    pod = pods.current.get(ranks.pod_of(job.spec, said.rank))
    return SlowRank(
        rank=said.rank,
        pod=turns[0].pod,
        node=pod.node if pod else "",
        ratio=_ratio(said),
        seconds_per_step=_digits(said.seconds - said.others_seconds),
        since=known.since if known else turns[0].since,
        not_replaced=known.not_replaced if known else "",
    )


def _factor(job: DDPJob) -> float:
    asked = job.spec.restart.slow_rank
    return asked.factor if asked else DEFAULT_FACTOR


def _ratio(said: PaceStatus) -> float:
    return _digits(min(said.seconds / said.others_seconds, _MAX_RATIO))


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def _pod_name(job: DDPJob, rank: int) -> str:
    """Return the name of the pod that has this rank now; empty if none has."""
    slots = members(job)
    if rank >= ranks.world_size(job.spec, len(slots)):
        return ""
    index = ranks.pod_of(job.spec, rank)
    return identity_at(job, slots[index], index).pod_name(job.name)
