"""Recreate pending pods that avoid nodes which are usable again.

A pod's node affinity cannot change. A pod that fits no node and avoids a recovered one would wait
forever.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec.overrides import spec_of
from ddp_operator.job.failure.nodes import avoiding_signalled, with_bad_nodes
from ddp_operator.job.membership.world import members
from ddp_operator.job.planning.decisions import RESCHEDULED, next_attempt, restarting
from ddp_operator.job.planning.failures.recovery import replacing
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.words import some
from ddp_operator.job.pods.avoided_nodes import kept_off
from ddp_operator.job.pods.observed import Observed

UNSCHEDULABLE: Final = "Unschedulable"
"""The scheduler's reason for a pod that fits on no node; it retries."""


def reschedule(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide to recreate pods that wait because of outdated node affinity, or update the nodes to
    avoid before pods are created.
    """
    if barred := _barred(job, pods):
        return _recreate(job, pods, barred, now)
    if not (pods.creatable or pods.spares_missing):
        return None
    status = avoiding_signalled(job, job.status, pods.nodes)
    if status.excluded_nodes == job.status.excluded_nodes:
        return None
    return Plan(status, decided=True)


def _barred(job: DDPJob, pods: Observed) -> dict[int, Sequence[str]]:
    """Return the nodes that pending pods need not avoid any more, by node rank."""
    waiting = [
        (node_rank, pod)
        for node_rank, pod in pods.current.items()
        if pod.avoids and pod.waiting == UNSCHEDULABLE and not (pod.deleting or pod.failed)
    ]
    if not waiting:
        return {}
    well = {node.name for node in pods.nodes if node.schedulable and not node.unwell}
    free = well.difference(with_bad_nodes(job, job.status, pods.nodes).excluded_nodes)
    found: dict[int, Sequence[str]] = {}
    for node_rank, pod in waiting:
        own = kept_off(spec_of(job.spec, node_rank).template.get("spec") or {})
        if names := [name for name in pod.avoids if name in free and name not in own]:
            found[node_rank] = names
    return found


def _recreate(job: DDPJob, pods: Observed, barred: dict[int, Sequence[str]], now: datetime) -> Plan:
    node_ranks = sorted(barred)
    if len(node_ranks) == len(members(job)):
        status = next_attempt(job, job.status)
    else:
        status = replacing(job, job.status, node_ranks, node_ranks)
    names = some([pods.current[node_rank].key.name for node_rank in node_ranks])
    well = some(sorted({name for names in barred.values() for name in names}))
    message = (
        f"recreating {names} (not charged): no node fits while {well} is avoided, "
        "which can be used again"
    )
    return restarting(status, RESCHEDULED, message, now, event=RESCHEDULED)
