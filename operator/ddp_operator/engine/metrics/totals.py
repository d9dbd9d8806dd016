"""Totals of all jobs, for the operator's metrics: the same number of samples for one job as for
many.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, get_args

from ddp_operator.api.job import DDPJob, NewerJobError
from ddp_operator.api.status import Phase
from ddp_operator.engine.job_cache import Entry
from ddp_operator.job.planning.rejection import stored_status
from ddp_operator.job.status.goodput import KINDS, spent

TRAINING: Final = ("Running", "Restarting")
"""Phases in which a step, and a checkpoint, is expected."""


@dataclass(frozen=True)
class Totals:
    """Totals of the existing jobs."""

    phases: Mapping[str, int] = field(default_factory=dict)
    newer_jobs: int = 0
    """Jobs with a spec that only a newer operator reads."""
    seconds: Mapping[str, int] = field(default_factory=dict)
    """How the jobs spent their age so far, as in `status.goodput`."""
    oldest_step: datetime | None = None
    """Last step of the training that has waited longest for the next one."""
    oldest_checkpoint: datetime | None = None
    """Last checkpoint of the training that has waited longest for the next one."""


def count_jobs(entries: Iterable[Entry], *, now: datetime) -> Totals:
    """Count jobs. An invalid job counts as failed, as its status says, too, unless it began."""
    phases = Counter[str](dict.fromkeys(get_args(Phase), 0))
    seconds = Counter[str](dict.fromkeys(KINDS, 0))
    steps: list[datetime] = []
    checkpoints: list[datetime] = []
    newer = 0
    for entry in entries:
        job = entry.outline
        newer += isinstance(entry.problem, NewerJobError)
        if isinstance(job, NewerJobError):
            continue  # this operator does not know its phase
        if not isinstance(job, DDPJob):
            known = stored_status(entry.manifest)
            phases[known.phase if known.start_time else "Failed"] += 1
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
