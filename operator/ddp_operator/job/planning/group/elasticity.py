"""Change the size of an elastic group: continue without pods, or let pods join.

Pods beyond the group wait like spares. A pod that leaves the group before it ran is recreated
outside it, so its processes never meet a group that does not know them.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership.world import (
    first_size,
    first_world,
    members,
    next_generation,
    scope_of,
    world_of,
)
from ddp_operator.job.planning.decisions import (
    SPEC_CHANGED,
    next_attempt,
    regrouped,
    restarting,
)
from ddp_operator.job.planning.gaps import POLICY
from ddp_operator.job.planning.group import local_checkpoints, spares
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.words import some, train_on
from ddp_operator.job.pods.observed import Observed, member_names

GROUP_SHRUNK: Final = "GroupShrunk"
_BEGINNING_SECONDS: Final = 30
"""Minimum wait for the pods that a group starts with, since they come one by one."""


def begin(job: DDPJob) -> Plan | None:
    """Decide which pods an elastic group starts with, since `spec.replicas` may change later."""
    if not job.spec.elastic or job.status.world is not None:
        return None
    # Generation 0 is that of pods without any assignment.
    world = first_world(first_size(job.spec)).updated(generation=1)
    return Plan(job.status.updated(world=world), decided=True)


def absent_node_ranks(pods: Observed) -> Sequence[int]:
    """Return the node ranks without a started pod. Pods that ended are handled elsewhere."""
    return [gap.node_rank for gap in pods.gaps if POLICY[gap.reason].absent]


def can_go_without(job: DDPJob, pods: Observed, node_ranks: Sequence[int]) -> bool:
    """Return whether the group may continue at once without these lost or leaving pods."""
    elastic = job.spec.elastic
    rest = len(members(job)) - len(node_ranks)
    if not elastic or rest < job.spec.min_size or not _may_change(job, pods):
        return False
    if rest >= job.spec.replicas or elastic.shrink_after_seconds == 0:
        return True
    # A leaving pod that still runs may be absent for long: nobody waits for it to come back.
    leaving = [pods.current.get(node_rank) for node_rank in node_ranks]
    return all(pod and pod.started and not (pod.exit or pod.restartable) for pod in leaving)


def resize(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide that the group drops pods that are late or not wanted, or that waiting pods join."""
    if any(gap.reason == "Paused" or POLICY[gap.reason].lost for gap in pods.gaps):
        return None  # pods that wait for a pause, or failures without a decision yet
    if not _may_change(job, pods):
        return _begin_smaller(job, pods, now)
    if absent := absent_node_ranks(pods):
        return _shrink(job, pods, absent, now)
    if len(members(job)) > job.spec.max_size:
        return _shrink_to_wanted(job, now)
    return _grow(job, pods, now)


def next_change(job: DDPJob, pods: Observed) -> datetime | None:
    """Return when the group may change by itself; None if nothing is awaited."""
    if not _may_change(job, pods):
        return None
    if absent := absent_node_ranks(pods):
        return _shrink_due(job, pods, absent)
    return _grow_due(job) if pods.spares and len(members(job)) < job.spec.max_size else None


def _may_change(job: DDPJob, pods: Observed) -> bool:
    has_launcher = scope_of(job) != "Gang" and bool(job.status.bookkeeping.launcher)
    can_be_told = has_launcher and pods.launchers.silent_since is None
    return bool(job.spec.elastic) and can_be_told and not pods.any_succeeded


def _shrink_due(job: DDPJob, pods: Observed, absent: Sequence[int]) -> datetime | None:
    elastic, rest = job.spec.elastic, len(members(job)) - len(absent)
    if elastic is None or rest < job.spec.min_size:
        return None
    since = min(gap.since for gap in pods.gaps if POLICY[gap.reason].absent)
    patience = 0
    if rest < job.spec.replicas:
        is_first = not (world_of(job).changed_at or job.status.bookkeeping.replacements)
        patience = max(elastic.shrink_after_seconds, _BEGINNING_SECONDS if is_first else 0)
    return since + timedelta(seconds=patience)


def _shrink(job: DDPJob, pods: Observed, absent: Sequence[int], now: datetime) -> Plan | None:
    due = _shrink_due(job, pods, absent)
    if due is None or due > now:
        return None
    slots = members(job)
    status = spares.recreated_as_spares(job.status, [slots[node_rank] for node_rank in absent])
    status = next_generation(job, status, now, without=absent, lost=len(absent))
    names = member_names(job)
    late = some([names[node_rank] for node_rank in absent])
    headline = train_on(len(slots) - len(absent), len(slots))
    message = f"{headline}; not ready in time: {late}"
    return regrouped(status, GROUP_SHRUNK, message, now)


def _begin_smaller(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Begin anew with the pods that the user wants by now, if the group never ran and lacks some.
    They may never find a node, and no launcher is known that could tell the others.
    """
    elastic, size = job.spec.elastic, len(members(job))
    has_ended = any(pod.succeeded or pod.failed for pod in pods.current.values())
    ran = job.status.is_true("Running") or has_ended
    if not elastic or ran or size <= job.spec.replicas or not absent_node_ranks(pods):
        return None
    what = f"restarting with {job.spec.replicas} pods instead of {size}: spec.replicas has changed"
    return restarting(next_attempt(job, job.status, new_group=True), SPEC_CHANGED, what, now)


def _shrink_to_wanted(job: DDPJob, now: datetime) -> Plan:
    """Drop the last pods, so that rank 0 stays."""
    before, size = len(members(job)), job.spec.max_size
    if local_checkpoints.forbid_in_place(job):
        what = f"restarting all {job.spec.replicas} pods: spec.replicas changed"
        return restarting(next_attempt(job, job.status), GROUP_SHRUNK, what, now)
    status = next_generation(job, job.status, now, without=range(size, before))
    message = f"{train_on(size, before)}; the spec allows no more"
    return regrouped(status, GROUP_SHRUNK, message, now)


def _grow(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    due = _grow_due(job)
    if not job.status.is_true("Running") or due is None or due > now:
        return None
    if local_checkpoints.saved_in_pod(job):
        return None
    generation = world_of(job).generation
    # A pod that acknowledged the present group is ready for the next one.
    waiting = [
        pod for pod in spares.ready(job, pods) if pods.launchers.knows(pod.key.name, generation)
    ]
    size = len(members(job))
    joining = sorted(pod.identity.slot for pod in waiting[: job.spec.max_size - size])
    if not joining:
        return None
    status = next_generation(job, job.status, now, joining=joining)
    message = f"training continues with {size + len(joining)} pods: {len(joining)} more joined"
    return regrouped(status, "GroupGrown", message, now)


def _grow_due(job: DDPJob) -> datetime | None:
    since = world_of(job).changed_at or job.status.start_time
    elastic = job.spec.elastic
    if elastic is None or since is None:
        return None
    return since + timedelta(seconds=elastic.grow_after_seconds)
