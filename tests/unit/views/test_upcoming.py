from typing import Any

import pytest
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.screen import screen
from ddp_client.views.job.snapshot import JobSnapshot
from ddp_client.views.job.upcoming import upcoming
from ddp_operator.job.pods.state import PodState

from tests.good_manifests import Json
from tests.unit.cli.jobs import at, condition, stored, training
from tests.unit.job import builders
from tests.unit.job.builders import later

NOW = later(1200)


def next_of(manifest: Json, *pods: PodState) -> list[str]:
    seen = JobSnapshot.read(manifest)
    return upcoming(seen, Pods.of(seen, pods), NOW)


def with_spec(manifest: Json, **spec: Any) -> Json:
    manifest["spec"] |= spec
    return manifest


def test_job_without_deadlines_has_no_next_event() -> None:
    assert next_of(with_spec(training(), progressDeadlineSeconds=None)) == []


def test_active_deadline() -> None:
    job = with_spec(training(), activeDeadlineSeconds=1320, progressDeadlineSeconds=None)
    assert next_of(job) == ["in 2m the job fails (spec.activeDeadlineSeconds)"]


@pytest.mark.parametrize(
    ("step_at", "said"),
    [(1197, []), (1141, []), (1139, ["in 59s the job counts as hung, unless it completes a step"])],
)
def test_progress_deadline(step_at: float, said: list[str]) -> None:
    job = with_spec(training(), progressDeadlineSeconds=120)
    job["status"]["progress"] |= {"updatedAt": at(step_at)}
    assert next_of(job) == said


def test_start_timeout_and_order_by_time() -> None:
    job = stored("Starting", spec={"activeDeadlineSeconds": 1210})
    job["status"]["gaps"] = [{"nodeRanks": "1", "reason": "CannotStart", "since": at(1000)}]
    read = JobSnapshot.read(job).parsed
    assert read is not None
    stuck = builders.pod(read, 1, node="node-a", waiting="ErrImagePull")
    assert next_of(job, stuck) == [
        "in 10s the job fails (spec.activeDeadlineSeconds)",
        "in 1m40s its pods count as lost, unless they start or answer",
    ]


def test_scheduling_timeout_of_a_gang() -> None:
    job = stored("Starting", spec={"schedulingTimeoutSeconds": 300})
    job["status"]["conditions"] = [
        condition("PodsCreated", "Created", "") | {"lastTransitionTime": at(1000)}
    ]
    job["status"]["gaps"] = [{"nodeRanks": "1", "reason": "Unscheduled", "since": at(1000)}]
    read = JobSnapshot.read(job).parsed
    assert read is not None
    pods = [builders.pod(read, 0, node="node-a"), builders.pod(read, 1, waiting="Unschedulable")]
    [line] = next_of(job, *pods)
    assert line.startswith("in 1m40s the job releases its nodes, unless all pods have one")


def test_time_to_live_of_an_ended_job() -> None:
    job = stored("Succeeded", spec={"ttlSecondsAfterFinished": 600, "activeDeadlineSeconds": 9999})
    job["status"]["completionTime"] = at(1000)
    assert next_of(job) == ["in 6m40s the job is deleted (spec.ttlSecondsAfterFinished)"]


def test_next_event_is_on_the_screen() -> None:
    seen = JobSnapshot.read(with_spec(training(), activeDeadlineSeconds=1320))
    lines = screen(seen, Pods.of(seen, []), NOW, width=80)
    assert "next        in 2m the job fails (spec.activeDeadlineSeconds)" in lines


def test_suspended_job_has_no_next_event() -> None:
    assert next_of(with_spec(training(), activeDeadlineSeconds=1320, suspend=True)) == []
