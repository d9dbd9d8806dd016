"""Pods that wait for nodes.

Partly placed gangs hold nodes or quota while their other pods wait. Two jobs that each hold half of
what one needs would block each other forever. After a timeout a job deletes its pods and retries
later.

A pod's node affinity cannot change, so pending pods are recreated if they must not run on a node
that is needed, or usable again. If a pod fits on no node for some minutes, the nodes that pods must
not use may be the only ones left: then the job uses those again that failed least.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec.overrides import spec_of
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job.failure.budget import pause_seconds
from ddp_operator.job.failure.nodes import usable_again, with_bad_nodes
from ddp_operator.job.membership.world import members
from ddp_operator.job.planning.decisions import RESCHEDULED, next_attempt, restarting
from ddp_operator.job.planning.failures.recovery import replacing
from ddp_operator.job.planning.gaps import POLICY
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.words import some
from ddp_operator.job.pods.avoided_nodes import kept_off
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.schedulers.kueue import provides_nodes
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Nodes

NODES_SECONDS: Final = 600
"""How long restarting pods may wait for nodes that a queue has provided, by default. GKE removes
such nodes after ten minutes without pods. At the first start, they may still be coming."""
UNSCHEDULABLE: Final = "Unschedulable"
"""The scheduler's reason for a pod that fits on no node; it retries."""
PATIENCE: Final = timedelta(minutes=5)
"""How long a pod may fit on no node before a node that failed once is used again: an autoscaler has
usually added a node by then. Each further failure doubles it, so that a job in a full cluster does
not use up its restarts on a broken node while it waits."""
_MAX_DOUBLINGS: Final = 6
_MAX_RETRIES: Final = 100
"""More than the longest patience allows."""


def timeout_due(job: DDPJob, pods: Observed) -> datetime | None:
    """Return when a partly placed gang releases its nodes or quota; None for one without any, which
    keeps its place in the queue.
    """
    waiting = [gap for gap in pods.gaps if POLICY[gap.reason].unplaced]
    refused = {gap.node_rank for gap in waiting if gap.reason == "Refused"}
    limit = job.spec.scheduling_timeout_seconds if refused else _limit(job)
    if limit is None or any(gone.index not in refused for gone in pods.missing):
        return None
    held = (pod for pod in pods.current.values() if not (pod.succeeded or pod.failed))
    if not waiting or not any(pod.scheduled or refused for pod in held):
        return None
    since = min(gap.since for gap in waiting if not refused or gap.reason == "Refused")
    return since + timedelta(seconds=limit)


def release_half_placed(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide to delete a gang's pods that waited too long for the rest."""
    due = timeout_due(job, pods)
    if due is None or now < due:
        return None
    retries = job.status.bookkeeping.scheduling_retries
    pause = pause_seconds(retries)
    # Jitter, so that two jobs that released at the same time do not collide again.
    pause += pause * zlib.crc32(f"{job.uid}/{retries}".encode()) // 2**32
    message = _message(job, pods)
    status = next_attempt(job, job.status, new_group=True).noting(scheduling_retries=retries + 1)
    status = status.updated(next_start_time=now + timedelta(seconds=pause))
    return restarting(status, "SchedulingTimeout", message, now, event="SchedulingTimeout")


def _limit(job: DDPJob) -> int | None:
    has_nodes = provides_nodes(job.spec) and job.status.is_true("Restarting")
    return job.spec.scheduling_timeout_seconds or (NODES_SECONDS if has_nodes else None)


def _message(job: DDPJob, pods: Observed) -> str:
    """Return which pods wait, grouped by what they wait for."""
    waiting = [pod for pod in pods.current.values() if not (pod.scheduled or pod.failed)]
    running = job.status.condition("Running")
    by_cause: dict[str, list[str]] = {}
    if pods.missing and running is not None:
        by_cause[running.message] = [each.pod_name(job.name) for each in pods.missing]
    for pod in waiting:
        cause = pod.waiting_message or "the scheduler gave no reason"
        by_cause.setdefault(cause, []).append(pod.key.name)
    causes = "; ".join(f"{some(names)}: {cause}" for cause, names in by_cause.items())
    size = len(members(job))
    placed = size - len(waiting) - len(pods.missing)
    return (
        f"only {placed} of {size} pods got a node within "
        f"spec.schedulingTimeoutSeconds ({_limit(job)}), so all "
        f"release theirs; waiting: {causes}"
    )


def reschedule(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide to recreate pods that wait because of outdated node affinity, or update the nodes to
    avoid before pods are created.
    """
    waiting = _waiting(job, pods)
    creates = bool(pods.creatable or pods.spares_missing)
    if not (waiting or creates):
        return None
    late = [name for name, due in _dues(job, pods, waiting).items() if due <= now]
    status = with_bad_nodes(job, usable_again(job.status, late), pods.nodes)
    if outdated := _outdated(job, status, pods.nodes, waiting):
        return _recreate(replace(job, status=status), pods, outdated, now)
    changed = status.bookkeeping.nodes, status.bookkeeping.barred_nodes, status.excluded_nodes
    known = job.status.bookkeeping
    if not creates or changed == (known.nodes, known.barred_nodes, job.status.excluded_nodes):
        return None
    return Plan(status, decided=True)


def next_change(job: DDPJob, pods: Observed) -> datetime | None:
    """Return when nodes are used again because pods fit on no other; None if none are."""
    if not job.status.bookkeeping.barred_nodes:
        return None
    return min(_dues(job, pods, _waiting(job, pods)).values(), default=None)


def _waiting(job: DDPJob, pods: Observed) -> Mapping[int, PodState]:
    """Return the pods that fit on no node and must not use some. A queue that knows the nodes may
    hold all pods back for that.
    """
    queues = job.spec.kueue_queue and job.spec.topology and not job.prebuilt_workload
    held = queues and all(pod.gated for pod in pods.current.values())
    return {
        node_rank: pod
        for node_rank, pod in pods.current.items()
        if pod.avoids and (pod.waiting == UNSCHEDULABLE or held)
        if not (pod.deleting or pod.failed)
    }


def _dues(job: DDPJob, pods: Observed, waiting: Mapping[int, PodState]) -> dict[str, datetime]:
    """Return when each node is used again on which pods must not run."""
    notes = job.status.bookkeeping
    if not waiting:
        return {}
    since = min((gap.since for gap in pods.gaps if gap.node_rank in waiting), default=None)
    since = since or notes.queued_since  # a pod that its queue holds has no gap
    if since is None:
        return {}
    # Half-placed pods that gave their nodes back have waited before.
    timeout, retries = job.spec.scheduling_timeout_seconds or 0, notes.scheduling_retries
    earlier = (timeout + pause_seconds(retry) for retry in range(min(retries, _MAX_RETRIES)))
    since -= timedelta(seconds=sum(earlier))
    failures = {record.name: record.failures for record in notes.nodes}
    doublings = {name: max(failures.get(name, 1) - 1, 0) for name in notes.barred_nodes}
    return {name: since + PATIENCE * 2 ** min(n, _MAX_DOUBLINGS) for name, n in doublings.items()}


def _outdated(
    job: DDPJob, status: DDPJobStatus, nodes: Nodes, waiting: Mapping[int, PodState]
) -> dict[int, Sequence[str]]:
    """Return the nodes that pending pods need not stay off any more, by node rank."""
    barred = status.bookkeeping.barred_nodes
    found: dict[int, Sequence[str]] = {}
    for node_rank, pod in waiting.items():
        names = set(pod.avoids).difference(barred)
        if names and nodes:
            names = {name for name, node in nodes.by_name.items() if not node.unready} & names
        if names:
            names.difference_update(kept_off(spec_of(job.spec, node_rank).template["spec"]))
        if names:
            found[node_rank] = sorted(names)
    return found


def _recreate(
    job: DDPJob, pods: Observed, outdated: Mapping[int, Sequence[str]], now: datetime
) -> Plan:
    node_ranks = sorted(outdated)
    if len(node_ranks) == len(members(job)):
        is_held = all(pod.gated for pod in pods.current.values())
        status = next_attempt(job, job.status, new_group=is_held)
    else:
        status = replacing(job, job.status, node_ranks, node_ranks)
    names = some([pods.current[node_rank].key.name for node_rank in node_ranks])
    usable = some(sorted({name for names in outdated.values() for name in names}))
    message = f"recreating {names} (not charged): no node fits, and {usable} may be used again"
    return restarting(status, RESCHEDULED, message, now, event=RESCHEDULED)
