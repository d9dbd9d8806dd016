"""The whole decision: from a job, its pods and the time to what must be done next.

A plan is one of two things. Either it *decides*: its status moves a counter or ends the job, and
it acts on nothing. Or it *carries out* what the stored status says: it creates and deletes pods. A
decision is thus always on record before the first pod is touched for it, and a crash between any
two API calls loses and doubles nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job import convergence, decisions, recovery, restart_rules
from ddp_operator.job.model import Observed, Plan, observe
from ddp_operator.job.nodes import with_bad_nodes
from ddp_operator.job.pods import PodState
from ddp_operator.job.scheduling import release_half_placed
from ddp_operator.ports import Node


def plan(
    job: DDPJob, pods: Sequence[PodState], now: datetime, *, nodes: Sequence[Node] = ()
) -> Plan:
    """Decide what one job needs now; `nodes` are those that its pods may be placed on."""
    if job.deleting:
        return Plan(job.status)  # what it owns goes with it
    observed = restart_rules.ignoring(job, observe(job, pods), now)
    job = replace(job, status=_with_counts(job, observed))
    if job.status.finished:
        return convergence.clean_up(job, observed, now)
    if decision := _decide(job, observed, now):
        return replace(decision, status=with_bad_nodes(job, decision.status, nodes))
    return _carry_out(job, observed, now)


def _decide(job: DDPJob, pods: Observed, now: datetime) -> Plan | None:
    if job.status.is_true("Suspended"):
        return None if job.spec.suspend else decisions.resume(job, pods, now)
    if noted := recovery.note_ignored(job, pods):
        return noted
    # What has ended well has succeeded, also where nobody looked before it was suspended or its
    # time was up.
    if succeeded := decisions.succeed(job, pods, now):
        return succeeded
    if job.spec.suspend:
        return decisions.suspend(job, now)
    return (
        decisions.end_at_deadline(job, now)
        or recovery.recover(job, pods, now)
        or release_half_placed(job, pods, now)
    )


def _carry_out(job: DDPJob, pods: Observed, now: datetime) -> Plan:
    if job.spec.suspend:
        return convergence.stay_suspended(job, pods)
    return convergence.converge(job, pods, now)


def _with_counts(job: DDPJob, pods: Observed) -> DDPJobStatus:
    """The stored status with what is simply seen: the spec's generation, ready pods."""
    ready = sum(pod.succeeded or (pod.ready and not pod.failed) for pod in pods.current.values())
    return job.status.model_copy(
        update={
            "observed_generation": job.generation,
            "ready_replicas": ready,
            "ready": f"{ready}/{job.spec.replicas}",
        }
    )
