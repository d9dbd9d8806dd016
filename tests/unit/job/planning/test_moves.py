"""Tests of pods that still train and leave their nodes: others take their places first."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import Pace, SlowRank
from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.planning.failures.moves import MAX_SUCCESSORS
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.avoided_nodes import kept_off
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.ports import Node

from tests.good_manifests import container, template
from tests.message_style import faults
from tests.unit.job.builders import (
    condition,
    does_nothing,
    ended,
    fresh_job,
    group,
    later,
    ready,
    running_job,
    stored,
    with_status,
)
from tests.unit.job.planning.group.test_elasticity import JOINS, elastic_job
from tests.unit.job.status.test_progress import report

TAINT = "taint cloud.google.com/impending-node-termination"
WELL = [Node(f"node-{letter}", {}, boot_id=f"boot-{letter}") for letter in "abcdefgh"]
SLOW = SlowRank(
    rank=1, pod="digits-0-1", node="node-b", ratio=1.75, seconds_per_step=0.5, since=later(0)
)
REPLACE = {"scope": "Pod", "slowRank": {"forSeconds": 600, "action": "Replace"}}
NOBODY = "no pod on another node is ready to take its place yet"


def with_leaving(*names: str, nodes: Sequence[Node] = WELL) -> list[Node]:
    return [replace(node, leaving=TAINT) if node.name in names else node for node in nodes]


def spread(**spec: Any) -> tuple[DDPJob, list[PodState]]:
    """Return a running job with a launcher, and a pod on each of the first nodes."""
    job, pods = running_job(**{"replicas": 3, "restart": {"scope": "Pod"}, **spec})
    job = with_status(job, launcher="Pod" if job.spec.restart.scope == "Pod" else "")
    pods = [replace(pod, node=node.name) for pod, node in zip(pods, WELL, strict=False)]
    return job, pods


def slow_job(**spec: Any) -> tuple[DDPJob, list[PodState]]:
    """Return such a job with a slow rank 1."""
    job, pods = spread(**{"restart": REPLACE, **spec})
    return with_status(job, slow_rank=SLOW), pods


def planned(
    job: DDPJob,
    pods: Sequence[PodState],
    nodes: Sequence[Node] = WELL,
    *,
    at: float = 600,
    reported: bool = True,
    **more: Any,
) -> Plan:
    last = report(7, received=at) if reported else None
    return plan(job, pods, later(at), nodes=nodes, report=last, **more)


def outside(job: DDPJob, slot: int, node: str, **state: Any) -> PodState:
    """Return a started pod outside the group."""
    return ready(
        job, slot, **{"node": node, "started": later(0), "address": f"10.0.0.{slot}", **state}
    )


def successor(job: DDPJob, pods: Sequence[PodState], nodes: Sequence[Node] = WELL) -> DDPJob:
    """Return the job after it was decided that it needs a successor."""
    job = stored(job, planned(job, pods, nodes))
    assert job.status.bookkeeping.successors
    return job


class TestLeavingNodes:
    def test_successor_is_created_first(self) -> None:
        job, pods = spread()
        nodes = with_leaving("node-b")
        decision = planned(job, pods, nodes)
        assert decision.decided
        [event] = decision.events
        assert (event.reason, event.warning) == ("SuccessorWanted", False)
        assert event.message == (
            "creating 1 more pod that can take the place of digits-0-1: node node-b is about to be "
            f"terminated ({TAINT})"
        )
        assert list(faults(event.message)) == []
        job = stored(job, decision)
        assert job.status.is_true("Running")
        assert (job.status.disruptions, job.status.failures) == (0, ())
        then = planned(job, pods, nodes)
        assert [each.pod_name(job.name) for each in then.create_spares] == ["digits-0-3"]
        assert (then.decided, then.create, then.delete) == (False, (), ())
        assert kept_off(manifests.pod(job, Identity(3, 0))["spec"]) == ("node-b",)
        assert kept_off(manifests.pod(job, Identity(1, 0))["spec"]) == ()

    @pytest.mark.parametrize(
        "state",
        [
            {"node": "", "started": None, "address": "", "phase": "Pending"},
            {"started": None},
            {"address": ""},
            {"node": "node-b"},
        ],
        ids=["pending", "starting", "no address", "on the same node"],
    )
    def test_pod_trains_on_until_its_successor_is_ready(self, state: dict[str, Any]) -> None:
        job, pods = spread()
        nodes = with_leaving("node-b")
        job = successor(job, pods, nodes)
        waits = replace(outside(job, 3, "node-d"), **state)
        decision = planned(job, [*pods, waits], nodes)
        assert not decision.delete
        assert decision.status.failures == ()
        assert decision.status.is_true("Running")

    def test_ready_successor_takes_over_as_a_disruption(self) -> None:
        job, pods = spread()
        nodes = with_leaving("node-b")
        job = successor(job, pods, nodes)
        all_pods = [*pods, outside(job, 3, "node-d")]
        decision = planned(job, all_pods, nodes)
        assert decision.decided
        [failure] = decision.status.failures
        assert (failure.reason, failure.class_) == ("NodeLeaving", "Disruption")
        assert (failure.charged, failure.action) == (False, "RestartPod")
        assert (failure.node, failure.index, failure.rank) == ("node-b", 1, 1)
        assert (decision.status.restarts, decision.status.disruptions) == (0, 1)
        assert condition(decision, "Restarting") == ("True", "Disrupted")
        assert group(decision).members == "0,3,2"
        notes = decision.status.bookkeeping
        assert (notes.successors, notes.nodes_to_leave) == (None, ())
        assert notes.lost_members == 0, "the ranks complete their step before they leave"
        job = stored(job, decision)
        then = planned(job, all_pods, nodes)
        assert then.delete == (pods[1].key,), "the trainer saves when its pod is deleted"
        assert (then.create, then.create_spares) == ((), ())

    def test_launcher_of_successor_must_know_the_group(self) -> None:
        job, pods = spread(restart={"scope": "InPlace"})
        world = group(plan(*with_group(job, pods), later(60)))
        job = replace(job, status=job.status.updated(world=world).noting(launcher="InPlace"))
        nodes = with_leaving("node-b")
        told = {pod.key.name: (world.generation, True) for pod in pods}
        launchers = LauncherStates(told=told, scope="InPlace")
        job = stored(job, planned(job, pods, nodes, launchers=launchers))
        assert job.status.bookkeeping.successors == 1
        new = outside(job, 3, "node-d")
        decision = planned(job, [*pods, new], nodes, launchers=launchers)
        assert decision.status.failures == ()
        told[new.key.name] = (world.generation, False)
        decision = planned(job, [*pods, new], nodes, launchers=launchers)
        assert decision.status.disruptions == 1

    def test_spare_on_another_node_takes_over_at_once(self) -> None:
        job, pods = spread(spares=1)
        decision = planned(job, [*pods, outside(job, 3, "node-d")], with_leaving("node-b"))
        assert group(decision).members == "0,3,2"

    def test_starting_spare_is_awaited(self) -> None:
        job, pods = spread(spares=1)
        waits = outside(job, 3, "node-d", started=None)
        assert not planned(job, [*pods, waits], with_leaving("node-b")).decided

    @pytest.mark.parametrize("signal", [{"leaving": TAINT}, {"bad": "Xid"}, {"unready": True}])
    def test_spare_on_an_unwell_node_needs_a_successor_too(self, signal: dict[str, Any]) -> None:
        job, pods = spread(spares=1)
        nodes = [replace(n, **signal) if n.name == "node-d" else n for n in with_leaving("node-b")]
        decision = planned(job, [*pods, outside(job, 3, "node-d")], nodes)
        assert decision.status.bookkeeping.successors == 1
        assert decision.status.failures == ()

    def test_successor_ends_once_the_node_stays(self) -> None:
        job, pods = spread()
        job = successor(job, pods, with_leaving("node-b"))
        waits = outside(job, 3, "", started=None, phase="Pending")
        decision = planned(job, [*pods, waits])
        notes = decision.status.bookkeeping
        assert (notes.successors, notes.nodes_to_leave) == (None, ())
        assert not decision.events
        job = stored(job, decision)
        then = planned(job, [*pods, waits])
        assert then.delete == (waits.key,)
        job = stored(job, then)
        assert does_nothing(planned(job, pods))
        job = successor(job, pods, with_leaving("node-b"))
        job = stored(job, planned(job, pods, with_leaving("node-b")))
        assert job.status.bookkeeping.replacements == {"3": 1}, "its name is not used again"

    def test_next_attempt_forgets_successors(self) -> None:
        job, pods = spread()
        job = successor(job, pods, with_leaving("node-b"))
        job = stored(job, planned(replace(job, restart_requested="now"), pods))
        notes = job.status.bookkeeping
        assert (job.status.attempt, notes.successors, notes.nodes_to_leave) == (1, None, ())

    def test_failure_meanwhile_keeps_the_successor(self) -> None:
        job, pods = spread()
        nodes = with_leaving("node-b")
        job = successor(job, pods, nodes)
        failed = [*pods[:2], ended(job, 2, code=1, node="node-c")]
        job = stored(job, planned(job, failed, nodes))
        assert [failure.reason for failure in job.status.failures] == ["Error"]
        after = planned(job, pods[:2], nodes)
        assert not after.decided
        assert after.status.bookkeeping.successors == 1

    def test_successor_takes_over_from_a_pod_that_fails_meanwhile(self) -> None:
        job, pods = spread()
        nodes = with_leaving("node-b")
        job = successor(job, pods, nodes)
        failed = [*pods[:2], ended(job, 2, code=1, node="node-c"), outside(job, 3, "node-d")]
        job = stored(job, planned(job, failed, nodes))
        assert group(job).members == "0-1,3"

    def test_all_pods_on_a_node_leave_together(self) -> None:
        job, pods = spread()
        pods[2] = replace(pods[2], node="node-b")
        nodes = with_leaving("node-b")
        job = successor(job, pods, nodes)
        assert job.status.bookkeeping.successors == 2
        one = [*pods, outside(job, 3, "node-d")]
        assert planned(job, one, nodes).status.failures == ()
        decision = planned(job, [*one, outside(job, 4, "node-e")], nodes)
        assert group(decision).members == "0,3-4"
        assert decision.status.disruptions == 1

    def test_nodes_are_left_as_their_successors_become_ready(self) -> None:
        job, pods = spread()
        nodes = with_leaving("node-b", "node-c")
        job = successor(job, pods, nodes)
        assert job.status.bookkeeping.successors == 2
        assert job.status.bookkeeping.nodes_to_leave == ("node-b", "node-c")
        starts = outside(job, 3, "node-d", started=None)
        job = stored(job, planned(job, [*pods, starts, outside(job, 4, "node-e")], nodes))
        assert group(job).members == "0,4,2"
        assert job.status.bookkeeping.successors == 1
        then = planned(job, [pods[0], pods[2], starts, outside(job, 4, "node-e")], nodes)
        assert (then.delete, then.create_spares) == ((), ()), "the other one is kept"

    def test_successor_that_gets_a_leaving_node_is_created_again(self) -> None:
        job, pods = spread()
        job = successor(job, pods, with_leaving("node-b"))
        nodes = with_leaving("node-b", "node-d")
        astray = [*pods, outside(job, 3, "node-d")]
        job = stored(job, planned(job, astray, nodes))
        assert job.status.bookkeeping.nodes_to_leave == ("node-b", "node-d")
        job = stored(job, planned(job, astray, nodes))
        assert job.status.bookkeeping.replacements == {"3": 1}
        assert (job.status.bookkeeping.successors, job.status.failures) == (1, ())
        assert not planned(job, pods, nodes).decided

    @pytest.mark.parametrize(
        "spec",
        [
            {"restart": {"scope": "Gang"}},
            {"restart": {"scope": "InPlace"}},
            {"restart": {"scope": "Auto"}},
            {"replicas": 1},
            {"scheduling": {"queueName": "research"}},
            {"scheduling": {"gang": "coscheduling"}},
            {"overrides": [{"indexes": ["0"], "template": template(container())}]},
            {"restart": {"scope": "Pod", "rules": [
                {"reasons": ["NodeLeaving"], "action": "RestartGang"}]}},
            {"restart": {"scope": "Pod", "rules": [{"reasons": ["NodeLeaving"],
                                                    "action": "FailJob"}]}},
        ],
        ids=["gang", "in place, no launcher", "no launcher", "only pod", "queue", "gang scheduler",
             "overrides", "rule restarts all", "rule fails the job"],
    )  # fmt: skip
    def test_pod_trains_on_where_none_can_take_its_place(self, spec: dict[str, Any]) -> None:
        job, pods = spread(**spec)
        for node in ("node-a", "node-b"):
            assert does_nothing(planned(job, pods, with_leaving(node)))

    def test_rule_may_charge_a_move(self) -> None:
        rules = [{"reasons": ["NodeLeaving"], "action": "RestartPod", "charged": True}]
        job, pods = spread(restart={"scope": "Pod", "rules": rules}, spares=1)
        decision = planned(job, [*pods, outside(job, 3, "node-d")], with_leaving("node-b"))
        assert (decision.status.restarts, decision.status.attempt) == (1, 0)

    def test_node_is_left_once_per_boot(self) -> None:
        job, pods = spread(spares=1)
        nodes = with_leaving("node-b")
        job = stored(job, planned(job, [*pods, outside(job, 3, "node-d")], nodes))
        assert job.status.bookkeeping.left_nodes == ("boot-b",)
        taken = outside(job, 3, "node-b", identity=Identity.at(3, 0, 0, index=1))
        back = [replace(pod, generation=1) for pod in (pods[0], taken, pods[2])]
        job = with_status(job, replacements={"1": 1}, successors=None)
        for _ in range(2):
            job = stored(job, planned(job, back, WELL))
        assert job.status.is_true("Running")
        decision = planned(job, back, nodes)
        assert decision.status.bookkeeping.successors is None
        assert decision.status.disruptions == 1
        rebooted = [replace(node, boot_id=f"{node.boot_id}-2") for node in nodes]
        assert planned(job, back, rebooted).status.bookkeeping.successors == 1

    def test_recovering_starting_ending_or_suspended_job_leaves_no_node(self) -> None:
        job, pods = spread(spares=1)
        nodes = with_leaving("node-b")
        spare = outside(job, 3, "node-d")
        completed = [ended(job, 0, code=0, node="node-a"), *pods[1:], spare]
        assert planned(job, completed, nodes).status.bookkeeping.left_nodes == ()
        terminating = replace(pods[2], deleting=True, disrupted_at=later(50))
        decision = planned(job, [*pods[:2], terminating, spare], nodes)
        assert decision.status.bookkeeping.left_nodes == ()
        starting = fresh_job(replicas=3, restart={"scope": "Pod"})
        starting = stored(starting, plan(starting, [], later(0)))
        decision = planned(starting, [replace(pod, ready=False) for pod in pods], nodes)
        assert decision.status.bookkeeping.successors is None
        suspended, pods = spread(suspend=True)
        decision = planned(suspended, pods, nodes)
        assert decision.status.is_true("Suspended")
        assert decision.status.failures == ()

    def test_records_are_bounded(self) -> None:
        job, pods = spread(spares=1)
        job = with_status(job, left_nodes=tuple(f"boot-{number}" for number in range(100)))
        decision = planned(job, [*pods, outside(job, 3, "node-d")], with_leaving("node-b"))
        left = decision.status.bookkeeping.left_nodes
        assert (len(left), left[-1]) == (100, "boot-b")
        nodes = [Node(f"node-{number}", {}, leaving=TAINT) for number in range(150)]
        job, pods = running_job(replicas=150, restart={"scope": "Pod"})
        job = with_status(job, launcher="Pod")
        pods = [replace(pod, node=f"node-{pod.identity.index}") for pod in pods]
        decision = planned(job, pods, nodes)
        notes = stored(job, decision).status.bookkeeping
        assert (notes.successors, len(notes.nodes_to_leave)) == (MAX_SUCCESSORS, 100)
        assert list(faults(decision.events[0].message)) == []


def with_group(job: DDPJob, pods: Sequence[PodState]) -> tuple[DDPJob, list[PodState]]:
    """Return a job whose processes restarted in place once, with its first group on record."""
    job = replace(job, status=job.status.noting(launcher="InPlace"))
    failed = replace(
        ended(job, 0, code=1, node="node-a"), phase="Running", restartable=True, started=later(1)
    )
    return job, [failed, *pods[1:]]


class TestSlowRanks:
    def test_successor_on_another_node_takes_over(self) -> None:
        job, pods = slow_job()
        decision = planned(job, pods)
        [event] = decision.events
        assert event.reason == "SuccessorWanted"
        assert event.message == (
            "creating 1 more pod that can take the place of digits-0-1: its own time per step is "
            "1.75 times the mean of the others, 0.5 s more"
        )
        job = stored(job, decision)
        assert job.status.bookkeeping.nodes_to_leave == ("node-b",)
        job = stored(job, planned(job, pods))
        assert job.status.slow_rank is not None
        assert job.status.slow_rank.not_replaced == NOBODY
        assert not planned(job, pods).decided, "the reason is stored once"
        decision = planned(job, [*pods, outside(job, 3, "node-d")])
        [failure] = decision.status.failures
        assert (failure.reason, failure.class_, failure.action, failure.charged) == (
            "SlowRank", "Infrastructure", "RestartPod", False,
        )  # fmt: skip
        assert (failure.index, failure.rank, failure.node) == (1, 1, "node-b")
        assert condition(decision, "Restarting") == ("True", "SlowRank")
        assert decision.status.excluded_nodes == ("node-b",)
        assert decision.status.bookkeeping.barred_nodes == ()
        assert (decision.status.restarts, decision.status.disruptions) == (0, 1)
        assert decision.status.slow_rank is None
        assert "spare digits-0-3 becomes node rank 1 (not charged)" in decision.events[0].message

    def test_spare_on_the_same_node_takes_no_place(self) -> None:
        job, pods = slow_job(spares=1)
        decision = planned(job, [*pods, outside(job, 3, "node-b")])
        assert decision.status.bookkeeping.successors == 1
        assert decision.status.failures == ()

    @pytest.mark.parametrize(
        ("at", "changes", "restart"),
        [
            (599, {}, {}),
            (600, {"pace": Pace(step=9, faster_in_a_row=1)}, {}),
            (600, {"slow_rank": SLOW.updated(pod="digits-0-1-r1")}, {}),
            (600, {}, {"slowRank": {"forSeconds": 600}}),
            (600, {}, {"slowRank": None}),
        ],
        ids=["too early", "faster now", "another pod", "only reported", "not requested"],
    )
    def test_slow_pod_is_kept(
        self, at: float, changes: dict[str, Any], restart: dict[str, Any]
    ) -> None:
        job, pods = slow_job(restart={**REPLACE, **restart}, spares=1)
        job = with_status(job, **{"slow_rank": SLOW, **changes})
        decision = planned(job, [*pods, outside(job, 3, "node-d")], at=at)
        assert not decision.decided
        assert not decision.status.failures
        assert not decision.delete

    def test_slow_pod_is_kept_without_reports_or_while_pods_start(self) -> None:
        job, pods = slow_job(spares=1)
        spare = outside(job, 3, "node-d")
        assert not planned(job, [*pods, spare], reported=False).status.failures
        waiting = [*pods[:2], replace(pods[2], phase="Pending", ready=False, started=None)]
        assert not planned(job, [*waiting, spare]).status.failures

    def test_successor_ends_once_the_rank_is_fast(self) -> None:
        job, pods = slow_job()
        job = successor(job, pods)
        for times in (1, 2):
            job = with_status(job, pace=Pace(step=9, faster_in_a_row=times))
            assert planned(job, pods).status.bookkeeping.successors == 1
        job = with_status(job, slow_rank=None)
        assert planned(job, pods).status.bookkeeping.successors is None

    @pytest.mark.parametrize(
        ("restart", "notes", "reason"),
        [
            ({"scope": "Auto"}, {}, "all pods would restart"),
            ({}, {"slow_replaced": (1,)}, "another node too"),
            ({"rules": [{"reasons": ["SlowRank"], "action": "FailJob"}]}, {}, "all pods would"),
            ({"rules": [{"ranks": [1], "action": "RestartGang"}]}, {}, "all pods would restart"),
        ],
    )
    def test_status_explains_why_a_slow_pod_is_kept(
        self, restart: dict[str, Any], notes: dict[str, Any], reason: str
    ) -> None:
        job, pods = slow_job(restart={**REPLACE, **restart})
        job = with_status(job, **notes)
        job = stored(job, planned(job, pods))
        assert job.status.slow_rank is not None
        assert reason in job.status.slow_rank.not_replaced
        assert job.status.bookkeeping.successors is None
        assert not planned(job, pods).decided, "the reason is stored once"

    def test_pod_in_a_queue_waits_for_a_spare(self) -> None:
        job, pods = slow_job(scheduling={"queueName": "research"})
        job = stored(job, planned(job, pods))
        assert job.status.slow_rank is not None
        assert job.status.slow_rank.not_replaced == NOBODY
        assert job.status.bookkeeping.successors is None

    def test_other_slow_pods_may_be_replaced_later(self) -> None:
        job, pods = slow_job(spares=1)
        job = with_status(job, slow_replaced=(2,))
        decision = planned(job, [*pods, outside(job, 3, "node-d")])
        assert decision.status.bookkeeping.slow_replaced == (2, 1)

    def test_next_attempt_may_replace_slow_pods_again(self) -> None:
        job, pods = slow_job()
        job = with_status(job, slow_replaced=(1,))
        job = replace(job, restart_requested="now")
        assert planned(job, pods).status.bookkeeping.slow_replaced == ()


def test_leaving_node_comes_before_a_slow_rank() -> None:
    job, pods = slow_job()
    decision = planned(job, pods, with_leaving("node-c"))
    assert decision.status.bookkeeping.nodes_to_leave == ("node-c",)


def test_elastic_group_goes_without_pods_on_leaving_nodes_at_once() -> None:
    job, pods = elastic_job(minReplicas=3, shrinkAfterSeconds=600)
    pods = [replace(pod, node=node.name) for pod, node in zip(pods, WELL, strict=False)]
    nodes = with_leaving("node-b")
    decision = plan(job, pods, later(60), nodes=nodes, launchers=JOINS)
    assert decision.status.disruptions == 1
    assert group(decision).members == "0,2-3"
    assert decision.status.bookkeeping.successors is None
