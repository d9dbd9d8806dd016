"""Jobs in a queue of the model of Kueue: lost pods, provisioned nodes and quotas."""

from typing import Any

import pytest
from ddp_operator.ports import Key, Node

from tests.simulation.kueue import Kueue, holds
from tests.simulation.kueue_world import URGENT, TwoClusters, World
from tests.unit.engine.test_delegation import elsewhere
from tests.unit.engine.test_reconciler import job

_PROVISIONED: dict[str, Any] = {
    "replicas": 4,
    "restart": {"scope": "Pod"},
    "accelerator": {
        "type": "nvidia-h100-mega-80gb",
        "count": 8,
        "provisioning": "queued",
        "maxRunSeconds": 600000,
        "network": "none",
    },
}
_POD = Key("default", "train-0-2")
_NODES = [Node(f"node-{number:04}", {}) for number in range(40)]


def delete_pod(kueue: Kueue) -> None:
    """Delete a pod as a user does."""
    kueue.delete_pod(_POD)


def evict_pod(kueue: Kueue) -> None:
    """Evict a pod because its node has no ephemeral storage left."""
    kueue.end_pod(_POD, exit_code=137)
    message = "The node was low on resource: ephemeral-storage."
    kueue.pods[_POD]["status"] |= {"reason": "Evicted", "message": message}
    kueue.pods[_POD]["status"]["conditions"].append(
        {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    )


def fail_on_gpu(kueue: Kueue) -> None:
    """Fail a process with a CUDA error."""
    message = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    kueue.end_pod(_POD, exit_code=1, message=message)


LOSSES = pytest.mark.parametrize("lose", [delete_pod, evict_pod, fail_on_gpu])


async def started(**spec: Any) -> World:
    """Return a cluster in which a job with provisioned nodes runs."""
    world = World(quota=4)
    world.cluster.node_list = [*_NODES]
    world.apply(job(scheduling={"queueName": "team"}, **_PROVISIONED, **spec))
    await world.run()
    assert len(world.running()) == 4
    return world


def lose_node(world: World) -> None:
    """Remove the node of a pod, with the pod."""
    node = world.kueue.pods[_POD]["spec"]["nodeName"]
    world.cluster.node_list = [each for each in _NODES if each.name != node]
    world.kueue.delete_pod(_POD)


@LOSSES
async def test_lost_pod_on_healthy_node_keeps_provisioned_nodes(lose: Any) -> None:
    world = await started()
    [before] = world.workloads.values()
    others = {name: uid for name, uid in world.running().items() if name != _POD.name}
    lose(world.kueue)
    await world.run(300)
    [after] = world.workloads.values()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert others.items() <= world.running().items()
    assert len(world.running()) == 4


async def test_lost_node_asks_the_queue_for_nodes_again() -> None:
    world = await started()
    lose_node(world)
    await world.run(300)
    unfinished = [n for n, one in world.workloads.items() if not holds(one, "Finished")]
    assert unfinished == ["train-u1-1"]
    assert len(world.running()) == 4


@pytest.mark.parametrize("loss", ["pod", "node"])
async def test_copy_with_provisioned_nodes_survives_lost(loss: str) -> None:
    clusters = TwoClusters(quota=4)
    clusters.worker.cluster.node_list = [*_NODES]
    clusters.manager.apply(elsewhere(**_PROVISIONED))
    await clusters.run()
    assert len(clusters.worker.running()) == 4
    if loss == "pod":
        clusters.worker.kueue.delete_pod(_POD)
    else:
        lose_node(clusters.worker)
    await clusters.run(600)
    assert clusters.manager.status["phase"] == "Running"
    assert clusters.manager.status["failures"][0]["pod"] == _POD.name


async def test_spare_is_admitted_by_itself() -> None:
    world = World(quota=2)
    spares = {"spares": 1, "restart": {"scope": "Pod"}}
    world.apply(job(scheduling={"queueName": "team"}, **spares))
    await world.run()
    assert world.status["phase"] == "Running"
    assert len(world.running()) == 2
    world.kueue.quota = 3
    await world.run()
    assert len(world.running()) == 3
    sizes = [workload["spec"]["podSets"][0]["count"] for workload in world.workloads.values()]
    assert sorted(sizes) == [1, 2]


async def test_spare_in_a_queue_takes_over_within_the_quota() -> None:
    world = World(quota=3, has_launchers=True)
    spares = {"spares": 1, "restart": {"scope": "Pod"}}
    world.apply(job(scheduling={"queueName": "team"}, **spares))
    await world.run()
    assert len(world.running()) == 3
    world.kueue.end_pod(Key("default", "train-0-1"), exit_code=1)
    await world.run(300)
    assert world.status["phase"] == "Running"
    assert len(world.running()) == 3
    assert world.kueue.used == 3


async def test_job_starts_without_spare_that_quota_refuses() -> None:
    world = World(quota=3)
    world.cluster.pod_quota = 2
    spares = {"spares": 1, "restart": {"scope": "Pod"}}
    world.apply(job(scheduling={"queueName": "team"}, **spares))
    await world.run(600)
    assert world.status["phase"] == "Running"
    assert len(world.running()) == 2


async def test_deactivated_job_stays_queued_when_operator_starts() -> None:
    world = World()
    world.apply(job(scheduling={"queueName": "team"}))
    await world.run()
    [workload] = world.workloads.values()
    workload["spec"]["active"] = False
    await world.run()
    world.start_operator()
    await world.run()
    assert not world.running()
    assert world.status["reason"] == "Queued"
    workload["spec"]["active"] = True
    await world.run()
    assert len(world.running()) == 2
    assert world.status["disruptions"] == 1


async def test_preempted_job_returns_uncharged_when_quota_is_free() -> None:
    world = World()
    world.apply(job(scheduling={"queueName": "team"}))
    await world.run()
    first = world.running()
    world.preempt()
    await world.run()
    assert not world.running()
    assert holds(world.workloads["urgent"], "Admitted")
    world.start_operator()
    world.kueue.delete_workload(URGENT)
    await world.run()
    assert len(world.running()) == 2
    assert world.running().items().isdisjoint(first.items())
    assert (world.status["restarts"], world.status["disruptions"]) == (0, 1)
