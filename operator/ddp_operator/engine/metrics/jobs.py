"""Metrics of each job, written for every scrape, so that nothing of a deleted job can stay.

The labels are `job_namespace` and `job_name`, because Prometheus uses `namespace` and `job` for the
scraped target, which is the operator. No other text of a user is in them.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.rules import gpu_limit
from ddp_operator.engine.job_cache import Entry
from ddp_operator.engine.metrics.exposition import head, labels
from ddp_operator.engine.metrics.totals import TRAINING
from ddp_operator.job.status.goodput import KINDS, spent

JOBS: Final = 1000
"""Jobs with their own metrics: at most 25 samples each, 1.7 MB and about 30 ms for each scrape."""

_SHOWN_AFTER_END: Final = timedelta(hours=1)
"""How long a finished job keeps its metrics. Its last numbers and its end are then scraped even if
Prometheus is away for a while, and alerts can wait some minutes."""

_HELP: Final = {
    "phase": "1 for the phase that the job is in; other phases are absent.",
    "created_timestamp_seconds": "When the job was created.",
    "step": "Last step that the trainer reported; it falls when steps are repeated.",
    "target_steps": "Steps of the whole training, if the trainer reports it.",
    "loss": "Last loss that the trainer reported.",
    "samples_per_second": "Last rate that the trainer reported, while the job is Running.",
    "slow_rank_ratio": "Own time per step of a slow rank, divided by the mean of the other ranks, "
    "while the job is Running.",
    "last_step_timestamp_seconds": "When a step was last completed, or first seen.",
    "checkpoint_step": "Step of the latest checkpoint that the trainer reported.",
    "checkpoint_timestamp_seconds": "When that checkpoint was complete, if the trainer reports it.",
    "memory_checkpoint_step": "Newest step with all snapshots and copies in the memory of pods.",
    "memory_checkpoint_timestamp_seconds": "When they were complete.",
    "restarts": "Restarts, by whether they count against restart.maxRestarts.",
    "attempt": "Starts of the whole gang, from 0.",
    "replicas": "Pods that the job requests.",
    "replicas_ready": "Ready pods of the job.",
    "gpus": "GPUs, or shares of them, of all pods that the job requests; absent if spec.overrides "
    "makes pods differ.",
    "seconds": "How the job spent its age, in seconds.",
    "goodput_ratio": "Part of the time since the job began to start that was training and not "
    "lost to a failure.",
    "lost_steps": "Steps that had to be repeated.",
}
"""Help text of each metric. All are gauges: even restarts fall if one turns out not to be
charged."""


@dataclass(frozen=True)
class Chosen:
    """Jobs with their own metrics, and the number of jobs left out for lack of room."""

    jobs: Sequence[DDPJob] = ()
    left_out: int = 0


def choose(entries: Iterable[Entry], *, limit: int, now: datetime) -> Chosen:
    """Choose the jobs that have their own metrics: first those that train, then other unfinished
    ones, then those that ended within the hour.

    Within each kind the namespaces take turns, the oldest job first. So nobody can displace the
    jobs of others by creating thousands. Invalid jobs have no metrics. With a limit of 0 metrics of
    jobs are off, and no job counts as left out.
    """
    if limit == 0:
        return Chosen()
    outlines = (entry.outline for entry in entries)
    jobs = [job for job in outlines if isinstance(job, DDPJob) and _shown(job, now)]
    if len(jobs) <= limit:
        return Chosen(jobs)
    queues: dict[tuple[int, str], list[DDPJob]] = defaultdict(list)
    for job in jobs:
        queues[_kind(job), job.namespace].append(job)
    turns: list[tuple[int, int, str, DDPJob]] = []
    for (kind, namespace), queue in queues.items():
        queue.sort(key=lambda job: (job.created, job.name))
        turns += [(kind, place, namespace, job) for place, job in enumerate(queue[:limit])]
    turns.sort(key=itemgetter(0, 1, 2))
    return Chosen([job for *_, job in turns[:limit]], left_out=len(jobs) - limit)


def text_of(jobs: Iterable[DDPJob], *, now: datetime) -> str:
    """Return all metrics of these jobs as text."""
    lines: dict[str, list[str]] = {
        name: list(head(f"ddpjob_{name}", "gauge", said)) for name, said in _HELP.items()
    }
    for job in jobs:
        who = labels((("job_namespace", job.namespace), ("job_name", job.name)))
        for name, more, value in _samples(job, now):
            if value is not None and math.isfinite(value):
                lines[name].append(f"ddpjob_{name}{{{who}{more}}} {value}")
    return "".join(f"{one}\n" for family in lines.values() for one in family)


def _shown(job: DDPJob, now: datetime) -> bool:
    status = job.status
    ended = status.completion_time
    return not status.finished or (ended is not None and now - ended < _SHOWN_AFTER_END)


def _kind(job: DDPJob) -> int:
    if job.status.finished:
        return 2
    return 0 if job.status.phase in TRAINING else 1


_Sample = tuple[str, str, float | None]
"""Name, additional labels, value; None: unknown, so it is left out."""


def _samples(job: DDPJob, now: datetime) -> Iterator[_Sample]:
    status, spec = job.status, job.spec
    yield "phase", f',phase="{status.phase}"', 1
    yield "created_timestamp_seconds", "", job.created.timestamp()
    yield "restarts", ',charged="true"', status.restarts
    yield "restarts", ',charged="false"', status.disruptions
    yield "attempt", "", status.attempt
    yield "replicas", "", spec.replicas
    yield "replicas_ready", "", status.ready_replicas
    if not spec.overrides:
        yield "gpus", "", spec.replicas * gpu_limit(spec)
    yield from _progress(job)
    yield from _time(job, now)


def _progress(job: DDPJob) -> Iterator[_Sample]:
    status, is_running = job.status, job.status.phase == "Running"
    if told := status.progress:
        at = told.last_step_time or told.updated_at
        yield "step", "", told.step
        yield "last_step_timestamp_seconds", "", at.timestamp()
        yield "target_steps", "", told.total_steps
        yield "loss", "", told.loss
        yield "samples_per_second", "", told.samples_per_second if is_running else None
    if status.slow_rank and is_running:
        yield "slow_rank_ratio", "", status.slow_rank.ratio
    if saved := status.checkpoint:
        yield "checkpoint_step", "", saved.step
        yield "checkpoint_timestamp_seconds", "", saved.time.timestamp() if saved.time else None
    if copied := status.memory_checkpoint:
        yield "memory_checkpoint_step", "", copied.step
        time = copied.time if copied.step is not None else None
        yield "memory_checkpoint_timestamp_seconds", "", time.timestamp() if time else None


def _time(job: DDPJob, now: datetime) -> Iterator[_Sample]:
    seconds = spent(job.status, created=job.created, now=now)
    for kind in KINDS:
        yield "seconds", f',kind="{kind}"', seconds[kind]
    since_start = seconds["starting"] + seconds["training"] + seconds["lost"]
    if since_start:
        yield "goodput_ratio", "", seconds["training"] / since_start
    if job.status.goodput is not None:
        yield "lost_steps", "", job.status.goodput.steps_lost
