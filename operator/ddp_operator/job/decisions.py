"""Plans that decide: each moves a counter or ends the job, and touches no pod."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType, DDPJobStatus, Failure
from ddp_operator.job import failures
from ddp_operator.job.conditions import with_condition, with_phase
from ddp_operator.job.model import Observed, Plan
from ddp_operator.ports import Event

DISRUPTED_START_PAUSE_SECONDS = 10
"""Pause after pods were taken away before all of them ran, as by a node whose device plugin fails:
no budget bounds disruptions, so without it such a job would start pods without end. Kubernetes' own
Job controller begins with ten seconds too."""

CAUSE_WAIT_SECONDS = 3
"""How long a rank that only fell over another one waits for that other one to be seen. Kubelets
report exits in any order, and look for them once a second (PLEG)."""


def active_deadline(job: DDPJob) -> datetime | None:
    """Return when the job's active time runs out; None when it may run for ever or has not
    begun.
    """
    limit, start = job.spec.active_deadline_seconds, job.status.start_time
    if limit is None or start is None:
        return None
    return start + timedelta(seconds=limit + job.status.suspended_seconds)


def finish(
    status: DDPJobStatus, type_: ConditionType, reason: str, message: str, now: datetime
) -> Plan:
    """Decide that a job has ended this way for good."""
    status = status.model_copy(update={"completion_time": now})
    status = with_condition(status, type_, True, reason, message, now)
    failed = type_ == "Failed"
    event = Event(reason if failed else type_, message, warning=failed)
    return _decided(_clear(status, reason, message, now), event)


def fail(
    job: DDPJob, reason: str, message: str, now: datetime, failure: Failure | None = None
) -> Plan:
    """Decide that a job has failed for good."""
    return finish(_remember(job.status, failure), "Failed", reason, message, now)


def end_at_deadline(job: DDPJob, now: datetime) -> Plan | None:
    """Decide that a job has been active for too long; None while it has not."""
    deadline = active_deadline(job)
    if deadline is None or now < deadline:
        return None
    limit = job.spec.active_deadline_seconds
    message = f"the job was active for longer than spec.activeDeadlineSeconds ({limit})"
    return fail(job, "DeadlineExceeded", message, now)


def succeed(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide that a job is done; None while any pod is not."""
    if pods.missing or not all(pod.succeeded for pod in pods.current.values()):
        return None
    said = pods.current[0].exit
    message = f"all {job.spec.replicas} pods ended well"
    if said and said.message:
        message += f"; rank 0 says: {said.message.strip()}"
    return finish(job.status, "Succeeded", "Completed", message, now)


def cause_due(job: DDPJob, pods: Observed, now: datetime) -> datetime | None:
    """Return until when to wait for the cause of failures that can only be consequences.

    None when there is nothing to wait for: no such failure, a cause in sight, no pod left that
    could be it, or the time is up.
    """
    failed = [pod for pod in pods.current.values() if pod.failed]
    others = [pod for pod in pods.current.values() if not pod.failed and not pod.succeeded]
    if not failed or not others or (pods.missing and job.status.is_true("PodsCreated")):
        return None
    if any(pod.disrupted for pod in pods.current.values()) or not all(p.secondary for p in failed):
        return None
    ends = [pod.exit.finished for pod in failed if pod.exit and pod.exit.finished]
    due = max(ends, default=now) + timedelta(seconds=CAUSE_WAIT_SECONDS)
    # A node's clock that is ahead must not hold the job back.
    return due if now < due <= now + timedelta(seconds=CAUSE_WAIT_SECONDS) else None


def recover(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide about what failed or went missing; None when nothing did, or its cause is awaited."""
    if any(pod.spec_hash != job.spec_hash for pod in pods.current.values()):
        return _restart_gang(job, "SpecChanged", "spec changed; all pods start anew with it", now)
    failed = [p for p in pods.current.values() if p.failed and not p.disrupted]
    disrupted = [p for p in pods.current.values() if p.disrupted]
    vanished = pods.missing if job.status.is_true("PodsCreated") else ()
    cause = None
    if misconfigured := [pod for pod in failed if pod.misconfigured]:
        cause = failures.of_pod(failures.primary(misconfigured), now)
        return fail(job, "ConfigurationError", failures.in_words(cause), now, cause)
    if disrupted:
        cause = failures.of_pod(failures.primary(disrupted), now)
    elif vanished:
        cause = failures.of_missing(job, vanished[0], now)
    elif failed and not cause_due(job, pods, now):
        cause = failures.of_pod(failures.primary(failed), now)
    if cause is None:
        return None
    words = failures.in_words(cause)
    if not cause.disruption and job.status.restarts >= job.spec.restart.max_restarts:
        limit = f"spec.restart.maxRestarts ({job.spec.restart.max_restarts}) is used up"
        return fail(job, "MaxRestartsExceeded", f"{limit}; {words}", now, cause)
    lost = [*(p.identity.index for p in (*failed, *disrupted)), *(i.index for i in vanished)]
    # One that has ended well will not come back to form a group with a single replacement.
    whole_gang = (
        job.spec.restart.scope == "Gang"
        or len(lost) == job.spec.replicas
        or any(pod.succeeded for pod in pods.current.values())
    )
    if whole_gang:
        return _restart_gang(job, _restart_reason(cause), words, now, cause)
    return _replace_pods(job, lost, words, now, cause)


def suspend(job: DDPJob, now: datetime) -> Plan:
    """Decide to give up all pods and to keep the state."""
    message = "spec.suspend is true: pods are deleted, state is kept"
    status = with_condition(job.status, "Suspended", True, "Suspended", message, now)
    status = with_condition(status, "PodsCreated", False, "Suspended", message, now)
    status = _clear(status, "Suspended", message, now)
    return _decided(status, Event("Suspended", message))


def resume(job: DDPJob, pods: Observed, now: datetime) -> Plan:
    """Decide to go on with a suspended job."""
    message = "spec.suspend is false again; pods are created"
    status = job.status
    suspended = status.condition("Suspended")
    if status.start_time and suspended:
        seconds = max(int((now - suspended.last_transition_time).total_seconds()), 0)
        total = status.suspended_seconds + seconds
        status = status.model_copy(update={"suspended_seconds": total})
    if status.start_time or pods.current:
        # A pod of before may still be terminating: the new ones need names of their own.
        attempt = status.attempt + 1
        status = status.model_copy(update={"attempt": attempt, "replacements": {}})
    status = with_condition(status, "Suspended", False, "Resumed", message, now)
    status = with_condition(status, "PodsCreated", False, "Resumed", message, now)
    return _decided(_clear(status, "Resumed", message, now), Event("Resumed", message))


def _restart_gang(
    job: DDPJob, reason: str, words: str, now: datetime, cause: Failure | None = None
) -> Plan:
    status = _counted(_remember(job.status, cause), cause)
    attempt = status.attempt + 1
    status = status.model_copy(update={"attempt": attempt, "replacements": {}})
    what = f"starting all {job.spec.replicas} pods as attempt {attempt}"
    return _restart(job, status, reason, f"{what}: {words}", now)


def _replace_pods(
    job: DDPJob, indices: Sequence[int], words: str, now: datetime, cause: Failure
) -> Plan:
    status = _counted(_remember(job.status, cause), cause)
    replacements = dict(status.replacements)
    for index in indices:
        replacements[str(index)] = replacements.get(str(index), 0) + 1
    status = status.model_copy(update={"replacements": replacements})
    ranks = ", ".join(str(index) for index in sorted(indices))
    message = f"replacing the pod of node rank {ranks}: {words}"
    return _restart(job, status, _restart_reason(cause), message, now)


def _restart_reason(cause: Failure) -> str:
    return "Disrupted" if cause.disruption else "PodFailed"


def _restart(job: DDPJob, status: DDPJobStatus, reason: str, message: str, now: datetime) -> Plan:
    status = with_condition(status, "Restarting", True, reason, message, now)
    status = with_condition(status, "PodsCreated", False, reason, message, now)
    if status.condition("Running"):
        status = with_condition(status, "Running", False, reason, message, now)
    if status.disruptions > job.status.disruptions and not job.status.is_true("Running"):
        pause = timedelta(seconds=DISRUPTED_START_PAUSE_SECONDS)
        status = status.model_copy(update={"next_start_time": now + pause})
    if status.restarts > job.status.restarts:
        message += f" (restart {status.restarts} of {job.spec.restart.max_restarts})"
    return _decided(status, Event("Restarting", message, warning=reason == "PodFailed"))


def _clear(status: DDPJobStatus, reason: str, message: str, now: datetime) -> DDPJobStatus:
    """Running and Restarting, where they were ever set, hold no longer."""
    types: tuple[ConditionType, ...] = ("Running", "Restarting")
    for type_ in types:
        if status.condition(type_):
            status = with_condition(status, type_, False, reason, message, now)
    return status


def _decided(status: DDPJobStatus, event: Event) -> Plan:
    return Plan(with_phase(status, pods_scheduled=False), decided=True, events=(event,))


def _remember(status: DDPJobStatus, failure: Failure | None) -> DDPJobStatus:
    """Keep a failure on record, the oldest giving way."""
    if failure is None:
        return status
    kept = (*status.failures, failure)[-failures.MAX_FAILURES :]
    return status.model_copy(update={"failures": kept})


def _counted(status: DDPJobStatus, cause: Failure | None) -> DDPJobStatus:
    """Count a restart where it belongs; one that the user asked for counts nowhere."""
    if cause is None:
        return status
    counter = "disruptions" if cause.disruption else "restarts"
    return status.model_copy(update={counter: getattr(status, counter) + 1})
