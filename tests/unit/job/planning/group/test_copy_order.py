"""The order by which launchers place copies in memory: what it is, and when it is sent."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from random import Random
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Node, Nodes
from ddp_protocol.copies import fingerprint, read_order
from ddp_protocol.world import GroupAssignment, LauncherStatus

from tests.good_manifests import Json
from tests.unit.job.builders import later, listening, ready, running_job, stored
from tests.unit.job.planning.group.test_in_place import LISTENS, failure, knowing
from tests.unit.job.status.test_placement import node

MEMORY = {"sizeLimit": "84G", "copies": 1}
NODES = [node(name, block=name[0], subblock=name[1], host=name) for name in ("11", "12", "21")]


def trains(
    *names: str, memory: Any = MEMORY, restart: Json | None = None
) -> tuple[DDPJob, list[PodState]]:
    """Return a running job with pods on these nodes."""
    restart = {"scope": "InPlace"} if restart is None else restart
    job, _ = running_job(replicas=len(names), restart=restart, memoryCheckpoint=memory)
    pods = [listening(ready(job, slot, node=name)) for slot, name in enumerate(names)]
    return stored(job, plan(job, pods, later(20), launchers=LISTENS)), pods


def looked(
    job: DDPJob, pods: list[PodState], copy_order: str | None = "", nodes: Any = NODES, **more: Any
) -> Plan:
    status = LauncherStatus(number=1, generation=0, copy_order=copy_order)
    launchers = replace(LISTENS, leader=status, **more)
    return plan(job, pods, later(60), launchers=launchers, nodes=nodes)


def order_sent(planned: Plan) -> str:
    """Return the order in the only assignment, which is that of node rank 0."""
    [assignment] = planned.assignments
    assert assignment.group.node_rank == 0
    assert assignment.group.start
    return assignment.group.copy_order


def test_running_group_receives_the_order_once() -> None:
    job, pods = trains("11", "21", "12", "21")
    planned = looked(job, pods)
    assert order_sent(planned) == "0,2,1,3"
    assert not planned.decided
    assert looked(job, pods, fingerprint("0,2,1,3")).assignments == ()
    assert order_sent(looked(job, pods, fingerprint("0,1,3,2"))) == "0,2,1,3"


def test_ranks_in_order_are_the_launchers_default() -> None:
    job, pods = trains("11", "12", "21", "21")
    assert looked(job, pods).assignments == ()
    assert order_sent(looked(job, pods, fingerprint("0,2,1,3"))) == "0-3"


@pytest.mark.parametrize(
    "label", ["topology.kubernetes.io/zone", "nvidia.com/gpu.clique", "hostname of the node"]
)
def test_domains_are_known_by_common_labels(label: str) -> None:
    nodes = [Node(name, {label: name[0]}) for name in ("a1", "b1", "a2", "b2")]
    job, pods = trains(*(each.name for each in nodes))
    expected = [] if label.startswith("hostname") else ["0,2,1,3"]
    planned = looked(job, pods, nodes=nodes)
    assert [each.group.copy_order for each in planned.assignments] == expected


def test_pods_of_one_node_stand_together() -> None:
    job, pods = trains("11", "21", "11", "21")
    assert order_sent(looked(job, pods, nodes=[Node("11", {}), Node("21", {})])) == "0,2,1,3"


@pytest.mark.parametrize(
    ("status", "nodes", "memory"),
    [
        (None, NODES, MEMORY),  # an earlier launcher
        ("", (), MEMORY),
        ("", NODES[:1], MEMORY),
        ("", NODES, {"sizeLimit": "84G", "copies": 0}),
        ("", NODES, None),
    ],
)
def test_order_is_not_sent_if_unknown_or_unused(
    status: str | None, nodes: Any, memory: Any
) -> None:
    job, pods = trains("11", "21", "12", "21", memory=memory)
    assert looked(job, pods, status, nodes).assignments == ()


@pytest.mark.parametrize("scope", ["Pod", "InPlace"])
def test_ranks_that_form_their_group_themselves_receive_the_order(scope: Any) -> None:
    """A sharded model's ranks copy their parts, also without memoryCheckpoint."""
    job, pods = trains("11", "21", "12", "21", memory=None, restart={})
    job = stored(job, looked(job, pods, None, scope=scope))
    planned = looked(job, pods, scope=scope)
    assert [each.group.copy_order for each in planned.assignments] == (
        ["0,2,1,3"] if scope == "Pod" else []
    )


def test_next_generation_has_the_order_of_its_pods() -> None:
    job, pods = trains("11", "21", "12", "21")
    planned = looked(job, pods, failures=(failure(pods[1]),))
    assert planned.decided
    job = stored(job, planned)
    moved = [*pods[:3], replace(pods[3], node="12")]
    planned = looked(job, moved, fingerprint("0,2,1,3"), **knowing(moved, 1, start=False))
    orders = [assignment.group.copy_order for assignment in planned.assignments]
    assert orders == ["0,2-3,1", "", "", ""]


class CountedNodes(Nodes):
    """Nodes that count how often one is looked up by its name."""

    lookups = 0

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        outer = self

        class Counted(dict[str, Node]):
            def get(self, name: str, default: Any = None) -> Any:
                outer.lookups += 1
                return super().get(name, default)

        return Counted({node.name: node for node in self})


def test_nodes_are_looked_up_again_only_for_other_pods_or_nodes() -> None:
    job, pods = trains("11", "21", "12", "21")
    nodes = CountedNodes(NODES)
    job = stored(job, looked(job, pods, nodes=nodes))  # the first plan also shows the placement
    nodes.lookups = 0
    for _ in range(3):
        assert order_sent(looked(job, pods, nodes=nodes)) == "0,2,1,3"
        assert looked(job, pods, fingerprint("0,2,1,3"), nodes).assignments == ()
    assert nodes.lookups == 0

    other = CountedNodes([*NODES[:2], replace(NODES[2], labels=NODES[0].labels)])
    assert order_sent(looked(job, pods, nodes=other)) == "0-1,3,2"
    assert other.lookups == len(pods)

    job = stored(job, looked(job, pods, nodes=nodes, failures=(failure(pods[1]),)))
    moved = [*pods[:3], replace(pods[3], node="12")]
    nodes.lookups = 0
    for _ in range(3):
        sent = looked(job, moved, "", nodes, **knowing(moved, 1, start=False)).assignments
        assert sent[0].group.copy_order == "0,2-3,1"
    assert nodes.lookups == len(pods)


def test_order_of_5000_pods_fits_into_the_message() -> None:
    names = [str(number) for number in range(5000)]
    Random(1).shuffle(names)
    nodes = [Node(name, {"topology.kubernetes.io/zone": str(int(name) % 7)}) for name in names]
    job, pods = trains(*names)
    order = order_sent(looked(job, pods, nodes=nodes))
    assert read_order(order, 5000) is not None
    assert len(order) < GroupAssignment.MAX_BYTES - 4096
