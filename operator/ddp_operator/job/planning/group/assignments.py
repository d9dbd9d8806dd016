"""Assignments: what launchers receive about the group, once it is on record."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership.launcher_protocol import Assignment
from ddp_operator.job.membership.rank_order import is_due, is_first_due
from ddp_operator.job.membership.world import members_to_lead, scope_of, world_of
from ddp_operator.job.planning.gaps import in_present_group
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.old_pods import still_at_work
from ddp_operator.job.pods.environment import master_addr_of
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.state import PodState

_AGAIN: Final = timedelta(seconds=1)
"""Pause before an assignment is sent again."""
_SELDOM: Final = timedelta(seconds=30)
"""Longest pause, for pods that have not answered for that long."""


def with_assignments(job: DDPJob, pods: Observed, planned: Plan, now: datetime) -> Plan:
    """Add assignments for the launchers that do not know the group to the plan of an active job."""
    if world_of(job).generation == 0:
        return planned  # pods know it from their environment
    assigned = tuple(_assignments(job, pods, now))
    if not (assigned or _must_wait(job, pods, now)):
        return planned
    pause = _AGAIN
    if assigned:
        # Pods outside the group may never answer, nor all pods at once. One pod in it soon counts
        # as lost.
        since = max(pods.launchers.unreached_since.get(each.pod, now) for each in assigned)
        if since <= now - _SELDOM or all(each.document["nodeRank"] is None for each in assigned):
            pause = min(max(now - since, _AGAIN), _SELDOM)
    return replace(planned, assignments=assigned).requeued_at(now + pause)


def _assignments(job: DDPJob, pods: Observed, now: datetime) -> Iterator[Assignment]:
    generation = world_of(job).generation
    start = _may_start(job, pods, now)
    ignorant: list[tuple[int | None, PodState]] = [
        (index, pod)
        for index, pod in pods.current.items()
        if not in_present_group(job, pods, pod, started=start)
    ]
    # A pod that left the group stops its processes; one outside reports that it could join.
    outside = pods.spares if job.status.bookkeeping.launcher else ()
    ignorant += [
        (None, pod) for pod in outside if not pods.launchers.knows(pod.key.name, generation)
    ]
    for index, pod in ignorant:
        if pod.address and pod.started and not (pod.exit or pod.deleting):
            starts = start and index is not None
            document = _document(job, pods, index, start=starts)
            key = pod.token_key
            yield Assignment(pod.key.name, pod.address, generation, starts, document, key)


def _may_start(job: DDPJob, pods: Observed, now: datetime) -> bool:
    """Return whether all pods exist and no process of an earlier generation runs.

    A process that starts alone may wait in vain, or take an old process for its peer. With scope
    Pod, processes only meet those of their own generation.
    """
    if scope_of(job) == "Pod":
        return not is_first_due(job)
    if is_due(job) or _must_wait(job, pods, now) or pods.missing or job.status.is_paused(now):
        return False
    return all(
        pod.succeeded or (pod.started and in_present_group(job, pods, pod))
        for pod in pods.current.values()
    )


def _must_wait(job: DDPJob, pods: Observed, now: datetime) -> bool:
    """Return whether replaced pods may still save where the group would."""
    return scope_of(job) == "InPlace" and bool(still_at_work(job, pods, now))


def _document(job: DDPJob, pods: Observed, index: int | None, *, start: bool) -> dict[str, Any]:
    world = world_of(job)
    leader = pods.current.get(0)
    address = leader.address.rpartition(":")[0].strip("[]") if leader else ""
    return {
        "jobUid": job.uid,
        "attempt": job.status.attempt,
        "generation": world.generation,
        "nodeRank": index,
        "nodes": world.size,
        "masterAddr": master_addr_of(job, job.status.attempt),
        "masterAddress": address,
        "start": start,
        "graceSeconds": world.grace_seconds,
        "broken": world.lost > 0,
        "host": pods.current[index].identity.host_name(job.name) if index is not None else "",
        "leader": leader.key.name if leader else "",
        "members": members_to_lead(job) if index == 0 else "",
    }
