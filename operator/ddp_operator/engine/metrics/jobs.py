"""What there is to say of each job, written anew for every scrape: nothing of one that is gone can
stay.

The labels are `job_namespace` and `job_name`: by `namespace` and `job` Prometheus knows what it
scrapes, which is the operator. No other text of a user's is in them.
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
"""Jobs with metrics of their own: 22 samples of each at most, 1.6 MB and some 30 ms a scrape."""

_SHOWN_AFTER_END: Final = timedelta(hours=1)
"""How long a finished job is told of: its last numbers, and how it ended, are scraped even where
Prometheus is away for a while, and alerts can wait some minutes."""

_HELP: Final = {
    "phase": "1 for the phase that the job is in; the others are not there.",
    "created_timestamp_seconds": "When the job was created.",
    "step": "The last step that the trainer reported; it falls where steps are done again.",
    "target_steps": "Steps of the whole training, where the trainer says so.",
    "loss": "As the trainer reported it last.",
    "samples_per_second": "As the trainer reported it last, while the job is Running.",
    "last_step_timestamp_seconds": "When a step was last completed, or else first seen.",
    "checkpoint_step": "Step of the latest checkpoint that the trainer reported.",
    "checkpoint_timestamp_seconds": "When that checkpoint was complete, where the trainer says so.",
    "restarts": "Restarts, by whether they are charged against restart.maxRestarts.",
    "attempt": "Starts of the whole gang, from 0.",
    "replicas": "Pods that the job wants.",
    "replicas_ready": "Pods of it that are ready.",
    "gpus": "GPUs, or slices, of all pods that the job wants; absent where spec.overrides has "
    "pods differ.",
    "seconds": "What the job's age was spent on.",
    "goodput_ratio": "Of its time since it began to start: the part that training took which was "
    "not lost to a failure.",
    "lost_steps": "Steps that had to be done again.",
}
"""Of each metric. All are gauges: even restarts are fewer once one turns out not to be charged."""


@dataclass(frozen=True)
class Chosen:
    """Jobs that are told of, and how many are not for want of room."""

    jobs: Sequence[DDPJob] = ()
    left_out: int = 0


def choose(entries: Iterable[Entry], *, limit: int, now: datetime) -> Chosen:
    """Choose the jobs that have metrics of their own: those that train, then others that are not
    over, then those that ended within the hour. Of each kind the namespaces take turns, the oldest
    job first, so that nobody who makes thousands of jobs displaces those of others.

    Jobs that cannot be understood have none: nothing is known of them. With a limit of 0 nobody
    asks for any, and none is left out.
    """
    if limit == 0:
        return Chosen()
    jobs = [
        entry.job for entry in entries if isinstance(entry.job, DDPJob) and _shown(entry.job, now)
    ]
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
    """Write down each metric of each job."""
    lines: dict[str, list[str]] = {
        name: list(head(f"ddpjob_{name}", "gauge", said)) for name, said in _HELP.items()
    }
    for job in jobs:
        who = labels((("job_namespace", job.namespace), ("job_name", job.name)))
        for name, more, value in _samples(job, now):
            if math.isfinite(value):
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


_Sample = tuple[str, str, float]
"""Name, more labels, value."""


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
    told, saved = job.status.progress, job.status.checkpoint
    if told is not None:
        yield "step", "", told.step
        at = told.last_step_time or told.updated_at
        yield "last_step_timestamp_seconds", "", at.timestamp()
        if told.total_steps is not None:
            yield "target_steps", "", told.total_steps
        if told.loss is not None:
            yield "loss", "", told.loss
        if told.samples_per_second is not None and job.status.phase == "Running":
            yield "samples_per_second", "", told.samples_per_second
    if saved is not None:
        yield "checkpoint_step", "", saved.step
        if saved.time is not None:
            yield "checkpoint_timestamp_seconds", "", saved.time.timestamp()


def _time(job: DDPJob, now: datetime) -> Iterator[_Sample]:
    seconds = spent(job.status, created=job.created, now=now)
    for kind in KINDS:
        yield "seconds", f',kind="{kind}"', seconds[kind]
    since_start = seconds["starting"] + seconds["training"] + seconds["lost"]
    if since_start:
        yield "goodput_ratio", "", seconds["training"] / since_start
    if job.status.goodput is not None:
        yield "lost_steps", "", job.status.goodput.steps_lost
