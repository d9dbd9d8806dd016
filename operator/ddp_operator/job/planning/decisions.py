"""Plans that decide: each changes a counter or ends the job, and changes no pod."""

from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.constants import ANNOTATION_RESTART_REQUESTED
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import ConditionType, DDPJobStatus, Failure
from ddp_operator.job.failure import records
from ddp_operator.job.membership.world import members, world_of_next_attempt
from ddp_operator.job.planning import isolation
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.status.conditions import with_condition, with_phase
from ddp_operator.ports import Event

RESTART_REQUESTED: Final = "RestartRequested"
RESCHEDULED: Final = "Rescheduled"
SPEC_CHANGED: Final = "SpecChanged"
CODE_CHANGED: Final = "CodeChanged"
_HARMLESS: Final = (
    "Disrupted",
    SPEC_CHANGED,
    CODE_CHANGED,
    "GroupShrunk",
    "GroupGrown",
    RESTART_REQUESTED,
    RESCHEDULED,
)
"""Reasons of restarts that need nobody's attention."""


def active_deadline(job: DDPJob) -> datetime | None:
    """Return when spec.activeDeadlineSeconds runs out; None while the job waits in a queue."""
    limit, start = job.spec.active_deadline_seconds, job.status.start_time
    notes = job.status.bookkeeping
    if limit is None or start is None or notes.queued_since:
        return None
    return start + timedelta(seconds=limit + notes.suspended_seconds)


def finish(
    status: DDPJobStatus, type_: ConditionType, reason: str, message: str, now: datetime
) -> Plan:
    """Decide that a job has ended permanently."""
    status = status.updated(completion_time=now)
    status = with_condition(status, type_, True, reason, message, now)
    failed = type_ == "Failed"
    event = Event(reason if failed else type_, message, warning=failed)
    return decided(_clear(status, reason, message, now), event)


def fail(
    job: DDPJob, reason: str, message: str, now: datetime, failure: Failure | None = None
) -> Plan:
    """Decide that a job has failed permanently, because of `failure` if given."""
    status = job.status
    if failure:
        status = records.remember(status, failure.updated(action="FailJob"))
    return finish(status, "Failed", reason, message, now)


def end_at_deadline(job: DDPJob, now: datetime) -> Plan | None:
    """Fail a job that was active for too long."""
    deadline = active_deadline(job)
    if deadline is None or now < deadline:
        return None
    limit = job.spec.active_deadline_seconds
    message = f"the job was active for longer than spec.activeDeadlineSeconds ({limit})"
    return fail(job, "DeadlineExceeded", message, now)


def succeed(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide that a job has succeeded, once the pods that `spec.successPolicy` names have."""
    first = pods.current.get(0)
    if job.spec.success_policy == "Rank0":
        done = first.succeeded if first else 0 in pods.completed
        message = "rank 0's pod completed (spec.successPolicy)"
    else:
        done = not pods.missing and all(pod.succeeded for pod in pods.current.values())
        count = len(members(job))
        message = "its pod completed" if count == 1 else f"all {count} pods completed"
    if not done:
        return None
    said = first.exit if first else None
    if pods.ignored:
        message += f" ({len(pods.ignored)} failed, ignored by spec.restart.rules)"
    if lost := sum(pod.ignored for pod in pods.current.values()) - len(pods.ignored):
        message += f" ({lost} lost after the trainer reported that it is done)"
    if said and said.message:
        message += f"; rank 0 says: {' '.join(said.message.split())}"
    return finish(job.status, "Succeeded", "Completed", message, now)


def suspend(job: DDPJob, now: datetime) -> Plan:
    """Decide to delete all pods and keep the state, as the spec says."""
    message = "spec.suspend is true: pods are deleted, the job is kept"
    status = with_condition(job.status, "Suspended", True, "Suspended", message, now)
    status = with_condition(status, "PodsCreated", False, "Suspended", message, now)
    status = _clear(status.updated(placement=""), "Suspended", message, now)
    return decided(status, Event("Suspended", message))


def resume(job: DDPJob, pods: Observed, now: datetime) -> Plan:
    """Decide to create the pods of a suspended job again."""
    message = "spec.suspend is false again; pods are created"
    status = without_pause(job.status).noting(restart_requested=job.restart_requested)
    suspended = status.condition("Suspended")
    if status.start_time and suspended:
        status = _inactive(status, suspended.last_transition_time, now)
    if status.start_time or status.world or pods.current or pods.spares or pods.old:
        # An earlier pod may still be terminating: the new pods need other names.
        status = next_attempt(job, status, new_group=True)
    status = with_condition(status, "Suspended", False, "Resumed", message, now)
    status = with_condition(status, "PodsCreated", False, "Resumed", message, now)
    return decided(_clear(status, "Resumed", message, now), Event("Resumed", message))


def restart_as_requested(job: DDPJob, now: datetime) -> Plan | None:
    """Decide to restart all pods because the annotation asks for it."""
    wanted = job.restart_requested
    if wanted == job.status.bookkeeping.restart_requested:
        return None
    status = job.status.noting(restart_requested=wanted)
    if not wanted or status.start_time is None:
        return Plan(status, decided=True)  # nothing runs yet
    requested = f"requested by annotation {ANNOTATION_RESTART_REQUESTED}"
    message = f"restarting all {job.spec.replicas} pods: {requested}"
    status = next_attempt(job, without_pause(status))
    return restarting(status, RESTART_REQUESTED, message, now)


def restart_for_spec(job: DDPJob, now: datetime) -> Plan:
    """Decide to restart all pods, because some have another spec."""
    what = f"restarting all {job.spec.replicas} pods: spec changed"
    status = next_attempt(job, job.status, new_group=True)
    return restarting(status, SPEC_CHANGED, what, now)


def queued(status: DDPJobStatus, now: datetime, *, waits: bool) -> DDPJobStatus:
    """Return the status with the time in a queue recorded: as still running, or as over."""
    notes = status.bookkeeping
    if waits:
        return status.noting(queued_since=notes.queued_since or now)
    if notes.queued_since is None:
        return status
    return _inactive(status.noting(queued_since=None), notes.queued_since, now)


def _inactive(status: DDPJobStatus, since: datetime, now: datetime) -> DDPJobStatus:
    seconds = max(int((now - since).total_seconds()), 0)
    return status.noting(suspended_seconds=status.bookkeeping.suspended_seconds + seconds)


def next_attempt(job: DDPJob, status: DDPJobStatus, *, new_group: bool = False) -> DDPJobStatus:
    """Return the status with new pods for all ranks; `new_group`: in a queue, they queue again."""
    if new_group:
        status = in_new_group(job, status)
    world = world_of_next_attempt(job.spec, status)
    attempt = status.attempt + 1
    status = status.updated(attempt=attempt, completed_indexes="", world=world, gaps=())
    return status.noting(
        lost_members=0,
        grace_seconds=0,
        replacements={},
        replacing=(),
        launcher="",
        spares=(),
        spares_renewed=None,
        no_spare_before=None,
        broken_since=None,
        renewed=(),
        slow_replaced=(),
        successors=None,
        nodes_to_leave=(),
        # Somebody may have deleted the NetworkPolicy, or it may be outdated.
        isolation=isolation.CHANGING if status.bookkeeping.isolation else isolation.NONE,
    )


def in_new_group(job: DDPJob, status: DDPJobStatus) -> DDPJobStatus:
    """Return the status in which a job in a queue has another pod group there."""
    if not job.spec.kueue_queue:
        return status
    number = (status.bookkeeping.queue_group or 0) + 1
    return status.noting(queue_group=number, queue_group_size=None)


def restarting(
    status: DDPJobStatus,
    reason: str,
    message: str,
    now: datetime,
    *,
    event: str = "Restarting",
    creates: bool = True,
) -> Plan:
    """Decide that pods restart. `creates`: some do not exist yet. `event`: the Event's reason."""
    status = with_condition(status, "Restarting", True, reason, message, now)
    if creates:
        status = queued(status.updated(placement=""), now, waits=False)
        status = with_condition(status, "PodsCreated", False, reason, message, now)
    if status.condition("Running"):
        status = with_condition(status, "Running", False, reason, message, now)
    warning = reason not in _HARMLESS
    return decided(status, Event(event, message, warning=warning))


def regrouped(
    status: DDPJobStatus, reason: str, message: str, now: datetime, *, event: str = ""
) -> Plan:
    """Decide that existing pods form another group: a restart, unless the job never ran. `event`:
    the Event's reason, if it differs.
    """
    event = event or reason
    if status.is_true("Running") or status.is_true("Restarting"):
        return restarting(status, reason, message, now, event=event, creates=False)
    return decided(status, Event(event, message))


def decided(status: DDPJobStatus, *events: Event) -> Plan:
    """Return a plan that only stores a status and its events."""
    return Plan(with_phase(status, pods_scheduled=False), decided=True, events=events)


def _clear(status: DDPJobStatus, reason: str, message: str, now: datetime) -> DDPJobStatus:
    """Return the status with Running and Restarting false and without gaps."""
    status = queued(status, now, waits=False).updated(gaps=())
    for known in status.conditions:
        if known.type in ("Running", "Restarting"):
            status = with_condition(status, known.type, False, reason, message, now)
    return status


def without_pause(status: DDPJobStatus) -> DDPJobStatus:
    """Return the status without a pause: a person asks for pods, and may have removed the cause."""
    return status.updated(next_start_time=None).noting(restarts_in_a_row=None)
