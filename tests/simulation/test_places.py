"""Which nodes a job avoids, and when a pod that trains moves to another one."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from ddp_operator.ports import Manifest

from tests.simulation.checks.truth import BAD_RECORD, BROKEN_GPU
from tests.simulation.scripted import Script
from tests.simulation.world import kubelet
from tests.simulation.world.fleet import EXACT, MIXED, ROOMY, Fleet, fleet
from tests.simulation.world.nodes import WELL, maintained_at, reporting
from tests.simulation.world.training import Training

Begin = Callable[..., Script]


def spread(script: Script) -> None:
    """Bind the pod with index 0 to node-a, with index 1 to node-b, and so on; others anywhere."""
    nodes = dict(enumerate(("node-a", "node-b", "node-c")))
    script.prefers = lambda pod: nodes.get(
        int(pod["spec"]["hostname"].rpartition("-")[2]), "node-d"
    )


def placed(script: Script) -> list[str]:
    """Return the nodes of all pods that have one."""
    return [node for node in script.nodes if node]


def restart(script: Script) -> None:
    """Let the user suspend the job, and resume it."""
    for suspended in (True, False):
        script.simulation.server.edit_job({"suspend": suspended})
        script.run(100)


def report(script: Script, node: str, what: str) -> None:
    """Let a node report this, and nothing else."""
    server = script.simulation.server
    server.put_node(reporting(server.node_manifests[node], what))


# What nodes did


@pytest.mark.parametrize("scope", ["InPlace", "Gang", "Pod"])
@pytest.mark.parametrize("resumed", [True, False])
def test_script_errors_keep_no_pod_off_its_node(begin: Begin, scope: str, *, resumed: bool) -> None:
    """One rank meets a bad record twice, in a job that needs all nodes."""
    script = begin(EXACT, replicas=3, restart={"scope": scope})
    spread(script)
    for _ in range(2):
        script.run(100)
        script.train(steps=10)
        script.run(20)
        script.fail(script.pods[2], BAD_RECORD)
    script.run(100)
    if resumed:
        restart(script)
    script.run(100)
    assert placed(script) == ["node-a", "node-b", "node-c"], script.job.status.message
    assert script.job.status.excluded_nodes == ()


@pytest.mark.parametrize("request_", ["template", "template and selector", "spec.accelerator"])
def test_broken_node_is_not_used_again(begin: Begin, request_: str) -> None:
    """Admission adds the toleration for GPUs, which the template does not show."""
    script = begin(MIXED, request=request_, replicas=1, restart={"scope": "Gang"})
    script.prefers = lambda _: "node-a"
    script.run(200)
    assert script.nodes == ["node-a"]
    script.fail(script.pods[0], BROKEN_GPU)
    script.run(200)
    assert script.nodes not in ([], ["node-a"]), script.job.status.message
    assert script.job.status.bookkeeping.barred_nodes == ("node-a",)


def test_node_that_reports_itself_broken_is_not_used(begin: Begin) -> None:
    script = begin(MIXED, replicas=1, restart={"scope": "Gang"}, suspend=True)
    script.prefers = lambda _: "node-a"
    script.run(20)
    report(script, "node-a", "Xid")
    script.simulation.server.edit_job({"suspend": False})
    script.run(100)
    assert script.nodes not in ([], [""], ["node-a"]), script.job.status.message


@pytest.mark.parametrize("resumed", [True, False])
@pytest.mark.parametrize("timeout", [None, 60])
def test_broken_node_is_used_again_if_no_other_fits(
    begin: Begin, timeout: int | None, *, resumed: bool
) -> None:
    """As many nodes with GPUs as pods: all of them break, one after the other."""
    few = fleet("two nodes with GPUs, six without, no taints", with_gpus=2, others=6, taint=False)
    spec: dict[str, Any] = {"schedulingTimeoutSeconds": timeout} if timeout else {}
    script = begin(few, request="template", replicas=2, restart={"scope": "Gang"}, **spec)
    for index in range(2):
        script.run(1500, step=30)
        assert len(placed(script)) == 2, script.job.status.message
        script.train(steps=10)
        script.run(20)
        script.fail(script.pods[index], BROKEN_GPU)
    script.run(200)
    assert len(placed(script)) < 2, "another node may come"
    if resumed:
        restart(script)
    script.run(2400, step=30)
    assert len(placed(script)) == 2, script.job.status.message
    assert script.job.status.phase == "Running"


def test_job_waits_longer_for_each_failure_of_the_only_node(begin: Begin) -> None:
    """Its GPU breaks each time, which ends the job by its budget: not soon, and not never."""
    one = fleet("one node with GPUs", with_gpus=1, others=2)
    script = begin(one, replicas=1, restart={"scope": "Gang", "maxRestarts": 1})
    failed_at: list[float] = []
    while not script.job.status.finished and len(failed_at) < 10:
        for _ in range(20):
            if not placed(script):
                script.run(300, step=30)
        script.run(30)
        script.fail(script.pods[0], BROKEN_GPU)
        failed_at.append(script.simulation.clock.seconds)
        script.run(30)
    waits = [after - before for before, after in pairwise(failed_at)]
    assert script.job.status.reason == "MaxRestartsExceeded"
    assert len(failed_at) == 5, "three are forgiven, one is charged"
    assert waits == sorted(waits)
    assert waits[-1] > 2400, waits


# Pods that train


class SlowTraining(Training):
    """Reports that one rank takes 40 % longer than the others."""

    def report(self, pod: Manifest) -> bytes | str:
        said: dict[str, Any] = json.loads(super().report(pod))
        pace = {"step": said["step"], "rank": 1, "seconds": 1.4, "othersSeconds": 1.0}
        return json.dumps({**said, "pace": pace}).encode()


def train(script: Script, seconds: int) -> None:
    """Let all processes make steps for so long."""
    for _ in range(seconds // 10):
        script.train(steps=10)
        script.run(10, step=10)


def leaving(begin: Begin, cluster: Fleet, **spec: Any) -> Script:
    """Return a job of three pods that train, after the node of pod 1 announced maintenance."""
    spec = {"replicas": 3, "restart": {"scope": "Pod"}, **spec}
    script = begin(cluster, request="template", **spec)
    spread(script)
    train(script, 100)
    assert placed(script)[:3] == ["node-a", "node-b", "node-c"]
    report(script, "node-b", "maintenance planned")
    return script


def slow(begin: Begin, cluster: Fleet) -> Script:
    """Return a job of three pods with a slow rank that is to be replaced."""
    wanted = {"action": "Replace", "forSeconds": 600}
    restart = {"scope": "Pod", "slowRank": wanted}
    script = begin(cluster, replicas=3, restart=restart, training=SlowTraining())
    spread(script)
    script.run(60)
    return script


@pytest.mark.parametrize("scope", ["Pod", "InPlace", "Gang"])
@pytest.mark.parametrize("cluster", [EXACT, MIXED])
def test_pod_stays_on_leaving_node_while_no_other_has_room(
    begin: Begin, scope: str, cluster: Fleet
) -> None:
    script = begin(cluster, request="template", replicas=3, restart={"scope": scope})
    spread(script)
    train(script, 60)
    for node in ("node-d", "node-e"):
        script.simulation.fill(node)
    report(script, "node-b", "maintenance planned")
    train(script, 600)
    assert placed(script) == ["node-a", "node-b", "node-c"], script.job.status.message
    assert script.job.status.disruptions == 0
    assert len(script.pods) == (3 if scope == "Gang" else 4), "one waits for a place"
    report(script, "node-b", WELL)
    train(script, 60)
    assert len(script.pods) == 3, "it is not needed any more"


@pytest.mark.parametrize("scope", ["Pod", "InPlace"])
def test_pod_leaves_node_once_another_has_room(begin: Begin, scope: str) -> None:
    script = leaving(begin, EXACT, restart={"scope": scope})
    train(script, 300)
    assert placed(script) == ["node-a", "node-b", "node-c"]
    script.simulation.scheduler.tenants.taken.clear()
    train(script, 120)
    assert sorted(placed(script)) == ["node-a", "node-c", "node-d"], script.job.status.message
    assert (script.job.status.disruptions, script.job.status.restarts) == (1, 0)
    assert len(script.pods) == 3
    train(script, 300)
    assert script.job.status.disruptions == 1


def test_pod_leaves_node_half_an_hour_before_its_maintenance(begin: Begin) -> None:
    """GKE writes the time into a label days before; nothing else happens to the node."""
    script = begin(EXACT, request="template", replicas=3, restart={"scope": "Pod"})
    spread(script)
    script.simulation.scheduler.tenants.taken.clear()
    train(script, 100)
    server, clock = script.simulation.server, script.simulation.clock
    begins = int(clock.now().timestamp()) + 1800 + 200
    server.put_node(maintained_at(server.node_manifests["node-b"], begins))
    train(script, 180)
    assert placed(script) == ["node-a", "node-b", "node-c"]
    assert script.job.status.disruptions == 0
    train(script, 120)
    assert sorted(placed(script)) == ["node-a", "node-c", "node-d"], script.job.status.message
    assert (script.job.status.disruptions, script.job.status.restarts) == (1, 0)


def test_spare_takes_over_from_pod_on_leaving_node_at_once(begin: Begin) -> None:
    script = leaving(begin, ROOMY, spares=1)
    train(script, 60)
    assert script.job.status.disruptions == 1
    assert script.job.status.world is not None
    assert script.job.status.world.members == "0,3,2"
    assert "node-b" not in script.nodes
    assert script.job.status.bookkeeping.successors is None


def test_restart_meanwhile_keeps_the_successor(begin: Begin) -> None:
    """Another pod fails while the successor waits for a place."""
    script = leaving(begin, EXACT)
    train(script, 60)
    [waiting] = [pod for pod in script.pods if not kubelet.node_of(pod)]
    script.fail(script.pods[2], BAD_RECORD)
    train(script, 100)
    names = [pod["metadata"]["name"] for pod in script.pods]
    assert waiting["metadata"]["name"] in names
    assert script.job.status.phase == "Running"


def test_slow_rank_is_kept_while_no_other_node_has_room(begin: Begin) -> None:
    script = slow(begin, MIXED)
    for node in ("node-d", "node-e"):
        script.simulation.fill(node)
    train(script, 1200)
    assert placed(script) == ["node-a", "node-b", "node-c"], script.job.status.message
    assert script.job.status.disruptions == 0
    assert script.job.status.slow_rank is not None
    assert script.job.status.slow_rank.not_replaced
    script.simulation.scheduler.tenants.taken.clear()
    train(script, 120)
    assert "node-b" not in script.nodes, script.job.status.message


def test_slow_rank_is_moved_once(begin: Begin) -> None:
    """It is slow on the other node, too."""
    script = slow(begin, MIXED)
    train(script, 2400)
    assert "node-b" not in script.nodes
    assert script.job.status.disruptions == 1
    assert "node-b" in script.job.status.excluded_nodes
    assert len(script.pods) == 3
