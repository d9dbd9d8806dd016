"""The status shows what lost failure domains would cost, from what launchers have reported."""

from dataclasses import replace

import pytest
from ddp_operator.engine.status_patch import News, news
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.state import PodState

from tests.good_manifests import Json
from tests.unit.job.builders import later, stored
from tests.unit.job.status.test_memory_checkpoint import SAVED, looked, restarted, training
from tests.unit.job.status.test_placement import node
from tests.unit.job.status.test_progress import report

NODES = [node("a1", block="a"), node("b1", block="b"), node("b2", block="b")]
COPIED: Json = {**SAVED, "copyOrder": ""}
APART = "losing any one block of 2 costs nothing; losing both blocks can cost "
UNREPORTED = "all 120 steps, because no checkpoint on storage is reported"
MOVING = "what lost pods cost is not known before the next complete step, because copies move"


def on(pods: list[PodState], *names: str) -> list[PodState]:
    """Return the pods on these nodes; they have started at second 10."""
    return [
        replace(pod, node=name, started=later(10)) for pod, name in zip(pods, names, strict=True)
    ]


def protection(planned: Plan) -> str:
    record = planned.status.memory_checkpoint
    assert record is not None
    return record.protection


def test_status_shows_what_a_lost_block_would_cost_now() -> None:
    job, pods = training()
    pods = on(pods, "a1", "b1")
    job = stored(job, looked(job, pods, None, nodes=NODES))
    first = looked(job, pods, COPIED, nodes=NODES)
    assert protection(first) == APART + UNREPORTED
    assert news(job.status, first.status) is News.PROGRESS, "written as rarely as progress"
    job = stored(job, first)
    again = looked(job, pods, COPIED, nodes=NODES, at=80)
    assert again.status == job.status, "a job that does not change is not written"
    # The next step, and a checkpoint on storage, change it.
    claim = {"persistentVolumeClaim": "data"}
    job, pods = training(checkpoint=claim)
    pods = on(pods, "a1", "b1")
    heard = report(130, received=79, checkpoint={"step": 100, "time": later(40).isoformat()})
    planned = looked(job, pods, {**COPIED, "step": 121}, nodes=NODES, at=80, heard=heard)
    assert protection(planned) == f"{APART}21 steps, back to step 100 on storage"


def test_checkpoint_on_the_disk_of_a_pod_is_not_on_storage() -> None:
    job, pods = training()
    saved = {"step": 100, "time": later(40).isoformat(), "path": "/checkpoints/step-100"}
    heard = report(130, received=69, checkpoint=saved)
    planned = looked(job, on(pods, "a1", "b1"), COPIED, nodes=NODES, heard=heard)
    assert planned.status.checkpoint is not None
    assert protection(planned) == APART + UNREPORTED


def test_operator_without_nodes_knows_only_their_names() -> None:
    job, pods = training()
    planned = looked(job, on(pods, "a1", "b1"), COPIED)
    assert protection(planned) == APART.replace("block", "node") + UNREPORTED


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        (SAVED, ""),  # a launcher of an earlier release
        ({"copies": 1, "copyOrder": ""}, ""),
        ({**COPIED, "copyOrder": "0123abcd"}, MOVING),
        ({**COPIED, "time": later(9).isoformat()}, MOVING),  # a pod has started since then
        ({**COPIED, "copies": 0}, f"losing any node of 2 can cost {UNREPORTED}"),
        ({**COPIED, "replicated": True}, APART + UNREPORTED),
    ],
)
def test_only_reported_copies_protect(memory: Json, said: str) -> None:
    job, pods = training()
    planned = looked(job, on(pods, "a1", "b1"), memory, nodes=NODES)
    assert protection(planned) == said


def test_copies_are_unknown_after_a_restart_until_a_step_is_complete() -> None:
    job, pods = training()
    pods = on(pods, "a1", "b1")
    job = stored(job, looked(job, pods, COPIED, nodes=NODES))
    job = restarted(job, pods, memory=COPIED, nodes=NODES)
    decision = {"generation": 1, "step": 120, "time": later(93).isoformat()}
    planned = looked(job, pods, {**SAVED, "restored": decision}, at=94, nodes=NODES)
    assert protection(planned) == MOVING
    memory = {**COPIED, "step": 121, "time": later(95).isoformat(), "restored": decision}
    planned = looked(stored(job, planned), pods, memory, at=96, nodes=NODES)
    assert protection(planned).startswith(APART)


def test_a_lost_pod_ends_what_its_copies_protected() -> None:
    job, pods = training()
    pods = on(pods, "a1", "b1")
    job = stored(job, looked(job, pods, COPIED, nodes=NODES))
    assert job.status.memory_checkpoint is not None
    assert job.status.memory_checkpoint.protection.startswith(APART)
    gone = looked(job, pods[1:], None, at=71, nodes=NODES)
    assert protection(gone) == ""
