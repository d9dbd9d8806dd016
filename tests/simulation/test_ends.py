"""How jobs end, and what must not end them: short histories with the real reconciler."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.simulation.actions import users
from tests.simulation.actions.lasting import evict_by_taint
from tests.simulation.checks.truth import BAD_RECORD, BROKEN_GPU
from tests.simulation.scripted import Script
from tests.simulation.world import kubelet
from tests.simulation.world.fleet import ROOMY, fleet
from tests.simulation.world.start_faults import START_FAULTS, Stage, StartFault

ONE_NODE = fleet("a single node", with_gpus=0, others=1)
FULL_DISK = StartFault(
    Stage.CONTAINER,
    "node",
    "CreateContainerError",
    "failed to create containerd container: mkdir: no space left on device",
)


# The trainer's own word


@pytest.mark.parametrize("lost", [1, 2], ids=["one pod", "all pods"])
def test_pods_lost_after_done_count_as_completed(begin: Callable[..., Script], lost: int) -> None:
    script = begin(replicas=2)
    script.simulation.training.total_steps = 10
    script.run(60)
    script.train(steps=10)
    script.report_done()
    script.run(60)
    for pod in script.pods[:lost]:
        evict_by_taint(script.simulation, pod)
    script.run(100)
    assert (script.job.status.attempt, script.job.status.disruptions) == (0, 0)
    assert script.job.status.finished is (lost == 2), script.job.status.message


# Invalid edits


@pytest.mark.parametrize("is_restarted", [False, True])
def test_invalid_edit_ends_no_job_that_has_run(
    begin: Callable[..., Script], *, is_restarted: bool
) -> None:
    """An operator that restarted does not know the last valid spec, so a failed pod waits."""
    script = begin(replicas=2)
    script.run(200)
    users.break_pattern(script.simulation)
    script.run(20)
    if is_restarted:
        script.simulation.kill_operator()
        script.simulation.start_operator()
        script.run(20)
    assert (script.job.status.phase, script.job.status.reason) == ("Running", "InvalidSpec")
    assert "spec.progress.logPattern" in script.job.status.message
    script.fail(script.pods[0], BAD_RECORD)
    script.run(100)
    assert script.job.status.restarts == (0 if is_restarted else 1)
    users.correct_pattern(script.simulation)
    script.run(100)
    status = script.job.status
    assert (status.phase, status.restarts) == ("Running", 1), status.message
    assert all(map(kubelet.is_running, script.pods))


def test_job_with_an_invalid_edit_can_be_suspended(begin: Callable[..., Script]) -> None:
    script = begin(replicas=2)
    script.run(200)
    users.break_pattern(script.simulation)
    script.simulation.server.edit_job({"suspend": True})
    script.run(100)
    assert (script.job.status.phase, script.pods) == ("Suspended", [])


# First starts


@pytest.mark.parametrize("fault", [START_FAULTS["no such image"], FULL_DISK], ids=["image", "disk"])
def test_first_start_fails_once_a_second_node_agrees(
    begin: Callable[..., Script], fault: StartFault
) -> None:
    script = begin(ROOMY, replicas=1)
    script.simulation.start_faults.put("", replace(fault, fault="spec"))
    nodes = set[str]()
    for _ in range(100):
        script.run(10)
        nodes |= set(script.nodes)
        if script.job.status.finished:
            break
    status = script.job.status
    assert (status.phase, status.failures[-1].class_) == ("Failed", "Configuration")
    assert len(nodes - {""}) == 2
    assert len(status.failures) == 2, "it was tried twice"


def test_only_node_that_starts_no_pod_uses_up_the_restarts(begin: Callable[..., Script]) -> None:
    script = begin(ONE_NODE, replicas=1, restart={"maxRestarts": 0})
    script.simulation.start_faults.put("", START_FAULTS["no such image"])
    script.run(3600, step=30)
    assert script.job.status.reason == "MaxRestartsExceeded", script.job.status.message


# In place


def test_pod_whose_gpu_is_lost_is_replaced_and_others_restart_in_place(
    begin: Callable[..., Script],
) -> None:
    script = begin(replicas=3, restart={"scope": "InPlace"})
    script.run(100)
    before = [pod["metadata"]["uid"] for pod in script.pods]
    script.fail(script.pods[1], BROKEN_GPU)
    script.run(200)
    after = [pod["metadata"]["uid"] for pod in script.pods]
    assert script.job.status.phase == "Running", script.job.status.message
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True]


def test_pod_that_fails_again_without_progress_is_replaced(begin: Callable[..., Script]) -> None:
    script = begin(replicas=2, restart={"scope": "InPlace"})
    script.run(100)
    before = script.pods[1]["metadata"]["uid"]
    for is_same in (True, False):
        script.fail(script.pods[1], BAD_RECORD)
        script.run(100)
        assert (script.pods[1]["metadata"]["uid"] == before) is is_same
    assert script.job.status.phase == "Running", script.job.status.message
