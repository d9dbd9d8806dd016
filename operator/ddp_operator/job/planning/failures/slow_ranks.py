"""Replace the pod of a rank that stays slow, if `spec.restart.slowRank` asks for it.

The pod still trains, so it is replaced only if that restarts no other pod, and a spare or another
node is there for it. A successor that is slow too shows that the node was not the cause.
"""

from dataclasses import replace
from datetime import datetime

from ddp_operator.api import ranks
from ddp_operator.api.job import DDPJob
from ddp_operator.api.spec.restart import SlowRankPolicy
from ddp_operator.api.status import SlowRank
from ddp_operator.job.failure import records
from ddp_operator.job.failure.nodes import with_bad_nodes
from ddp_operator.job.membership.world import scope_of
from ddp_operator.job.planning.failures import departures, recovery
from ddp_operator.job.planning.group import spares
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.observed import Observed
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status.progress import Report
from ddp_operator.job.status.slow_rank import cost

_MAX_REPLACED = 100


def replace_slow(job: DDPJob, pods: Observed, report: Report | None, now: datetime) -> Plan | None:
    """Decide to replace the pod of a rank that was slow for long enough, or why it is not."""
    policy, slow = job.spec.restart.slow_rank, job.status.slow_rank
    if policy is None or policy.action != "Replace" or slow is None or slow.faster_in_a_row:
        return None
    index = ranks.pod_of(job.spec, slow.rank)
    pod = pods.current.get(index)
    is_told = report is not None and report.concerns(job)
    if now - slow.since < policy.after or not is_told or pod is None or pod.key.name != slow.pod:
        return None
    if not departures.is_at_work(job, pods):
        return None
    refusal = _refusal(job, policy, index, now)
    planned = None if refusal else _replacing(job, pods, pod, slow, now)
    if planned is not None:
        return planned
    refusal = refusal or "no spare and no other node can take its place alone"
    if slow.not_replaced == refusal:
        return None
    status = job.status.updated(slow_rank=slow.updated(not_replaced=refusal))
    return Plan(status, decided=True)


def _refusal(job: DDPJob, policy: SlowRankPolicy, index: int, now: datetime) -> str:
    """Return why the pod may not be replaced now; empty if it may."""
    notes = job.status.bookkeeping
    if scope_of(job) == "Gang":
        return "no launcher answers, so all pods would restart"
    if index in notes.slow_replaced:
        return f"node rank {index} is slow on another node too, so the node is not the cause"
    if notes.slow_replaced_at and now - notes.slow_replaced_at < policy.after:
        return "another pod was replaced for this a short time ago"
    return ""


def _replacing(
    job: DDPJob, pods: Observed, pod: PodState, slow: SlowRank, now: datetime
) -> Plan | None:
    """Return the plan that replaces this pod alone; None if nothing can take its place."""
    index, notes = pod.identity.index, job.status.bookkeeping
    excluded = tuple(dict.fromkeys((*job.status.excluded_nodes, pod.node)))
    status = job.status.updated(excluded_nodes=excluded, slow_rank=None)
    status = with_bad_nodes(job, status, pods.nodes)
    status = status.noting(
        slow_replaced=(*notes.slow_replaced, index)[-_MAX_REPLACED:], slow_replaced_at=now
    )
    seen = replace(job, status=status)
    spare = spares.take_over(seen, pods, [index], leaving=True).get(index)
    if spare is not None:
        is_place = spare.node != pod.node
    else:
        doomed = [(pod, node) for node in pods.nodes if node.name == pod.node]
        is_place = bool(doomed) and departures.is_place(seen, pods, doomed)
    if not is_place:
        return None
    failure = records.of_lost(job, pod, records.SLOW_RANK, cost(slow), "Infrastructure", now)
    failure = failure.updated(rank=slow.rank)
    planned = recovery.failed(seen, pods, failure, [index], now, excused=True, leaving=True)
    after = planned.status
    return None if after.finished or after.attempt != job.status.attempt else planned
