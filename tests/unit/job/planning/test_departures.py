"""Tests of pods that leave nodes before these are terminated."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Node

from tests.good_manifests import template
from tests.message_style import faults
from tests.unit.job.builders import (
    condition,
    does_nothing,
    ended,
    event_reasons,
    fresh_job,
    later,
    ready,
    running_job,
    stored,
    with_status,
)

TAINT = "taint cloud.google.com/impending-node-termination"
WELL = [Node(f"node-{letter}", {}, boot_id=f"boot-{letter}") for letter in "abcdefgh"]


def with_leaving(*names: str, nodes: Sequence[Node] = WELL) -> list[Node]:
    return [replace(node, leaving=TAINT) if node.name in names else node for node in nodes]


def spread(**spec: Any) -> tuple[DDPJob, list[PodState]]:
    """Return a running job with pod 0 on node-a and pod 1 on node-b."""
    job, pods = running_job(**spec)
    return job, [replace(pods[0], node="node-a"), replace(pods[1], node="node-b")]


def planned(job: DDPJob, pods: Sequence[PodState], nodes: Sequence[Node]) -> Plan:
    return plan(job, pods, later(60), nodes=nodes)


def test_pod_on_a_leaving_node_is_replaced_as_a_disruption() -> None:
    job, pods = spread(restart={"scope": "Pod"})
    decision = planned(job, pods, with_leaving("node-b"))
    assert decision.decided
    [failure] = decision.status.failures
    assert (failure.reason, failure.class_, failure.charged) == ("NodeLeaving", "Disruption", False)
    assert (failure.node, failure.index, failure.rank) == ("node-b", 1, 1)
    assert (decision.status.restarts, decision.status.disruptions) == (0, 1)
    assert condition(decision, "Restarting") == ("True", "Disrupted")
    [event] = decision.events
    assert not event.warning
    assert f"node node-b is about to be terminated ({TAINT})" in event.message
    job = stored(job, decision)
    assert job.status.excluded_nodes == ("node-b",)
    then = planned(job, pods, with_leaving("node-b"))
    assert [each.pod_name(job.name) for each in then.create] == ["digits-0-1-r1"]
    assert then.delete == (pods[1].key,), "the trainer saves when its pod is deleted"


def test_leaving_node_restarts_the_gang_in_scope_gang() -> None:
    job, pods = spread()
    decision = planned(job, pods, with_leaving("node-b"))
    assert (decision.status.attempt, decision.status.disruptions) == (1, 1)
    assert decision.status.failures[0].action == "RestartGang"


def test_all_pods_on_leaving_nodes_are_replaced_at_once() -> None:
    job, pods = spread(restart={"scope": "Pod"}, replicas=3)
    pods.append(replace(ready(job, 2), node="node-b"))
    job = stored(job, plan(job, pods, later(20)))
    decision = planned(job, pods, with_leaving("node-a", "node-b"))
    assert decision.decided
    assert decision.status.attempt == 1, "no pod is left to rebuild the group"
    decision = planned(job, pods, with_leaving("node-b"))
    assert decision.status.bookkeeping.replacements == {"1": 1, "2": 1}
    assert decision.status.disruptions == 1


def test_no_pod_leaves_without_a_free_node() -> None:
    job, pods = spread(restart={"scope": "Pod"})
    nodes = with_leaving("node-b")
    busy = [replace(node, schedulable=False) for node in nodes[2:]]
    bad = [replace(node, bad="condition GpuMemWatch") for node in nodes[2:]]
    for others in (busy, bad):
        assert not planned(job, pods, [*nodes[:2], *others]).decided
    key = "cloud.google.com/impending-node-termination"
    nodes[1] = replace(nodes[1], taints=({"key": key, "value": "", "effect": "NoSchedule"},))
    one_free = [*nodes[:2], *busy[:5], nodes[7]]
    assert planned(job, pods, one_free).decided


@pytest.mark.parametrize(("scope", "required", "leaves"), [
    ("Pod", True, False), ("Pod", False, True), ("InPlace", True, False), ("Gang", True, True),
])  # fmt: skip
def test_required_topology_needs_a_free_node_in_the_same_block(
    scope: str, required: bool, leaves: bool
) -> None:
    topology = {"level": "block", "required": required}
    job, pods = spread(restart={"scope": scope}, scheduling={"topology": topology})
    label = "cloud.google.com/gce-topology-block"
    nodes = [
        replace(node, labels={label: "1" if node.name < "node-c" else "2"})
        for node in with_leaving("node-b")
    ]
    assert planned(job, pods, nodes).decided is leaves
    nodes[-1] = replace(nodes[-1], labels={label: "1"})
    assert planned(job, pods, nodes).decided, "one free node in the same block"


def test_no_pod_leaves_if_its_node_cannot_be_excluded() -> None:
    """No node of three may be excluded, so the new pod could return to it."""
    job, pods = spread(restart={"scope": "Pod"})
    assert not planned(job, pods, with_leaving("node-b", nodes=WELL[:3])).decided


def test_free_node_must_match_the_node_selector() -> None:
    job, pods = spread(template=template(nodeSelector={"gpu": "l4"}))
    nodes = with_leaving("node-b")
    assert not planned(job, pods, nodes).decided
    suitable = [replace(node, labels={"gpu": "l4"}) for node in nodes]
    assert planned(job, pods, suitable).decided


def test_node_is_left_once_per_boot() -> None:
    job, pods = spread(restart={"scope": "Pod"})
    nodes = with_leaving("node-b")
    job = stored(job, planned(job, pods, nodes))
    assert job.status.bookkeeping.left_nodes == ("boot-b",)
    back = [pods[0], replace(ready(job, 1, replacement=1), node="node-b")]
    job = stored(job, planned(job, back, nodes))
    assert job.status.is_true("Running")
    assert does_nothing(planned(job, back, nodes))
    rebooted = [replace(node, boot_id=f"{node.boot_id}-2") for node in nodes]
    assert planned(job, back, rebooted).decided, "a rebooted node counts as another one"


def test_recovering_starting_ending_or_suspended_job_leaves_no_node() -> None:
    job, pods = spread(restart={"scope": "Pod"})
    nodes = with_leaving("node-b")
    completed = ended(job, 0, code=0, node="node-a")
    assert not planned(job, [completed, pods[1]], nodes).decided
    terminating = replace(pods[1], deleting=True, disrupted_at=later(50))
    decision = planned(job, [pods[0], terminating], nodes)
    assert decision.status.bookkeeping.left_nodes == ()
    decision = planned(job, [ended(job, 0, code=1), pods[1]], nodes)
    assert [failure.reason for failure in decision.status.failures] == ["Error"]
    job = stored(job, decision)
    assert not planned(job, [pods[1]], nodes).decided
    starting = fresh_job()
    starting = stored(starting, plan(starting, [], later(0)))
    assert not planned(starting, [replace(pod, ready=False) for pod in pods], nodes).decided
    suspended, pods = spread(suspend=True)
    decision = planned(suspended, pods, nodes)
    assert decision.status.is_true("Suspended")
    assert decision.status.failures == ()


def test_rule_decides_about_a_leaving_node() -> None:
    rules = [{"reasons": ["NodeLeaving"], "action": "RestartGang", "charged": True}]
    job, pods = spread(restart={"scope": "Pod", "rules": rules})
    decision = planned(job, pods, with_leaving("node-b"))
    assert (decision.status.restarts, decision.status.attempt) == (1, 1)
    [failure] = decision.status.failures
    assert (failure.class_, failure.charged) == ("Disruption", True)


def test_record_of_left_nodes_is_bounded() -> None:
    job, pods = spread(restart={"scope": "Pod"})
    job = with_status(job, left_nodes=tuple(f"boot-{number}" for number in range(100)))
    left = planned(job, pods, with_leaving("node-b")).status.bookkeeping.left_nodes
    assert (len(left), left[-1]) == (100, "boot-b")


class TestCheckpoints:
    """Pods that cannot leave their node save a checkpoint."""

    NOWHERE = with_leaving("node-b", nodes=WELL[:2])

    def with_address(self, **spec: Any) -> tuple[DDPJob, list[PodState]]:
        job, pods = spread(**spec)
        return job, [replace(pod, address=f"10.0.0.{pod.identity.index}:29501") for pod in pods]

    def test_checkpoint_is_requested_once_without_a_free_node(self) -> None:
        job, pods = self.with_address()
        acting = planned(job, pods, self.NOWHERE)
        assert not acting.decided
        assert acting.ask_checkpoint == "10.0.0.0:29501"
        assert event_reasons(acting) == ["CheckpointRequested"]
        assert f"node node-b is about to be terminated ({TAINT})" in acting.events[0].message
        job = stored(job, acting)
        assert planned(job, pods, self.NOWHERE).ask_checkpoint == ""
        rebooted = [replace(node, boot_id=f"{node.boot_id}-2") for node in self.NOWHERE]
        assert planned(job, pods, rebooted).ask_checkpoint, "the node leaves again"

    def test_checkpoint_is_requested_before_a_known_end(self) -> None:
        job, pods = self.with_address()
        end = later(3600)
        nodes = [WELL[0], replace(WELL[1], ends_at=end), *WELL[2:]]
        acting = planned(job, pods, nodes)
        assert acting.ask_checkpoint == ""
        due = end - timedelta(minutes=10)
        assert acting.requeue_at == due
        acting = plan(job, pods, due, nodes=nodes)
        assert acting.ask_checkpoint == "10.0.0.0:29501"
        assert "node node-b ends at 2026-03-01T13:00:00Z" in acting.events[0].message
        job = stored(job, acting)
        assert plan(job, pods, due, nodes=nodes).ask_checkpoint == ""
        assert plan(job, pods, end, nodes=nodes[:1] + self.NOWHERE[1:]).ask_checkpoint, (
            "the node has another reason to leave"
        )

    @pytest.mark.parametrize("change", [{"address": ""}, {"ready": False}])
    def test_checkpoint_request_waits_for_rank_0_to_be_reachable(
        self, change: dict[str, Any]
    ) -> None:
        job, pods = self.with_address()
        silent = planned(job, [replace(pods[0], **change), pods[1]], self.NOWHERE)
        assert silent.ask_checkpoint == ""
        assert silent.status.bookkeeping.asked_nodes == ()

    def test_no_checkpoint_is_requested_of_leaving_or_ended_pods(self) -> None:
        job, pods = self.with_address(restart={"scope": "Pod"})
        leaving = planned(job, pods, with_leaving("node-b"))
        assert leaving.decided
        assert leaving.ask_checkpoint == ""
        over = ended(job, 1, code=0, node="node-b")
        assert planned(job, [pods[0], over], self.NOWHERE).ask_checkpoint == ""

    def test_record_of_requested_checkpoints_is_bounded(self) -> None:
        job, pods = self.with_address()
        name = "n" * 253
        long = [WELL[0], Node(name, {}, leaving=TAINT)]
        pods[1] = replace(pods[1], node=name)
        acting = planned(job, pods, long)
        assert acting.ask_checkpoint
        assert planned(stored(job, acting), pods, long).ask_checkpoint == ""

    def test_many_leaving_nodes_request_one_checkpoint(self) -> None:
        nodes = [Node(f"node-{number}", {}, leaving=TAINT) for number in range(150)]
        job, pods = running_job(replicas=150)
        pods = [replace(pod, node=f"node-{pod.identity.index}") for pod in pods]
        pods[0] = replace(pods[0], address="10.0.0.0:29501")
        acting = planned(job, pods, nodes)
        assert acting.ask_checkpoint
        assert acting.events[0].message.endswith(f"to be terminated ({TAINT}), and 99 more nodes")
        assert list(faults(acting.events[0].message)) == []
        job = stored(job, acting)
        assert len(job.status.bookkeeping.asked_nodes) == 100
        assert planned(job, pods, nodes).ask_checkpoint == ""
