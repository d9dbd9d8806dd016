"""Detect a hang: the trainer still answers, but reports the same step for too long.

Only an answer is evidence, so the clock stops at the last one. Before the first step, a launcher
answers without a report. That is evidence too if the training is known to report steps. After the
last step, no other one is due, however long the script evaluates or exports.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api import ranks
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Failure
from ddp_operator.hang.result import NOTHING_KNOWN, Hang
from ddp_operator.job.failure import causes, classes, symptoms
from ddp_operator.job.failure.records import NO_PROGRESS
from ddp_operator.job.membership.world import members, scope_of
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status.conditions import PODS_READY, with_condition, with_phase
from ddp_operator.job.status.progress import Report
from ddp_operator.ports import Event

NO_REPORTS = "NoProgressReports"
_FIRST_STEP_TIMES: Final = 3
_FIRST_STEP_LEAST: Final = timedelta(minutes=10)
"""The first step may take 3 times progressDeadlineSeconds, and at least 10 minutes: imports, data,
the checkpoint, connections of all ranks and compilation come first."""

_DUMPS_WAIT: Final = timedelta(seconds=60)
"""Longest wait after a collective timed out. Launchers answer within 45 s, and a pod whose
processes have ended waits for two minutes."""
_MESSAGE: Final = 200
_SIGNAL: Final = 60
"""Most characters of a failure's message, and of a node's signal in it."""
_MOST_ASKED: Final = 256
"""Launchers that are asked where their ranks are; a part of a larger job would mislead."""


def hung(
    job: DDPJob,
    pods: Observed,
    report: Report | None,
    now: datetime,
    hang: Hang = NOTHING_KNOWN,
) -> Failure | None:
    """Return the failure of a job that reports the same step for too long while all pods run.

    `hang`: what its launchers showed.
    """
    limit, running_since = _deadline(job), job.status.running_since
    progress = job.status.progress
    if limit is None or running_since is None or report is None or not report.concerns(job):
        return None
    if report.status is None:
        return _not_begun(job, pods, report, now, limit, running_since, hang)
    if progress is None or report.status.step != progress.step:
        return None
    # An earlier attempt may have reported the same step.
    known_since = progress.updated_at
    since = known_since if known_since > running_since else report.first_received
    stood = report.received - max(since, running_since)
    if stood < limit:
        return None
    message = f"stuck at step {progress.step} for {int(stood.total_seconds())} s"
    if hang.sentence:
        return _failure(job, pods, f"{message}; {hang.sentence}", hang, now)
    message += f" (spec.progressDeadlineSeconds: {job.spec.progress_deadline_seconds})"
    if (slow := job.status.slow_rank) is not None:  # which is no proof that the others wait for it
        message += f"; rank {slow.rank} was slow before"
    return _failure(job, pods, message, hang, now)


def _not_begun(
    job: DDPJob,
    pods: Observed,
    report: Report,
    now: datetime,
    limit: timedelta,
    since: datetime,
    hang: Hang,
) -> Failure | None:
    """Return the failure of a job that completed no step since all its pods run."""
    progress, world = job.status.progress, job.status.world
    since = max(since, (world.changed_at if world else None) or since)
    stood = report.received - since
    has_reported = progress is not None and progress.updated_at > since
    is_early = stood < max(_FIRST_STEP_TIMES * limit, _FIRST_STEP_LEAST)
    if has_reported or is_early or not _reports_steps(job):
        return None
    if hang.sentence:
        message = f"no step completed within {int(stood.total_seconds())} s"
        return _failure(job, pods, f"{message}; {hang.sentence}", hang, now)
    message = (
        f"no step completed within {int(stood.total_seconds())} s of all pods running; the "
        f"launcher answers (spec.progressDeadlineSeconds: {job.spec.progress_deadline_seconds}, "
        f"{_FIRST_STEP_TIMES} times as long for the first step)"
    )
    return _failure(job, pods, message, NOTHING_KNOWN, now)


def named_failure(job: DDPJob, pods: Observed, failure: Failure, hang: Hang) -> Failure:
    """Return the failure of a collective that timed out, with the ranks that were missing.

    It keeps the exit code, since rules may ask for it.
    """
    message = f"collective timed out; {hang.sentence}"
    named = _failure(job, pods, message, hang, failure.time)
    return named.updated(exit_code=failure.exit_code, signal=failure.signal)


def dumps_due(job: DDPJob, pods: Observed, failure: Failure, now: datetime) -> datetime | None:
    """Return until when to wait for the launchers' answer about a collective that timed out; None:
    there is nothing to ask, or the time is up.
    """
    pod = pods.current.get(failure.index)
    if pod is None or not pod.restartable or not has_dumps(pod) or not _in_place(job, pods):
        return None
    due = failure.time + _DUMPS_WAIT
    # A node's clock that is ahead must not delay the job.
    return due if now < due <= now + _DUMPS_WAIT else None


def has_dumps(pod: PodState) -> bool:
    """Return whether a pod that has failed because of another rank shows its ranks' collectives."""
    told = symptoms.last_words(pod.exit.message) if pod.exit else None
    return told is not None and told.dumps and classes.is_secondary(pod)


def _in_place(job: DDPJob, pods: Observed) -> tuple[tuple[int, str], ...]:
    """As `to_ask`, of pods whose processes may have ended."""
    alive = {
        index: replace(pod, exit=None) if pod.restartable else pod
        for index, pod in pods.current.items()
    }
    return to_ask(job, replace(pods, current=alive))


def to_ask(job: DDPJob, pods: Observed) -> tuple[tuple[int, str], ...]:
    """Return node rank and address of the launchers that show where all ranks are; empty if some
    cannot be asked, since their ranks would seem to be absent.
    """
    running = [
        (index, pod.address)
        for index, pod in sorted(pods.current.items())
        if pod.address and pod.ready and not pod.exit
    ]
    everyone = len(running) == len(members(job)) == job.spec.replicas
    return tuple(running) if everyone and len(running) <= _MOST_ASKED else ()


def with_request(
    job: DDPJob, pods: Observed, planned: Plan, report: Report | None, now: datetime
) -> Plan:
    """Add a request to the launchers of a job that hangs. Their answer is part of the failure."""
    any_ended = any(pod.restartable for pod in pods.current.values())
    cause = causes.find(job, pods, now) if any_ended else None
    due = dumps_due(job, pods, cause.failure, now) if cause else None
    if due is not None:
        return replace(planned, ask_traces=_in_place(job, pods)).requeued_at(due)
    if hung(job, pods, report, now) is None:
        return planned
    return replace(planned, ask_traces=to_ask(job, pods))


def _failure(job: DDPJob, pods: Observed, message: str, hang: Hang, now: datetime) -> Failure:
    """Return the failure of the pod that has all named ranks, or of a pod on a broken node."""
    named = sorted({ranks.pod_of(job.spec, rank) for rank in hang.ranks})
    # A node that reports an Xid explains a rank that seems to be at fault itself.
    suspects = named if hang.sentence and named else sorted(pods.current)
    signals = ((index, _signal(pods, index)) for index in suspects)
    index, signal = next((each for each in signals if each[1]), (None, ""))
    if index is None and len(named) == 1:
        index = named[0]
    pod = pods.current.get(index or 0)
    known = len(hang.ranks) == 1 and [index] == named
    return Failure(
        time=now,
        attempt=job.status.attempt,
        index=index or 0,
        rank=hang.ranks[0] if known else None,
        pod=pod.key.name if pod else "",
        # Without a pod to name there is no node to blame.
        node=pod.node if pod and index is not None else "",
        reason=NO_PROGRESS,
        message=f"{signal}; {message}"[:_MESSAGE] if signal else message,
        class_="Infrastructure" if signal else hang.class_,
    )


def _signal(pods: Observed, index: int) -> str:
    """Return the signal that a pod's node is broken; empty if there is none."""
    pod = pods.current.get(index)
    node = pods.nodes.unwell.get(pod.node) if pod else None
    return f"its node is broken ({node.bad[:_SIGNAL]})" if node and node.bad else ""


def _silence_due(job: DDPJob, report: Report | None) -> datetime | None:
    """Return when to warn that a running job has reported nothing in this attempt."""
    limit, running_since, progress = _deadline(job), job.status.running_since, job.status.progress
    if limit is None or running_since is None:
        return None
    if report is not None and report.concerns(job) and (report.status or _reports_steps(job)):
        return None
    # After a restart of the operator, the status shows that there were reports.
    if progress is not None and progress.updated_at > running_since:
        return None
    return running_since + limit


def with_silence_warning(job: DDPJob, planned: Plan, report: Report | None, now: datetime) -> Plan:
    """Add one warning to the plan of an active job that reports no progress."""
    due = _silence_due(replace(job, status=planned.status), report)
    status, events = planned.status, planned.events
    running = status.condition("Running")
    if running and running.status == "True":
        silent = due is not None and due <= now
        if silent and running.reason == PODS_READY:
            message = (
                f"no progress reported for {job.spec.progress_deadline_seconds} s "
                "(spec.progressDeadlineSeconds), so a hang would go unnoticed: pod 0 must "
                f"answer GET /status on port {job.spec.status_port}, or its log must match "
                "spec.progress.logPattern"
            )
            status = with_condition(status, "Running", True, NO_REPORTS, message, now)
            events = (*events, Event(NO_REPORTS, message, warning=True))
        elif due is None and running.reason == NO_REPORTS:
            status = with_condition(
                status, "Running", True, PODS_READY, "progress is reported", now
            )
        status = with_phase(status, pods_scheduled=True)
    planned = replace(planned, status=status, events=events)
    return planned.requeued_at(due, after=now)


def with_stacks(job: DDPJob, pods: Observed, planned: Plan) -> Plan:
    """Add a dump of the stacks of pods that are deleted because the training hung."""
    last = job.status.failures[-1] if job.status.failures else None
    if last is None or last.reason != NO_PROGRESS or not planned.delete:
        return planned
    doomed = [pod for pod in (*pods.old, *pods.current.values()) if pod.key in planned.delete]
    running = [pod for pod in doomed if pod.address and not (pod.failed or pod.succeeded)]
    wanted = (pod.address for pod in running if pod.identity.attempt == last.attempt)
    return replace(planned, dump_stacks=tuple(wanted))


def _deadline(job: DDPJob) -> timedelta | None:
    """Return how long the next step may take; None: as long as it likes, or no other one is due."""
    seconds, progress = job.spec.progress_deadline_seconds, job.status.progress
    if seconds is None or (progress is not None and progress.has_last_step):
        return None
    return timedelta(seconds=seconds + 1)  # stored times lack fractions of a second


def _reports_steps(job: DDPJob) -> bool:
    """Return whether the training is known to report its steps. A script that never does looks the
    same before its first step as while it trains.
    """
    return scope_of(job) == "Pod" or job.status.progress is not None
