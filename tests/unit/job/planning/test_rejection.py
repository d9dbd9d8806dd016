"""Tests of jobs with an invalid spec or status."""

from dataclasses import replace

import pytest
from ddp_operator.api.job import DDPJob, InvalidJobError, NewerJobError
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.planning.rejection import reject, with_problem
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Manifest

from tests.unit.job.builders import (
    NOW,
    does_nothing,
    ended,
    event_reasons,
    fresh_job,
    later,
    pod,
    ready,
    running_job,
    stored,
    stored_job,
)


def rejected(manifest: Manifest, *pods: PodState) -> Plan:
    with pytest.raises(InvalidJobError) as error:
        DDPJob.parse(manifest)
    return reject(manifest, error.value, pods, NOW)


def as_stored(planned: Plan) -> Manifest:
    return planned.status.model_dump(mode="json", by_alias=True, exclude_none=True)


def test_invalid_spec_fails_with_its_field() -> None:
    planned = rejected(stored_job(generation=4, replicas=0))
    assert planned.decided
    status = planned.status
    assert (status.phase, status.reason) == ("Failed", "InvalidSpec")
    assert status.message.startswith("spec.replicas: ")
    assert (status.observed_generation, status.completion_time) == (4, NOW)
    assert event_reasons(planned) == ["InvalidSpec"]


def test_pods_of_an_invalid_job_that_failed_are_deleted() -> None:
    job, pods = running_job()
    broken = stored_job(replicas=0)
    failed = {**broken, "status": as_stored(rejected(broken))}
    pods = [*pods, ended(job, 2, code=1), ready(job, 3, deleting=True), ready(job, 4)]
    pods[-1] = replace(pods[-1], owner_uid="another")
    planned = rejected(failed, *pods)
    assert not planned.decided
    assert planned.delete == (pods[0].key, pods[1].key)


@pytest.mark.parametrize("spec", [{"replicas": 0}, {"novelty": 1}], ids=["invalid", "newer"])
@pytest.mark.parametrize("pods_exist", [True, False])
def test_job_that_has_run_keeps_its_pods_and_phase(spec: Manifest, *, pods_exist: bool) -> None:
    """A failed pod is not replaced either, because its spec is unknown."""
    job, pods = running_job()
    job = stored(job, plan(job, [replace(pod, started=later(5)) for pod in pods], later(20)))
    pods = [pods[0], ended(job, 1, code=1)] if pods_exist else []
    broken = stored_job(generation=2, status=as_stored(Plan(job.status)), **spec)
    planned = rejected(broken, *pods)
    assert does_nothing(planned)
    field = next(iter(spec))
    assert planned.status.phase == "Running"
    assert planned.status.reason == ("InvalidSpec" if field == "replicas" else "NewerThanOperator")
    assert planned.status.message.startswith("the job is left as it is")
    assert f"spec.{field}: " in planned.status.message
    assert event_reasons(planned) == [planned.status.reason]
    again = rejected({**broken, "status": as_stored(planned)}, *pods)
    assert (again.status, again.events) == (planned.status, ())


def test_job_that_began_keeps_its_place_in_a_queue() -> None:
    job = fresh_job()
    job = stored(job, plan(job, [], NOW))
    broken = stored_job(replicas=0, status=as_stored(Plan(job.status)))
    assert does_nothing(rejected(broken, pod(job), pod(job, 1)))


def test_problem_of_the_spec_is_added_to_the_plan_of_the_last_valid_one() -> None:
    job, pods = running_job()
    problem = InvalidJobError("spec.progress.logPattern: missing )")
    failed = [pods[0], ended(job, 1, code=1)]
    usual = plan(job, failed, later(60))
    planned = with_problem(job, usual, problem)
    assert (planned.decided, planned.status.phase) == (True, "Restarting")
    assert planned.status.attempt == usual.status.attempt == 1
    assert planned.status.reason == "InvalidSpec"
    assert planned.status.message == (
        "the job continues with its last valid spec until you correct the spec: "
        "spec.progress.logPattern: missing )"
    )
    assert event_reasons(planned) == [*event_reasons(usual), "InvalidSpec"]
    job = stored(job, planned)
    again = with_problem(job, plan(job, [], later(61)), problem)
    assert "InvalidSpec" not in event_reasons(again)
    corrected = plan(stored(job, again), [], later(62))
    assert corrected.status.reason != "InvalidSpec"


def test_finished_job_with_invalid_spec_is_kept() -> None:
    succeeded = {"type": "Succeeded", "status": "True", "reason": "Completed"}
    conditions = [{**succeeded, "lastTransitionTime": NOW.isoformat()}]
    status = {"phase": "Succeeded", "conditions": conditions}
    planned = rejected(stored_job(replicas=0, status=status))
    assert does_nothing(planned)
    assert planned.status.phase == "Succeeded"


def test_unreadable_status_is_replaced() -> None:
    planned = rejected(stored_job(status={"attempt": "many"}))
    assert planned.decided
    assert "status.attempt" in planned.status.message
    assert planned.status.attempt == 0


def test_deleted_invalid_job_is_left_alone() -> None:
    manifest = stored_job(replicas=0)
    manifest["metadata"]["deletionTimestamp"] = NOW.isoformat()
    assert does_nothing(rejected(manifest, ready(fresh_job())))


def test_problem_does_not_change_a_job_that_is_over() -> None:
    job, pods = running_job()
    job = stored(job, plan(job, [replace(pod, phase="Succeeded") for pod in pods], later(60)))
    usual = plan(job, pods, later(61))
    assert with_problem(job, usual, InvalidJobError("spec.replicas")) == usual


@pytest.mark.parametrize(
    ("ttl", "expires"), [(60, True), ("60", False), (True, False), (-1, False)]
)
def test_ttl_of_an_invalid_job_is_kept_if_valid(ttl: object, *, expires: bool) -> None:
    broken = stored_job(replicas=0, ttlSecondsAfterFinished=ttl)
    failed = {**broken, "status": as_stored(rejected(broken))}
    waiting = reject(failed, InvalidJobError("spec.replicas"), [], later(59))
    assert not waiting.delete_job
    assert waiting.requeue_at == (later(60) if expires else None)
    assert reject(failed, InvalidJobError("spec.replicas"), [], later(60)).delete_job is expires


@pytest.mark.parametrize(
    ("spec", "newer"),
    [
        ({"novelty": 1}, True),
        ({"restart": {"scope": "Somehow"}}, True),
        ({"novelty": 1, "replicas": 0}, False),
        ({"replicas": "two"}, False),
    ],
)
def test_spec_of_a_newer_operator_fails_nothing(spec: Manifest, *, newer: bool) -> None:
    with pytest.raises(InvalidJobError) as error:
        DDPJob.parse(stored_job(**spec))
    assert isinstance(error.value, NewerJobError) == newer
    assert rejected(stored_job(**spec)).decided != newer
