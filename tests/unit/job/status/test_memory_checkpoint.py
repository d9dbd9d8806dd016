"""Tests of snapshots in memory: their status, and the cost of restarts from them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import MemoryCheckpointRecord
from ddp_operator.engine.status_patch import News, as_stored, news
from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status.progress import Report
from ddp_operator.ports import Node
from ddp_protocol.world import LauncherStatus, PodFailure

from tests.good_manifests import Json
from tests.unit.job.builders import (
    does_nothing,
    event_reasons,
    later,
    listening,
    running_job,
    stored,
)
from tests.unit.job.status.test_goodput import goodput
from tests.unit.job.status.test_progress import report

MEMORY = {"sizeLimit": "1Gi", "copies": 1}
SAVED: Json = {"step": 120, "time": later(60).isoformat(), "bytes": 4096, "copies": 1}


def training(**spec: Any) -> tuple[DDPJob, list[PodState]]:
    job, pods = running_job(replicas=2, **{"memoryCheckpoint": MEMORY, **spec})
    pods = [listening(pod) for pod in pods]
    return stored(job, looked(job, pods, None, at=50)), pods


def leader(memory: object, generation: int = 0) -> LauncherStatus:
    document = {"number": 2, "generation": generation, "memory": memory}
    return LauncherStatus.read(json.dumps(document).encode())


def looked(
    job: DDPJob,
    pods: list[PodState],
    memory: object,
    *,
    at: float = 70,
    heard: Report | None = None,
    nodes: Sequence[Node] = (),
    **launchers: Any,
) -> Plan:
    generation = job.status.world.generation if job.status.world else 0
    states = LauncherStates(
        scope="InPlace",
        leader=leader(memory, generation),
        told={pod.key.name: (generation, True) for pod in pods},
        **launchers,
    )
    return plan(job, pods, later(at), report=heard, launchers=states, nodes=nodes)


def restarted(job: DDPJob, pods: list[PodState], *, memory: object = SAVED, **looks: Any) -> DDPJob:
    """Return the job after the processes of its second pod failed at second 90."""
    failure = PodFailure(
        pod=pods[1].key.name, generation=0, exit_code=1, message="lost", time=later(90).isoformat()
    )
    planned = looked(job, pods, memory, at=91, failures=(failure,), **looks)
    assert planned.decided
    assert planned.status.failures[-1].action == "RestartInPlace"
    return stored(job, planned)


def test_status_shows_the_newest_complete_step() -> None:
    job, pods = training()
    planned = looked(job, pods, {**SAVED, "refusal": "", "tomorrow": [1]})
    assert planned.status.memory_checkpoint == MemoryCheckpointRecord(
        step=120, time=later(60), size_bytes=4096
    )
    assert does_nothing(planned)
    assert event_reasons(planned) == []
    # The status is written as rarely as progress.
    assert news(job.status, replace(job, status=planned.status).status) is News.PROGRESS
    job = stored(job, planned)
    assert looked(job, pods, SAVED).status == job.status


def test_job_without_memory_checkpoints_stores_none() -> None:
    job, pods = training(memoryCheckpoint=None)
    planned = looked(job, pods, SAVED)
    assert planned.status.memory_checkpoint is None
    assert "memoryCheckpoint" not in as_stored(planned.status)
    job, pods = training()
    assert looked(job, pods, None).status.memory_checkpoint is None


@pytest.mark.parametrize(
    "memory",
    [
        [],
        "much",
        {"step": -1},
        {"step": 2**53},
        {"step": "120"},
        {"copies": 9},
        {"time": "2026-03-01T12:00:00"},
        {"time": "0001-01-01T00:00:00+23:00"},
        {"restored": {"step": 1}},
        {"restored": {"step": 1, "generation": -1, "time": "2026-03-01T12:00:00Z"}},
        {"restored": []},
    ],
)
def test_invalid_memory_report_is_ignored(memory: object) -> None:
    status = leader(memory, generation=3)
    assert (status.memory, status.generation) == (None, 3)


def test_refusal_is_bounded_and_printable() -> None:
    job, pods = training()
    memory = {**SAVED, "refusal": "\x1b[2J" + "x" * 10**4}
    record = looked(job, pods, memory).status.memory_checkpoint
    assert record is not None
    assert record.refusal == "x" * (256 - 4)


def test_first_start_reports_no_restore() -> None:
    job, pods = training()
    decision = {"generation": 0, "time": later(20).isoformat(), "reason": "no snapshots"}
    planned = looked(job, pods, {"copies": 1, "restored": decision})
    assert event_reasons(planned) == []
    assert planned.status.memory_checkpoint == MemoryCheckpointRecord()
    # The launcher repeats it until the next decision, also after a restart.
    job = stored(job, looked(job, pods, {**SAVED, "restored": decision}))
    job = restarted(job, pods)
    planned = looked(job, pods, {**SAVED, "restored": decision}, at=92)
    assert "NotRestoredFromMemory" not in event_reasons(planned)
    assert planned.status.memory_checkpoint == job.status.memory_checkpoint


def test_restart_before_the_first_snapshot_warns_of_nothing() -> None:
    job, pods = training()
    job = restarted(job, pods, memory={"copies": 1})
    decision = {"generation": 1, "time": later(93).isoformat(), "reason": "no snapshots"}
    planned = looked(job, pods, {"copies": 1, "restored": decision}, at=94)
    assert "NotRestoredFromMemory" not in event_reasons(planned)
    assert planned.status.memory_checkpoint is not None
    assert planned.status.memory_checkpoint.restore_reason == "no snapshots"


def test_restore_is_reported_once() -> None:
    job, pods = training()
    job = stored(job, looked(job, pods, SAVED))
    job = restarted(job, pods)
    record = job.status.memory_checkpoint
    # A new pod's launcher has no snapshot yet.
    job = stored(job, looked(job, pods, {"copies": 1}, at=92))
    assert job.status.memory_checkpoint == record
    decision = {"generation": 1, "step": 120, "time": later(93).isoformat()}
    planned = looked(job, pods, {"copies": 1, "restored": decision}, at=94)
    [event] = [e for e in planned.events if e.reason == "RestoredFromMemory"]
    assert (event.message, event.warning) == ("the ranks resume at step 120 from memory", False)
    job = stored(job, planned)
    record = job.status.memory_checkpoint
    assert record is not None
    assert (record.step, record.restored_step, record.restored_at) == (120, 120, later(93))
    assert event_reasons(looked(job, pods, {**SAVED, "restored": decision}, at=95)) == []


def test_restart_without_a_restore_is_explained() -> None:
    job, pods = training()
    job = restarted(stored(job, looked(job, pods, SAVED)), pods)
    decision = {"generation": 1, "time": later(93).isoformat(), "reason": "rank 1 has none" * 100}
    planned = looked(job, pods, {"copies": 1, "restored": decision}, at=94)
    [event] = [e for e in planned.events if e.reason == "NotRestoredFromMemory"]
    assert event.warning
    assert event.message.startswith("no step can be restored from memory: rank 1 has none")
    assert len(event.message) <= 200
    record = stored(job, planned).status.memory_checkpoint
    assert record is not None
    assert (record.step, record.time, record.restored_step) == (None, None, None)
    assert record.restore_reason.startswith("rank 1 has none")
    # The next snapshots are new.
    again = looked(stored(job, planned), pods, {**SAVED, "step": 5, "restored": decision}, at=99)
    assert again.status.memory_checkpoint is not None
    assert again.status.memory_checkpoint.step == 5


@pytest.mark.parametrize("saved", [None, {"step": 100, "time": later(40).isoformat()}])
def test_only_steps_since_the_memory_checkpoint_are_lost(saved: Json | None) -> None:
    """This script reports its steps through the status file."""
    job, pods = training()
    own: dict[str, Any] = {"checkpoint": saved} if saved else {}
    heard = report(130, received=89, lastStepTime=later(89).isoformat(), **own)
    job = stored(job, looked(job, pods, SAVED, heard=heard))
    job = restarted(job, pods, heard=heard)
    resumed = {"step": 120, "time": later(100).isoformat()}
    decision = {"generation": 1, "step": 120, "time": later(93).isoformat()}
    memory = {**SAVED, "restored": decision}
    heard = report(121, received=105, lastStepTime=later(105).isoformat(), resumed=resumed, **own)
    job = stored(job, looked(job, pods, memory, at=104))
    job = stored(job, looked(job, pods, memory, at=106, heard=heard))
    books = goodput(job)
    assert books.steps_lost == 130 - 120
