"""Order node ranks along the network: pods of one block are consecutive, then those of a sub-block.

Rank 0 stays. The order is decided when all pods have nodes: before any rank starts, and again after
a pod was replaced.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from ddp_protocol.copies import order_by_domain

from ddp_operator.api.constants import GKE_TOPOLOGY_LABELS
from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership.rank_order import ANSWER_SECONDS, is_due, is_first_due, present
from ddp_operator.job.membership.world import (
    RESTART_GRACE_SECONDS,
    members,
    next_generation,
    scope_of,
)
from ddp_operator.job.planning.gaps import POLICY
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.words import some
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.status.placement import Place, place_of
from ddp_operator.ports import Event, Node

_BLOCKS: Final = 2
"""Levels for which running ranks are reordered: block and sub-block, not host."""
_NODES_AGAIN: Final = timedelta(seconds=2)
"""Pause before looking again for a pod's node that the operator does not know yet."""


def along(slots: Sequence[int], places: Mapping[int, Place]) -> tuple[int, ...]:
    """Return the slots in a stable order, with those of one place together at each level."""
    return tuple(slots[index] for index in order_by_domain([places[slot] for slot in slots]))


def order(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide the node ranks of new pods, once all have nodes."""
    if not is_due(job):
        return None
    first = is_first_due(job)
    if pods.any_succeeded or (first and job.status.is_true("Running")):
        return _kept(job)  # too late, or an older operator started it
    if not _is_placed(pods):
        return None
    # Pods wait for the first order; later orders must not delay them.
    due = _due(pods)
    late = due is not None and (now >= due or not first)
    may_pass, why = _obstacle(job, pods)
    if may_pass and not late:
        return None
    if late and first:  # ranks start by themselves, or have
        return _kept(job, why or "no operator was running while pods waited; restart the job")
    slots = tuple(members(job))
    wanted = slots if why else _wanted(job, pods, first=first)
    # The first order is sent even if nothing moves: launchers start at it.
    return _changed(job, wanted, now, why) if first or wanted != slots else _kept(job)


def with_order_due(job: DDPJob, pods: Observed, planned: Plan, now: datetime) -> Plan:
    """Requeue the plan of an active job at the time its order is due."""
    if not (is_first_due(job) and _is_placed(pods)):
        return planned
    return planned.requeued_at(_due(pods), now + _NODES_AGAIN if _unheard_of(pods) else None)


def _is_placed(pods: Observed) -> bool:
    """Return whether all pods have nodes, and no failure awaits a decision."""
    return pods.all_scheduled and not any(POLICY[gap.reason].lost for gap in pods.gaps)


def _due(pods: Observed) -> datetime | None:
    """Return until when an order is awaited; None before all pods have started."""
    starts = [pod.started for pod in pods.current.values() if pod.started]
    if not starts or len(starts) < len(pods.current):
        return None
    return max(starts) + timedelta(seconds=ANSWER_SECONDS)


def _obstacle(job: DDPJob, pods: Observed) -> tuple[bool, str]:
    """Return whether the obstacle to new ranks may pass, and its message, empty without one."""
    if not job.status.bookkeeping.launcher or pods.launchers.silent_since is not None:
        return True, (
            f"no launcher answered within {ANSWER_SECONDS} s; check that the image has it "
            f"(spec.launcher: inject) and the operator reaches port {job.spec.status_port}"
        )
    if not pods.nodes:
        return False, "the operator sees no nodes; allow it to list and watch them"
    if unheard_of := _unheard_of(pods):
        return True, f"the operator does not know {some(unheard_of)}; check that they exist"
    labels, known = GKE_TOPOLOGY_LABELS.values(), _by_name(pods)
    if bare := [name for name, node in known.items() if not any(map(node.labels.get, labels))]:
        places = some(sorted(bare))
        return False, f"{places} have no topology labels; use nodes with compact placement"
    return False, ""


def _unheard_of(pods: Observed) -> list[str]:
    """Return the nodes of pods that the operator does not know; none if it knows no node."""
    names = {pod.node for pod in pods.current.values()} if pods.nodes else set()
    return sorted(names.difference(_by_name(pods)))


def _wanted(job: DDPJob, pods: Observed, *, first: bool) -> tuple[int, ...]:
    """Return the slots in the order of their new node ranks."""
    slots = members(job)
    if job.status.is_true("Running"):
        return tuple(slots)  # a running group keeps its ranks
    known = _by_name(pods)
    closest = list(GKE_TOPOLOGY_LABELS)[-1]
    places: dict[int, Place] = {
        pod.identity.slot: (*place_of(known[pod.node], closest), pod.node)
        for pod in pods.current.values()
    }
    if not first and scope_of(job) == "Pod":
        blocks = {slot: place[:_BLOCKS] for slot, place in places.items()}
        if along(slots, blocks) == tuple(slots):
            return tuple(slots)  # nearly as good, and ranks need not form a new group
    return along(slots, places)


def _changed(job: DDPJob, slots: Sequence[int], now: datetime, why: str = "") -> Plan:
    """Decide the next generation, in which these slots have consecutive node ranks."""
    notes = job.status.bookkeeping
    ordered, current = notes.ordered, present(job.status)
    lost = max(current[1] - ordered[1], 0) if ordered[:1] == current[:1] else 0
    in_place = scope_of(job) == "InPlace"
    grace_seconds = notes.grace_seconds if in_place else RESTART_GRACE_SECONDS
    status = job.status.noting(ordered=current)
    status = next_generation(
        job, status, now, grace_seconds=grace_seconds, new_slots=dict(enumerate(slots)), lost=lost
    )
    moved = sum(new != old for new, old in zip(slots, members(job), strict=True))
    events = _not_ordered(why)
    if moved:
        said = f"node ranks follow blocks, sub-blocks and hosts: {moved} of {len(slots)} pods moved"
        events = (Event("RanksOrdered", said),)
    return Plan(status, decided=True, events=events)


def _kept(job: DDPJob, why: str = "") -> Plan:
    """Decide that all pods keep their node ranks; no assignment is sent."""
    status = job.status.noting(ordered=present(job.status))
    return Plan(status, decided=True, events=_not_ordered(why))


def _not_ordered(why: str) -> tuple[Event, ...]:
    said = f"node ranks do not follow spec.scheduling.topology: {why}"
    return (Event("RanksNotOrdered", said),) if why else ()


def _by_name(pods: Observed) -> Mapping[str, Node]:
    known = pods.nodes.by_name
    names = {pod.node for pod in pods.current.values()}
    return {name: known[name] for name in names if name in known}
