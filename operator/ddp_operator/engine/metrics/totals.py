"""What all jobs together are at a moment, for the metrics: as many numbers for one as for all."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, get_args

from ddp_operator.api.job import DDPJob, NewerJobError
from ddp_operator.api.status import Phase
from ddp_operator.engine.job_cache import Entry
from ddp_operator.job.status.goodput import KINDS, spent

TRAINING: Final = ("Running", "Restarting")
"""Phases in which a step, and a checkpoint, is waited for."""


@dataclass(frozen=True)
class Totals:
    """Of the jobs that there are."""

    phases: Mapping[str, int] = field(default_factory=dict)
    newer_jobs: int = 0
    """Those that only a newer operator understands, which are in no phase."""
    seconds: Mapping[str, int] = field(default_factory=dict)
    """What their ages were spent on so far, as `status.goodput` has it."""
    oldest_step: datetime | None = None
    """When the training that has waited longest for a step made its last one."""
    oldest_checkpoint: datetime | None = None
    """When the training that has waited longest for a checkpoint made its last one."""


def count_jobs(entries: Iterable[Entry], *, now: datetime) -> Totals:
    """Count jobs; one that no operator understands counts as failed, which its status says, too."""
    phases = Counter[str](dict.fromkeys(get_args(Phase), 0))
    seconds = Counter[str](dict.fromkeys(KINDS, 0))
    steps: list[datetime] = []
    checkpoints: list[datetime] = []
    newer = 0
    for entry in entries:
        job = entry.job
        if isinstance(job, NewerJobError):
            newer += 1  # what becomes of it is not for this operator to say
            continue
        if not isinstance(job, DDPJob):
            phases["Failed"] += 1
            continue
        status = job.status
        phases[status.phase] += 1
        seconds.update(spent(status, created=job.created, now=now))
        if status.phase not in TRAINING:
            continue
        if status.progress is not None:
            steps.append(status.progress.updated_at)
        if status.checkpoint is not None and status.checkpoint.time is not None:
            checkpoints.append(status.checkpoint.time)
    return Totals(
        phases,
        newer_jobs=newer,
        seconds=seconds,
        oldest_step=min(steps, default=None),
        oldest_checkpoint=min(checkpoints, default=None),
    )
