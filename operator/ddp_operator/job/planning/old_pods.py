"""Who has to end before new pods come: two ranks 0 may write into one checkpoint, and old pods hold
the GPUs that the new ones want.
"""

from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.state import PodState

SILENT_SECONDS: Final = 10
"""How long after its time a pod that does not end is waited for: kubelets kill what is left at once
and say so within seconds. One that does not is out of reach, and so may its node be for hours."""

COLLECTION_SECONDS: Final = 30
"""How long pods of an earlier job may take to be told that it is gone: the garbage collector tells
them within moments, unless it is busy."""


def awaited(job: DDPJob, pods: Observed, now: datetime) -> list[PodState]:
    """Return the pods that are to end before this job's missing ones are created."""
    policy = job.spec.restart.replace_when
    if policy == "Terminating" or not pods.missing:
        return []
    candidates = (*pods.old, *pods.foreign)
    if replacing := frozenset(job.status.bookkeeping.replacing):
        if policy != "Gone":
            return []
        candidates = tuple(
            pod
            for pod in pods.old
            if pod.identity.attempt == job.status.attempt and pod.identity.slot in replacing
        )
    return [pod for pod in candidates if not _is_over(pod) and now < awaited_until(job, pod, now)]


def still_at_work(job: DDPJob, pods: Observed, now: datetime) -> list[PodState]:
    """Return the pods of this attempt that have lost their places and may still save: processes
    that start anew in place would save to where those do.
    """
    if job.spec.restart.replace_when == "Terminating":
        return []
    attempt = job.status.attempt
    mine = (pod for pod in pods.old if pod.identity.attempt == attempt and pod.started)
    return [pod for pod in mine if not _is_over(pod) and now < awaited_until(job, pod, now)]


def awaited_until(job: DDPJob, pod: PodState, now: datetime) -> datetime:
    """Until when a pod is waited for."""
    if pod.ends_by is not None:
        return pod.ends_by + timedelta(seconds=SILENT_SECONDS)
    if pod.owner_uid != job.uid:
        return job.created + timedelta(seconds=COLLECTION_SECONDS)
    return now + timedelta(seconds=pod.grace_seconds + SILENT_SECONDS)  # it will be told at once


def _is_over(pod: PodState) -> bool:
    """Whether its trainer writes no more, or will never begin: what has no node is gone at once
    when it is deleted, but until then it may get one.
    """
    return pod.succeeded or pod.failed or (pod.deleting and not pod.scheduled)
