"""Decide about failures: which pods restart, and whether the job is charged."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus, Failure, FailureAction
from ddp_operator.api.values.text import in_ranges
from ddp_operator.hang.result import Hang
from ddp_operator.job.failure import budget, causes, classes, records, restart_rules
from ddp_operator.job.failure.restart_rules import Reaction
from ddp_operator.job.membership.launchers import PODS_UNREACHABLE
from ddp_operator.job.membership.world import members, next_generation, replaced
from ddp_operator.job.planning import gaps
from ddp_operator.job.planning.decisions import fail, next_attempt, restarting
from ddp_operator.job.planning.failures import late_causes, watchdog
from ddp_operator.job.planning.group import elasticity, local_checkpoints, spares
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.places import queue
from ddp_operator.job.planning.words import train_on
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Event

_MOST_RANGES: Final = 8


def restart_for_cause(job: DDPJob, pods: Observed, now: datetime, hang: Hang | None) -> Plan | None:
    """Decide about failed or missing pods, once the cause is known or was awaited long enough.

    `hang`: what launchers showed of a collective that timed out; None: they were not asked yet.
    """
    cause = causes.find(job, pods, now)
    if cause is None:
        return None
    failed_pod = pods.current.get(cause.failure.index)
    if hang is None and watchdog.dumps_due(job, pods, cause.failure, now):
        return None  # the launchers are asked first
    if hang and hang.sentence and failed_pod and watchdog.has_dumps(failed_pod):
        failure = watchdog.named_failure(job, pods, cause.failure, hang)
        return failed(job, pods, failure, cause.lost, now)
    excused = cause.secondary and _is_excused(job, pods, now)
    return failed(job, pods, cause.failure, cause.lost, now, excused=excused)


def give_up_overdue(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    """Decide that pods are lost because their gaps lasted too long."""
    late = gaps.overdue(job, pods, now)
    return failed(job, pods, *late, now) if late else None


def failed(
    job: DDPJob,
    pods: Observed,
    failure: Failure,
    lost: Sequence[int],
    now: datetime,
    *,
    excused: bool = False,
    off: Collection[str] = (),
    is_saved: bool = False,
) -> Plan:
    """Decide about one failure by the job's rules, its class, and the remaining restarts.

    `lost`: node ranks that cannot continue; empty if none can. `excused`: not charged unless a rule
    says so. `off`: nodes that pods leave while they still train. `is_saved`: rank 0 pauses, and the
    ranks have nothing to save.
    """
    # Rules may charge any failure, but none twice.
    continued = bool(lost) and failure.index in pods.not_restarted
    if continued and (refund := late_causes.take_back_charge(job, pods, failure)):
        return refund
    reaction = restart_rules.judge(job, failure)
    words = records.describe(failure)
    by_rule = f", {reaction.rule}" if reaction.rule else ""
    if reaction.action == "FailJob":
        if reaction.rule:
            return fail(job, "FailedByRule", f"{reaction.rule} (FailJob): {words}", now, failure)
        reason = "ConfigurationError" if failure.exit_code is not None else failure.reason
        return fail(job, reason, words, now, failure)
    status = budget.after_progress(job.status)
    charged = False if continued else reaction.charged
    if charged is None:
        charged = not excused and budget.is_charged(job, status, failure.class_)
    limit = job.spec.restart.max_restarts
    if charged and budget.is_spent(job, status):
        told = f"spec.restart.maxRestarts ({limit}) is used up{by_rule}; {words}"
        return fail(job, "MaxRestartsExceeded", told, now, failure)

    action, gone, why_gang = _action(job, pods, failure, reaction, lost)
    new_group = action == "RestartGang" and queue.has_lost_nodes(job, pods, failure, lost)
    # The write that records the loss also lets a spare take over.
    takeovers = spares.take_over(job, pods, gone, off=off)
    awaited = [node_rank for node_rank in gone if node_rank not in takeovers]
    without: Sequence[int] = ()
    if awaited and elasticity.can_go_without(job, pods, awaited):
        awaited, without = [], awaited
    creates = action == "RestartGang" or bool(awaited)
    # If the other pods continue without the lost ones, they need no pause.
    waits = creates or (action == "RestartInPlace" and not failure.disruption)
    failure = failure.updated(action=action, charged=charged, continued=continued or None)
    status = budget.count(records.remember(status, failure), failure)
    pause = budget.pause(job, status, failure) if waits else timedelta()
    if pause:
        until = max(status.next_start_time or now, now + pause)
        status = status.updated(next_start_time=until)
    if action == "RestartGang":
        status = next_attempt(job, status, new_group=new_group)
    else:
        status = replacing(job, status, gone, awaited)
        # Pods that are new since this failure. Each other pod is part of one failure once.
        new = {*(members(job)[rank] for rank in gone), *spares.slots_by_rank(takeovers).values()}
        new.update(status.bookkeeping.renewed if continued else ())
        status = status.noting(broken_since=now, renewed=tuple(sorted(new)))
    if action == "RestartInPlace" or takeovers or without:
        status = next_generation(
            job,
            status,
            now,
            new_slots=spares.slots_by_rank(takeovers),
            without=without,
            # Ranks leave a group that still trains together, after a step.
            lost=0 if off else len(gone),
            grace_seconds=0 if is_saved or 0 in lost else None,
        )
    used = status.bookkeeping.restarts_without_progress
    cost = f"restart {used} of {limit}" if charged else "not charged"
    if continued:
        cost += ": same failure"
    wait = f" after {int(pause.total_seconds())} s" if pause else ""
    what = _what(job, status, action, takeovers, awaited, without)
    message = f"{what}{wait} ({cost}{by_rule}{why_gang}): {words}"
    return restarting(status, _reason_to_restart(failure), message, now, creates=creates)


def note_ignored(job: DDPJob, pods: Observed) -> Plan | None:
    """Decide to record failures that a rule ignores."""
    known = {f.pod for f in job.status.failures if f.action == "Ignore"}
    room = records.MAX_IGNORED - len(known)
    new = [(failure, rule) for failure, rule in pods.ignored if failure.pod not in known][:room]
    if room <= 0 or not new:
        return None
    status = records.remember(job.status, *(failure for failure, _ in new))
    events = (
        Event("FailureIgnored", f"{rule} (Ignore): {records.describe(failure)}")
        for failure, rule in new
    )
    return Plan(status, decided=True, events=tuple(events))


def _is_excused(job: DDPJob, pods: Observed, now: datetime) -> bool:
    """Return whether a consequence without a known cause is not charged."""
    if job.status.is_paused(now) or elasticity.absent_node_ranks(pods):
        return True  # waiting in vain for absent pods is no new failure
    # A lost node is noticed only after its peers fail. One such failure does not end a job; two in
    # a row do.
    last = job.status.failures[-1] if job.status.failures else None
    doubted = last is not None and not last.charged and classes.is_consequence(last)
    return budget.is_spent(job, budget.after_progress(job.status)) and not doubted


def _action(
    job: DDPJob, pods: Observed, failure: Failure, reaction: Reaction, lost: Sequence[int]
) -> tuple[FailureAction, Sequence[int], str]:
    """Return the action, the node ranks to replace, and why it is more than was asked for."""
    wanted = reaction.action
    in_place = wanted == "RestartInPlace"
    kept = {index for index, pod in pods.current.items() if pod.restartable} if in_place else set()
    gone = [index for index in lost if index not in kept]
    if in_place:
        gone += [index for index in _broken(job, pods, failure) if index not in gone]
    if (why_all := _why_all(job, pods, failure, lost)) is not None:
        return "RestartGang", (), why_all
    if not reaction.rule and _began_without(job, pods, failure, gone):
        return "RestartPod", gone, ""
    # With a launcher, fewer pods would restart.
    asked = job.spec.restart.scope in ("InPlace", "Auto")
    hears = job.status.bookkeeping.launcher and pods.launchers.silent_since is None
    hears_none = asked and not hears
    if not reaction.rule and hears_none:
        return "RestartGang", (), "; no launcher answers"
    unlike = in_place and local_checkpoints.forbid_in_place(job)
    if unlike or wanted == "RestartGang" or len(gone) == len(members(job)):
        return "RestartGang", (), "; rank 0 saved in its pod" if unlike else ""
    if not in_place and not gone:
        return "RestartGang", (), ""  # it is unknown which pod failed
    return wanted, gone, ""


def _broken(job: DDPJob, pods: Observed, failure: Failure) -> Sequence[int]:
    """Return the node ranks that processes must not restart in: what is broken in a pod or on its
    node stays broken. A pod that fails again without progress is replaced in any case.
    """
    failed_pods = (pod for pod in pods.current.values() if pod.restartable)
    broken = {pod.identity.index for pod in failed_pods if classes.has_bad_node(pod)}
    # A hang without a node names no pod.
    if failure.node and (classes.is_of_node(failure) or _fails_again(job, failure)):
        broken.add(failure.index)
    return sorted(broken)


def _fails_again(job: DDPJob, failure: Failure) -> bool:
    """Return whether the same pod caused a failure before, without progress since."""
    notes = budget.after_progress(job.status).bookkeeping
    has_progressed = not (notes.restarts_without_progress or notes.node_failures_without_progress)
    if has_progressed or classes.is_consequence(failure):
        return False
    saved = job.status.saved_at
    return any(
        known.pod == failure.pod and not known.continued and not classes.is_consequence(known)
        for known in job.status.failures
        if known.action != "Ignore" and (saved is None or known.time > saved)
    )


def _why_all(job: DDPJob, pods: Observed, failure: Failure, lost: Sequence[int]) -> str | None:
    """Return why all pods restart, in any scope; None if they need not."""
    if pods.any_succeeded or queue.takes_all(job, pods):
        return ""  # a completed pod joins no other group
    if failure.reason == PODS_UNREACHABLE:
        return ""  # new pods need no word of the operator to start
    if not queue.has_lost_nodes(job, pods, failure, lost):
        return None
    relieved = len(spares.take_over(job, pods, lost)) == len(lost) > 0
    may_shrink = job.spec.elastic and len(members(job)) - len(lost) >= job.spec.min_size
    return None if relieved or may_shrink else "; asking the queue for nodes again"


def _began_without(job: DDPJob, pods: Observed, failure: Failure, gone: Sequence[int]) -> bool:
    """Return whether the pods to replace never started, so that the others still wait for them."""
    if classes.was_made(failure):
        return False
    never = {gap.node_rank for gap in pods.gaps if gap.reason in ("CannotStart", "NotStarted")}
    return never.issuperset(gone) and 0 < len(gone) < len(members(job))


def replacing(
    job: DDPJob, status: DDPJobStatus, gone: Sequence[int], awaited: Sequence[int]
) -> DDPJobStatus:
    """Return the status in which these pods are replaced; no spare takes over for `awaited`."""
    slots = members(job)
    replacements = replaced(status, (slots[node_rank] for node_rank in gone))
    new: set[int] = set()  # unknown before all pods of the attempt existed
    if status.bookkeeping.replacing or status.is_true("PodsCreated"):
        new = {*status.bookkeeping.replacing, *(slots[node_rank] for node_rank in awaited)}
    return status.noting(replacements=replacements, replacing=tuple(sorted(new)))


def _what(
    job: DDPJob,
    status: DDPJobStatus,
    action: FailureAction,
    takeovers: Mapping[int, PodState],
    awaited: Sequence[int],
    without: Sequence[int],
) -> str:
    if action == "RestartGang":
        return f"restarting all {job.spec.replicas} pods as attempt {status.attempt}"
    # Several parts are kept short, since the reason follows them.
    several, in_place = bool(takeovers) and bool(awaited or without), action == "RestartInPlace"
    parts: list[str] = []
    if in_place:
        parts.append("all restart" if several else "all processes restart in place")
    if len(takeovers) == 1:
        [(node_rank, spare)] = takeovers.items()
        name = "a spare" if several and in_place else f"spare {spare.key.name}"
        parts.append(f"{name} becomes node rank {node_rank}")
    elif takeovers:
        parts.append(f"spares become {_node_ranks(takeovers)}")
    if awaited:
        pods = f"the pod{'s' * (len(awaited) > 1)} of "
        parts.append(f"replacing {'' if several else pods}{_node_ranks(awaited)}")
    if without:
        size = len(members(job))
        rest = size - len(without)
        short = f"{rest} of {size} pods continue"
        headline = short if several or in_place else train_on(rest, size)
        parts.append(headline + ("" if several else f", without {_node_ranks(without)}"))
    return ", ".join(parts)


def _node_ranks(node_ranks: Collection[int]) -> str:
    """Return node ranks as text: only the first few ranges, since the reason follows them."""
    ranges = in_ranges(sorted(node_ranks)).split(",")
    more = ", …" if len(ranges) > _MOST_RANGES else ""
    return f"node rank{'s' * (len(node_ranks) > 1)} {', '.join(ranges[:_MOST_RANGES])}{more}"


def _reason_to_restart(failure: Failure) -> str:
    if failure.reason in (records.NO_PROGRESS, records.SLOW_RANK, PODS_UNREACHABLE):
        return failure.reason
    if failure.class_ == "Infrastructure":
        return "NodeFailed" if classes.is_of_node(failure) else "ServiceFailed"
    return "Disrupted" if failure.disruption else "PodFailed"
