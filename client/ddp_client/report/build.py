"""Build a report from facts; a pure function. Missing facts are not guessed."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

from ddp_operator import __version__
from ddp_operator.api import ranks
from ddp_operator.api.rules import gpu_limit, trainer_container
from ddp_operator.api.spec.overrides import kinds
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.api.values.text import clean

from ddp_client.report import curves, reliability
from ddp_client.report.facts import Facts, LogEnd, PodFacts
from ddp_client.report.model import (
    COMPLETED,
    NodeRow,
    PodSpan,
    Recovery,
    Report,
    Usage,
)
from ddp_client.report.recoveries import recoveries
from ddp_client.views.job import pace, slow_rank
from ddp_client.views.job.diagnosis import diagnose
from ddp_client.views.job.last_words import log_lines
from ddp_client.views.job.memory import memory_checkpoint
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_client.views.redaction import Redactor

_MOST_PODS: Final = 200
_MOST_EVENTS: Final = 100
_MOST_LOGS: Final = 3
ANY_GPU: Final = "gpu"
"""The kind of GPUs of an unknown type."""


def build(
    facts: Facts,
    *,
    prices: Mapping[str, float] | None = None,
    price_per_pod: float | None = None,
) -> Report:
    """Build a report; `prices`: price per GPU and hour, by kind; `price_per_pod`: per hour."""
    job, history = facts.job, facts.history
    status = job.status
    ended = status.completion_time or (
        (job.since("Succeeded") or job.since("Failed")) if status.finished else None
    )
    now = min(ended, facts.now) if ended else facts.now
    spent = pace.spent(job, now)
    progress = status.progress
    last = history.intervals[-1] if history.intervals else None
    curve = "" if history else status.bookkeeping.curve
    scores = tuple((s.step, s.accuracy) for s in history.scores) or curves.kept_scores(curve)
    failed = recoveries(facts)
    pods = sorted(_spans(facts, failed), key=_order)
    step = max((progress.step if progress else -1), (last.step if last and not progress else -1))
    return Report(
        name=clean(job.name, 253),
        namespace=clean(job.key.namespace, 253),
        uid=clean(job.uid, 64),
        made_at=facts.now,
        version=__version__,
        phase=status.phase,
        reason=clean(status.reason, 64),
        message=clean(_message(status)),
        created=job.created,
        ended=ended,
        step=step if step >= 0 else None,
        total_steps=progress.total_steps if progress else None,
        epoch=progress.epoch if progress else last.epoch if last else None,
        loss=progress.loss if progress else last.loss if last else None,
        accuracy=scores[-1][1] if scores else None,
        samples_per_second=last.samples_per_second if last else None,
        attempts=status.attempt + 1,
        restarts=status.restarts,
        disruptions=status.disruptions,
        goodput=tuple((kind, seconds) for kind, seconds in spent.items()),
        training_ratio=pace.training_ratio(job, now),
        effective_training_ratio=reliability.effective_training_ratio(spent),
        steps_lost=status.goodput.steps_lost if status.goodput else None,
        pods=tuple(pods[-_MOST_PODS:]),
        pods_left_out=max(len(pods) - _MOST_PODS, 0),
        recoveries=failed,
        failure_intervals=tuple(reliability.failure_intervals(status.failures)),
        # With spares the group does not wait for new pods, and an elastic one need not.
        spare_estimate=(None if job.spares or job.elastic else reliability.spare_estimate(failed)),
        starts=tuple((s.step, s.formed, s.first_step) for s in history.starts[-curves.MOST_ROWS :]),
        points=curves.points(history) or curves.kept_points(curve),
        scores=scores[-curves.MOST_POINTS :],
        remedies=tuple(
            diagnose(job, Pods.of(job, (pod.state for pod in facts.pods)), facts.now).remedies
        ),
        logs=tuple(_logs(facts)),
        phase_seconds=curves.phase_seconds(history),
        step_times=curves.step_times(history),
        ranks=curves.ranks(history),
        saves=curves.saves(history),
        usages=tuple(_usages(job, spent, prices or {}, price_per_pod)),
        nodes=tuple(_nodes(job)),
        events=tuple((e.time, e.reason, e.message) for e in facts.events[-_MOST_EVENTS:]),
        configuration=tuple(_configuration(job, now)),
        gaps=tuple(_gaps(facts, failed)),
    )


def _message(status: DDPJobStatus) -> str:
    """Return the message; of a completed job without the numbers that the report shows elsewhere.

    They are rank 0's last message in JSON. The message of another job may contain any text.
    """
    message = status.message
    return message.partition("; rank 0 says: {")[0] if status.phase == "Succeeded" else message


def _logs(facts: Facts) -> Iterator[LogEnd]:
    if facts.log is not None:
        lines = log_lines("\n".join(facts.log.lines))
        yield LogEnd(clean(facts.log.pod, 253), tuple(lines))
    failures = [
        failure
        for failure in facts.job.status.failures
        if failure.message and (facts.log is None or failure.pod != facts.log.pod)
    ]
    for failure in reversed(failures[-_MOST_LOGS:]):
        yield LogEnd(clean(failure.pod, 253), tuple(log_lines(failure.message)))


def _spans(facts: Facts, failed: tuple[Recovery, ...]) -> Iterator[PodSpan]:
    """Yield existing pods, and pods that only a failure record names."""
    there = {pod.name for pod in facts.pods}
    for pod in facts.pods:
        yield _span(facts, pod)
    for recovery in failed:
        if recovery.pod not in there:
            there.add(recovery.pod)
            yield PodSpan(
                name=recovery.pod,
                index=recovery.index,
                ranks=_ranks(facts.job, recovery.index),
                attempt=recovery.attempt,
                node=recovery.node,
                created=None,
                scheduled=None,
                started=None,
                ended=recovery.time,
                end=recovery.cause,
                is_there=False,
            )


def _span(facts: Facts, pod: PodFacts) -> PodSpan:
    state = pod.state
    ended = state.exit.finished if state.exit else None
    failure = next((f for f in facts.job.status.failures if f.pod == pod.name), None)
    end = state.phase
    if state.succeeded:
        end = COMPLETED
    elif state.failed or failure:
        code = state.exit.code if state.exit else None
        reason = (
            failure.reason if failure else state.reason or (state.exit.reason if state.exit else "")
        )
        end = f"exit code {code} ({reason})" if code is not None else reason or "failed"
        ended = ended or (failure.time if failure else None)
    elif state.deleting:
        end = "being deleted"
    elif state.waiting:
        end = state.waiting
    return PodSpan(
        name=clean(pod.name, 253),
        index=state.identity.index,
        ranks=_ranks(facts.job, state.identity.index),
        attempt=state.identity.attempt,
        node=clean(state.node, 253),
        created=pod.created,
        scheduled=pod.scheduled,
        started=pod.started,
        ended=ended,
        end=clean(end, 200),
        is_there=True,
    )


def _order(pod: PodSpan) -> tuple[int, int, float, str]:
    when: datetime | None = pod.created or pod.ended
    return pod.attempt, pod.index, when.timestamp() if when else 0.0, pod.name


def _ranks(job: JobSnapshot, index: int) -> str:
    if job.parsed is None:
        return ""
    own = job.ranks_of(index)
    return str(own.start) if len(own) == 1 else f"{own.start}-{own.stop - 1}"


def _usages(
    job: JobSnapshot,
    spent: Mapping[str, int],
    prices: Mapping[str, float],
    price_per_pod: float | None,
) -> Iterator[Usage]:
    counts: dict[str, int] = {}
    for spec, where in kinds(job.parsed.spec) if job.parsed else ():
        accelerator = spec.accelerator
        kind = (accelerator.type if accelerator else None) or ANY_GPU
        counts[kind] = counts.get(kind, 0) + gpu_limit(spec) * sum(map(len, where))
    for kind, count in counts.items():
        if count:
            price = prices.get(kind, prices.get(ANY_GPU))
            yield reliability.usage(clean(kind, 64), count, spent, price)
    if price_per_pod is not None:
        yield reliability.usage("pods", job.replicas + job.spares, spent, price_per_pod)


def _nodes(job: JobSnapshot) -> Iterator[NodeRow]:
    status = job.status
    failures = {each.name: each.failures for each in status.bookkeeping.nodes if each.failures}
    for name in sorted({*failures, *status.excluded_nodes}):
        yield NodeRow(
            name=clean(name, 253),
            failures=failures.get(name, 0),
            is_avoided=name in status.excluded_nodes,
            says_so=name not in failures,
        )


def _configuration(job: JobSnapshot, now: datetime) -> Iterator[tuple[str, str]]:
    if job.parsed is not None:
        spec, restart = job.parsed.spec, job.parsed.spec.restart
        trainer = trainer_container(spec.template)
        yield "image", clean(trainer.get("image") or "not set")
        words = [*(trainer.get("command") or ()), *(trainer.get("args") or ())]
        if words:
            yield "command", clean(" ".join(Redactor().words(map(str, words))))
        yield "pods", str(spec.replicas)
        yield "ranks", str(ranks.world_size(spec))
        yield "backend", ranks.backend(spec)
        if spec.accelerator:
            what = spec.accelerator.type or f"compute class {spec.accelerator.compute_class}"
            yield "GPUs of a pod", clean(f"{spec.accelerator.count} x {what}")
            yield "provisioning", clean(spec.accelerator.provisioning)
        yield "restarts allowed", f"{restart.max_restarts}, scope {restart.scope}"
    if job.status.placement:
        yield "placement", clean(job.status.placement)
    checkpoint = job.status.checkpoint
    if checkpoint is not None and checkpoint.path:
        yield "newest checkpoint", clean(checkpoint.path)
    if job.status.slow_rank is not None:
        for line in slow_rank.lines(job.status.slow_rank, now):
            yield "slow rank", line
    for line in memory_checkpoint(job, now):
        yield "checkpoint in memory", line
    yield "generation of the spec", str(job.generation)
    yield "API version", clean(job.manifest.get("apiVersion") or "not set", 64)


def _gaps(facts: Facts, failed: tuple[Recovery, ...]) -> Iterator[str]:
    yield from (clean(gap) for gap in facts.gaps)
    history = facts.history
    if facts.job.problem:
        yield clean(f"this release cannot read the job's spec: {facts.job.problem}")
    if history.is_cut:
        yield "metrics.jsonl is long: its older part was not read and is not shown"
    if not history and facts.job.status.bookkeeping.curve:
        yield "loss and accuracy are the points that the job's status keeps, at most 128"
    if history.unread:
        yield f"{history.unread} lines of metrics.jsonl could not be read and are left out"
    if history.intervals and not history.starts:
        yield (
            "the trainer's older image does not report when its group formed: recoveries are shown "
            "only up to the start of the pods"
        )
    if older := reliability.older_failures(facts.job.status):
        yield older
    progress, notes = facts.job.status.progress, facts.job.status.bookkeeping
    # The last words of a trainer that reports both have only when its group formed.
    if progress is not None and progress.last_step_time is None and notes.resumed_at is None:
        yield (
            "the trainer does not report when it completes steps: the time from ready pods to the "
            "first step counts as training"
        )
    if any(recovery.parts[0] is None for recovery in failed):
        yield (
            "some recoveries are incomplete: their pods were replaced later, and their times are "
            "lost"
        )
