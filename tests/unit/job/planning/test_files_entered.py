"""A plan for a healthy job enters few files: rare parts are asked only if there is something for
them.
"""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import ddp_operator
import pytest
from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import Identity
from ddp_operator.job.status.progress import Report
from ddp_operator.ports import Node, Nodes
from ddp_protocol.progress import CheckpointStatus, PaceStatus, Resumption, TrainerStatus
from ddp_protocol.world import LauncherStatus

from tests.unit.job.builders import (
    NOW,
    does_nothing,
    fresh_job,
    later,
    listening,
    ready,
    stored,
)

MOST = 22
REPLICAS = 4
ROOT = Path(ddp_operator.__file__).parent
PROGRESS = TrainerStatus(
    step=100,
    last_step_time="2026-03-01T12:00:58Z",
    trained_seconds=44.0,
    total_steps=1000,
    loss=0.5,
    pace=PaceStatus(step=100, rank=1, seconds=0.4, others_seconds=0.4),
    checkpoint=CheckpointStatus(step=90, path="/checkpoints/90", time="2026-03-01T12:00:50Z"),
    resumed=Resumption(step=0, time="2026-03-01T12:00:12Z"),
    first_steps=(Resumption(step=1, time="2026-03-01T12:00:14Z"),),
)


def files_entered(**spec: Any) -> set[str]:
    """Return the operator's files that a plan enters if a healthy job has nothing to do."""
    job = fresh_job(replicas=REPLICAS, **spec)
    names = [f"node-{index}" for index in range(REPLICAS + job.spec.spares)]
    inputs: dict[str, Any] = {
        "nodes": Nodes(Node(name, {}) for name in names),
        "launchers": LauncherStates(
            scope="InPlace", leader=LauncherStatus(number=1, generation=0, members="0-3")
        ),
        "hang": None,
    }
    pods = [listening(ready(job, index, node=name)) for index, name in enumerate(names)]
    job = stored(job, plan(job, [], NOW))
    for seconds in (10, 20, 60, 60):
        report = Report(job.uid, Identity(0, 0), PROGRESS, later(59), later(59))
        inputs["report"] = report if seconds == 60 else None
        job = stored(job, plan(job, pods, later(seconds), **inputs))
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            files.add(str(path.relative_to(ROOT)))

    sys.setprofile(note)
    try:
        planned = plan(job, pods, later(61), **inputs)
    finally:
        sys.setprofile(None)
    assert job.status.phase == "Running"
    assert planned.status == job.status
    assert does_nothing(planned)
    return files


@pytest.mark.parametrize(
    "spec", [{}, {"spares": 1}, {"isolation": "Job", "progressDeadlineSeconds": 600}]
)
def test_plan_of_a_healthy_job_enters_few_files(spec: dict[str, Any]) -> None:
    files = files_entered(**spec)
    assert len(files) <= MOST, sorted(files)
