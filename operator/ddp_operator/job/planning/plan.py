"""Plan a job: from the job, its pods and the time to the next action.

A plan either *decides*: it changes a counter or ends the job, and changes no pod. Or it *carries
out* the stored status. Each decision is stored before any pod changes, so a crash between two API
calls loses and repeats nothing.

Most parts of a plan are rare. Each is asked only if the input has something for it: the conditions
are here, beside the order of the parts, so that a healthy job's plan is short.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.hang.result import NOTHING_KNOWN, Hang
from ddp_operator.job.failure import restart_rules
from ddp_operator.job.failure.nodes import with_bad_nodes
from ddp_operator.job.membership.launchers import (
    NO_LAUNCHERS,
    PODS_UNREACHABLE,
    LauncherStates,
)
from ddp_operator.job.membership.world import world_of
from ddp_operator.job.planning import (
    cleanup,
    code_changes,
    convergence,
    decisions,
    isolation,
    observation,
)
from ddp_operator.job.planning.failures import (
    late_causes,
    moves,
    pauses,
    recovery,
    watchdog,
)
from ddp_operator.job.planning.group import (
    assignments,
    copy_order,
    elasticity,
    leading,
    spares,
    topology,
)
from ddp_operator.job.planning.model import Plan, with_goodput
from ddp_operator.job.planning.places import queue, scheduling
from ddp_operator.job.pods.observed import Observed, observe
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status import placement
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
    if isolate:
        job = isolation.by_default(job)
    if job.deleting:
        return Plan(job.status)  # the garbage collector deletes what it owns
    if job.spec.managed_elsewhere:
        # MultiKueue writes the status. Nothing reports when Kueue evicts the job's Workload.
        look_again = None if job.status.finished else now + _LOOK_AGAIN
        return Plan(job.status).expiring(cleanup.expiry(job), now).requeued_at(look_again)
    known = moves.with_due(nodes if isinstance(nodes, Nodes) else Nodes(nodes), now)
    observed = observe(job, pods, launchers, known)
    if job.spec.restart.rules:
        observed = restart_rules.ignoring(job, observed, now)
    if job.status.finished:
        seen = observation.with_counts(job, observed, now)
        return watchdog.with_stacks(job, observed, cleanup.clean_up(seen, observed, now))
    seen, observed, events = observation.observe(job, observed, report, now)
    if planned := _decide(seen, observed, report, hang, now):
        status = with_bad_nodes(seen, planned.status, known)
        planned = replace(planned, status=status, seen=seen.status)
    else:
        start_time = seen.status.start_time or (None if job.spec.suspend else now)
        seen = replace(seen, status=seen.status.updated(start_time=start_time))
        planned = _carry_out(seen, observed, report, hang, now)
        if not planned.status.placement:  # it is only shown: nothing is decided by it
            status, placed = placement.with_placement(planned.status, observed)
            planned = replace(planned, status=status, events=(*planned.events, *placed))
        planned = convergence.with_seen(seen, planned)
    planned = replace(planned, events=(*planned.events, *events))
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
    """Return the first decision that is due."""
    if job.status.is_true("Suspended"):
        wakes = None if job.spec.suspend else decisions.resume(job, pods, now)
        return code_changes.change(job, pods, now) or wakes
    possible = _decisions(job, pods, report, hang, now)
    return next((planned for planned in possible if planned), None)


def _decisions(
    job: DDPJob, pods: Observed, report: Report | None, hang: Hang | None, now: datetime
) -> Iterator[Plan | None]:
    """Yield each decision whose condition holds; None: it is not due. The order matters, and each
    comment says why.
    """
    leader = pods.launchers.leader
    # Pods that completed count, even if they did so just before a suspension or a deadline.
    if pods.ignored:
        yield recovery.note_ignored(job, pods)
    if pods.any_succeeded:
        yield decisions.succeed(job, pods, now)
    # Nothing below may keep a job from giving its nodes back when its user asks for that.
    if job.spec.suspend:
        yield decisions.suspend(job, now)
    # What launchers did without an operator is a fact, by which all else is judged.
    if pods.launchers.ahead or (leader and (leader.led or leader.saved_in_pod or leader.remark)):
        yield leading.accept(job, pods, now)
    # The user's limit comes before all that the operator would do.
    yield decisions.end_at_deadline(job, now)
    # Pods may exist only after the group that they begin with, and their NetworkPolicy, are on
    # record.
    if job.spec.elastic:
        yield elasticity.begin(job)
    if job.spec.isolation or job.status.bookkeeping.isolation:
        yield isolation.begin_change(job)
    # A person's restart also covers the failures that nobody has decided about.
    yield decisions.restart_as_requested(job, now)
    # So does new code, which the failures are not of.
    if job.code_requested != job.status.bookkeeping.code_requested:
        yield code_changes.change(job, pods, now)
    # A failure is decided before anything changes the group that had it.
    yield from _after_failures(job, pods, hang, now)
    # Without a failure of any pod, a hang explains why no step completes.
    failure = watchdog.hung(job, pods, report, now, hang or NOTHING_KNOWN)
    if failure and not (hang is None and watchdog.to_ask(job, pods)):  # launchers are asked first
        # All pods restart, even if the pod is known that blocks the others.
        yield recovery.failed(job, pods, failure, (), now)
    yield from _changes(job, pods, report, now)


def _after_failures(
    job: DDPJob, pods: Observed, hang: Hang | None, now: datetime
) -> Iterator[Plan | None]:
    """As `_decisions`: failures seen late, present ones, and pods that do not come."""
    # A cause that is seen late changes what is known of the last restart.
    if job.status.failures and pods.old:
        yield late_causes.correct(job, pods, now)
    if job.spec.kueue_queue:
        yield queue.begin_new_group(job, pods, now)
    if any(pod.spec_hash != job.spec_hash for pod in pods.current.values()):
        yield decisions.restart_for_spec(job, now)
    if pods.may_have_failed:
        yield recovery.restart_for_cause(job, pods, now, hang)
    if pods.gaps:
        yield recovery.give_up_overdue(job, pods, now)


def _changes(
    job: DDPJob, pods: Observed, report: Report | None, now: datetime
) -> Iterator[Plan | None]:
    """As `_decisions`, of a group in which nothing has failed."""
    # A pod that trains is moved only in such a group.
    if _may_move(job, pods):
        yield moves.move(job, pods, report, now)
    # Spares cost the group nothing, so they come before a smaller group.
    if pods.spares or pods.spares_missing:
        yield spares.tend(job, pods, now)
    if job.spec.elastic:
        yield elasticity.resize(job, pods, now)
    # A node that the job need not avoid any more may be all that is missing.
    if not pods.all_scheduled or pods.spares_missing:
        yield scheduling.reschedule(job, pods, now)
    # Only a group that nothing else can complete gives its nodes back.
    if not pods.all_scheduled:
        yield scheduling.release_half_placed(job, pods, now)
    # Ranks are ordered once it is known which pods they are.
    if job.spec.topology:
        yield topology.order(job, pods, now)


def _may_move(job: DDPJob, pods: Observed) -> bool:
    leaving = any(node.leaving for node in pods.nodes.unwell.values())
    return bool(leaving or job.status.slow_rank or job.status.bookkeeping.successors)


def _carry_out(
    job: DDPJob, pods: Observed, report: Report | None, hang: Hang | None, now: datetime
) -> Plan:
    """Return the plan that carries out the stored status, with what each part adds to it."""
    if job.spec.suspend:
        planned = convergence.stay_suspended(job, pods)
    else:
        planned = _with_upkeep(job, pods, convergence.converge(job, pods, now), report, now)
        planned = watchdog.with_silence_warning(job, planned, report, now)
    if hang is None:
        planned = watchdog.with_request(job, pods, planned, report, now)
    return planned


def _with_upkeep(
    job: DDPJob, pods: Observed, planned: Plan, report: Report | None, now: datetime
) -> Plan:
    """Add what only some active jobs need."""
    notes, running = job.status.bookkeeping, job.status.condition("Running")
    if job.spec.isolation or notes.isolation:
        planned = isolation.with_network_policy(job, planned)
    if pods.nodes.signalled:
        planned = moves.with_checkpoint_request(job, pods, planned, now)
    if pods.spares_missing:
        planned = spares.with_spares(job, pods, planned, now)
    if job.spec.elastic:
        planned = planned.requeued_at(elasticity.next_change(job, pods), after=now)
    if notes.barred_nodes:
        planned = planned.requeued_at(scheduling.next_change(job, pods), after=now)
    if job.spec.topology:
        planned = topology.with_order_due(job, pods, planned, now)
    # Pods know their first group from their environment, but not the nodes of the others.
    in_memory = job.spec.memory_checkpoint is not None
    may_copy = in_memory or notes.launcher == "Pod"
    wants_pause = in_memory and _may_move(job, pods) and moves.wants_pause(job, pods, report, now)
    if (
        world_of(job).generation
        or (may_copy and copy_order.is_order_due(job, pods))
        or (in_memory and pauses.is_due(job, pods, wanted=wants_pause))
    ):
        planned = assignments.with_assignments(job, pods, planned, now, wants_pause=wants_pause)
    was_unreachable = running is not None and running.reason == PODS_UNREACHABLE
    if was_unreachable or pods.gaps or pods.launchers.silent_since:
        planned = assignments.with_warning(job, pods, planned, now)
    return planned
