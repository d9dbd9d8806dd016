"""Plans that carry out a job's stored status: create and delete pods, and report progress."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.pod_security import read_refusal
from ddp_operator.api.spec.overrides import accelerators, ranges, spec_of
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.api.values.bounded import format_time
from ddp_operator.api.values.limits import linear
from ddp_operator.job.failure.causes import cause_due
from ddp_operator.job.membership.launchers import PODS_UNREACHABLE
from ddp_operator.job.membership.world import RESTART_GRACE_SECONDS, members
from ddp_operator.job.planning import gap_records, gaps
from ddp_operator.job.planning.decisions import active_deadline, queued
from ddp_operator.job.planning.failures import pauses
from ddp_operator.job.planning.group import local_checkpoints
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.places import queue
from ddp_operator.job.planning.places.old_pods import awaited, awaited_until
from ddp_operator.job.planning.places.scheduling import timeout_due
from ddp_operator.job.planning.words import (
    doubtful_command,
    not_queued,
    some,
    unknown_accelerators,
    waiting_for,
)
from ddp_operator.job.pods.fabrics import PRIVILEGES
from ddp_operator.job.pods.manifests import CHECKPOINT_VOLUME
from ddp_operator.job.pods.observed import Observed, next_settled_at
from ddp_operator.job.pods.schedulers.kueue import group_size
from ddp_operator.job.pods.state import Identity
from ddp_operator.job.status import progress
from ddp_operator.job.status.conditions import (
    API_SERVER_ERROR,
    NAME_TAKEN,
    PODS_FORBIDDEN,
    PODS_NOT_READY,
    PODS_READY,
    QUEUED,
    with_condition,
    with_phase,
)
from ddp_operator.ports import Event

_REFUSED_POD: Final = linear(r'^pods "[^"]*-(\d+)(?:-r\d+)?" is forbidden')
"""Matches the pod's name, which ends with its index and its replacement count."""

_SAVED_GRACE_SECONDS: Final = 1
"""Grace period of replaced pods that have nothing to save; the group's restart waits for them."""

_REFUSALS = (NAME_TAKEN, PODS_FORBIDDEN, API_SERVER_ERROR)
_PASSING = (PODS_READY, PODS_NOT_READY, PODS_UNREACHABLE, *_REFUSALS)
"""Reasons of a running job that each plan may overwrite. NoProgressReports is not among them."""


def stay_suspended(job: DDPJob, pods: Observed) -> Plan:
    """Plan for a suspended job: delete all pods."""
    live = [pod for pod in (*pods.current.values(), *pods.spares, *pods.old) if not pod.deleting]
    status, suspended = job.status, job.status.condition("Suspended")
    running = status.condition("Running")
    if suspended and running and running.reason in _REFUSALS:  # no longer true without pods
        said = (suspended.reason, suspended.message, running.last_transition_time)
        status = with_condition(status, "Running", False, *said)
    status = with_phase(status, pods_scheduled=False)
    return Plan(status, delete=tuple(pod.key for pod in live))


def converge(job: DDPJob, pods: Observed, now: datetime) -> Plan:
    """Plan for an active job: create missing pods, delete old ones, report how many are ready."""
    paused_until = job.status.next_start_time
    if paused_until is not None and now < paused_until:
        why = job.status.condition("Restarting")
        message = f"waiting until {format_time(paused_until)}" + (f": {why.message}" if why else "")
        planned = _wait(job, "WaitingToStart", message, paused_until, now)
    elif pods.missing and (old := awaited(job, pods, now)):
        message = f"waiting for old pods to end: {some(sorted(pod.key.name for pod in old))}"
        until = max(awaited_until(job, pod, now) for pod in old)
        planned = _wait(job, "WaitingForOldPods", message, until, now)
    elif job.prebuilt_workload and queue.leaves_cluster(job):
        message = "the pods gave up their place in the queue, so MultiKueue queues the job again"
        planned = _wait(job, queue.PLACE_LOST, message, None, now)
    else:
        planned = _create(job, pods, now)
    leaving = [pod for pod in pods.old if not pod.deleting]
    is_saved = bool(leaving) and pauses.ended_paused(job, pods)
    # Pods of old attempts save and leave quickly: new pods may need their nodes.
    grace = _SAVED_GRACE_SECONDS if is_saved else RESTART_GRACE_SECONDS
    hurried = (pod for pod in leaving if pod.grace_seconds > grace)
    # A replaced pod of this attempt may still answer to the host name of its replacement.
    rivals = (pod for pod in pods.old if pod.identity.attempt == job.status.attempt)
    planned = replace(
        planned,
        delete=tuple(pod.key for pod in leaving),
        grace_seconds={pod.key: grace for pod in hurried},
        fence=tuple(pod.key for pod in rivals if pod.in_dns),
    )
    if pods.may_have_failed:
        planned = planned.requeued_at(cause_due(job, pods, now))
    deadline = active_deadline(replace(job, status=planned.status))
    return planned.requeued_at(deadline, gaps.next_due(job, pods))


def _create(job: DDPJob, pods: Observed, now: datetime) -> Plan:
    status, events = _progress(job, pods, now)
    # The Service precedes the first pod of an attempt, so it is not repeated for other pods.
    exists = job.status.is_true("PodsCreated") or (
        pods.current and not job.status.bookkeeping.replacing
    )
    service = not (exists or (pods.blocking and not pods.creatable))
    planned = Plan(status, create=pods.creatable, create_service=service, events=events)
    if not pods.all_scheduled:
        planned = planned.requeued_at(timeout_due(job, pods))
    return planned.requeued_at(next_settled_at(pods.current.values(), now))


def _wait(job: DDPJob, reason: str, message: str, until: datetime | None, now: datetime) -> Plan:
    """Create no pod before `until`, unless something changes."""
    status = with_condition(job.status, "Running", False, reason, message, now)
    return Plan(with_phase(status, pods_scheduled=False), requeue_at=until)


def with_seen(job: DDPJob, planned: Plan) -> Plan:
    """Return the plan with the part of its status that holds even if its writes fail. Only new pods
    and the NetworkPolicy change what the status reports.
    """
    status = job.status if planned.create or planned.create_service else planned.status
    return replace(
        planned,
        seen=status.noting(
            asked_nodes=planned.status.bookkeeping.asked_nodes,
            isolation=job.status.bookkeeping.isolation,
        ),
    )


def explain_refusal(job: DDPJob, refusal: str) -> str:
    """Return the refusal of a pod and, if Pod Security refused it, what to change in the job."""
    where, template = _refused_template(job, refusal)
    found = read_refusal(refusal, template["spec"])
    if found is None:
        return refusal
    head = f"namespace {job.namespace} enforces Pod Security {found.level}"
    if fabrics := sorted({one.fabric for one in accelerators(job.spec) if one.fabric}):
        needs = "; ".join(f"{fabric} needs {PRIVILEGES[fabric]}" for fabric in fabrics)
        return (
            f"{head}: set spec.accelerator.network to none, or run the job in a namespace that "
            f"enforces privileged; {needs}"
        )
    ours = f'"{CHECKPOINT_VOLUME}"' in refusal
    why = f"; {CHECKPOINT_VOLUME} comes from spec.checkpoint.hostPath" if ours else ""
    return f"{head}: in {where}.spec {found.remedy}{why}"


def _refused_template(job: DDPJob, refusal: str) -> tuple[str, Mapping[str, Any]]:
    """Return the path and the template of the refused pod's containers."""
    pod = _REFUSED_POD.search(refusal)
    index = int(pod[1]) if pod else 0
    where = "spec.template"
    for number, override in enumerate(job.spec.overrides or ()):
        # An override's template extends the job's, but replaces its list of containers.
        has_containers = "containers" in ((override.template or {}).get("spec") or {})
        if has_containers and any(index in pods for pods in ranges(override)):
            where = f"spec.overrides[{number}].template"
    return where, spec_of(job.spec, index).template


def report_refusal(
    job: DDPJob,
    reason: str,
    message: str,
    now: datetime,
    *,
    seen: DDPJobStatus | None = None,
    wanted: Sequence[Identity] = (),
) -> Plan:
    """Plan for a job while the API server refuses something it needs: its `wanted` pods or another
    object. `seen`: the job's status with what was observed since.

    If all pods of the job run, it keeps running. The status of a finished job stays.
    """
    event = Event(reason, message, warning=True)
    if job.status.finished:
        return Plan(job.status, events=(event,))
    status = (seen or job.status).updated(observed_generation=job.generation)
    if reason == PODS_FORBIDDEN:
        status = gap_records.with_reason(status, [pod.index for pod in wanted], "Refused", now)
    known = job.status.condition("Running")
    running = status.is_true("Running")
    status = with_condition(status, "Running", running, reason, message, now)
    told = known is not None and known.reason == reason
    events = () if told else (event,)
    return Plan(with_phase(status, pods_scheduled=False), events=events)


def _progress(job: DDPJob, pods: Observed, now: datetime) -> tuple[DDPJobStatus, tuple[Event, ...]]:
    """Return the status and events for the pods' progress, assuming the planned pods exist."""
    replicas = len(members(job))
    status = job.status.updated(next_start_time=None)
    wanted = [identity.index for identity in pods.creatable]
    status = gap_records.with_reason(status, wanted, "Unscheduled", now)
    events: list[Event] = []
    if not pods.blocking and not status.is_true("PodsCreated"):
        message = f"{replicas} pods and the Service {job.name} exist"
        status = with_condition(status, "PodsCreated", True, "Created", message, now)
        status = status.noting(replacing=(), accepted_spec_hash=job.spec_hash)
        if job.spec.kueue_queue:
            status = status.noting(queue_group_size=group_size(job))
        if created := len(pods.creatable):
            events.append(Event("PodsCreated", f"created {created} of {replicas} pods"))
            events += [*unknown_accelerators(job), *doubtful_command(job)]
            events += local_checkpoints.warnings(job)
    ready = status.ready_replicas
    counted = f"{ready} of {replicas} pods are ready"
    all_ready = "its pod is ready" if replicas == 1 else f"all {replicas} pods are ready"
    if failure := _failed_side_car(pods):
        counted, all_ready = f"{counted}; {failure}", f"{all_ready}; {failure}"
    known, reason = status.condition("Running"), ""
    if ready == replicas and not status.is_true("Running"):
        status = with_condition(status, "Running", True, PODS_READY, all_ready, now)
        if status.condition("Restarting"):
            status = with_condition(status, "Restarting", False, PODS_READY, all_ready, now)
        status = status.noting(scheduling_retries=0, broken_since=None, renewed=())
        events += [Event("Running", all_ready), *not_queued(job, pods)]
    elif status.is_true("Running"):
        if known is not None and known.reason in _PASSING:
            if last_step_at := progress.last_step_at(status):
                since = format_time(last_step_at)
                all_ready += f"; the script works after its last step, since {since}"
            said = (PODS_READY, all_ready) if ready == replicas else (PODS_NOT_READY, counted)
            status = with_condition(status, "Running", True, *said, now)
    else:
        reason, message, warning = waiting_for(job, pods, counted)
        is_news = known is None or known.reason != reason
        if is_news and (warning or reason == QUEUED):
            events.append(Event(reason, message, warning=warning))
        status = with_condition(status, "Running", False, reason, message, now)
    said_before, said_now = (
        each.message if each else "" for each in (known, status.condition("Running"))
    )
    if failure and failure in said_now and failure not in said_before:
        events.append(Event("SideCarFailed", failure, warning=True))
    status = queued(status, now, waits=reason == QUEUED)
    return with_phase(status, pods_scheduled=pods.all_scheduled), tuple(events)


def _failed_side_car(pods: Observed) -> str:
    """Describe the first side car that failed; empty if none has."""
    for pod in pods.current.values():
        if pod.side_car_failure:
            return f"pod {pod.key.name}: {pod.side_car_failure}"
    return ""
