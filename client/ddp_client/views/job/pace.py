"""A job's speed, and how its time was spent."""

from collections import Counter
from datetime import datetime
from typing import Final

from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job.status import goodput

from ddp_client.text import duration
from ddp_client.views.job.snapshot import JobSnapshot

_TOO_SHORT: Final = 30.0
"""After fewer seconds of training there is no estimate: the first step takes long."""


def ago(moment: datetime | None, now: datetime) -> str:
    """Return a text such as `, 5m ago`; empty without a time."""
    return f", {duration((now - moment).total_seconds())} ago" if moment else ""


def spent(job: JobSnapshot, now: datetime) -> Counter[str]:
    """Return the seconds of the job's age by kind, see `goodput.KINDS`."""
    return goodput.spent(job.status, created=job.created, now=now)


def training_ratio(job: JobSnapshot, now: datetime) -> float | None:
    """Return the share of time spent on training that was kept; suspended time does not count.

    None before the first step, for a script that reports none, and if it resumed at the last one.
    """
    if job.status.progress is None or trained_nothing(job.status):
        return None
    total = spent(job, now)
    active = sum(total.values()) - total["suspended"]
    return total["training"] / active if active > 0 and total["training"] else None


def trained_nothing(status: DDPJobStatus) -> bool:
    """Return whether a job has completed no step of its own: it resumed at its present step."""
    progress = status.progress
    resumed = status.bookkeeping.resumed_step
    first = not (status.restarts or status.disruptions)
    return first and progress is not None and resumed is not None and progress.step <= resumed


def remaining_seconds(job: JobSnapshot, now: datetime) -> float | None:
    """Return the seconds left at the mean speed so far; None if unknown."""
    progress = job.status.progress
    if job.status.phase != "Running" or progress is None or not progress.total_steps:
        return None
    trained = spent(job, now)["training"]
    left = progress.total_steps - progress.step
    if trained < _TOO_SHORT or progress.step <= 0 or left <= 0:
        return None
    return left * trained / progress.step
