"""Tests of slow ranks: when the pod of a slow rank is replaced."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import SlowRank
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Node

from tests.unit.job.builders import condition, group, later, ready, running_job, stored, with_status
from tests.unit.job.status.test_progress import report

NODES = [Node(f"node-{letter}", {}, boot_id=f"boot-{letter}") for letter in "abcdefgh"]
SLOW = SlowRank(
    rank=1, pod="digits-0-1", node="node-b", ratio=1.75, seconds_per_step=0.5, since=later(0)
)
REPLACE = {"scope": "Pod", "slowRank": {"for": "10m", "action": "Replace"}}


def slow_job(**spec: Any) -> tuple[DDPJob, list[PodState]]:
    """Return a job on node-a, node-b and node-c with a slow rank 1."""
    job, pods = running_job(**{"replicas": 3, "restart": REPLACE, **spec})
    pods = [replace(pod, node=node.name) for pod, node in zip(pods, NODES, strict=False)]
    return with_status(job, slow_rank=SLOW), pods


def planned(
    job: DDPJob,
    pods: Sequence[PodState],
    *,
    at: float = 600,
    nodes: Sequence[Node] = NODES,
    reported: bool = True,
) -> Plan:
    last = report(7, received=at) if reported else None
    return plan(job, pods, later(at), nodes=nodes, report=last)


def spare(job: DDPJob, node: str) -> PodState:
    return ready(job, 3, node=node, started=later(0), address="10.0.0.9")


def refusal(decision: Plan) -> str:
    """Return why the pod is not replaced."""
    assert not decision.delete
    assert not decision.status.failures
    assert decision.status.slow_rank is not None
    return decision.status.slow_rank.not_replaced


def test_slow_pod_is_replaced_on_another_node() -> None:
    job, pods = slow_job()
    decision = planned(job, pods)
    assert decision.decided
    [failure] = decision.status.failures
    assert (failure.reason, failure.class_, failure.action, failure.charged) == (
        "SlowRank", "Infrastructure", "RestartPod", False,
    )  # fmt: skip
    assert (failure.index, failure.rank, failure.node) == (1, 1, "node-b")
    assert condition(decision, "Restarting") == ("True", "SlowRank")
    assert decision.status.excluded_nodes == ("node-b",)
    assert (decision.status.restarts, decision.status.disruptions) == (0, 1)
    assert decision.status.slow_rank is None
    [event] = decision.events
    assert event.message == (
        "replacing the pod of node rank 1 (not charged): pod digits-0-1 (node rank 1) failed: "
        "SlowRank on node node-b: its own time per step is 1.75 times the mean of the others, "
        "0.5 s more"
    )
    job = stored(job, decision)
    then = planned(job, pods)
    assert [each.pod_name(job.name) for each in then.create] == ["digits-0-1-r1"]
    assert then.delete == (pods[1].key,)


def test_spare_replaces_a_slow_pod() -> None:
    job, pods = slow_job(spares=1)
    decision = planned(job, [*pods, spare(job, "node-d")])
    assert group(decision).members == "0,3,2"
    assert decision.status.excluded_nodes == ("node-b",)
    assert "spare digits-0-3 becomes node rank 1 (not charged)" in decision.events[0].message


def test_spare_on_the_same_node_replaces_no_slow_pod() -> None:
    job, pods = slow_job(spares=1)
    assert "no spare" in refusal(planned(job, [*pods, spare(job, "node-b")]))


@pytest.mark.parametrize(
    ("at", "changes", "restart"),
    [
        (599, {}, {}),
        (600, {"faster_in_a_row": 1}, {}),
        (600, {"pod": "digits-0-1-r1"}, {}),
        (600, {}, {"slowRank": {"for": "10m"}}),
        (600, {}, {"slowRank": None}),
    ],
    ids=["too early", "faster now", "another pod", "only reported", "not requested"],
)
def test_slow_pod_is_kept(at: float, changes: dict[str, Any], restart: dict[str, Any]) -> None:
    job, pods = slow_job(restart={**REPLACE, **restart})
    job = with_status(job, slow_rank=SLOW.updated(**changes))
    decision = planned(job, pods, at=at)
    assert not decision.decided
    assert not decision.status.failures
    assert not decision.delete


def test_slow_pod_is_kept_without_reports_or_while_pods_start() -> None:
    job, pods = slow_job()
    assert not planned(job, pods, reported=False).status.failures
    waiting = [*pods[:2], replace(pods[2], phase="Pending", ready=False, node="")]
    assert not planned(job, waiting).status.failures


@pytest.mark.parametrize(
    ("nodes", "restart", "notes", "reason"),
    [
        (NODES[:3], {}, {}, "no other node"),
        ((), {}, {}, "no other node"),
        (NODES, {"scope": "Auto"}, {}, "no launcher"),
        (NODES, {}, {"slow_replaced": (1,)}, "another node too"),
        (NODES, {}, {"slow_replaced": (2,), "slow_replaced_at": later(1)}, "a short time ago"),
        (NODES, {"rules": [{"reasons": ["SlowRank"], "action": "FailJob"}]}, {}, "alone"),
        (NODES, {"rules": [{"ranks": [1], "action": "RestartGang"}]}, {}, "alone"),
    ],
)
def test_status_explains_why_a_slow_pod_is_kept(
    nodes: Sequence[Node], restart: dict[str, Any], notes: dict[str, Any], reason: str
) -> None:
    job, pods = slow_job(restart={**REPLACE, **restart})
    job = with_status(job, **notes)
    decision = planned(job, pods, nodes=nodes)
    assert reason in refusal(decision)
    again = planned(stored(job, decision), pods, nodes=nodes)
    assert not again.decided, "the reason is stored once"


def test_second_slow_pod_is_replaced_after_the_interval() -> None:
    job, pods = slow_job()
    job = with_status(job, slow_replaced=(2,), slow_replaced_at=later(0))
    assert planned(job, pods).status.bookkeeping.slow_replaced == (2, 1)


def test_next_attempt_may_replace_slow_pods_again() -> None:
    job, pods = slow_job()
    job = with_status(job, slow_replaced=(1,))
    job = replace(job, restart_requested="now")
    assert planned(job, pods).status.bookkeeping.slow_replaced == ()
