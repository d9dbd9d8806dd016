"""Which old pods must end before new ones are created.

Two ranks 0 could write into one checkpoint, and old pods hold the GPUs that new ones need.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.schedulers.kueue import kueue_group
from ddp_operator.job.pods.state import PodState

SILENT_SECONDS: Final = 10
"""How long to wait for a pod after its grace period. Kubelets kill the rest at once and report it
within seconds; an unreachable node may stay so for hours."""

COLLECTION_SECONDS: Final = 30
"""How long the garbage collector may take to delete the pods of an earlier job of the same name."""


def awaited(job: DDPJob, pods: Observed, now: datetime) -> list[PodState]:
    """Return the pods that must end before this job's missing pods are created."""
    policy = job.spec.restart.replace_when
    places = keeping_places(job, pods)
    if kept := [places[gone.slot] for gone in pods.missing if gone.slot in places]:
        return kept  # Kueue would delete their replacements
    if policy == "Terminating":
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
    return _unfinished(job, candidates, now)


def keeping_places(job: DDPJob, pods: Observed) -> dict[int, PodState]:
    """Return the old pods by slot whose places in a queue no other pod can take yet."""
    if not job.spec.kueue_queue:
        return {}
    own = kueue_group(job)
    return {
        pod.identity.slot: pod
        for pod in pods.old
        if pod.queue and pod.queue.group == own and pod.keeps_place
    }


def still_at_work(job: DDPJob, pods: Observed, now: datetime) -> list[PodState]:
    """Return replaced pods of this attempt that may still save. Processes that restart in place
    would save to the same place.
    """
    if job.spec.restart.replace_when == "Terminating":
        return []
    attempt = job.status.attempt
    mine = (pod for pod in pods.old if pod.identity.attempt == attempt and pod.started)
    return _unfinished(job, mine, now)


def awaited_until(job: DDPJob, pod: PodState, now: datetime) -> datetime:
    """Return until when to wait for a pod."""
    if pod.ends_by is not None:
        return pod.ends_by + timedelta(seconds=SILENT_SECONDS)
    if pod.owner_uid != job.uid:
        return job.created + timedelta(seconds=COLLECTION_SECONDS)
    return now + timedelta(seconds=pod.grace_seconds + SILENT_SECONDS)  # it is deleted at once


def _unfinished(job: DDPJob, pods: Iterable[PodState], now: datetime) -> list[PodState]:
    """Return the pods that still write or may start. A deleted pod without a node is gone at once;
    one that is not deleted may still get a node.
    """
    return [
        pod
        for pod in pods
        if not (pod.succeeded or pod.failed or (pod.deleting and not pod.scheduled))
        and now < awaited_until(job, pod, now)
    ]
