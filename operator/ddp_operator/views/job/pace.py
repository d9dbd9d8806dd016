"""How fast a job goes, and what became of its time."""

from collections import Counter
from datetime import datetime
from typing import Final

from ddp_operator.job.status import goodput
from ddp_operator.views.job.snapshot import JobSnapshot

_TOO_SHORT: Final = 30.0
"""Seconds of training that tell nothing of its speed yet: the first step takes long."""


def spent(job: JobSnapshot, now: datetime) -> Counter[str]:
    """Seconds of the job's age by what they were spent on, as `goodput.KINDS` has them."""
    return goodput.spent(job.status, created=job.created, now=now)


def training_ratio(job: JobSnapshot, now: datetime) -> float | None:
    """Share of the time in which the job was not suspended that went into training that counts;
    None before it has trained.
    """
    total = spent(job, now)
    active = sum(total.values()) - total["suspended"]
    return total["training"] / active if active > 0 and total["training"] else None


def remaining_seconds(job: JobSnapshot, now: datetime) -> float | None:
    """How long the steps that are left take, at the mean speed of those that were done; None where
    that cannot be told.
    """
    progress = job.status.progress
    if job.status.phase != "Running" or progress is None or not progress.total_steps:
        return None
    trained = spent(job, now)["training"]
    left = progress.total_steps - progress.step
    if trained < _TOO_SHORT or progress.step <= 0 or left <= 0:
        return None
    return left * trained / progress.step
