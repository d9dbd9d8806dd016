"""Tests of jobs with an invalid spec or status."""

from dataclasses import replace

import pytest
from ddp_operator.api.job import DDPJob, InvalidJobError, NewerJobError
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.rejection import reject
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Manifest

from tests.unit.job.builders import (
    NOW,
    condition,
    does_nothing,
    ended,
    event_reasons,
    fresh_job,
    later,
    ready,
    running_job,
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


def test_running_job_with_an_invalid_edit_fails() -> None:
    job, pods = running_job()
    status = job.status.model_dump(mode="json", by_alias=True, exclude_none=True)
    broken = stored_job(generation=2, replicas=0, status=status)
    planned = rejected(broken, *pods)
    assert planned.decided
    assert condition(planned, "Running")[0] == "False"
    pods = [*pods, ended(job, 2, code=1), ready(job, 3, deleting=True), ready(job, 4)]
    pods[-1] = replace(pods[-1], owner_uid="another")
    planned = rejected({**broken, "status": as_stored(planned)}, *pods)
    assert not planned.decided
    assert planned.delete == (pods[0].key, pods[1].key)


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
