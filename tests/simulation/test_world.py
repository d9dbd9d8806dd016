"""The simulated cluster itself: room, taints, admission, and the checks that depend on them."""

from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.status import CheckpointRecord, Progress
from ddp_operator.job.failure import records
from ddp_operator.ports import Key, Manifest

from tests.good_manifests import container
from tests.simulation.actions.users import break_pattern
from tests.simulation.checks.group import GroupJudge
from tests.simulation.checks.placement import have_places
from tests.simulation.checks.truth import Ledger, Truth
from tests.simulation.checks.verdicts import Verdicts
from tests.simulation.scripted import Script
from tests.simulation.world.admission import MUTATIONS, tolerating_gpus
from tests.simulation.world.fleet import EXACT, FEW, MIXED, ROOMY, UNTAINTED
from tests.simulation.world.kubelet import is_gated, scheduled, ungated
from tests.simulation.world.nodes import ACCELERATOR, HOSTNAME, LEAVING, is_leaving, reporting
from tests.simulation.world.resources import GPU, requested
from tests.simulation.world.scheduler import Scheduler
from tests.unit.job.builders import fresh_job, pod, with_status

GPU_NODES = [f"node-{letter}" for letter in "abcde"]


def pod_of(*containers: Manifest, **spec: Any) -> Manifest:
    """Return a pod as a scheduler sees it."""
    status = {"phase": "Pending"}
    return {
        "metadata": {"uid": repr((containers, spec)), "labels": {}},
        "spec": {"containers": [*containers], **spec},
        "status": status,
    }


def gpu_pod(**spec: Any) -> Manifest:
    """Return a pod that requests a GPU, after admission."""
    return tolerating_gpus(pod_of(container(resources={"limits": {GPU: 1}}), **spec))


def not_in(key: str, *names: str, fields: str = "matchExpressions") -> dict[str, Any]:
    """Return an affinity that keeps a pod off these nodes."""
    term = {fields: [{"key": key, "operator": "NotIn", "values": [*names]}]}
    required = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


@pytest.mark.parametrize(
    ("pod_", "nodes"),
    [
        (gpu_pod(), GPU_NODES),
        (gpu_pod(nodeSelector={ACCELERATOR: "nvidia-l4"}), GPU_NODES),
        (gpu_pod(nodeSelector={ACCELERATOR: "nvidia-b200"}), []),
        (gpu_pod(affinity=not_in(HOSTNAME, "node-a", "node-b")), GPU_NODES[2:]),
        (gpu_pod(affinity=not_in("metadata.name", "node-a", fields="matchFields")), GPU_NODES[1:]),
        (pod_of(container(resources={"limits": {GPU: 1}})), []),
        (pod_of(container(resources={"requests": {"cpu": "96"}})), ["node-f", "node-g", "node-h"]),
        (pod_of(container(resources={"requests": {"cpu": "96500m"}})), []),
    ],
)
def test_pods_fit_by_room_labels_and_taints(pod_: Manifest, nodes: list[str]) -> None:
    assert Scheduler(MIXED.nodes, {}).feasible(pod_) == nodes


def test_pod_has_its_place_until_it_has_ended() -> None:
    there = scheduled(gpu_pod(), "node-a")
    ended = {**there, "status": {"phase": "Failed"}}
    other = gpu_pod()
    assert "node-a" not in Scheduler(EXACT.nodes, {Key("x", "y"): there}).feasible(other)
    assert "node-a" in Scheduler(EXACT.nodes, {Key("x", "y"): ended}).feasible(other)


def test_message_counts_nodes_by_reason() -> None:
    scheduler = Scheduler(MIXED.nodes, {})
    scheduler.tenants.fill("node-a", requested(gpu_pod()), now=0.0)
    message = scheduler.message(gpu_pod(affinity=not_in(HOSTNAME, *GPU_NODES[1:])))
    assert message == (
        "0/8 nodes are available: 4 Insufficient nvidia.com/gpu, "
        "4 node(s) didn't match Pod's node affinity/selector."
    )


def test_init_containers_count_only_if_they_request_more() -> None:
    small, large = ({"resources": {"requests": {"cpu": cpu}}} for cpu in ("1", "4"))
    made = pod_of({"name": "a", **small}, initContainers=[{"name": "b", **large}])
    side_car = {"name": "c", "restartPolicy": "Always", **small}
    assert requested(made)["cpu"] == 4000
    made = pod_of({"name": "a", **small}, initContainers=[side_car, {"name": "b", **large}])
    assert requested(made)["cpu"] == 5000
    assert requested(pod_of({"name": "a", **small}, initContainers=[side_car]))["cpu"] == 2000


def test_tenants_on_occupied_nodes_stay() -> None:
    script = Script(EXACT, replicas=3)
    script.simulation.kill_operator()
    tenants = script.simulation.scheduler.tenants
    for node in EXACT.nodes:
        tenants.leave(node, now=1.0)
    tenants.clear()
    assert tenants.taken.keys() == {"node-d"}


def test_gate_keeps_pod_unbound_until_it_is_removed() -> None:
    script = Script(replicas=1)
    simulation = script.simulation
    simulation.server.mutate = dict(MUTATIONS)["a scheduling gate"]
    script.run(20)
    [made] = script.pods
    assert is_gated(made)
    assert script.nodes == [""]
    simulation.change(made, ungated(made))
    script.run(20)
    simulation.kill_operator()
    assert script.nodes != [""]


@pytest.mark.parametrize("what", LEAVING)
def test_node_with_any_signal_is_leaving(what: str) -> None:
    for node in UNTAINTED.nodes.values():
        assert is_leaving(reporting(node, what))
        assert not is_leaving(reporting(reporting(node, what), "well"))


# Checks can fail


def test_job_has_places_without_as_many_nodes_as_are_spare() -> None:
    """Three pods, and four places: without one node they have places, without two they have not."""
    script = Script(UNTAINTED, replicas=3)
    script.run(50)
    simulation = script.simulation
    simulation.kill_operator()
    assert have_places(simulation, without={"node-a"})
    assert not have_places(simulation, without={"node-a", "node-b"})
    simulation.fill("node-d")
    assert have_places(simulation)
    assert not have_places(simulation, without={"node-a"})


def test_job_with_more_pods_than_places_says_why_it_waits() -> None:
    script = Script(FEW, replicas=3)
    script.run(100)
    script.simulation.kill_operator()
    assert sorted(script.nodes) == ["", "node-a", "node-b"]
    assert not have_places(script.simulation)
    assert "Insufficient nvidia.com/gpu" in script.job.status.message


def broken_claims(judged: list[tuple[object, str]]) -> list[str]:
    """Return the claims that do not hold."""
    return [claim for holds, claim in judged if not holds]


@pytest.mark.parametrize("request_", ["template", "spec.accelerator"])
@pytest.mark.parametrize(("fleet", "is_place"), [(EXACT, False), (MIXED, True)])
def test_pod_may_leave_only_for_a_place(request_: str, fleet: Any, *, is_place: bool) -> None:
    script = Script(fleet, replicas=3, request=request_)
    script.run(50)
    simulation, job = script.simulation, script.job
    simulation.kill_operator()
    judged: list[tuple[object, str]] = []
    judge = GroupJudge(
        simulation.server, simulation.clock, simulation.launchers, simulation.scheduler
    )
    failure = records.of_lost(job, pod(job), records.NODE_LEAVING, "", "Disruption", job.created)
    judge._judge_room(job, job, failure, lambda holds, claim: judged.append((holds, claim)))
    assert bool(broken_claims(judged)) is not is_place


def test_healthy_pod_may_be_replaced_once_while_unreached() -> None:
    script = Script(replicas=1)
    script.run(50)
    simulation, job = script.simulation, script.job
    simulation.kill_operator()
    judge = GroupJudge(
        simulation.server, simulation.clock, simulation.launchers, simulation.scheduler
    )
    reason = records.LAUNCHER_UNREACHABLE
    failure = records.of_lost(job, pod(job), reason, "", "Infrastructure", job.created)
    judged: list[tuple[object, str]] = []
    for since in (None, None, 10.0, 20.0, 20.0):
        simulation.launchers.all_cut_off_since = since
        judge._judge_replacement(job.uid, failure, lambda *args: judged.append(args))
    assert [bool(holds) for holds, _ in judged] == [True, True, False]


def verdicts(judged: list[tuple[object, str]], truth: Truth, ledger: Ledger) -> Verdicts:
    """Return a judge who notes all claims."""
    return Verdicts(
        require=lambda holds, claim: judged.append((holds, claim)),
        truth_of=lambda _: truth,
        ledger=ledger,
        broken_nodes=(),
        avoids_a_node=False,
        clock_is_right=True,
        seconds=1000.0,
    )


@pytest.mark.parametrize(("step", "is_wrong"), [(10, True), (9, False)])
def test_complete_training_is_no_hang(step: int, *, is_wrong: bool) -> None:
    job = fresh_job(progressDeadlineSeconds=60)
    progress = Progress(step=step, total_steps=10, updated_at=job.created)
    job = with_status(job, progress=progress, checkpoint=CheckpointRecord(step=step))
    failure = records.of_lost(job, pod(job), records.NO_PROGRESS, "", "Application", job.created)
    judged: list[tuple[object, str]] = []
    truth = Truth(last_step_at=500.0 if step == 10 else None)
    verdicts(judged, truth, Ledger())._cause(job, failure.updated(charged=True), charged=True)
    assert any("last step" in claim for claim in broken_claims(judged)) is is_wrong


@pytest.mark.parametrize("has_run", [True, False])
def test_job_that_has_run_may_not_fail_for_its_spec(*, has_run: bool) -> None:
    job = with_status(fresh_job(), phase="Failed", reason="InvalidSpec")
    judged: list[tuple[object, str]] = []
    ledger = Ledger(seen_to_run={("template", True)} if has_run else set())
    verdicts(judged, Truth(), ledger)._failed(job)
    assert bool(broken_claims(judged)) is has_run


def test_invalid_spec_is_judged_by_the_last_valid_one() -> None:
    script = Script(ROOMY, replicas=2)
    simulation = script.simulation
    simulation.kill_operator()
    break_pattern(simulation)
    assert script.job.spec.replicas == 2
    assert script.job.spec == replace(script.job).spec
