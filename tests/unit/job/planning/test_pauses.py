"""Tests of pauses: rank 0 waits after a snapshot in memory, and then pods leave their nodes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status.world import World
from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.pods.state import PodState
from ddp_operator.ports import Node
from ddp_protocol.world import GroupAssignment, LauncherStatus, MemoryReport

from tests.message_style import faults
from tests.unit.job.builders import condition, ended, group, later, stored, with_status
from tests.unit.job.planning.test_moves import (
    REPLACE,
    SLOW,
    WELL,
    outside,
    planned,
    spread,
    successor,
    with_leaving,
)

NODES = with_leaving("node-b")
IN_PLACE: Any = {"restart": {"scope": "InPlace"}, "memoryCheckpoint": {"sizeLimit": "1Gi"}}
SAVED = MemoryReport(step=40, copies=1)


def reporting(pause: Any = "", memory: MemoryReport | None = SAVED, **more: Any) -> LauncherStates:
    """Return what the launchers say, of which node rank 0's reports a pause."""
    leader = LauncherStatus(number=1, generation=0, pause=pause, memory=memory)
    return LauncherStates(scope="InPlace", leader=replace(leader, **more))


def with_successor(
    nodes: Sequence[Node] = NODES, **spec: Any
) -> tuple[DDPJob, list[PodState], PodState]:
    """Return a job that restarts in place and keeps snapshots in memory, its pods, and one that can
    take the place of the second pod.
    """
    job, pods = spread(**{**IN_PLACE, **spec})
    job = with_status(job, launcher="InPlace")
    job = successor(job, pods, nodes)
    return job, started(pods), outside(job, 3, "node-d")


def started(pods: Sequence[PodState]) -> list[PodState]:
    return [
        replace(pod, started=later(0), address=f"10.0.1.{pod.identity.index}:28737") for pod in pods
    ]


def to_leader(decision: Plan) -> list[GroupAssignment]:
    """Return what node rank 0's launcher is sent."""
    return [each.group for each in decision.assignments if each.group.node_rank == 0]


def test_pause_is_requested_only_once_a_successor_is_ready() -> None:
    job, pods, new = with_successor()
    starting = replace(new, started=None)
    assert planned(job, [*pods, starting], NODES, launchers=reporting()).assignments == ()
    decision = planned(job, [*pods, new], NODES, launchers=reporting())
    assert decision.status.failures == ()
    [assignment] = to_leader(decision)
    assert (assignment.pause, assignment.generation, assignment.start) == (True, 0, True)
    assert len(decision.assignments) == 1, "the other launchers need not know"
    assert decision.requeue_at is not None


def test_pods_stay_until_rank_0_pauses() -> None:
    job, pods, new = with_successor()
    decision = planned(job, [*pods, new], NODES, launchers=reporting("Requested"))
    assert (decision.assignments, decision.delete, decision.decided) == ((), (), False)
    assert decision.status.is_true("Running")
    assert decision.status.bookkeeping.successors == 1


def test_paused_ranks_restart_at_once_and_nothing_else_is_saved() -> None:
    job, pods, new = with_successor()
    decision = planned(job, [*pods, new], NODES, launchers=reporting("Paused"))
    [failure] = decision.status.failures
    assert (failure.reason, failure.action, failure.charged) == (
        "NodeLeaving", "RestartInPlace", False,
    )  # fmt: skip
    assert [each.reason for each in decision.events] == ["PausedToMove", "Restarting"]
    assert decision.events[0].message == (
        "training pauses after step 40, from which all ranks continue"
    )
    assert group(decision).members == "0,3,2"
    assert decision.status.bookkeeping.grace_seconds == 0
    assert condition(decision, "Restarting") == ("True", "Disrupted")
    assert list(faults(decision.events[0].message)) == []
    job = stored(job, decision)
    then = planned(job, [*pods, new], NODES, launchers=reporting("Paused"))
    assert then.delete == (pods[1].key,)
    assert then.grace_seconds == {pods[1].key: 1}, "its ranks wait for rank 0 in vain"
    assert not any(each.group.pause for each in then.assignments)


def test_ranks_restart_without_a_pause_that_came_too_late() -> None:
    job, pods, new = with_successor()
    decision = planned(job, [*pods, new], NODES, launchers=reporting("Missed"))
    assert [each.reason for each in decision.events] == ["Restarting"]
    assert group(decision).members == "0,3,2"
    assert decision.status.bookkeeping.grace_seconds == 15
    then = planned(stored(job, decision), [*pods, new], NODES, launchers=reporting("Missed"))
    assert (then.delete, then.grace_seconds) == ((pods[1].key,), {pods[1].key: 15})


def test_rank_0_itself_may_leave() -> None:
    nodes = with_leaving("node-a")
    job, pods, new = with_successor(nodes)
    [assignment] = to_leader(planned(job, [*pods, new], nodes, launchers=reporting()))
    assert assignment.pause
    decision = planned(job, [*pods, new], nodes, launchers=reporting("Paused"))
    assert group(decision).members == "3,1-2"


@pytest.mark.parametrize("pause", ["Requested", "Paused", "Missed"])
def test_request_ends_if_the_node_stays(pause: str) -> None:
    job, pods, new = with_successor()
    decision = planned(job, [*pods, new], WELL, launchers=reporting(pause))
    assert decision.status.bookkeeping.successors is None
    job = stored(job, decision)
    [assignment] = to_leader(planned(job, [*pods, new], WELL, launchers=reporting(pause)))
    assert not assignment.pause


@pytest.mark.parametrize("pause", ["Requested", "Paused"])
def test_request_ends_when_a_pod_completes(pause: str) -> None:
    job, pods, new = with_successor()
    completed = [*pods[:2], ended(job, 2, code=0, node="node-c"), new]
    decision = planned(job, completed, NODES, launchers=reporting(pause))
    assert decision.status.failures == ()
    [assignment] = to_leader(decision)
    assert not assignment.pause


@pytest.mark.parametrize(
    ("states", "spec"),
    [
        (reporting(None), {}),
        (reporting(memory=None), {}),
        (reporting(memory=MemoryReport(copies=1)), {}),
        (reporting(memory=replace(SAVED, refusal="node rank 2: too large")), {}),
        (reporting(memory=replace(SAVED, copies=0)), {}),
        (reporting(generation=1), {}),
        (reporting(), {"restart": {"scope": "Pod"}, "memoryCheckpoint": None}),
    ],
    ids=["earlier launcher", "no memory", "no snapshot", "refused", "no copies", "led", "join"],
)
def test_pods_leave_at_once_where_a_pause_would_save_nothing(
    states: LauncherStates, spec: dict[str, Any]
) -> None:
    job, pods, new = with_successor(**spec)
    decision = planned(job, [*pods, new], NODES, launchers=states)
    assert group(decision).members == "0,3,2"
    assert [each.reason for each in decision.events] == ["Restarting"]


def test_replicated_snapshots_need_no_copies() -> None:
    job, pods, new = with_successor()
    states = reporting(memory=replace(SAVED, copies=0, replicated=True))
    decision = planned(job, [*pods, new], NODES, launchers=states)
    assert [each.pause for each in to_leader(decision)] == [True]


@pytest.mark.parametrize("replicated", [True, False])
def test_elastic_group_pauses_only_for_snapshots_that_fit_any_size(replicated: bool) -> None:
    elastic = {"elastic": {"minReplicas": 2, "shrinkAfterSeconds": 600}}
    job, pods = spread(**IN_PLACE, **elastic)
    job = with_status(job, launcher="InPlace", world=World(members="0-2"))
    pods = started(pods)
    job = stored(job, planned(job, pods, launchers=reporting()))
    states = reporting(memory=replace(SAVED, replicated=replicated))
    decision = planned(job, pods, NODES, launchers=states)
    assert [each.pause for each in to_leader(decision)] == [True] * replicated
    assert len(decision.status.failures) == (not replicated)
    states = reporting("Paused", memory=replace(SAVED, replicated=replicated))
    assert group(planned(job, pods, NODES, launchers=states)).members == "0,2"


def test_slow_rank_is_replaced_after_a_pause() -> None:
    restart = {**REPLACE, "scope": "InPlace"}
    job, pods = spread(**{**IN_PLACE, "restart": restart}, spares=1)
    job = with_status(job, launcher="InPlace", slow_rank=SLOW)
    all_pods = [*started(pods), outside(job, 3, "node-d")]
    job = stored(job, planned(job, all_pods, launchers=reporting()))
    assert job.status.slow_rank is not None
    assert job.status.slow_rank.not_replaced.startswith("rank 0 pauses after its next snapshot")
    decision = planned(job, all_pods, launchers=reporting())
    assert [each.pause for each in to_leader(decision)] == [True]
    decision = planned(job, all_pods, launchers=reporting("Paused"))
    [failure] = decision.status.failures
    assert (failure.reason, failure.charged) == ("SlowRank", False)
    assert decision.events[0].reason == "PausedToMove"
