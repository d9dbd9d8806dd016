"""How fast a job goes, and what became of its time."""

from collections import Counter
from datetime import datetime
from typing import Final

from ddp_operator.job.status import goodput
from ddp_operator.views.job.snapshot import SeenJob

_TOO_SHORT: Final = 30.0
"""Seconds of training that tell nothing of its speed yet: the first step takes long."""


def spent(seen: SeenJob, now: datetime) -> Counter[str]:
    """Seconds of the job's age by what they were spent on, as `goodput.KINDS` has them."""
    return goodput.spent(seen.status, created=seen.created, now=now)


def training_ratio(seen: SeenJob, now: datetime) -> float | None:
    """Share of the time in which the job was not suspended that went into training that counts;
    None before it has trained.
    """
    total = spent(seen, now)
    active = sum(total.values()) - total["suspended"]
    return total["training"] / active if active > 0 and total["training"] else None


def remaining_seconds(seen: SeenJob, now: datetime) -> float | None:
    """How long the steps that are left take, at the mean speed of those that were done; None where
    that cannot be told.
    """
    progress = seen.status.progress
    if seen.status.phase != "Running" or progress is None or not progress.total_steps:
        return None
    trained = spent(seen, now)["training"]
    left = progress.total_steps - progress.step
    if trained < _TOO_SHORT or progress.step <= 0 or left <= 0:
        return None
    return left * trained / progress.step
