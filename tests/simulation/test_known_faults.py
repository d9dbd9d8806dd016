"""Faults of the operator that are known, each as a short history that should end well.

A test here fails as expected until the operator is fixed, and then as unexpectedly passed. Remove
its mark then, and its entry in `checks/known_faults.py` if there is one.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ddp_operator.ports import Manifest

from tests.simulation.actions import users
from tests.simulation.actions.lasting import evict_by_taint
from tests.simulation.checks.known_faults import KNOWN_FAULTS
from tests.simulation.checks.truth import Exit
from tests.simulation.expected_failure import fails
from tests.simulation.scripted import Script
from tests.simulation.world import kubelet, refusals
from tests.simulation.world.fleet import EXACT, MIXED, fleet
from tests.simulation.world.nodes import reporting
from tests.simulation.world.refusals import Refusal
from tests.simulation.world.start_faults import START_FAULTS, Stage, StartFault
from tests.simulation.world.training import Training

BAD_RECORD = Exit(1, "Error", "ValueError: bad record in shard 17", "Application")
BROKEN_GPU = Exit(1, "Error", "CUDA error: uncorrectable ECC error encountered", "Infrastructure")


@pytest.fixture
def begin() -> Iterator[Callable[..., Script]]:
    """Return a function that begins a script, and end it with the test."""
    begun: list[Script] = []

    def begin_one(*args: Any, **kwargs: Any) -> Script:
        begun.append(Script(*args, **kwargs))
        return begun[-1]

    yield begin_one
    for script in begun:
        script.simulation.kill_operator()


def test_each_known_fault_has_a_test_of_its_name() -> None:
    for fault in KNOWN_FAULTS:
        assert f"test_{fault.name}" in globals(), fault.name


# Nodes and room


def spread(script: Script) -> None:
    """Bind the pod with index 0 to node-a, with index 1 to node-b, and so on."""
    script.prefers = lambda pod: "node-" + "abc"[int(pod["spec"]["hostname"].rpartition("-")[2])]


@fails("a node is avoided for script errors of its rank, although the job needs all nodes")
def test_avoided_node_is_the_only_place(begin: Callable[..., Script]) -> None:
    """One rank meets a bad record twice; the user suspends the job, mends the data, and resumes."""
    script = begin(EXACT, replicas=3, restart={"scope": "InPlace"})
    spread(script)
    for _ in range(2):
        script.run(100)
        script.train(steps=10)
        script.run(20)
        script.fail(script.pods[2], BAD_RECORD)
    script.run(100)
    script.simulation.server.edit_job({"suspend": True})
    script.run(100)
    script.simulation.server.edit_job({"suspend": False})
    script.run(1200, step=30)
    assert all(script.nodes), script.job.status.message


@fails("a broken node is used again, because the toleration that admission adds is not seen")
def test_broken_node_is_used_again_after_admission_added_a_toleration(
    begin: Callable[..., Script],
) -> None:
    script = begin(MIXED, request="template", replicas=1, restart={"scope": "Gang"})
    script.prefers = lambda _: "node-a"
    for _ in range(3):
        script.run(200)
        assert len(script.pods) == 1, script.job.status.message
        if script.nodes == ["node-a"]:
            script.fail(script.pods[0], BROKEN_GPU)
    script.run(200)
    assert script.nodes not in ([], ["node-a"]), script.job.status.message


@fails("nodes without GPUs count as places, so all nodes with GPUs are avoided, and the job waits")
def test_all_gpu_nodes_are_avoided_since_others_seem_to_fit(begin: Callable[..., Script]) -> None:
    few = fleet("two nodes with GPUs, six without, no taints", with_gpus=2, others=6, taint=False)
    script = begin(few, request="template", replicas=1, restart={"scope": "Gang"})
    for _ in range(2):
        script.run(200)
        script.train(steps=10)
        script.run(20)
        script.fail(script.pods[0], BROKEN_GPU)
    script.run(1200, step=30)
    assert script.nodes != [""], script.job.status.message


@fails("a pod is deleted for maintenance although the only other nodes have no GPUs")
def test_pod_leaves_node_although_no_other_has_room(begin: Callable[..., Script]) -> None:
    script = begin(EXACT, request="template", replicas=3, restart={"scope": "Pod"})
    spread(script)
    script.run(100)
    server = script.simulation.server
    server.put_node(reporting(server.node_manifests["node-b"], "maintenance planned"))
    script.run(600, step=30)
    assert script.nodes == ["node-a", "node-b", "node-c"], script.job.status.message


class SlowTraining(Training):
    """Reports that one rank takes 40 % longer than the others."""

    def report(self, pod: Manifest) -> bytes | str:
        report: dict[str, Any] = json.loads(super().report(pod))
        pace = {"step": report["step"], "rank": 1, "seconds": 1.4, "othersSeconds": 1.0}
        return json.dumps({**report, "pace": pace}).encode()


@fails("a slow rank is replaced although pods of other tenants hold all other nodes")
def test_slow_rank_is_replaced_although_no_node_has_room(begin: Callable[..., Script]) -> None:
    slow = {"action": "Replace", "for": "10m"}
    script = begin(
        MIXED, replicas=3, restart={"scope": "Pod", "slowRank": slow}, training=SlowTraining()
    )
    spread(script)
    script.run(60)
    for node in ("node-d", "node-e"):
        script.simulation.fill(node)
    for _ in range(120):
        script.train(steps=10)
        script.run(10, step=10)
    assert script.nodes == ["node-a", "node-b", "node-c"], script.job.status.message


# The end of a training


@fails("a pod that is lost while its script exports the model counts as completed")
def test_pod_lost_after_last_step_counts_as_completed(begin: Callable[..., Script]) -> None:
    script = begin(replicas=1)
    script.simulation.training.total_steps = 10
    script.run(60)
    script.train(steps=10)
    script.run(60)
    evict_by_taint(script.simulation, script.pods[0])
    script.run(200)
    assert not script.job.status.finished, script.job.status.message


@fails("a script that exports for longer than progressDeadlineSeconds is restarted as hung")
def test_export_longer_than_progress_deadline_is_a_hang(begin: Callable[..., Script]) -> None:
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


@fails("healthy pods are replaced again and again while the operator reaches no pod")
def test_unreached_healthy_pod_is_replaced_again(begin: Callable[..., Script]) -> None:
    """One pod is drained meanwhile, so the others need an order for its replacement."""
    script = begin(replicas=3, restart={"scope": "InPlace"})
    script.run(100)
    cut_off(script)
    evict_by_taint(script.simulation, script.pods[1])
    script.run(600)
    assert not script.job.status.restarts, script.job.status.message


@fails("new pods wait for the operator's word without end when it reaches no pod")
def test_unreached_new_pods_wait_for_ever(begin: Callable[..., Script]) -> None:
    script = begin(replicas=3, restart={"scope": "InPlace"})
    script.run(100)
    cut_off(script)
    evict_by_taint(script.simulation, script.pods[1])
    script.simulation.invariants.judge_group = lambda *_: None  # other tests watch replacements
    script.run(900, step=10)
    trains = all(map(script.simulation.trains, script.pods))
    assert trains or script.job.status.gaps, script.job.status.message


# Pods that do not start


@fails("a kubelet refuses each new pod, and all pods restart every 15 s without end")
def test_refusing_kubelet_is_never_avoided(begin: Callable[..., Script]) -> None:
    """Its device plugin has lost a GPU; the scheduler does not know."""
    script = begin(MIXED, replicas=2, restart={"scope": "Gang"})
    script.prefers = lambda _: "node-a"
    script.simulation.start_faults.put("node-a", START_FAULTS["refuses pods"])
    script.run(1200)
    attempts = script.job.status.attempt
    assert attempts < 20, f"{attempts} attempts in 20 minutes"
    assert script.job.status.phase == "Running", script.job.status.message


@fails("only 32 of the pods that do not start have a time limit at once")
def test_more_than_32_pods_that_never_start_are_replaced_together(
    begin: Callable[..., Script],
) -> None:
    script = begin(replicas=40)
    script.simulation.invariants.most_pods = 100
    script.prefers = lambda _: "node-a"
    script.simulation.start_faults.put("node-a", START_FAULTS["no network"])
    script.run(900, step=30)
    assert "node-a" not in script.nodes, script.job.status.message


@fails("a full disk of a node at the first start ends the job as a wrong configuration")
def test_full_disk_at_first_start_fails_job(begin: Callable[..., Script]) -> None:
    script = begin(replicas=1)
    script.prefers = lambda _: "node-a"
    message = "failed to create containerd container: mkdir: no space left on device"
    fault = StartFault(Stage.CONTAINER, "node", "CreateContainerError", message)
    script.simulation.start_faults.put("node-a", fault)
    script.run(900, step=30)
    assert script.job.status.phase == "Running", script.job.status.message


@fails("while spares are refused, the job's status does not show that all its pods run")
def test_refused_spare_keeps_status_from_being_recorded(begin: Callable[..., Script]) -> None:
    script = begin(replicas=2, spares=1, restart={"scope": "Pod"})
    refusal = Refusal(refusals.webhook_down, ("create_pod",), skip=2)
    script.simulation.requests.refusals.add(refusal)
    script.run(300)
    assert script.job.status.phase == "Running", script.job.status.message


# Edits


@fails("a typo in a field that may change at any time ends a job that has trained for long")
def test_typo_in_pattern_of_running_job_fails_it(begin: Callable[..., Script]) -> None:
    script = begin(replicas=1)
    script.run(200)
    users.break_pattern(script.simulation)
    script.run(100)
    users.correct_pattern(script.simulation)
    script.run(100)
    assert script.job.status.phase == "Running", script.job.status.message
    assert all(map(kubelet.is_running, script.pods))
