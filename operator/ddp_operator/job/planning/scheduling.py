"""Gangs of which only a part finds nodes.

Without a gang scheduler two jobs can each hold half of the nodes that one of them needs, and wait
for the other half for ever. A job that has waited long enough gives up what it holds, and asks
again later.
"""

from datetime import datetime, timedelta

from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning.decisions import next_attempt, restarting
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.state import PodState

SCHEDULING_TIMEOUT = "SchedulingTimeout"

FIRST_PAUSE_SECONDS = 10
LONGEST_PAUSE_SECONDS = 300
"""The pause before the next try doubles from the one to the other: Kubernetes' own back-off limits
for pods that crash."""


def timeout_due(job: DDPJob, pods: Observed) -> datetime | None:
    """Return when a gang that is placed only in part gives up; None when nothing is to be awaited.

    A gang without any node holds nothing that others wait for: it keeps its place in the queue.
    """
    created = job.status.condition("PodsCreated")
    limit = job.spec.scheduling_timeout_seconds
    if limit is None or created is None or created.status != "True" or pods.missing:
        return None
    if not _waiting(pods) or not any(pod.scheduled for pod in pods.current.values()):
        return None
    return created.last_transition_time + timedelta(seconds=limit)


def release_half_placed(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide to give up the nodes of a gang that waited for the others for too long; None while it
    may wait.
    """
    due = timeout_due(job, pods)
    if due is None or now < due:
        return None
    retries = job.status.scheduling_retries
    pause = min(FIRST_PAUSE_SECONDS * 2 ** min(retries, 10), LONGEST_PAUSE_SECONDS)
    message = _in_words(job, _waiting(pods))
    update = {
        "scheduling_retries": retries + 1,
        "next_start_time": now + timedelta(seconds=pause),
    }
    status = next_attempt(job.status).model_copy(update=update)
    return restarting(status, SCHEDULING_TIMEOUT, message, now, event=SCHEDULING_TIMEOUT)


def _waiting(pods: Observed) -> list[PodState]:
    """Pods that no node takes, by index."""
    waiting = (p for p in pods.current.values() if not p.scheduled and not p.failed)
    return sorted(waiting, key=lambda pod: pod.identity.index)


def _in_words(job: DDPJob, waiting: list[PodState]) -> str:
    """Say which pods wait and, once for each, what the scheduler says they wait for."""
    by_cause: dict[str, list[str]] = {}
    for pod in waiting:
        cause = pod.waiting_message or "the scheduler has not said why"
        by_cause.setdefault(cause, []).append(pod.key.name)
    causes = "; ".join(f"{_some(names)}: {cause}" for cause, names in by_cause.items())
    placed = job.spec.replicas - len(waiting)
    return (
        f"only {placed} of {job.spec.replicas} pods got a node within "
        f"spec.schedulingTimeoutSeconds ({job.spec.scheduling_timeout_seconds}); they are given up "
        f"for others to use. Waiting were {causes}"
    )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
