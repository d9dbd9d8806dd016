"""Plan for a job with an invalid manifest."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from pydantic import ValidationError

from ddp_operator import __version__
from ddp_operator.api.job import InvalidJobError, NewerJobError
from ddp_operator.api.spec import MAX_SECONDS
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.job.planning.decisions import finish
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status.goodput import account
from ddp_operator.ports import Event, Manifest

NEWER_JOB = "NewerThanOperator"


def reject(
    manifest: Manifest, error: InvalidJobError, pods: Sequence[PodState], now: datetime
) -> Plan:
    """Fail the job, then delete its pods. One that only a newer operator reads stays unchanged."""
    metadata = manifest["metadata"]
    status = before = _status(manifest)
    if "deletionTimestamp" in metadata:
        return Plan(status)
    if isinstance(error, NewerJobError) and not status.finished:
        message = (
            f"job left unchanged: this operator ({__version__}) is older than the installed CRD; "
            f"upgrade the operator. {error}"
        )
        events = (Event(NEWER_JOB, message, warning=True),) if status.reason != NEWER_JOB else ()
        left = status.updated(reason=NEWER_JOB, message=message)
        return Plan(left, events=events)
    if not status.finished:
        status = status.updated(observed_generation=metadata.get("generation", 0))
        failed = finish(status, "Failed", "InvalidSpec", str(error), now)
        created = datetime.fromisoformat(metadata["creationTimestamp"])
        accounted = account(failed.status, before=before, created=created, now=now)
        return replace(failed, status=accounted)
    live = (p for p in pods if p.owner_uid == metadata["uid"] and not p.deleting)
    doomed = tuple(p.key for p in live if not (p.failed or p.succeeded))
    return Plan(status, delete=doomed).expiring(_expiry(manifest, status), now)


def _expiry(manifest: Manifest, status: DDPJobStatus) -> datetime | None:
    """Return when the TTL of the unvalidated spec ends; None if it has no valid one."""
    spec = manifest.get("spec")
    ttl = spec.get("ttlSecondsAfterFinished") if isinstance(spec, Mapping) else None
    completed = status.completion_time
    if isinstance(ttl, bool) or not isinstance(ttl, int) or not 0 <= ttl <= MAX_SECONDS:
        return None
    return completed + timedelta(seconds=ttl) if completed else None


def _status(manifest: Manifest) -> DDPJobStatus:
    """Return the stored status. An unreadable one is ignored, since it may be the invalid part."""
    try:
        return DDPJobStatus.model_validate(manifest.get("status") or {})
    except ValidationError:
        return DDPJobStatus()
