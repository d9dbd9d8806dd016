"""The screen of `kubectl ddp status`: one job."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from ddp_operator.api import ranks
from ddp_operator.api.code import Code
from ddp_operator.api.rules.trainer import gpu_limits
from ddp_operator.api.status import Failure
from ddp_operator.api.values.text import clean, counted
from ddp_operator.job.failure import records
from ddp_operator.job.status import goodput

from ddp_client.text import duration, facts, number
from ddp_client.views.job import group, pace, slow_rank
from ddp_client.views.job.advice import operator_missing
from ddp_client.views.job.last_words import readable
from ddp_client.views.job.memory import memory_checkpoint
from ddp_client.views.job.pods import Pods, rows, waits
from ddp_client.views.job.queueing import UNKNOWN, QueueState
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_client.views.job.upcoming import upcoming

_FAILURES: Final = 3
_NAMED: Final = 5

Fact = tuple[str, str]


def screen(
    job: JobSnapshot,
    pods: Pods,
    now: datetime,
    *,
    width: int = 80,
    losses: str = "",
    queue: QueueState = UNKNOWN,
) -> list[str]:
    """Return the screen of a job.

    `losses`: a curve of the losses so far, in one line. `queue`: the job's state in its queue.
    """
    title = f"{clean(job.name)} in namespace {clean(job.key.namespace)}"
    age = duration((now - job.created).total_seconds())
    latest = reversed(job.status.failures[-_FAILURES:])
    return [
        f"{title}, {age} old",
        "",
        *facts(
            [
                *_state(job, now),
                *_progress(job, now),
                *([("loss", losses)] if losses else []),
                *_ranks(job, pods, now),
                *_waits(job, pods, now, queue.position),
                *([("Kueue", queue.message)] if queue.message else []),
                *_labelled("next", upcoming(job, pods, now)),
                *_attempts(job),
                *_time(job, now),
                *_checkpoint(job, now),
                *_labelled("in memory", memory_checkpoint(job, now)),
                *_place(job),
                *_labelled("failures", (in_words(each, now) for each in latest)),
            ],
            width,
        ),
    ]


def _labelled(label: str, lines: Iterable[str]) -> Iterator[Fact]:
    """Yield lines, the first with a label."""
    for at, line in enumerate(lines):
        yield ("" if at else label), line


def _state(job: JobSnapshot, now: datetime) -> Iterator[Fact]:
    status = job.status
    phase: str = "being deleted" if job.deleting else status.phase
    named = job.since(status.phase)
    if named is not None and not job.deleting:
        how_long = duration((now - named).total_seconds())
        phase += f" {how_long} ago" if status.finished else f" for {how_long}"
    yield "phase", phase
    if status.reason:
        text = readable(status.message, succeeded=status.phase == "Succeeded")
        yield "reason", clean(f"{status.reason}: {text}".rstrip(": "))
    if job.problem and status.reason != "InvalidSpec":
        yield "spec", clean(f"this release cannot read it: {job.problem}")
    if missing := operator_missing(job, now):
        yield "operator", missing


def _progress(job: JobSnapshot, now: datetime) -> Iterator[Fact]:
    progress = job.status.progress
    if progress is None:
        return
    text = f"step {progress.step}"
    if progress.total_steps:
        text += f" of {progress.total_steps} ({min(progress.step / progress.total_steps, 1):.0%})"
    if progress.epoch is not None:
        text += f", epoch {progress.epoch}"
    if progress.loss is not None:
        text += f", loss {number(progress.loss)}"
    if progress.samples_per_second is not None:
        text += f", {number(progress.samples_per_second)} samples/s"
    left = pace.remaining_seconds(job, now)
    if left is not None:
        text += f", about {duration(left)} left"
    yield "progress", text
    at = progress.last_step_time or progress.updated_at
    if job.status.phase == "Succeeded" and progress.step < (progress.total_steps or 0):
        yield "", "the last report; the job completed after it"
    if not job.status.finished:
        yield "", f"last step {duration((now - at).total_seconds())} ago"
    if job.status.slow_rank is not None and not job.status.finished:
        yield from _labelled("slow", slow_rank.lines(job.status.slow_rank, now))


def _ranks(job: JobSnapshot, pods: Pods, now: datetime) -> Iterator[Fact]:
    if not pods.current and (job.suspend or job.status.finished):
        yield "pods", "none"
        return
    sizes = ranks.pod_sizes(job.parsed.spec) if job.parsed else ""
    each = ranks.local_world_size(job.parsed.spec, 0) if job.parsed else 1
    processes = f"{sizes} processes" if sizes else f"{each} ranks each" if each > 1 else ""
    yield from _labelled("pods" if processes else "ranks", rows(pods))
    if processes:
        yield "", processes
    if size := group.size(job, now):
        yield "group", size


def _waits(job: JobSnapshot, pods: Pods, now: datetime, position: str) -> Iterator[Fact]:
    if job.status.finished:
        return
    next_start = job.status.next_start_time
    lines = [position] if position else []
    if next_start is not None and next_start > now:
        seconds = duration((next_start - now).total_seconds())
        lines.append(f"the next start in {seconds} (restart backoff)")
    lines += waits(pods)
    yield from _labelled("waits for", lines)


def _attempts(job: JobSnapshot) -> Iterator[Fact]:
    status = job.status
    allowed = f" of {job.parsed.spec.restart.max_restarts}" if job.parsed else ""
    yield (
        "attempt",
        f"{status.attempt}; restarts {status.restarts}{allowed}, "
        f"disruptions {status.disruptions} (not charged)",
    )


def _time(job: JobSnapshot, now: datetime) -> Iterator[Fact]:
    spent = pace.spent(job, now)
    if not sum(spent.values()):
        return
    ratio = pace.training_ratio(job, now)
    # Without steps, nothing tells training from imports and waiting.
    names = {} if ratio is not None else {"training": "running"}
    used = [kind for kind in goodput.KINDS if spent[kind]]
    parts = [f"{names.get(kind, kind)} {duration(spent[kind])}" for kind in used]
    share = f"{ratio:.0%} training: " if ratio is not None else ""
    books = job.status.goodput
    lost = f"; {counted(books.steps_lost, 'step')} lost" if books and books.steps_lost else ""
    yield "goodput", f"{share}{', '.join(parts)}{lost}"


def _checkpoint(job: JobSnapshot, now: datetime) -> Iterator[Fact]:
    saved = job.status.checkpoint
    if saved is None:
        return
    path = f", {clean(saved.path)}" if saved.path else ""
    yield "checkpoint", f"step {saved.step}{pace.ago(saved.time, now)}{path}"


def _place(job: JobSnapshot) -> Iterator[Fact]:
    if job.status.placement:
        yield "placement", clean(job.status.placement)
    accelerator = job.parsed.spec.accelerator if job.parsed else None
    if accelerator:
        what = accelerator.type or f"compute class {accelerator.compute_class}"
        yield "GPUs", clean(f"{accelerator.count} x {what} a pod, {accelerator.provisioning}")
    elif job.parsed and (gpus := gpu_limits(job.parsed.spec)):
        text = ", ".join(f"{amount} x {name}" for name, amount in gpus.items())
        yield "GPUs", clean(f"{text} a pod")
    if code := Code.parse(job.status.bookkeeping.code):
        yield "code", code.id
    queue = (
        job.parsed.spec.scheduling.queue_name if job.parsed and job.parsed.spec.scheduling else None
    )
    if queue:
        yield "queue", clean(queue)
    if avoided := job.status.excluded_nodes:
        more = f" and {len(avoided) - _NAMED} more" if len(avoided) > _NAMED else ""
        yield "avoids", clean(", ".join(avoided[:_NAMED]), 400) + more


def in_words(failure: Failure, now: datetime) -> str:
    """Return one failure as text: time, pod, cause, and the operator's action."""
    ago = duration((now - failure.time).total_seconds())
    charged = ", charged" if failure.charged else ""
    return f"{ago} ago: {clean(records.describe(failure))} [{failure.action}{charged}]"


def change(job: JobSnapshot) -> str:
    """Return a job's state in one line, for a log of its changes."""
    status = job.status
    text = f"{'being deleted' if job.deleting else status.phase} {status.ready or '-'}"
    if status.progress is not None:
        text += f" step {status.progress.step}"
        if status.progress.loss is not None:
            text += f", loss {number(status.progress.loss)}"
    if status.reason:
        message = readable(status.message, succeeded=status.phase == "Succeeded")
        text += f" {clean(f'{status.reason}: {message}'.rstrip(': '))}"
    return text
