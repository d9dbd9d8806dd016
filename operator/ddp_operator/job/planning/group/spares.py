"""Spares: pods that wait outside the group. Their failures cost it nothing."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job.failure.budget import pause_seconds
from ddp_operator.job.membership.world import (
    has_launcher,
    members,
    next_generation,
    replaced,
    scope_of,
    world_of,
)
from ddp_operator.job.planning.decisions import regrouped
from ddp_operator.job.planning.gaps import POLICY
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.places.old_pods import awaited_until, keeping_places
from ddp_operator.job.planning.words import some
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.schedulers.kueue import is_in_group
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status.preemption import EVICTED
from ddp_operator.ports import Event

REFUSED_PAUSE_SECONDS: Final = 60
"""Pause before spares are created again after the API server did not create one."""
_QUEUE_TIMES: Final = timedelta(seconds=1)
"""The resolution of Kueue's times."""


def ready(job: DDPJob, pods: Observed) -> Sequence[PodState]:
    """Return the spares that can take over, those on bad nodes last. Spares are ignored while their
    launchers do not answer, because they would block the group.
    """
    bad = {*pods.nodes.unwell, *job.status.excluded_nodes}
    listening = [pod for pod in pods.spares if pod.started and pod.address and not pod.silent]
    waiting = filter(is_well, listening)
    return sorted(waiting, key=lambda pod: (pod.node in bad, pod.identity.slot))


def take_over(
    job: DDPJob, pods: Observed, node_ranks: Sequence[int], *, off: Collection[str] = ()
) -> Mapping[int, PodState]:
    """Return the spares that take over these node ranks, if launchers can receive assignments.

    `off`: nodes to leave for pods that still train. Their successors run elsewhere, and know the
    group.
    """
    can_be_told = has_launcher(job) and pods.launchers.silent_since is None
    generation = world_of(job).generation
    takeovers = [
        pod
        for pod in ready(job, pods)
        if not off or (pod.node not in off and pods.launchers.knows(pod.key.name, generation))
    ]
    return dict(zip(node_ranks, takeovers, strict=False)) if can_be_told else {}


def slots_by_rank(takeovers: Mapping[int, PodState]) -> Mapping[int, int]:
    """Return the slots of these spares, by node rank."""
    return {node_rank: spare.identity.slot for node_rank, spare in takeovers.items()}


def tend(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide that spares take over from pods that do not train, or are replaced themselves."""
    return _relieve(job, pods, now) or _renew(job, pods, now)


def _relieve(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide that spares replace pods that have no node, cannot start, or do not exist. A later
    spare may have got the only free node.
    """
    waiting = [gap.node_rank for gap in pods.gaps if POLICY[gap.reason].spare]
    takeovers = take_over(job, pods, sorted(waiting))
    if not takeovers or scope_of(job) == "Gang":
        return None
    slots = members(job)
    status = recreated_as_spares(job.status, [slots[node_rank] for node_rank in takeovers])
    status = next_generation(
        job, status, now, new_slots=slots_by_rank(takeovers), lost=len(takeovers)
    )
    said = some([f"{pod.key.name} becomes node rank {rank}" for rank, pod in takeovers.items()])
    message = f"spares replace pods that cannot start or have no node: {said}"
    return regrouped(status, "Disrupted", message, now, event="Restarting")


def recreated_as_spares(status: DDPJobStatus, slots: Collection[int]) -> DDPJobStatus:
    """Return the status in which these pods, which never ran, are recreated outside the group."""
    notes = status.bookkeeping
    return status.noting(
        replacements=replaced(status, slots),
        replacing=tuple(slot for slot in notes.replacing if slot not in slots),
        spares_renewed=(notes.spares_renewed or 0) + len(slots),
    )


def _renew(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide to replace spares that have ended, or run where pods are to leave."""
    leaves, known = job.status.bookkeeping.nodes_to_leave, job.status.bookkeeping.spares
    ended = [
        pod.identity
        for pod in pods.spares
        if not is_well(pod) or pod.spec_hash != job.spec_hash or pod.node in leaves
    ]
    ended += [gone for gone in pods.spares_missing if gone.slot in known]
    if not ended:
        return None
    # What Kueue evicted only queues again, and needs no pause.
    evicted = {pod.identity for pod in pods.spares if pod.disruption.startswith(EVICTED)}
    failed, renewed = {*ended} - evicted, job.status.bookkeeping.spares_renewed or 0
    status = job.status.noting(
        replacements=replaced(job.status, (identity.slot for identity in ended)),
        spares=tuple(sorted({*known} - {identity.slot for identity in ended})),
    )
    if failed:
        status = status.noting(
            spares_renewed=renewed + len(failed),
            no_spare_before=now + timedelta(seconds=pause_seconds(renewed)),
        )
    names = some([identity.pod_name(job.name) for identity in ended])
    said = f"replacing spares that cannot take over (not charged): {names}"
    return Plan(status, decided=True, events=(Event("SparesLost", said),))


def seen(job: DDPJob, pods: Observed) -> tuple[int, ...]:
    """Return the slots of spares that existed, since none is recreated under its old name."""
    known = set(job.status.bookkeeping.spares).difference(members(job))
    return tuple(sorted({pod.identity.slot for pod in pods.spares} | known))


def refused(job: DDPJob, message: str, now: datetime) -> Plan:
    """Decide to retry later, since the API server did not create a spare."""
    due = now + timedelta(seconds=REFUSED_PAUSE_SECONDS)
    said = f"spares cannot be created; the job continues without them: {message}"
    event = Event("SparesRefused", said, warning=True)
    return Plan(job.status.noting(no_spare_before=due), decided=True, events=(event,))


def with_spares(job: DDPJob, pods: Observed, planned: Plan, now: datetime) -> Plan:
    """Add the missing spares to the plan of an active job, once all pods of the group have nodes.
    Those that a queue counts as part of the group are created with it: a group that an earlier
    release began counts all of them.
    """
    missing, due = pods.spares_missing, planned.status.bookkeeping.no_spare_before
    is_placed = pods.all_scheduled and job.status.is_true("PodsCreated") and not planned.create
    if not is_placed:
        begun = planned.create or planned.status.is_true("PodsCreated")
        missing = tuple(one for one in missing if is_in_group(job, one.slot) and begun)
    kept = keeping_places(job, pods) if missing else {}
    old = [kept[one.slot] for one in missing if one.slot in kept]
    planned = planned.requeued_at(*(awaited_until(job, pod, now) for pod in old))
    missing = tuple(one for one in missing if one.slot not in kept)
    dues = [due, _after_group(job, pods)]
    if missing and (later := [each for each in dues if each and now < each]):
        return planned.requeued_at(max(later))
    return replace(planned, create_spares=missing)


def _after_group(job: DDPJob, pods: Observed) -> datetime | None:
    """Return when other pods may ask the queue for quota; None: at once.

    Of equal priorities, Kueue preempts first what it admitted last, by whole seconds. It must never
    take the group instead of a pod that the job can do without.
    """
    group = (pod for pod in pods.current.values() if is_in_group(job, pod.identity.slot))
    placed = max((pod.placed for pod in group if pod.placed), default=None)
    return placed + _QUEUE_TIMES if placed else None


def is_well(pod: PodState) -> bool:
    """Return whether a spare waits or starts."""
    over = pod.failed or pod.succeeded or pod.deleting or pod.lost_to_cluster
    return not (over or pod.exit)
