"""Pods that wait without a place: one that fails costs nothing, none takes a node of the group."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job.membership.world import members, next_generation, replaced, scope_of
from ddp_operator.job.planning.decisions import pause_seconds, regrouped
from ddp_operator.job.planning.gaps import POLICY
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.words import some
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Event

SPARES_REFUSED: Final = "SparesRefused"
SPARES_LOST: Final = "SparesLost"
REFUSED_PAUSE_SECONDS: Final = 60
"""Until spares are asked for again for which there was no quota."""


def ready(job: DDPJob, pods: Observed) -> Sequence[PodState]:
    """The spares that can take a place, those on nodes to avoid or named by a signal last. One that
    does not answer would hold the group up.
    """
    bad = {*pods.nodes.unwell, *job.status.excluded_nodes}
    listening = [pod for pod in pods.spares if pod.started and pod.address and not pod.silent]
    waiting = filter(_is_well, listening)
    return sorted(waiting, key=lambda pod: (pod.node in bad, pod.identity.slot))


def take_over(
    job: DDPJob, pods: Observed, node_ranks: Sequence[int], *, leaving: bool = False
) -> Mapping[int, PodState]:
    """The spares that take places over, by node rank: none where nobody can be told of a place.
    Pods that only leave their nodes do so for no node that a signal names.
    """
    # Of scope Pod trainers need no launcher that answers, until it is told.
    can_be_told = job.spec.restart.scope == "Pod" or job.status.bookkeeping.launcher
    takeovers = [pod for pod in ready(job, pods) if not (leaving and pod.node in pods.nodes.unwell)]
    return dict(zip(node_ranks, takeovers, strict=False)) if can_be_told else {}


def slots_by_rank(takeovers: Mapping[int, PodState]) -> Mapping[int, int]:
    """The slots of spares that take places over, by node rank."""
    return {node_rank: spare.identity.slot for node_rank, spare in takeovers.items()}


def relieve(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide that spares take the places of pods that have no node, cannot start, or do not exist;
    None where there are none of either. A later spare may have the only free node.
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
    message = f"spares take the places of pods that cannot start or have no node: {said}"
    return regrouped(status, "Disrupted", message, now, event="Restarting")


def recreated_as_spares(status: DDPJobStatus, slots: Collection[int]) -> DDPJobStatus:
    """Return the status in which pods that had a place and had not begun are others, without."""
    notes = status.bookkeeping
    return status.noting(
        replacements=replaced(status, slots),
        replacing=tuple(slot for slot in notes.replacing if slot not in slots),
        spares_renewed=(notes.spares_renewed or 0) + len(slots),
    )


def renew(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide that others take the place of spares that have ended; None where there are none."""
    ended = [
        pod.identity for pod in pods.spares if not _is_well(pod) or pod.spec_hash != job.spec_hash
    ]
    known = job.status.bookkeeping.spares
    ended += [gone for gone in pods.spares_missing if gone.slot in known]
    if not ended:
        return None
    renewed = job.status.bookkeeping.spares_renewed or 0
    status = job.status.noting(
        replacements=replaced(job.status, (identity.slot for identity in ended)),
        spares=tuple(sorted({*known} - {identity.slot for identity in ended})),
        spares_renewed=renewed + len(ended),
        no_spare_before=now + timedelta(seconds=pause_seconds(renewed)),
    )
    names = some([identity.pod_name(job.name) for identity in ended])
    said = f"spares ended and are replaced, which costs the job nothing: {names}"
    return Plan(status, decided=True, events=(Event(SPARES_LOST, said),))


def seen(job: DDPJob, pods: Observed) -> tuple[int, ...]:
    """The slots of the spares that are there, or were: one that is gone is not made again under
    the name that it had.
    """
    wanted = {identity.slot for identity in pods.spares_missing}
    known = wanted.intersection(job.status.bookkeeping.spares)
    return tuple(sorted({pod.identity.slot for pod in pods.spares} | known))


def refused(job: DDPJob, message: str, now: datetime) -> Plan:
    """Decide to ask again later for spares that the API server does not take."""
    due = now + timedelta(seconds=REFUSED_PAUSE_SECONDS)
    said = f"the API server takes no spares, and the job goes on without: {message}"
    event = Event(SPARES_REFUSED, said, warning=True)
    return Plan(job.status.noting(no_spare_before=due), decided=True, events=(event,))


def with_spares(job: DDPJob, pods: Observed, planned: Plan, now: datetime) -> Plan:
    """Complete the plan of an active job: create the spares that are missing, once all pods of the
    group have nodes.
    """
    is_placed = pods.all_scheduled and job.status.is_true("PodsCreated")
    if not pods.spares_missing or planned.create or not is_placed:
        return planned
    due = planned.status.bookkeeping.no_spare_before
    if due is None or due <= now:
        return replace(planned, create_spares=pods.spares_missing)
    return planned.requeued_at(due)


def _is_well(pod: PodState) -> bool:
    """Whether it waits, or is about to."""
    over = pod.failed or pod.succeeded or pod.deleting or pod.lost_to_cluster
    return not (over or pod.exit)
