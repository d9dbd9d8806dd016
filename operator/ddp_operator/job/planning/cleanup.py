"""Cleanup of a finished job: its pods, then the job itself."""

from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.state import PodState

SIDE_CAR_SECONDS: Final = 30
"""How long side cars may run after the trainer of a finished job, for example to ship logs. Then
the pod is deleted. It equals Kubernetes' default grace period."""


KEPT_SECONDS: Final = 75
"""How long a pod stays after its processes made the job fail. Its launcher waits a minute for a
decision and then ends by itself, which keeps the pod's log."""


def clean_up(job: DDPJob, pods: Observed, now: datetime) -> Plan:
    """Plan for a finished job: delete pods that hold resources, and after its TTL the job."""
    policy = job.spec.clean_pod_policy
    doomed = [*pods.old, *pods.spares]
    waits: list[datetime] = []
    for pod in pods.current.values() if policy != "None" else ():
        runs_until = _runs_until(job, pod, now)
        if policy == "All" or (runs_until and runs_until <= now):
            doomed.append(pod)
        elif runs_until and not pod.deleting:
            waits.append(runs_until)
    deleted = tuple(pod.key for pod in doomed if not pod.deleting)
    return Plan(job.status, delete=deleted).expiring(expiry(job), now).requeued_at(*waits)


def _runs_until(job: DDPJob, pod: PodState, now: datetime) -> datetime | None:
    """Return until when a pod of a finished job may run; None for one that has ended."""
    if not (pod.succeeded or pod.failed):
        ended = job.status.completion_time if _has_failed_inside(job, pod) else None
        return min(ended, now) + timedelta(seconds=KEPT_SECONDS) if ended else now
    if not pod.held_by:
        return None
    ended = (pod.exit.finished if pod.exit else None) or now
    return min(ended, now) + timedelta(seconds=SIDE_CAR_SECONDS)


def _has_failed_inside(job: DDPJob, pod: PodState) -> bool:
    """Return whether processes in this pod made the job fail while the pod itself still runs."""
    cause = job.status.failures[-1] if job.status.failures else None
    if cause is None or cause.action != "FailJob" or pod.started is None:
        return False
    return cause.pod == pod.key.name and cause.exit_code is not None


def expiry(job: DDPJob) -> datetime | None:
    """Return when to delete a finished job; None if nobody asked for that."""
    ttl, completed = job.spec.ttl_seconds_after_finished, job.status.completion_time
    if ttl is None or completed is None:
        return None
    return completed + timedelta(seconds=ttl)
