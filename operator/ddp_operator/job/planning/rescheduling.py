"""Pods keep off the nodes that are to be avoided now, not off those that were when they were made.

A pod's node affinity cannot be changed. One that no node takes, and that keeps off a node which is
well again, would wait without end: it is made anew.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec.overrides import spec_of
from ddp_operator.job.failure.nodes import avoiding_signalled, with_bad_nodes
from ddp_operator.job.membership.world import members
from ddp_operator.job.planning.decisions import RESCHEDULED, next_attempt, restarting
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.recovery import replacing
from ddp_operator.job.planning.words import some
from ddp_operator.job.pods.avoided_nodes import kept_off
from ddp_operator.job.pods.observed import Observed

UNSCHEDULABLE: Final = "Unschedulable"
"""The scheduler's reason for a pod that fits on no node, which it tries again."""


def reschedule(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide that pods which are about to be created avoid nodes by their signals of now, and that
    those which wait in vain because of earlier signals or failures are made anew; None where
    neither is needed.
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
    """Return the nodes that pods without a node keep off and need not, by the pods' node ranks."""
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
    if job.spec.kueue_queue or len(node_ranks) == len(members(job)):
        status = next_attempt(job, job.status)
    else:
        status = replacing(job, job.status, node_ranks, node_ranks)
    names = some([pods.current[node_rank].key.name for node_rank in node_ranks])
    well = some(sorted({name for names in barred.values() for name in names}))
    message = (
        f"creating {names} again (not charged): no node took it while it kept off {well}, "
        "which may be used again"
    )
    return restarting(status, RESCHEDULED, message, now)
