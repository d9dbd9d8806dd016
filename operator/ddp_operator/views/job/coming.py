"""What will happen to a job by itself, and when, unless something changes."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning import gaps
from ddp_operator.job.planning.cleanup import expiry
from ddp_operator.job.planning.decisions import active_deadline
from ddp_operator.job.planning.scheduling import timeout_due
from ddp_operator.job.pods.observed import observe
from ddp_operator.views.job import group
from ddp_operator.views.job.pods import Pods
from ddp_operator.views.job.snapshot import JobSnapshot
from ddp_operator.views.text import duration


def coming(job: JobSnapshot, pods: Pods, now: datetime) -> list[str]:
    """What comes next, the soonest first; a pause before a start is what a job waits for."""
    if job.parsed is None or job.deleting or job.suspend:
        return []
    found = sorted(
        (due, words)
        for due, words in _known(job.parsed, pods, now)
        if due is not None and due > now
    )
    return [f"in {duration((due - now).total_seconds())} {words}" for due, words in found]


def _known(job: DDPJob, pods: Pods, now: datetime) -> Iterator[tuple[datetime | None, str]]:
    if job.status.finished:
        yield expiry(job), "it is deleted (spec.ttlSecondsAfterFinished)"
        return
    yield active_deadline(job), "it is ended (spec.activeDeadlineSeconds)"
    observed = observe(job, [*pods.current.values(), *pods.outside])
    observed = replace(observed, gaps=gaps.stored(job.status))
    yield gaps.next_due(job, observed), "pods are given up, unless they start or answer"
    half = timeout_due(job, observed)
    yield half, "it gives its nodes back, unless all pods have one (spec.schedulingTimeoutSeconds)"
    yield from group.changes(job, observed)
    yield _hang_due(job, now), "it counts as hung, unless its step moves"


def _hang_due(job: DDPJob, now: datetime) -> datetime | None:
    """Of a job whose step has stood for half of its time: before, it is no news."""
    running, progress = job.status.condition("Running"), job.status.progress
    if job.spec.progress_deadline_seconds is None or progress is None or running is None:
        return None
    limit = timedelta(seconds=job.spec.progress_deadline_seconds)
    since = max(progress.updated_at, running.last_transition_time)
    stands = running.status == "True" and now - since > limit / 2
    return since + limit if stands else None
