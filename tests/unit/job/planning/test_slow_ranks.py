"""Tests of slow ranks: when the pod of a slow rank is replaced."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import SlowRank
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.ports import Key, Node

from tests.unit.job.builders import condition, later, running_job, stored, with_status
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
    said = report(7, received=at) if reported else None
    return plan(job, pods, later(at), nodes=nodes, report=said)


def spare(job: DDPJob, node: str) -> PodState:
    identity = Identity(3, 0)
    return PodState(
        key=Key(job.namespace, identity.pod_name(job.name)),
        owner_uid=job.uid,
        identity=identity,
        spec_hash=job.spec_hash,
        phase="Running",
        started=later(0),
        node=node,
        address="10.0.0.9",
    )


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
    assert decision.status.world is not None
    assert decision.status.world.members == "0,3,2"
    assert decision.status.excluded_nodes == ("node-b",)
    assert "spare digits-0-3 becomes node rank 1 (not charged)" in decision.events[0].message


def test_spare_on_the_same_node_replaces_no_slow_pod() -> None:
    job, pods = slow_job(spares=1)
    assert "no spare" in refusal(planned(job, [*pods, spare(job, "node-b")]))


@pytest.mark.parametrize(
    ("at", "changes", "spec"),
    [
        pytest.param(599, {}, {}, id="not for long enough"),
        pytest.param(
            600, {"slow_rank": SLOW.updated(faster_in_a_row=1)}, {}, id="faster at the moment"
        ),
        pytest.param(
            600, {}, {"restart": {"scope": "Pod", "slowRank": {"for": "10m"}}}, id="only reported"
        ),
        pytest.param(600, {}, {"restart": {"scope": "Pod"}}, id="nothing asked"),
        pytest.param(
            600, {"slow_rank": SLOW.updated(pod="digits-0-1-r1")}, {}, id="another pod was slow"
        ),
    ],
)
def test_slow_pod_is_kept(at: float, changes: dict[str, Any], spec: dict[str, Any]) -> None:
    job, pods = slow_job(**spec)
    decision = planned(with_status(job, **changes), pods, at=at)
    assert not decision.decided
    assert not decision.status.failures
    assert not decision.delete


def test_slow_pod_without_reports_is_kept() -> None:
    job, pods = slow_job()
    assert not planned(job, pods, reported=False).status.failures


def test_slow_pod_is_kept_while_pods_start() -> None:
    job, pods = slow_job()
    waiting = [*pods[:2], replace(pods[2], phase="Pending", ready=False, node="")]
    assert not planned(job, waiting).status.failures


@pytest.mark.parametrize(
    ("nodes", "spec", "notes", "words"),
    [
        pytest.param(NODES[:3], {}, {}, "no other node", id="all nodes are taken"),
        pytest.param((), {}, {}, "no other node", id="nodes are unknown"),
        pytest.param(
            NODES, {"restart": {**REPLACE, "scope": "Auto"}}, {}, "no launcher", id="no launcher"
        ),
        pytest.param(NODES, {}, {"slow_replaced": (1,)}, "another node too", id="a successor"),
        pytest.param(
            NODES,
            {},
            {"slow_replaced": (2,), "slow_replaced_at": later(1)},
            "a short time ago",
            id="another rank a moment ago",
        ),
        pytest.param(
            NODES,
            {"restart": {**REPLACE, "rules": [{"reasons": ["SlowRank"], "action": "FailJob"}]}},
            {},
            "alone",
            id="a rule that ends the job",
        ),
        pytest.param(
            NODES,
            {"restart": {**REPLACE, "rules": [{"ranks": [1], "action": "RestartGang"}]}},
            {},
            "alone",
            id="a rule that restarts all",
        ),
    ],
)
def test_status_explains_why_a_slow_pod_is_kept(
    nodes: Sequence[Node], spec: dict[str, Any], notes: dict[str, Any], words: str
) -> None:
    job, pods = slow_job(**spec)
    job = with_status(job, **notes)
    decision = planned(job, pods, nodes=nodes)
    assert words in refusal(decision)
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
