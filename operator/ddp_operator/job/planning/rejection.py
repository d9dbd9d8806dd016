"""Plan for a job whose stored spec this operator cannot read: it is invalid, or of a newer release.

A job that never began fails. One that was valid once must not end because of an edit, so the edit
waits until it is corrected. The last valid spec still applies, if this process has read it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from pydantic import ValidationError

from ddp_operator import __version__
from ddp_operator.api.job import DDPJob, InvalidJobError, NewerJobError
from ddp_operator.api.spec import MAX_SECONDS
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.api.values.limits import MAX_MESSAGE
from ddp_operator.job.planning.decisions import finish
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status.goodput import account
from ddp_operator.ports import Event, Manifest

NEWER_JOB: Final = "NewerThanOperator"
INVALID_SPEC: Final = "InvalidSpec"


def with_problem(job: DDPJob, planned: Plan, problem: InvalidJobError) -> Plan:
    """Add to a plan for a job with its last valid spec why the stored one does not apply."""
    if job.deleting or job.spec.managed_elsewhere or planned.status.finished:
        return planned
    return _explained(job.status, planned, problem, "the job continues with its last valid spec")


def reject(
    manifest: Manifest, problem: InvalidJobError, pods: Sequence[PodState], now: datetime
) -> Plan:
    """Fail a job that never began, then delete its pods. If it began, or only a newer operator
    reads its spec, the job and its pods stay as they are: without a spec, nothing else is certain.
    """
    metadata = manifest["metadata"]
    status = before = stored_status(manifest)
    if "deletionTimestamp" in metadata:
        return Plan(status)
    if not status.finished:
        if isinstance(problem, NewerJobError) or status.start_time:
            left = "the job is left as it is, and no failed pod is replaced,"
            return _explained(status, Plan(status), problem, left)
        status = status.updated(observed_generation=metadata.get("generation", 0))
        failed = finish(status, "Failed", INVALID_SPEC, str(problem), now)
        created = datetime.fromisoformat(metadata["creationTimestamp"])
        accounted = account(failed.status, before=before, created=created, now=now)
        return replace(failed, status=accounted)
    live = (p for p in pods if p.owner_uid == metadata["uid"] and not p.deleting)
    doomed = tuple(p.key for p in live if not (p.failed or p.succeeded))
    return Plan(status, delete=doomed).expiring(_expiry(manifest, status), now)


def stored_status(manifest: Manifest) -> DDPJobStatus:
    """Return the stored status. An unreadable one is ignored, since it may be the invalid part."""
    try:
        return DDPJobStatus.model_validate(manifest.get("status") or {})
    except ValidationError:
        return DDPJobStatus()


def _explained(
    before: DDPJobStatus, planned: Plan, problem: InvalidJobError, consequence: str
) -> Plan:
    """Return the plan with the problem in reason and message of its status, and in one Event."""
    reason, remedy = INVALID_SPEC, "correct the spec"
    if isinstance(problem, NewerJobError):
        reason = NEWER_JOB
        remedy = f"upgrade the operator ({__version__}), which is older than the installed CRD"
    message = f"{consequence} until you {remedy}: {problem}"[:MAX_MESSAGE]
    status = planned.status.updated(reason=reason, message=message)
    is_known = (before.reason, before.message) == (status.reason, status.message)
    events = () if is_known else (Event(reason, message, warning=True),)
    return replace(planned, status=status, events=(*planned.events, *events))


def _expiry(manifest: Manifest, status: DDPJobStatus) -> datetime | None:
    """Return when the TTL of the unvalidated spec ends; None if it has no valid one."""
    spec = manifest.get("spec")
    ttl = spec.get("ttlSecondsAfterFinished") if isinstance(spec, Mapping) else None
    completed = status.completion_time
    if isinstance(ttl, bool) or not isinstance(ttl, int) or not 0 <= ttl <= MAX_SECONDS:
        return None
    return completed + timedelta(seconds=ttl) if completed else None
