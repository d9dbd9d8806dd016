"""Plan a job: from the job, its pods and the time to the next action.

A plan either *decides*: it changes a counter or ends the job, and changes no pod. Or it *carries
out* the stored status. Each decision is stored before any pod changes, so a crash between two API
calls loses and repeats nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.constants import LABEL_JOB_NAME
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.hang.result import NOTHING_KNOWN, Hang
from ddp_operator.job.failure import causes, restart_rules, starts
from ddp_operator.job.failure.nodes import with_bad_nodes
from ddp_operator.job.membership.launcher_protocol import NO_LAUNCHERS, LauncherStates
from ddp_operator.job.membership.rank_order import is_first_due
from ddp_operator.job.membership.world import format_slots, members, world_of
from ddp_operator.job.planning import (
    cleanup,
    convergence,
    decisions,
    gap_clocks,
    gaps,
    isolation,
)
from ddp_operator.job.planning.failures import (
    departures,
    moves,
    recovery,
    watchdog,
)
from ddp_operator.job.planning.gaps import in_present_group
from ddp_operator.job.planning.group import (
    assignments,
    elasticity,
    leading,
    reachability,
    spares,
    topology,
)
from ddp_operator.job.planning.model import Plan, with_goodput
from ddp_operator.job.planning.places import rescheduling
from ddp_operator.job.planning.places.scheduling import release_half_placed
from ddp_operator.job.pods import completion
from ddp_operator.job.pods.observed import Observed, observe
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status import memory_checkpoint, placement, progress, slow_rank
from ddp_operator.job.status.progress import Report
from ddp_operator.ports import Node, Nodes

_LOOK_AGAIN: Final = timedelta(seconds=10)
"""How often the Workload of a job that runs in another cluster is read."""


def plan(
    job: DDPJob,
    pods: Sequence[PodState],
    now: datetime,
    *,
    nodes: Sequence[Node] = (),
    report: Report | None = None,
    launchers: LauncherStates = NO_LAUNCHERS,
    hang: Hang | None = NOTHING_KNOWN,
    isolate: bool = False,
) -> Plan:
    """Return what a job needs now. `nodes`: those that its pods may run on. `report`, `launchers`:
    what its trainer and launchers last reported. `hang`: what launchers showed of a hang; None:
    they were not asked yet. `isolate`: the default of `spec.isolation` is Job.
    """
    job = isolation.with_default(job, isolate=isolate)
    if job.deleting:
        return Plan(job.status)  # the garbage collector deletes what it owns
    if job.spec.managed_elsewhere:
        # MultiKueue writes the status. Nothing reports when Kueue evicts the job's Workload.
        look_again = None if job.status.finished else now + _LOOK_AGAIN
        return Plan(job.status).expiring(cleanup.expiry(job), now).requeued_at(look_again)
    known = nodes if isinstance(nodes, Nodes) else Nodes(nodes)
    observed = restart_rules.ignoring(job, observe(job, pods, launchers, known), now)
    if job.status.finished:
        seen = replace(job, status=_with_counts(job, observed, now))
        return watchdog.with_stacks(job, observed, cleanup.clean_up(seen, observed, now))
    status = progress.with_report(job, report)
    status = progress.with_last_words(status, observed.current.get(0), now)
    status, told = memory_checkpoint.with_report(job, status, launchers.leader)
    status, slowed = slow_rank.with_pace(job, status, report, observed)
    seen = replace(job, status=status)
    if progress.is_done(status):
        observed = _with_lost_as_completed(seen, observed)
    if not job.spec.suspend:
        observed = replace(observed, gaps=gaps.find(job, observed, now))
    seen = replace(job, status=_with_counts(seen, observed, now))
    if planned := _decide(seen, observed, report, hang, now):
        status = with_bad_nodes(seen, planned.status, known)
        planned = replace(planned, status=status, seen=seen.status)
    else:
        start_time = seen.status.start_time or (None if job.spec.suspend else now)
        status = seen.status.updated(start_time=start_time)
        seen = replace(seen, status=status)
        planned = _carry_out(seen, observed, report, now)
        if hang is None:
            planned = watchdog.with_request(seen, observed, planned, report, now)
        status, placed = placement.with_placement(planned.status, observed)
        planned = replace(planned, status=status, events=(*planned.events, *placed))
        planned = convergence.with_seen(seen, planned)
    planned = replace(planned, events=(*planned.events, *told, *slowed))
    planned = watchdog.with_stacks(job, observed, planned)
    said = report.status if report and report.concerns(job) else None
    return with_goodput(
        job,
        planned,
        now,
        first_steps=said.first_steps or () if said else None,
    )


def _decide(
    job: DDPJob, pods: Observed, report: Report | None, hang: Hang | None, now: datetime
) -> Plan | None:
    """Return the first decision that is due. The order matters; each line says why."""
    if job.status.is_true("Suspended"):
        return None if job.spec.suspend else decisions.resume(job, pods, now)
    return (
        # Pods that completed count, even if they did so just before a suspension or a deadline.
        _complete(job, pods, now)
        # Nothing below may keep a job from giving its nodes back when its user asks for that.
        or decisions.suspend(job, now)
        # What launchers did without an operator is a fact, by which all else is judged.
        or leading.accept(job, pods, now)
        # The user's limit comes before all that the operator would do.
        or decisions.end_at_deadline(job, now)
        # Pods may exist only after this is on record.
        or _prepare(job)
        # A person's restart also covers the failures that nobody has decided about.
        or decisions.restart_as_requested(job, now)
        # A failure is decided before anything changes the group that had it.
        or recovery.recover(job, pods, now, hang)
        # Without a failure of any pod, a hang explains why no step completes.
        or _end_hang(job, pods, report, hang, now)
        # From here on nothing has failed. A pod that trains is moved only in such a group.
        or moves.move(job, pods, report, now)
        # Spares cost the group nothing, so they come before a smaller group.
        or spares.tend(job, pods, now)
        or elasticity.resize(job, pods, now)
        # A node that the job need not avoid any more may be all that is missing.
        or rescheduling.reschedule(job, pods, now)
        # Only a group that nothing else can complete gives its nodes back.
        or release_half_placed(job, pods, now)
        # Ranks are ordered once it is known which pods they are.
        or topology.order(job, pods, now)
    )


def _complete(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide what pods that ended mean: a failure that a rule ignores, or the job's success."""
    return recovery.note_ignored(job, pods) or decisions.succeed(job, pods, now)


def _prepare(job: DDPJob) -> Plan | None:
    """Decide what a job's pods need: the group that they begin with, and their NetworkPolicy."""
    return elasticity.begin(job) or isolation.begin_change(job)


def _end_hang(
    job: DDPJob, pods: Observed, report: Report | None, hang: Hang | None, now: datetime
) -> Plan | None:
    failure = watchdog.hung(job, pods, report, now, hang or NOTHING_KNOWN)
    if failure is None or (hang is None and watchdog.to_ask(job, pods)):
        return None  # the launchers are asked first
    # All pods restart, even if the pod is known that blocks the others.
    return recovery.failed(job, pods, failure, (), now)


def _carry_out(job: DDPJob, pods: Observed, report: Report | None, now: datetime) -> Plan:
    if job.spec.suspend:
        return convergence.stay_suspended(job, pods)
    planned = isolation.with_network_policy(job, convergence.converge(job, pods, now))
    planned = departures.with_checkpoint_request(job, pods, planned, now)
    planned = spares.with_spares(job, pods, planned, now)
    changes = (elasticity.next_change(job, pods), rescheduling.next_change(job, pods))
    planned = planned.requeued_at(*changes, after=now)
    planned = topology.with_order_due(job, pods, planned, now)
    planned = assignments.with_assignments(job, pods, planned, now)
    planned = reachability.with_warning(job, pods, planned, now)
    return watchdog.with_silence_warning(job, planned, report, now)


def _with_lost_as_completed(job: DDPJob, pods: Observed) -> Observed:
    """Count lost pods of a job that is done as completed."""
    gone = {place.index for place in causes.vanished(job, pods)}
    current = {
        index: replace(pod, ignored=True) if pod.disrupted else pod
        for index, pod in pods.current.items()
    }
    return replace(
        pods,
        current=current,
        missing=tuple(place for place in pods.missing if place.index not in gone),
        creatable=tuple(place for place in pods.creatable if place.index not in gone),
        completed=pods.completed | gone,
    )


def _with_counts(job: DDPJob, pods: Observed, now: datetime) -> DDPJobStatus:
    """Return the stored status with what was observed: generation, ready and completed pods."""
    present = pods.current.values()
    # All pods of a running group have acknowledged it, perhaps to an earlier operator. The group
    # as it begins needs no acknowledgement.
    known = job.status.is_true("Running") or not (world_of(job).generation or is_first_due(job))
    ready = sum(
        pod.succeeded
        or (
            (pod.ready and not pod.failed)
            and (known or in_present_group(job, pods, pod, started=True))
        )
        for pod in present
    )
    ready += len(pods.completed)
    completed = pods.completed.union(completion.settled(present, now))
    wanted = max(job.spec.replicas, len(members(job)))  # an elastic group may have more
    has_spares = job.spec.spares or job.spec.elastic
    waiting = f" +{len(spares.ready(job, pods))}" if has_spares else ""
    status = job.status
    if not status.finished:
        began = _first_start(job, pods, now)
        status = gap_clocks.recorded(status.updated(first_pod_start_time=began), pods.gaps)
        status = status.noting(
            launcher=pods.launchers.scope or _known_launcher(job),
            ran_spec_hash=starts.seen(job, pods),
            spares=spares.seen(job, pods),
        )
    return status.updated(
        observed_generation=job.generation,
        ready_replicas=ready,
        ready=f"{ready}/{wanted}{waiting}",
        selector=f"{LABEL_JOB_NAME}={job.name}" if job.spec.elastic else "",
        completed_indexes=format_slots(sorted(completed)),
    )


def _first_start(job: DDPJob, pods: Observed, now: datetime) -> datetime | None:
    """Return when the first pod ran, as far as is known; None if none has."""
    known = job.status.first_pod_start_time
    if known or pods.completed:
        return known or now
    seen = (*pods.current.values(), *pods.spares, *pods.old)
    return now if any(pod.started or pod.exit for pod in seen) else None


def _known_launcher(job: DDPJob) -> str:
    """Return the scope that the launcher reported earlier; empty if the spec changed since."""
    notes = job.status.bookkeeping
    is_edited = notes.accepted_spec_hash not in ("", job.spec_hash)
    return "" if is_edited else notes.launcher
