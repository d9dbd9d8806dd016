"""Jobs and pods in the states that the tests are about."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Bookkeeping, DDPJobStatus
from ddp_operator.job.membership.rank_order import follows_topology, present
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import ContainerExit, Identity, PodState
from ddp_operator.ports import Key, Manifest

from tests.good_manifests import job as manifest

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAMESPACE, NAME, UID = "research", "digits", "7d1c"


def later(seconds: float) -> datetime:
    """That long after NOW."""
    return NOW + timedelta(seconds=seconds)


def stored_job(
    *, status: Manifest | None = None, generation: int = 1, name: str = NAME, **spec: Any
) -> dict[str, Any]:
    """A job of two replicas, unless `spec` says otherwise, as the API server has it."""
    document = manifest(name, **{"replicas": 2, **spec})
    document["metadata"] |= {
        "namespace": NAMESPACE,
        "uid": UID,
        "generation": generation,
        "resourceVersion": "1",
        "creationTimestamp": NOW.isoformat(),
    }
    return document | ({"status": status} if status else {})


def fresh_job(**spec: Any) -> DDPJob:
    """A job that no operator has seen yet."""
    return DDPJob.parse(stored_job(**spec))


def with_status(job: DDPJob, **changes: Any) -> DDPJob:
    """The job with some fields of its status, or of its bookkeeping, changed."""
    notes = {name: changes.pop(name) for name in Bookkeeping.model_fields.keys() & changes.keys()}
    return replace(job, status=job.status.model_copy(update=changes).noting(**notes))


def edited(job: DDPJob, **spec: Any) -> DDPJob:
    """The job after its user has changed its spec."""
    after = DDPJob.parse(
        stored_job(
            generation=job.generation + 1,
            **{**job.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True), **spec},
        )
    )
    return replace(after, status=job.status)


def stored(job: DDPJob, planned: Plan) -> DDPJob:
    """The job once a plan's status is stored: what the next reconcile reads."""
    document = planned.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return replace(job, status=DDPJobStatus.model_validate(document))


def pod(
    job: DDPJob, index: int = 0, *, attempt: int | None = None, replacement: int = 0, **state: Any
) -> PodState:
    """A pod of the job's attempt (or an earlier one), pending unless `state` says otherwise."""
    identity = Identity(index, job.status.attempt if attempt is None else attempt, replacement)
    return replace(
        PodState(
            key=Key(job.namespace, identity.pod_name(job.name)),
            owner_uid=job.uid,
            identity=identity,
            spec_hash=job.spec_hash,
            phase="Pending",
        ),
        **state,
    )


def ready(job: DDPJob, index: int = 0, **state: Any) -> PodState:
    """A pod that trains."""
    return pod(job, index, **{"phase": "Running", "ready": True, "node": "node-a", **state})


def ended(
    job: DDPJob,
    index: int = 0,
    *,
    code: int,
    at: float = 0,
    reason: str = "Error",
    message: str = "",
    **state: Any,
) -> PodState:
    """A pod whose trainer has exited with `code`, `at` seconds after NOW."""
    end = ContainerExit(code=code, signal=0, reason=reason, message=message, finished=later(at))
    phase = "Failed" if code else "Succeeded"
    return pod(job, index, **{"phase": phase, "node": "node-a", "exit": end, **state})


def running_job(**spec: Any) -> tuple[DDPJob, list[PodState]]:
    """A job whose pods are all ready, as the operator knows it, and those pods."""
    job = fresh_job(**spec)
    job = stored(job, plan(job, [], NOW))
    if follows_topology(job):  # its ranks have their order
        job = with_status(job, ordered=present(job.status))
    pods = [ready(job, index) for index in range(job.spec.replicas)]
    return stored(job, plan(job, pods, later(10))), pods


def condition(planned: Plan, type_: str) -> tuple[str, str]:
    """Status and reason of one condition; empty where it was never set."""
    found = next((c for c in planned.status.conditions if c.type == type_), None)
    return (found.status, found.reason) if found else ("", "")


def key(name: str) -> Key:
    """The key of a pod of the job."""
    return Key(NAMESPACE, name)


def does_nothing(planned: Plan) -> bool:
    """Whether a plan, its status apart, changes nothing."""
    return not (
        planned.decided
        or planned.create
        or planned.create_spares
        or planned.create_service
        or planned.isolate is not None
        or planned.delete
        or planned.fence
        or planned.delete_job
    )


def event_reasons(planned: Plan) -> list[str]:
    """What a person sees happen."""
    return [event.reason for event in planned.events]
