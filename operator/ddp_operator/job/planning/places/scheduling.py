"""Partly placed gangs, which hold nodes or quota while their other pods wait.

Two jobs that each hold half of what one needs would block each other forever. After a timeout a job
deletes its pods and retries later.
"""

import zlib
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.job.failure.budget import pause_seconds
from ddp_operator.job.membership.world import members
from ddp_operator.job.planning.decisions import next_attempt, restarting
from ddp_operator.job.planning.gaps import POLICY
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.words import some
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.schedulers.kueue import provides_nodes

NODES_SECONDS: Final = 600
"""How long restarting pods may wait for nodes that a queue has provided, by default. GKE removes
such nodes after ten minutes without pods. At the first start, they may still be coming."""


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
