"""Builders of jobs and pods in the states that tests need."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Bookkeeping, DDPJobStatus
from ddp_operator.api.status.world import World
from ddp_operator.job.membership.rank_order import follows_topology, present
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import ContainerExit, Identity, PodState
from ddp_operator.ports import Key, Manifest

from tests.good_manifests import job as manifest

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAMESPACE, NAME, UID = "research", "digits", "7d1c"


def later(seconds: float) -> datetime:
    """Return the time `seconds` after NOW."""
    return NOW + timedelta(seconds=seconds)


def stored_job(
    *, status: Manifest | None = None, generation: int = 1, name: str = NAME, **spec: Any
) -> dict[str, Any]:
    """Return a job as the API server stores it, with two replicas by default."""
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
    """Return a new job without a status."""
    return DDPJob.parse(stored_job(**spec))


def with_status(job: DDPJob, **changes: Any) -> DDPJob:
    """Return the job with some fields of its status or bookkeeping changed."""
    notes = {name: changes.pop(name) for name in Bookkeeping.model_fields.keys() & changes.keys()}
    return replace(job, status=job.status.model_copy(update=changes).noting(**notes))


def node_failures(status: DDPJobStatus) -> dict[str, int]:
    """Return how many failures count for each node."""
    return {one.name: one.failures for one in status.bookkeeping.nodes if one.failures}


def edited(job: DDPJob, **spec: Any) -> DDPJob:
    """Return the job after its user has changed its spec."""
    after = DDPJob.parse(
        stored_job(
            generation=job.generation + 1,
            **{**job.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True), **spec},
        )
    )
    return replace(after, status=job.status)


def stored(job: DDPJob, planned: Plan) -> DDPJob:
    """Return the job as the next reconcile reads it, with the plan's status."""
    document = planned.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return replace(job, status=DDPJobStatus.model_validate(document))


def pod(
    job: DDPJob, index: int = 0, *, attempt: int | None = None, replacement: int = 0, **state: Any
) -> PodState:
    """Return a pod of the job, by default pending and of the current attempt."""
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
    """Return a pod that trains."""
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
    """Return a pod with a trainer that exited with `code`, `at` seconds after NOW."""
    end = ContainerExit(code=code, signal=0, reason=reason, message=message, finished=later(at))
    phase = "Failed" if code else "Succeeded"
    return pod(job, index, **{"phase": phase, "node": "node-a", "exit": end, **state})


def running_job(**spec: Any) -> tuple[DDPJob, list[PodState]]:
    """Return a running job and its ready pods."""
    job = fresh_job(**spec)
    job = stored(job, plan(job, [], NOW))
    if follows_topology(job):
        job = with_status(job, ordered=present(job.status))
    pods = [ready(job, index) for index in range(job.spec.replicas)]
    return stored(job, plan(job, pods, later(10))), pods


def condition(planned: Plan, type_: str) -> tuple[str, str]:
    """Return status and reason of a condition; both are empty if it is not set."""
    found = next((c for c in planned.status.conditions if c.type == type_), None)
    return (found.status, found.reason) if found else ("", "")


def key(name: str) -> Key:
    """Return the key of a pod of the job."""
    return Key(NAMESPACE, name)


def group(of: Plan | DDPJob) -> World:
    """Return the recorded group of a plan or a job."""
    assert of.status.world is not None
    return of.status.world


def listening(pod: PodState) -> PodState:
    """Return the pod with a started launcher that has an address."""
    return replace(pod, address=f"10.0.0.{pod.identity.slot}:29501", started=later(1))


def does_nothing(planned: Plan) -> bool:
    """Tell if a plan changes nothing except the status."""
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
    """Return the reasons of a plan's events."""
    return [event.reason for event in planned.events]
