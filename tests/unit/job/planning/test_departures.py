"""Tests of checkpoints and moves before nodes are terminated or maintained."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Node, Nodes

from tests.message_style import faults
from tests.unit.job.builders import (
    ended,
    event_reasons,
    later,
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


class TestCheckpoints:
    """Rank 0 saves once for each node that is about to go."""

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

    def test_no_checkpoint_is_requested_once_a_pod_has_completed(self) -> None:
        job, pods = self.with_address(restart={"scope": "Pod"})
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


class TestScheduledMaintenance:
    """GKE announces a maintenance up to seven days ahead, by a label with its time."""

    BEGINS = later(86_400)

    def job(self, **spec: Any) -> tuple[DDPJob, list[PodState], list[Node]]:
        job, pods = spread(**{"restart": {"scope": "Pod"}, **spec})
        job = with_status(job, launcher="Pod")
        pods = [replace(pod, address=f"10.0.0.{pod.identity.index}:29501") for pod in pods]
        return job, pods, [WELL[0], replace(WELL[1], maintenance_at=self.BEGINS), *WELL[2:]]

    def test_job_trains_on_until_half_an_hour_before(self) -> None:
        job, pods, nodes = self.job()
        early = planned(job, pods, nodes)
        assert (early.decided, early.ask_checkpoint) == (False, "")
        assert early.requeue_at == self.BEGINS - timedelta(minutes=30)

    @pytest.mark.parametrize("change", [{"address": ""}, {"ready": False}])
    def test_job_is_looked_at_in_time_without_its_rank_0(self, change: dict[str, Any]) -> None:
        job, pods, nodes = self.job()
        silent = planned(job, [replace(pods[0], **change), pods[1]], nodes)
        assert silent.requeue_at is not None
        assert silent.requeue_at <= self.BEGINS - timedelta(minutes=30)

    def test_half_an_hour_before_a_checkpoint_and_a_successor_are_requested(self) -> None:
        job, pods, nodes = self.job()
        half_before = self.BEGINS - timedelta(minutes=30)
        wanted = plan(job, pods, half_before, nodes=Nodes(nodes))
        assert event_reasons(wanted) == ["SuccessorWanted"]
        message = wanted.events[0].message
        assert message.endswith(
            "node node-b is about to be terminated (maintenance at 2026-03-02T12:00:00Z)"
        )
        assert list(faults(message)) == []
        job = stored(job, wanted)
        assert job.status.bookkeeping.nodes_to_leave == ("node-b",)
        asking = plan(job, pods, half_before, nodes=Nodes(nodes))
        assert event_reasons(asking) == ["CheckpointRequested"]
        assert asking.ask_checkpoint == "10.0.0.0:29501"
        assert asking.requeue_at == self.BEGINS - timedelta(minutes=10)
        job = stored(job, asking)
        assert plan(job, pods, half_before, nodes=nodes).ask_checkpoint == ""

    def test_second_checkpoint_is_requested_just_before(self) -> None:
        job, pods, nodes = self.job(replicas=2, scheduling={"queueName": "q"})
        half_before, due = (self.BEGINS - timedelta(minutes=m) for m in (30, 10))
        job = stored(job, plan(job, pods, half_before, nodes=nodes))
        acting = plan(job, pods, due, nodes=nodes)
        assert acting.ask_checkpoint
        assert "node node-b ends at 2026-03-02T12:00:00Z" in acting.events[0].message
        assert plan(stored(job, acting), pods, due, nodes=nodes).ask_checkpoint == ""

    def test_time_that_has_passed_is_ignored(self) -> None:
        """The label stayed, or the time is wrong: the node is not left for it again and again."""
        job, pods, nodes = self.job()
        over = plan(job, pods, self.BEGINS, nodes=nodes)
        assert (over.decided, over.ask_checkpoint, over.events) == (False, "", ())


def test_nodes_are_replaced_once_for_the_same_change() -> None:
    nodes = Nodes(WELL)
    changed = (replace(WELL[1], leaving=TAINT),)
    replaced = nodes.replacing(changed)
    assert list(replaced) == [WELL[0], *changed, *WELL[2:]]
    assert list(replaced.unwell) == ["node-b"]
    assert nodes.replacing((replace(WELL[1], leaving=TAINT),)) is replaced
    assert list(nodes.replacing((replace(WELL[2], bad="x"),)).unwell) == ["node-c"]
    assert not nodes.unwell
