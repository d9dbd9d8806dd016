"""Create and remove a job's NetworkPolicy as `spec.isolation` says.

The policy is not watched. The status records whether it exists, and before a change that it may.
"""

from dataclasses import replace

from ddp_operator.api.job import DDPJob
from ddp_operator.api.rules import wants_host_network
from ddp_operator.api.spec.overrides import kinds
from ddp_operator.job.planning.model import Plan

EXISTS = "Job"
CHANGING = "Changing"
NONE = ""


def by_default(job: DDPJob) -> DDPJob:
    """Return the job with a NetworkPolicy, unless it has an isolation of its own.

    Pods on their nodes' network keep none, because a NetworkPolicy does not affect them.
    """
    if job.spec.isolation or any(wants_host_network(kind) for kind, _ in kinds(job.spec)):
        return job
    return replace(job, spec=job.spec.model_copy(update={"isolation": "Job"}))


def begin_change(job: DDPJob) -> Plan | None:
    """Decide to create or remove the NetworkPolicy."""
    if job.status.bookkeeping.isolation in (_wanted(job), CHANGING):
        return None
    return Plan(job.status.noting(isolation=CHANGING), decided=True)


def with_network_policy(job: DDPJob, planned: Plan) -> Plan:
    """Add the NetworkPolicy's creation, which precedes all pods, or its removal to the plan."""
    wanted = _wanted(job)
    if job.status.bookkeeping.isolation == wanted:
        return planned
    status = planned.status.noting(isolation=wanted)
    return replace(planned, status=status, isolate=wanted == EXISTS)


def _wanted(job: DDPJob) -> str:
    return EXISTS if job.spec.isolation == "Job" else NONE
