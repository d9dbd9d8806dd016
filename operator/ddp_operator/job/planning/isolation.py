"""Has a job's NetworkPolicy created and removed as its spec says.

It is not watched: the status says whether it exists and, before that changes, that it may.
"""

from dataclasses import replace

from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning.model import Plan

EXISTS = "Job"
CHANGING = "Changing"
NONE = ""


def begin_change(job: DDPJob) -> Plan | None:
    """Decide that the NetworkPolicy is made or removed; None where it is as wanted."""
    if job.status.bookkeeping.isolation in (_wanted(job), CHANGING):
        return None
    return Plan(job.status.noting(isolation=CHANGING), decided=True)


def with_network_policy(job: DDPJob, planned: Plan) -> Plan:
    """Complete the plan of an active job: make the policy, before any pod, or remove it."""
    wanted = _wanted(job)
    if job.status.bookkeeping.isolation == wanted:
        return planned
    status = planned.status.noting(isolation=wanted)
    return replace(planned, status=status, isolate=wanted == EXISTS)


def _wanted(job: DDPJob) -> str:
    return EXISTS if job.spec.isolation == "Job" else NONE
