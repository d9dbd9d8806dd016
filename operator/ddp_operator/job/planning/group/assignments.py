"""What launchers are told of the group: only what is on record; the highest generation holds."""

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
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.state import PodState

_AGAIN: Final = timedelta(seconds=1)
"""Until a launcher is told once more."""
_SELDOM: Final = timedelta(seconds=30)
"""The same, at most, where it is of a pod outside the group and has not heard for that long."""


def with_assignments(job: DDPJob, pods: Observed, planned: Plan, now: datetime) -> Plan:
    """Complete the plan of an active job: have the launchers told that do not know the group."""
    if world_of(job).generation == 0:
        return planned  # as all pods were made
    assigned = tuple(_assignments(job, pods, now))
    if not (assigned or _must_wait(job, pods, now)):
        return planned
    pause = _AGAIN
    if assigned and all(each.document["nodeRank"] is None for each in assigned):
        # Whoever is in the group is given up before long; others may never answer.
        since = max(pods.launchers.unreached_since.get(each.pod, now) for each in assigned)
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
    # Who has lost its place leaves; and who never had one says whether it could have one.
    outside = pods.spares if job.status.bookkeeping.launcher else ()
    ignorant += [
        (None, pod) for pod in outside if not pods.launchers.knows(pod.key.name, generation)
    ]
    for index, pod in ignorant:
        if pod.address and pod.started and not (pod.exit or pod.deleting):
            starts = start and index is not None
            document = _document(job, pods, index, start=starts)
            source = pod.token_source
            yield Assignment(pod.key.name, pod.address, generation, starts, document, source)


def _may_start(job: DDPJob, pods: Observed, now: datetime) -> bool:
    """Whether all pods are there and no process of an earlier generation runs.

    One that starts alone may wait in vain, or take an old process for its peer; unless processes
    form the group by themselves, which meet only those of their generation.
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
    """Whether pods of before may still save where those of the group would."""
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
        "masterAddr": manifests.master_addr_of(job, job.status.attempt),
        "masterAddress": address,
        "start": start,
        "graceSeconds": world.grace_seconds,
        "broken": world.lost > 0,
        "host": pods.current[index].identity.host_name(job.name) if index is not None else "",
        "leader": leader.key.name if leader else "",
        "members": members_to_lead(job) if index == 0 else "",
    }
