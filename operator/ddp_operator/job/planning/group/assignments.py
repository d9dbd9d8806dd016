"""Assignments: what launchers receive about the group, once it is on record.

If the operator reaches none of a job's launchers, it warns, and restarts nothing for that.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from ddp_protocol.world import GroupAssignment

from ddp_operator.api.code import Code
from ddp_operator.api.job import DDPJob
from ddp_operator.api.values.bounded import format_time
from ddp_operator.job.membership.launchers import PODS_UNREACHABLE, Assignment
from ddp_operator.job.membership.rank_order import is_due, is_first_due
from ddp_operator.job.membership.world import members, members_to_lead, scope_of, world_of
from ddp_operator.job.planning.failures import pauses
from ddp_operator.job.planning.gaps import UNREACHABLE_SECONDS, in_present_group, unreached_since
from ddp_operator.job.planning.group.copy_order import copy_order, is_order_due
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.places.old_pods import still_at_work
from ddp_operator.job.pods.environment import master_addr_of
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status.conditions import PODS_STARTING, with_condition, with_phase
from ddp_operator.ports import Event

_AGAIN: Final = timedelta(seconds=1)
"""Pause before an assignment is sent again."""
_SELDOM: Final = timedelta(seconds=30)
"""Longest pause, for pods that have not answered for that long."""
_PATIENCE: Final = timedelta(seconds=UNREACHABLE_SECONDS)


def with_assignments(
    job: DDPJob, pods: Observed, planned: Plan, now: datetime, *, wants_pause: bool = False
) -> Plan:
    """Add assignments for the launchers that do not know the group to the plan of an active job.

    `wants_pause`: whether rank 0 is to pause after its next snapshot.
    """
    assigned = tuple(_assignments(job, pods, now, wants_pause=wants_pause))
    if not (assigned or _must_wait(job, pods, now)):
        return planned
    pause = _AGAIN
    if assigned:
        # Pods outside the group may never answer, nor all pods at once. One pod in it soon counts
        # as lost.
        since = max(pods.launchers.unreached_since.get(each.pod, now) for each in assigned)
        if since <= now - _SELDOM or all(each.group.node_rank is None for each in assigned):
            pause = min(max(now - since, _AGAIN), _SELDOM)
    return replace(planned, assignments=assigned).requeued_at(now + pause)


def _assignments(
    job: DDPJob, pods: Observed, now: datetime, *, wants_pause: bool
) -> Iterator[Assignment]:
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
    leader = pods.current.get(0)
    has_news = is_order_due(job, pods) or pauses.is_due(job, pods, wanted=wants_pause)
    if leader and has_news and all(index != 0 for index, _ in ignorant):
        ignorant.append((0, leader))
    for index, pod in ignorant:
        if pod.address and pod.started and not (pod.exit or pod.deleting):
            starts = start and index is not None
            group = _group(job, pods, index, start=starts, pause=wants_pause)
            yield Assignment(pod.key.name, pod.address, group, pod.token_key)


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


def _group(
    job: DDPJob, pods: Observed, index: int | None, *, start: bool, pause: bool
) -> GroupAssignment:
    code = Code.parse(job.status.bookkeeping.code)
    leader = pods.current.get(0)
    address = leader.address.rpartition(":")[0].strip("[]") if leader else ""
    return GroupAssignment(
        job_uid=job.uid,
        attempt=job.status.attempt,
        generation=world_of(job).generation,
        node_rank=index,
        nodes=len(members(job)),
        master_addr=master_addr_of(job, job.status.attempt),
        master_address=address,
        start=start,
        grace_seconds=job.status.bookkeeping.grace_seconds,
        broken=job.status.bookkeeping.lost_members > 0,
        host=pods.current[index].identity.host_name(job.name) if index is not None else "",
        leader=leader.key.name if leader else "",
        members=members_to_lead(job) if index == 0 else "",
        copy_order=copy_order(job, pods) if index == 0 else "",
        code=code.id if code else "",
        pause=pause and index == 0,
    )


def with_warning(job: DDPJob, pods: Observed, planned: Plan, now: datetime) -> Plan:
    """Say in the plan of an active job, and in one Event, that no launcher answers."""
    known, running = job.status.condition("Running"), planned.status.condition("Running")
    if running is None or (running.status == "False" and running.reason != PODS_STARTING):
        return planned  # something else keeps the pods from running
    since = unreached_since(job, pods)
    warned = known is not None and known.reason == PODS_UNREACHABLE
    trains = running.status == "True"
    if since is not None and now < since + _PATIENCE:
        return planned.requeued_at(since + _PATIENCE)
    if since is not None:
        message = _message(job, since, trains=trains)
    elif known and warned and trains and known.status == "True" and not _any_answers(pods):
        message = known.message  # the operator has restarted, and has heard of nobody yet
    else:
        return planned
    status = with_condition(planned.status, "Running", trains, PODS_UNREACHABLE, message, now)
    status = with_phase(status, pods_scheduled=pods.all_scheduled)
    news = () if warned else (Event(PODS_UNREACHABLE, message, warning=True),)
    return replace(planned, status=status, events=(*planned.events, *news))


def _any_answers(pods: Observed) -> bool:
    return pods.launchers.leader is not None or bool(pods.launchers.told)


def _message(job: DDPJob, since: datetime, *, trains: bool) -> str:
    effect = "training continues, but failures restart all pods" if trains else "the group waits"
    return (
        f"no launcher has answered since {format_time(since)}; {effect}: let the operator reach "
        f"port {job.spec.status_port} of the job's pods (NetworkPolicy, firewall)"
    )
