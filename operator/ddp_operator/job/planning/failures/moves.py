"""Move pods that still train off their nodes: nodes that are about to be terminated, or the node of
a slow rank, if `spec.restart.slowRank` asks for it.

A pod that trains is given up only when another one is ready to take its place, as a spare does. If
no spare is, a successor is created outside the group, which must not run on the node to leave. The
scheduler decides whether there is a place for it; until then the job trains on.

Before a node ends, the trainer is asked to save in time, whether its pods move or not.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from ddp_operator.api import ranks
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Failure
from ddp_operator.api.values.bounded import format_time
from ddp_operator.job.failure import records, restart_rules
from ddp_operator.job.membership.world import first_successor, has_launcher, members
from ddp_operator.job.planning.failures import pauses, recovery
from ddp_operator.job.planning.group import elasticity, local_checkpoints, spares
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.words import some
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status.progress import Report
from ddp_operator.job.status.slow_rank import cost
from ddp_operator.ports import Event, Node, Nodes

MAX_SUCCESSORS: Final = 16
"""Successors at a time: an autoscaler adds nodes for them. No node has more GPUs."""
_MAX_REPLACED: Final = 100
_ALONE: Final = ("RestartPod", "RestartInPlace")
"""Actions that let another pod take a pod's place."""
_WAITS: Final = "no pod on another node is ready to take its place yet"
_PAUSES: Final = "rank 0 pauses after its next snapshot in memory, and then another pod takes over"
MAX_LEFT: Final = 100
"""How many nodes a job remembers to have left, so that it leaves each only once."""
_MAX_START: Final = 240
SAVE_BEFORE: Final = timedelta(minutes=10)
"""How long before a node's known end its job is asked for a checkpoint."""
LEAVE_BEFORE: Final = timedelta(minutes=30)
"""How long before a maintenance pods leave the node, if there is room: a new node takes minutes."""


class _Move(NamedTuple):
    """All pods of the group on one node, which are to leave it."""

    pods: tuple[PodState, ...]
    failure: Failure
    boot: str = ""
    """The boot of the node that is about to be terminated; empty: a rank is slow there."""


class _Found(NamedTuple):
    """The moves that are due."""

    moves: Sequence[_Move]
    ready: Sequence[_Move]
    """Those that are possible now."""
    at_work: bool
    shrinks: bool = False
    """True: the others continue without these pods."""
    refusal: str = ""
    """Why a slow pod may not be replaced."""
    is_slow: bool = False
    """True: a rank is slow for long enough to be replaced."""


def with_due(nodes: Nodes, now: datetime) -> Nodes:
    """Return the nodes; one with a maintenance within half an hour is about to leave.

    A time that has passed means nothing: GKE removes it and sets other signals when the
    maintenance begins.
    """
    due = tuple(
        replace(node, leaving=f"maintenance at {format_time(node.maintenance_at)}")
        for node in nodes.signalled.values()
        if node.maintenance_at and not node.leaving
        if node.maintenance_at - LEAVE_BEFORE <= now < node.maintenance_at
    )
    return nodes.replacing(due) if due else nodes


def move(job: DDPJob, pods: Observed, report: Report | None, now: datetime) -> Plan | None:
    """Decide that pods leave their nodes, since others are ready to take their places; that
    successors are created first; or that they are not needed any more.
    """
    found = _find(job, pods, report, now)
    waits = bool(found.ready) and pauses.is_awaited(job, pods)
    if found.ready and not waits and (planned := _moved(job, pods, found.ready, now)):
        return planned
    if found.shrinks:
        return None
    # A restart ends no wait for a successor.
    ends_wait = found.at_work or not found.moves
    planned = _with_successors(job, pods, found.moves) if ends_wait else None
    known = job.status.slow_rank
    if planned or known is None or not found.is_slow or not found.at_work:
        return planned
    reason = found.refusal or (_PAUSES if waits else _WAITS)
    known = known.updated(not_replaced=reason)
    status = job.status.updated(slow_rank=known)
    return Plan(status, decided=True) if status != job.status else None


def wants_pause(job: DDPJob, pods: Observed, report: Report | None, now: datetime) -> bool:
    """Return whether pods could leave their nodes now, once rank 0 pauses."""
    return pauses.may_pause(job, pods) and bool(_find(job, pods, report, now).ready)


def _find(job: DDPJob, pods: Observed, report: Report | None, now: datetime) -> _Found:
    leaving, at_work = _off_leaving_nodes(job, pods, now), is_at_work(job, pods)
    if leaving and at_work and elasticity.can_go_without(job, pods, _node_ranks(leaving)):
        return _Found(leaving, leaving, at_work=True, shrinks=True)
    moves, refusal = [one for one in leaving if _is_alone(job, one)], ""
    slow = None if moves else _off_slow_node(job, pods, now)
    if slow is not None:
        refusal = _refusal(job, slow)
        moves = [] if refusal else [slow]
        # The last comparison of this group's ranks must show it again.
        pace = job.status.bookkeeping.pace
        is_slow = pace is None or not pace.faster_in_a_row
        is_told = report is not None and report.concerns(job) and is_slow
        at_work = at_work and is_told
    chosen: list[_Move] = []
    if at_work and moves:
        lost = _node_ranks(moves)[: len(members(job)) - 1]
        ready = spares.take_over(job, pods, lost, off=_off(pods, moves)).keys()
        chosen = [one for one in moves if ready >= set(_node_ranks([one]))]
    return _Found(moves, chosen, at_work=at_work, refusal=refusal, is_slow=slow is not None)


def _off_leaving_nodes(job: DDPJob, pods: Observed, now: datetime) -> list[_Move]:
    """Return the pods on nodes that are about to be terminated. Each boot is left only once."""
    left = set(job.status.bookkeeping.left_nodes)
    going = {n.name: n for n in pods.nodes.unwell.values() if n.leaving and boot_of(n) not in left}
    by_node: dict[str, list[PodState]] = {}
    for pod in pods.current.values() if going else ():
        if pod.node in going:
            by_node.setdefault(pod.node, []).append(pod)
    found: list[_Move] = []
    for name, on_it in by_node.items():
        why = f"node {name} is about to be terminated ({going[name].leaving})"
        failure = records.of_lost(job, on_it[0], records.NODE_LEAVING, why, "Disruption", now)
        found.append(_Move(tuple(on_it), failure, boot_of(going[name])))
    return found


def _off_slow_node(job: DDPJob, pods: Observed, now: datetime) -> _Move | None:
    """Return the pod of a rank that was slow for long enough to be replaced."""
    policy, slow = job.spec.restart.slow_rank, job.status.slow_rank
    if policy is None or policy.action != "Replace" or slow is None:
        return None
    pod = pods.current.get(ranks.pod_of(job.spec, slow.rank))
    early = now - slow.since < timedelta(seconds=policy.for_seconds)
    if early or pod is None or pod.key.name != slow.pod:
        return None
    failure = records.of_lost(job, pod, records.SLOW_RANK, cost(slow), "Infrastructure", now)
    return _Move((pod,), failure.updated(rank=slow.rank))


def _refusal(job: DDPJob, slow: _Move) -> str:
    """Return why the pod of a slow rank may not be replaced; empty if it may."""
    index = slow.failure.index
    if not _is_alone(job, slow):
        return "all pods would restart"
    if index in job.status.bookkeeping.slow_replaced:
        return f"node rank {index} is slow on another node too, so the node is not the cause"
    return ""


def _is_alone(job: DDPJob, one: _Move) -> bool:
    """Return whether the other pods stay when these pods are replaced."""
    stays = has_launcher(job) and not local_checkpoints.forbid_in_place(job)
    by_rule = restart_rules.judge(job, one.failure).action in _ALONE
    return stays and by_rule and len(one.pods) < len(members(job))


def _moved(job: DDPJob, pods: Observed, moves: Sequence[_Move], now: datetime) -> Plan | None:
    """Return the plan that replaces these pods; None if that would restart the others."""
    status, notes, failure = job.status, job.status.bookkeeping, moves[0].failure
    is_slow = failure.reason == records.SLOW_RANK
    if is_slow:
        replaced = (*notes.slow_replaced, failure.index)[-_MAX_REPLACED:]
        status = status.updated(slow_rank=None).noting(slow_replaced=replaced)
    else:
        left = (*notes.left_nodes, *(one.boot for one in moves))
        status = status.noting(left_nodes=left[-MAX_LEFT:])
    seen, lost, off = replace(job, status=status), _node_ranks(moves), _off(pods, moves)
    paused = pauses.paused_step(job, pods)
    planned = recovery.failed(
        seen, pods, failure, lost, now, excused=is_slow, off=off, is_saved=paused is not None
    )
    after = planned.status
    if after.finished or after.attempt != status.attempt:
        return None
    new = set(members(replace(job, status=after))).difference(members(job))
    rest = (notes.successors or 0) - sum(slot >= first_successor(job) for slot in new)
    leaves = notes.nodes_to_leave if rest else ()
    events = planned.events
    if paused is not None:
        message = f"training pauses after step {paused}, from which all ranks continue"
        events = (Event("PausedToMove", message), *events)
    status = after.noting(successors=rest or None, nodes_to_leave=leaves)
    return replace(planned, status=status, events=events)


def _with_successors(job: DDPJob, pods: Observed, moves: Sequence[_Move]) -> Plan | None:
    """Decide how many successors there are, and which nodes they avoid."""
    notes, off = job.status.bookkeeping, _off(pods, moves)
    known = notes.successors or 0
    if not (moves or known):
        return None
    first = first_successor(job)
    others = (pod for pod in pods.spares if pod.identity.slot < first and pod.node not in off)
    lacking = len(_node_ranks(moves)) - sum(map(spares.is_well, others))
    wanted = min(max(lacking, 0), MAX_SUCCESSORS) if _may_have_successors(job) else 0
    unfit = {*notes.nodes_to_leave, *(pod.node for pod in pods.spares)} & pods.nodes.unwell.keys()
    leaves = tuple(sorted(unfit.union(pod.node for one in moves for pod in one.pods)))[-MAX_LEFT:]
    status = job.status.noting(successors=wanted or None, nodes_to_leave=leaves if wanted else ())
    if status == job.status:
        return None
    events: tuple[Event, ...] = ()
    if wanted > known:
        names = some([pod.key.name for one in moves for pod in one.pods])
        what = f"creating {wanted} more pod{'s' * (wanted > 1)} that can take the place of {names}"
        events = (Event("SuccessorWanted", f"{what}: {moves[0].failure.message}"),)
    return Plan(status, decided=True, events=events)


def _may_have_successors(job: DDPJob) -> bool:
    """Return whether pods may be added to the job. In a queue, a pod that takes the place of one of
    its group leaves a place there that nobody fills, so Kueue may evict the group.
    """
    return not (job.spec.overrides or job.spec.placed_together)


def _node_ranks(moves: Sequence[_Move]) -> list[int]:
    return [pod.identity.index for one in moves for pod in one.pods]


def _off(pods: Observed, moves: Sequence[_Move]) -> set[str]:
    """Return the nodes on which no successor may run."""
    return {*(pod.node for one in moves for pod in one.pods), *pods.nodes.unwell}


def with_checkpoint_request(job: DDPJob, pods: Observed, planned: Plan, now: datetime) -> Plan:
    """Add a request for a checkpoint: one for each of its nodes that leaves or ends soon."""
    named = {pod.node for pod in pods.current.values()}
    why: dict[str, str] = {}
    waits: list[datetime] = []
    for node in filter(None, map(pods.nodes.signalled.get, named)):
        ends = [node.ends_at] if node.ends_at else []
        if node.maintenance_at and now < node.maintenance_at:
            ends.append(node.maintenance_at)
            waits.append(node.maintenance_at - LEAVE_BEFORE)
        waits += (end - SAVE_BEFORE for end in ends)
        if ends and now >= min(ends) - SAVE_BEFORE:
            why[f"{boot_of(node)} ends"] = f"node {node.name} ends at {format_time(min(ends))}"
        elif node.leaving:
            why[boot_of(node)] = f"node {node.name} is about to be terminated ({node.leaving})"
    planned = planned.requeued_at(*waits, after=now)
    pod_0 = pods.current.get(0)
    if pod_0 is None or not (pod_0.address and pod_0.ready) or not is_at_work(job, pods):
        return planned
    # Sorted, so that too many keys are cut in the same way each time.
    keys = sorted(why)[:MAX_LEFT]
    new = [key for key in keys if key not in job.status.bookkeeping.asked_nodes]
    if not new:
        return planned
    others = f", and {len(new) - 1} more node{'s' if len(new) > 2 else ''}" if len(new) > 1 else ""
    message = f"requested a checkpoint: {why[new[0]]}{others}"
    return replace(
        planned,
        status=planned.status.noting(asked_nodes=tuple(keys)),
        ask_checkpoint=pod_0.address,
        events=(*planned.events, Event("CheckpointRequested", message)),
    )


def is_at_work(job: DDPJob, pods: Observed) -> bool:
    """Return whether all pods train, as far as is known, and none has completed."""
    waits = any(gap.reason != "Starting" for gap in pods.gaps)
    return job.status.is_true("Running") and not (pods.any_succeeded or waits)


def boot_of(node: Node) -> str:
    """Return an identifier of this boot of the machine, else its name."""
    return (node.boot_id or node.name)[:_MAX_START]
