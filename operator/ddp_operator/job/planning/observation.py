"""Take what pods, launchers and the trainer show into the job's status, before any decision."""

from dataclasses import replace
from datetime import datetime

from ddp_operator.api.constants import LABEL_JOB_NAME
from ddp_operator.api.job import DDPJob
from ddp_operator.api.values.text import in_ranges
from ddp_operator.job.failure import causes, starts
from ddp_operator.job.membership.rank_order import is_first_due
from ddp_operator.job.membership.world import members, world_of
from ddp_operator.job.planning import gap_records, gaps
from ddp_operator.job.planning.gaps import in_present_group
from ddp_operator.job.planning.group import spares
from ddp_operator.job.pods.observed import Observed, settled
from ddp_operator.job.status import memory_checkpoint, progress, slow_rank
from ddp_operator.job.status.progress import Report
from ddp_operator.ports import Event


def observe(
    job: DDPJob, pods: Observed, report: Report | None, now: datetime
) -> tuple[DDPJob, Observed, tuple[Event, ...]]:
    """Return an active job and its pods with what is observed now, and Events about it."""
    events: tuple[Event, ...] = ()
    status = progress.with_report(job, report)
    status = progress.with_last_words(status, pods.current.get(0), now)
    if job.spec.memory_checkpoint:
        status, events = memory_checkpoint.with_report(job, status, pods)
    if status.slow_rank or (report and report.status and report.status.pace):
        status, slowed = slow_rank.with_pace(job, status, report, pods)
        events += slowed
    seen = replace(job, status=status)
    if progress.is_done(status):
        pods = _with_lost_as_completed(seen, pods)
    if not job.spec.suspend:
        pods = replace(pods, gaps=gaps.find(job, pods, now))
    return with_counts(seen, pods, now), pods, events


def _with_lost_as_completed(job: DDPJob, pods: Observed) -> Observed:
    """Count lost pods of a job that is done as completed."""
    gone = {place.index for place in causes.vanished(job, pods)}
    current = {
        index: replace(pod, ignored=True) if pod.disrupted else pod
        for index, pod in pods.current.items()
    }
    return replace(
        pods,
        current=current,
        missing=tuple(place for place in pods.missing if place.index not in gone),
        creatable=tuple(place for place in pods.creatable if place.index not in gone),
        completed=pods.completed | gone,
    )


def with_counts(job: DDPJob, pods: Observed, now: datetime) -> DDPJob:
    """Return the job with what was observed in its status: generation, ready and completed pods."""
    present = pods.current.values()
    # All pods of a running group have acknowledged it, perhaps to an earlier operator. The group
    # as it begins needs no acknowledgement.
    known = job.status.is_true("Running") or not (world_of(job).generation or is_first_due(job))
    ready = sum(
        pod.succeeded
        or (
            (pod.ready and not pod.failed)
            and (known or in_present_group(job, pods, pod, started=True))
        )
        for pod in present
    )
    ready += len(pods.completed)
    completed = pods.completed.union(settled(present, now))
    wanted = max(job.spec.replicas, len(members(job)))  # an elastic group may have more
    has_spares = job.spec.spares or job.spec.elastic
    waiting = f" +{len(spares.ready(job, pods))}" if has_spares else ""
    status, notes = job.status, job.status.bookkeeping
    if not status.finished:
        began = _first_start(job, pods, now)
        gaps_now = gap_records.record(pods.gaps)
        ran = notes.ran_spec_hash
        if ran != job.spec_hash:
            ran = starts.seen(job, pods)
        status = status.updated(first_pod_start_time=began, gaps=gaps_now).noting(
            launcher=pods.launchers.scope or _known_launcher(job),
            ran_spec_hash=ran,
            spares=spares.seen(job, pods) if pods.spares or notes.spares else (),
        )
    status = status.updated(
        observed_generation=job.generation,
        ready_replicas=ready,
        ready=f"{ready}/{wanted}{waiting}",
        selector=f"{LABEL_JOB_NAME}={job.name}" if job.spec.elastic else "",
        completed_indexes=in_ranges(sorted(completed)) if completed else "",
    )
    return replace(job, status=status)


def _first_start(job: DDPJob, pods: Observed, now: datetime) -> datetime | None:
    """Return when the first pod ran, as far as is known; None if none has."""
    known = job.status.first_pod_start_time
    if known or pods.completed:
        return known or now
    seen = (*pods.current.values(), *pods.spares, *pods.old)
    return now if any(pod.started or pod.exit for pod in seen) else None


def _known_launcher(job: DDPJob) -> str:
    """Return the scope that the launcher reported earlier; empty if the spec changed since."""
    notes = job.status.bookkeeping
    is_edited = notes.accepted_spec_hash not in ("", job.spec_hash)
    return "" if is_edited else notes.launcher
