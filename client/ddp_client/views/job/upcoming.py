"""The operator's next actions on a job, and when, unless something changes."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning import gap_records, gaps
from ddp_operator.job.planning.cleanup import expiry
from ddp_operator.job.planning.decisions import active_deadline
from ddp_operator.job.planning.places.scheduling import timeout_due
from ddp_operator.job.pods.observed import observe

from ddp_client.text import duration
from ddp_client.views.job import group
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.snapshot import JobSnapshot


def upcoming(job: JobSnapshot, pods: Pods, now: datetime) -> list[str]:
    """Return upcoming events, soonest first.

    The pause before a start is not among them: the screen shows it under "waits for".
    """
    if job.parsed is None or job.deleting or job.suspend:
        return []
    events = sorted(
        (due, words)
        for due, words in _known(job.parsed, pods, now)
        if due is not None and due > now
    )
    return [f"in {duration((due - now).total_seconds())} {words}" for due, words in events]


def _known(job: DDPJob, pods: Pods, now: datetime) -> Iterator[tuple[datetime | None, str]]:
    if job.status.finished:
        yield expiry(job), "the job is deleted (spec.ttlSecondsAfterFinished)"
        return
    yield active_deadline(job), "the job fails (spec.activeDeadlineSeconds)"
    observed = observe(job, [*pods.current.values(), *pods.outside])
    observed = replace(observed, gaps=gap_records.stored(job.status))
    yield gaps.next_due(job, observed), "its pods count as lost, unless they start or answer"
    due = timeout_due(job, observed)
    yield (
        due,
        "the job releases its nodes, unless all pods have one (spec.schedulingTimeoutSeconds)",
    )
    yield from group.changes(job, observed)
    yield _hang_due(job, now), "the job counts as hung, unless it completes a step"


def _hang_due(job: DDPJob, now: datetime) -> datetime | None:
    """Return when a job counts as hung; None in the first half of its progress deadline."""
    running, progress = job.status.condition("Running"), job.status.progress
    if job.spec.progress_deadline_seconds is None or progress is None or running is None:
        return None
    limit = timedelta(seconds=job.spec.progress_deadline_seconds)
    since = max(progress.updated_at, running.last_transition_time)
    is_silent = running.status == "True" and now - since > limit / 2
    return since + limit if is_silent else None
