"""What becomes of the pods of a job that has finished, and of the job itself."""

from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.state import PodState

SIDE_CAR_SECONDS: Final = 30
"""What a side car gets to end by itself after a finished job's trainer, such as one that ships its
logs, before its pod is told to go: as long as Kubernetes leaves a pod by default."""


KEPT_SECONDS: Final = 75
"""What a pod gets to end by itself, and keep its log, in which the processes have failed that its
job has failed of: its launcher waits a minute for what is decided, and then ends."""


def clean_up(job: DDPJob, pods: Observed, now: datetime) -> Plan:
    """Plan for a job that has finished: give up what holds resources, then the job when its time
    has come.
    """
    policy = job.spec.clean_pod_policy
    doomed = [pod for pod in (*pods.old, *pods.spares) if not pod.deleting]
    waits: list[datetime] = []
    for pod in pods.current.values():
        runs_until = _runs_until(job, pod, now)
        if pod.deleting or policy == "None":
            continue
        if policy == "All" or (runs_until is not None and runs_until <= now):
            doomed.append(pod)
        elif runs_until is not None:
            waits.append(runs_until)
    expires = expiry(job)
    expired = expires is not None and expires <= now
    if expires is not None and not expired:
        waits.append(expires)
    return Plan(
        job.status,
        delete=tuple(pod.key for pod in doomed),
        delete_job=expired,
        requeue_at=min(waits, default=None),
    )


def _runs_until(job: DDPJob, pod: PodState, now: datetime) -> datetime | None:
    """Until when a pod of a finished job may run; None for one that has ended."""
    if not (pod.succeeded or pod.failed):
        ended = job.status.completion_time if _has_failed_inside(job, pod) else None
        return min(ended, now) + timedelta(seconds=KEPT_SECONDS) if ended else now
    if not pod.held_by:
        return None
    ended = (pod.exit.finished if pod.exit else None) or now
    return min(ended, now) + timedelta(seconds=SIDE_CAR_SECONDS)


def _has_failed_inside(job: DDPJob, pod: PodState) -> bool:
    """Whether the job has failed of processes that have ended in a pod which has not."""
    cause = job.status.failures[-1] if job.status.failures else None
    if cause is None or cause.action != "FailJob" or pod.started is None:
        return False
    return cause.pod == pod.key.name and cause.exit_code is not None


def expiry(job: DDPJob) -> datetime | None:
    """Return when a job that has finished is deleted; None: not by itself."""
    ttl, completed = job.spec.ttl_seconds_after_finished, job.status.completion_time
    if ttl is None or completed is None:
        return None
    return completed + timedelta(seconds=ttl)
