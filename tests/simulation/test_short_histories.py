"""Short histories that random ones seldom contain, each of which should end well."""

from collections.abc import Callable

import pytest

from tests.simulation.actions import users
from tests.simulation.actions.lasting import evict_by_taint
from tests.simulation.scripted import Script
from tests.simulation.world import kubelet, refusals
from tests.simulation.world.fleet import MIXED
from tests.simulation.world.refusals import Refusal
from tests.simulation.world.start_faults import START_FAULTS, Stage, StartFault

# The end of a training


def test_pod_lost_after_last_step_restarts(begin: Callable[..., Script]) -> None:
    script = begin(replicas=1)
    script.simulation.training.total_steps = 10
    script.run(60)
    script.train(steps=10)
    script.run(60)
    evict_by_taint(script.simulation, script.pods[0])
    script.run(200)
    assert not script.job.status.finished, script.job.status.message


def test_export_longer_than_progress_deadline_is_no_hang(begin: Callable[..., Script]) -> None:
    script = begin(replicas=2, progressDeadlineSeconds=60)
    script.simulation.training.total_steps = 10
    script.run(60)
    script.train(steps=10)
    script.run(600, step=10)
    assert script.job.status.restarts == 0, script.job.status.message


# Ways to pods


def cut_off(script: Script) -> None:
    """A network policy keeps the operator from all pods."""
    script.simulation.launchers.all_cut_off_since = script.simulation.clock.seconds


def test_unreached_healthy_pods_are_replaced_at_most_once(begin: Callable[..., Script]) -> None:
    """One pod is drained meanwhile, so the others need an order for its replacement."""
    script = begin(replicas=3, restart={"scope": "InPlace"})
    script.run(100)
    cut_off(script)
    evict_by_taint(script.simulation, script.pods[1])
    script.run(600)
    assert not script.job.status.restarts, script.job.status.message


def test_pods_created_while_none_is_reached_start_by_themselves(
    begin: Callable[..., Script],
) -> None:
    script = begin(replicas=3, restart={"scope": "InPlace"})
    script.run(100)
    cut_off(script)
    evict_by_taint(script.simulation, script.pods[1])
    script.run(900, step=10)
    assert all(map(script.simulation.trains, script.pods)), script.job.status.message
    assert script.job.status.attempt == 1
    running = script.job.status.condition("Running")
    assert running is not None
    assert (running.status, running.reason) == ("True", "PodsUnreachable")
    script.simulation.launchers.clear()
    script.run(200)
    assert script.job.status.reason == "PodsReady"


# Pods that do not start


def test_refusing_kubelet_is_avoided(begin: Callable[..., Script]) -> None:
    """Its device plugin has lost a GPU; the scheduler does not know."""
    script = begin(MIXED, replicas=2, restart={"scope": "Gang"})
    script.prefers = lambda _: "node-a"
    script.simulation.start_faults.put("node-a", START_FAULTS["refuses pods"])
    script.run(1200)
    attempts = script.job.status.attempt
    assert attempts < 20, f"{attempts} attempts in 20 minutes"
    assert script.job.status.phase == "Running", script.job.status.message


def test_more_than_32_pods_that_never_start_are_replaced_together(
    begin: Callable[..., Script],
) -> None:
    script = begin(replicas=40)
    script.simulation.invariants.most_pods = 100
    script.prefers = lambda _: "node-a"
    script.simulation.start_faults.put("node-a", START_FAULTS["no network"])
    script.run(900, step=30)
    assert "node-a" not in script.nodes, script.job.status.message


def test_full_disk_at_first_start_moves_the_pod(begin: Callable[..., Script]) -> None:
    script = begin(replicas=1)
    script.prefers = lambda _: "node-a"
    message = "failed to create containerd container: mkdir: no space left on device"
    fault = StartFault(Stage.CONTAINER, "node", "CreateContainerError", message)
    script.simulation.start_faults.put("node-a", fault)
    script.run(900, step=30)
    assert script.job.status.phase == "Running", script.job.status.message


@pytest.mark.parametrize(
    "error",
    [refusals.webhook_down, refusals.over_quota(2), refusals.conflict, refusals.too_many],
    ids=lambda error: error.__name__,
)
def test_running_job_is_recorded_while_its_spare_is_refused(
    begin: Callable[..., Script], error: refusals.Error
) -> None:
    script = begin(replicas=2, spares=1, restart={"scope": "Pod"})
    refusal = Refusal(error, ("create_pod",), skip=2)
    script.simulation.requests.refusals.add(refusal)
    script.run(20)
    assert script.job.status.phase == "Running", script.job.status.message
    script.run(300)
    assert script.job.status.phase == "Running", script.job.status.message
    script.simulation.requests.clear()
    script.run(90)
    assert len(script.pods) == 3, "the spare is created a minute later"


def test_elastic_job_is_recorded_while_its_third_pod_is_refused(
    begin: Callable[..., Script],
) -> None:
    script = begin(replicas=3, elastic={"minReplicas": 2, "shrinkAfterSeconds": 30})
    script.run(100)
    script.simulation.requests.refusals.add(Refusal(refusals.webhook_down, ("create_pod",)))
    evict_by_taint(script.simulation, script.pods[2])
    script.run(200)
    assert len(script.pods) == 2
    assert script.job.status.phase == "Running", script.job.status.message
    script.simulation.requests.clear()
    script.run(200)
    assert len(script.pods) == 3
    assert script.job.status.ready_replicas == 3, script.job.status.message


# Edits


def test_running_job_survives_a_typo_in_a_pattern(begin: Callable[..., Script]) -> None:
    script = begin(replicas=1)
    script.run(200)
    users.break_pattern(script.simulation)
    script.run(100)
    users.correct_pattern(script.simulation)
    script.run(100)
    assert script.job.status.phase == "Running", script.job.status.message
    assert all(map(kubelet.is_running, script.pods))
