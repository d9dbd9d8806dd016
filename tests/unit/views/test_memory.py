"""Memory checkpoints in status, why and report."""

from typing import Any

import pytest
from ddp_client.report.build import build
from ddp_client.report.facts import Facts
from ddp_client.views.job.diagnosis import diagnose
from ddp_client.views.job.memory import MISSING, memory_checkpoint
from ddp_client.views.job.pods import Pods
from ddp_client.views.job.screen import screen
from ddp_client.views.job.snapshot import JobSnapshot

from tests.good_manifests import Json
from tests.unit.cli.jobs import ESCAPES, at, training
from tests.unit.job.builders import later

NOW = later(1200)
SAVED: Json = {"step": 490, "time": at(1180), "sizeBytes": 1536 * 2**20}


def manifest(record: Json | None, **status: Any) -> Json:
    job = training()
    job["spec"]["memoryCheckpoint"] = {"sizeLimit": "8Gi"}
    job["status"] |= {**status, **({"memoryCheckpoint": record} if record else {})}
    return job


def lines(record: Json | None, **status: Any) -> list[str]:
    return [*memory_checkpoint(JobSnapshot.read(manifest(record, **status)), NOW)]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (SAVED, ["step 490, 20s ago, 1.5 GiB in a pod, 1 copy"]),
        ({"step": 490}, ["step 490, 1 copy"]),
        (
            {"step": 490, "protection": f"losing {ESCAPES} any one block of 3 costs nothing"},
            ["step 490, 1 copy", "losing red end any one block of 3 costs nothing"],
        ),
        (None, [MISSING]),
        ({"refusal": "too small"}, ["not saved: too small"]),
        (
            {
                **SAVED,
                "refusal": f"{ESCAPES} too small",
                "restoredStep": 480,
                "restoredAt": at(1140),
            },
            [
                "step 490, 20s ago, 1.5 GiB in a pod, 1 copy",
                "not saved: red end too small",
                "the latest restart, 1m ago, resumed at step 480",
            ],
        ),
        (
            {"step": 5, "restoredAt": at(1140), "restoreReason": "rank 1 has none"},
            ["step 5, 1 copy", "the latest restart, 1m ago, restored nothing: rank 1 has none"],
        ),
    ],
)
def test_lines_about_memory_checkpoints(record: Json | None, said: list[str]) -> None:
    assert lines(record) == said


def test_copies_of_deleted_pods_are_not_shown() -> None:
    restored = {"restoredStep": 480, "restoredAt": at(1140)}
    ended = {"conditions": [_condition("Failed")], "phase": "Failed"}
    assert lines({**SAVED, **restored}, **ended) == [
        "the latest restart, 1m ago, resumed at step 480"
    ]
    stopped = manifest(SAVED)
    stopped["spec"]["suspend"] = True
    assert [*memory_checkpoint(JobSnapshot.read(stopped), NOW)] == []
    assert lines(None, phase="Starting") == []


def test_job_without_memory_checkpoints_shows_nothing() -> None:
    job = manifest(SAVED)
    del job["spec"]["memoryCheckpoint"]
    assert [*memory_checkpoint(JobSnapshot.read(job), NOW)] == []


def test_status_why_and_report_show_it() -> None:
    record = {**SAVED, "protection": "losing any one block of 3 costs nothing"}
    stored = manifest(record)
    job = JobSnapshot.read(stored)
    pods = Pods.of(job, [])
    line, protection = memory_checkpoint(job, NOW)
    assert protection == record["protection"]
    shown = screen(job, pods, NOW)
    assert shown[shown.index(f"in memory   {line}") + 1] == f"            {protection}"
    restarting = JobSnapshot.read(manifest(record, phase="Restarting"))
    for each in (line, protection):
        assert f"its checkpoint in memory: {each}" in diagnose(job, pods, NOW).evidence
        assert f"its checkpoint in memory: {each}" in diagnose(restarting, pods, NOW).evidence
        assert ("checkpoint in memory", each) in build(Facts.of(stored, now=NOW)).configuration


def _condition(type_: str) -> Json:
    return {"type": type_, "status": "True", "reason": "Error", "lastTransitionTime": at(1190)}
