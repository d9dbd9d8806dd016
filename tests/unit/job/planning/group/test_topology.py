"""Tests of spec.scheduling.topology: the order of node ranks, and when it is assigned."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.engine.trainers.launcher_pods import pollable
from ddp_operator.job.membership.launchers import NO_LAUNCHERS, LauncherStates
from ddp_operator.job.membership.rank_order import ANSWER_SECONDS, HOLD_SECONDS
from ddp_operator.job.membership.world import members
from ddp_operator.job.planning.group.topology import along
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.environment import environment
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.ports import Node

from tests.unit.job.builders import (
    NOW,
    condition,
    ended,
    event_reasons,
    fresh_job,
    group,
    later,
    listening,
    ready,
    stored,
)
from tests.unit.job.planning.group.test_in_place import failure, knowing
from tests.unit.job.status.test_placement import node

NODES = [
    node(name, block=name[0], subblock=name[1], host=name)
    for name in ("11a", "11b", "12a", "21a", "21b", "22a")
]
TOPOLOGY = {"topology": {"level": "block"}}
IN_PLACE, RE_FORMS = LauncherStates(scope="InPlace"), LauncherStates(scope="Pod")
HEARD = {"Pod": RE_FORMS, "InPlace": IN_PLACE, "Gang": IN_PLACE}


def placed(
    *names: str, scope: str = "InPlace", started: float = 1, **spec: Any
) -> tuple[DDPJob, list[PodState]]:
    """Return a job and its pods, which have just started on these nodes."""
    scheduling = {**TOPOLOGY, **spec.pop("scheduling", {})}
    restart = {"scope": scope}
    job = fresh_job(replicas=len(names), scheduling=scheduling, restart=restart, **spec)
    job = stored(job, plan(job, [], NOW))
    return job, [on(job, slot, name, started=started) for slot, name in enumerate(names)]


def on(job: DDPJob, slot: int, name: str, *, started: float = 1, **state: Any) -> PodState:
    return replace(listening(ready(job, slot, node=name, **state)), started=later(started))


def seen(
    job: DDPJob, pods: Sequence[PodState], at: float, launchers: LauncherStates, nodes: Any = NODES
) -> Plan:
    return plan(job, pods, later(at), nodes=nodes, launchers=launchers)


def trains(*names: str, scope: str, **spec: Any) -> tuple[DDPJob, list[PodState], LauncherStates]:
    """Return the job once its ranks run in their order, with pods and launchers."""
    job, pods = placed(*names, scope=scope, **spec)
    pods += [on(job, len(names) + number, "22a") for number in range(job.spec.spares)]
    job = stored(job, seen(job, pods, 2, HEARD[scope]))
    launchers = replace(HEARD[scope], **knowing(pods, 1))
    planned = seen(job, pods, 3, launchers)
    assert condition(planned, "Running")[0] == "True"
    return stored(job, planned), pods, launchers


@pytest.mark.parametrize(
    ("places", "order"),
    [
        (["1", "2", "1", "2"], [0, 2, 1, 3]),
        (["2", "2", "1", "1"], [0, 1, 2, 3]),  # rank 0 keeps its rank
        (["1x", "1y", "2x", "1x", "2y", "1y"], [0, 3, 1, 5, 2, 4]),
        (["1x", "2x", "2y", "1x"], [0, 3, 1, 2]),  # sub-blocks of two blocks share a name
    ],
)
def test_slots_in_one_block_get_consecutive_ranks(places: list[str], order: list[int]) -> None:
    by_slot = {slot: tuple(place) for slot, place in enumerate(places)}
    found = along(range(len(places)), by_slot)
    assert list(found) == order
    assert along(found, by_slot) == found, "the order is stable"


@pytest.mark.parametrize("scope", ["InPlace", "Gang", "Pod"])
def test_first_ranks_wait_for_their_order(scope: str) -> None:
    job, pods = placed("11a", "21a", "11b", scope=scope)
    assert pollable(job) is job
    variables = environment(job, Identity(1, 0), token="secret")
    assert variables["DDP_HOLD_SECONDS"] == str(HOLD_SECONDS)
    unplaced = [*pods[:2], replace(pods[2], node="", started=None, ready=False)]
    for waiting, launchers in ((unplaced, HEARD[scope]), (pods, NO_LAUNCHERS)):
        planned = seen(job, waiting, 2, launchers)
        assert not planned.decided
        assert planned.assignments == ()
        assert condition(planned, "Running")[0] == "False", "no rank has started yet"
    planned = seen(job, pods, 2, HEARD[scope])
    assert planned.decided
    assert planned.assignments == (), "the decision is stored first"
    world = group(planned)
    assert (world.generation, world.members) == (1, "0,2,1")
    assert planned.status.bookkeeping.lost_members == 0
    assert event_reasons(planned) == ["RanksOrdered"]
    assert "2 of 3 pods" in planned.events[0].message

    job = stored(job, planned)
    planned = seen(job, pods, 2, HEARD[scope])
    assert not planned.decided
    ranks = {assignment.pod: assignment.group.node_rank for assignment in planned.assignments}
    assert ranks == {"digits-0-0": 0, "digits-0-1": 2, "digits-0-2": 1}
    assert all(assignment.group.start is (scope == "Pod") for assignment in planned.assignments)
    planned = seen(job, pods, 3, replace(HEARD[scope], **knowing(pods, 1)))
    assert planned.assignments == ()
    assert condition(planned, "Running")[0] == "True"
    assert "DDP_HOLD_SECONDS" not in environment(job, Identity(1, 0), token="secret")


@pytest.mark.parametrize(
    ("places", "nodes", "why"),
    [
        (("21a", "11a", "11b"), NODES, None),
        (("11a", "21a", "11b"), [], "sees no nodes"),
        (("11a", "21a", "11b"), [Node("11a", {}), *NODES[1:]], "11a have no topology labels"),
    ],
    ids=["ordered", "no nodes", "no labels"],
)
def test_well_or_unknown_placed_ranks_keep_their_order(
    places: tuple[str, ...], nodes: list[Node], why: str | None
) -> None:
    job, pods = placed(*places)
    planned = seen(job, pods, 2, IN_PLACE, nodes)
    assert (group(planned).generation, group(planned).members) == (1, "0-2")
    assert event_reasons(planned) == (["RanksNotOrdered"] if why else [])
    assert not why or why in planned.events[0].message
    planned = seen(stored(job, planned), pods, 2, IN_PLACE, nodes)
    assert not any(assignment.group.start for assignment in planned.assignments)


def test_new_node_without_labels_is_awaited() -> None:
    job, pods = placed("11a", "21a", "11b")
    planned = seen(job, pods, 2, IN_PLACE, NODES[1:])
    assert not planned.decided
    assert planned.requeue_at == later(4)
    assert seen(job, pods, 4, IN_PLACE).decided
    late = seen(job, pods, 1 + ANSWER_SECONDS, IN_PLACE, NODES[1:])
    assert "does not know 11a" in late.events[0].message
    assert late.status.world is None, "the ranks have started without an order"


def test_pods_without_a_launcher_start_unordered() -> None:
    job, pods = placed("11a", "21a", "11b", scope="Gang")
    waiting = seen(job, pods, ANSWER_SECONDS, NO_LAUNCHERS)
    assert not waiting.decided
    assert waiting.requeue_at == later(1 + ANSWER_SECONDS)
    planned = seen(job, pods, 1 + ANSWER_SECONDS, NO_LAUNCHERS)
    assert event_reasons(planned) == ["RanksNotOrdered"]
    assert "no launcher answered" in planned.events[0].message
    assert planned.status.world is None
    job = stored(job, planned)
    planned = seen(job, pods, 2 + ANSWER_SECONDS, NO_LAUNCHERS)
    assert (planned.assignments, planned.decided) == ((), False)
    assert condition(planned, "Running")[0] == "True"
    assert "RanksNotOrdered" not in event_reasons(planned), "once"


def test_late_operator_leaves_running_ranks_alone() -> None:
    job, pods = placed("11a", "21a", "11b")
    planned = seen(job, pods, 500, IN_PLACE)
    assert planned.status.world is None
    assert "no operator was running" in planned.events[0].message


def test_pods_with_overrides_keep_their_ranks() -> None:
    overrides = [{"indexes": ["0"], "nprocPerNode": 2}]
    job, pods = placed("11a", "21a", "11b", overrides=overrides, scope="Gang")
    assert "DDP_HOLD_SECONDS" not in environment(job, Identity(1, 0), token="secret")
    assert pollable(job) is None
    planned = seen(job, pods, 2, IN_PLACE)
    assert not planned.decided
    assert condition(planned, "Running")[0] == "True"


def test_each_attempt_is_ordered_again() -> None:
    job, pods, launchers = trains("11a", "21a", "11b", scope="Gang")
    lost = [*pods[:2], ended(job, 2, code=1, at=59)]
    job = stored(job, seen(job, lost, 60, launchers))
    assert (job.status.attempt, list(members(job))) == (1, [0, 1, 2])
    new = [
        on(job, slot, name, started=70, generation=2)
        for slot, name in enumerate(("21a", "11a", "21b"))
    ]
    assert environment(job, Identity(0, 1), token="secret")["DDP_HOLD_SECONDS"]
    planned = seen(job, new, 71, IN_PLACE)
    assert (group(planned).generation, group(planned).members) == (3, "0,2,1")


@pytest.mark.parametrize("scope", ["InPlace", "Pod"])
def test_spare_in_another_block_reorders_before_assignments(scope: str) -> None:
    job, pods, launchers = trains("11a", "11b", "22a", scope=scope, spares=1)
    lost = [ended(job, 0, code=137, at=59, node="11a"), *pods[1:]]
    planned = seen(job, lost, 63, launchers)
    assert (group(planned).generation, group(planned).members) == (2, "3,1-2")
    job = stored(job, planned)
    planned = seen(job, lost, 63, launchers)
    assert planned.decided
    world = group(planned)
    assert (world.generation, world.members) == (3, "3,2,1")
    notes = planned.status.bookkeeping
    assert notes.lost_members == 1
    assert notes.grace_seconds == (0 if scope == "InPlace" else 15), (
        "unchanged from the decision before"
    )
    job = stored(job, planned)
    planned = seen(job, lost, 63, launchers)
    assert not planned.decided
    assert {assignment.group.generation for assignment in planned.assignments} == {3}
    assert all(assignment.group.broken for assignment in planned.assignments)


def test_restart_in_place_waits_for_the_new_pods_node() -> None:
    job, pods, launchers = trains("11a", "11b", "21a", scope="InPlace")
    lost = [ended(job, 0, code=137, at=59), *pods[1:]]
    job = stored(job, seen(job, lost, 63, launchers))
    new = replace(on(job, 0, "", replacement=1, generation=2), started=None, address="")
    known = replace(IN_PLACE, **knowing(pods[1:], 2, start=False))
    assert seen(job, [new, *pods[1:]], 64, known).assignments == ()
    planned = seen(job, [replace(new, node="22a"), *pods[1:]], 65, known)
    assert (group(planned).generation, group(planned).members) == (3, "0,2,1")


@pytest.mark.parametrize(("name", "decides"), [("11b", False), ("12a", False), ("21b", True)])
def test_scope_pod_reorders_only_for_another_block(name: str, decides: bool) -> None:
    job, pods, launchers = trains("11a", "11a", "21a", "21a", scope="Pod")
    lost = [ended(job, 0, code=137, at=59), *pods[1:]]
    job = stored(job, seen(job, lost, 63, launchers))
    there = [on(job, 0, name, replacement=1, generation=1, started=70), *pods[1:]]
    planned = seen(job, there, 71, launchers)
    assert planned.decided, "once per replacement"
    assert (planned.status.world != job.status.world) is decides
    job = stored(job, planned)
    assert list(members(job)) == ([0, 2, 3, 1] if decides else [0, 1, 2, 3])
    planned = seen(job, there, 72, launchers)
    assert not planned.decided
    assert bool(planned.assignments) is decides
    assert all(assignment.group.start for assignment in planned.assignments)


def test_failure_without_a_new_pod_keeps_the_order() -> None:
    job, pods, launchers = trains("11a", "21a", "11b", scope="InPlace")
    failed = replace(launchers, failures=(failure(pods[1], generation=1),))
    job = stored(job, seen(job, pods, 63, failed))
    assert list(members(job)) == [0, 2, 1]
    planned = seen(job, pods, 63, failed)
    assert not planned.decided
    assert {assignment.group.generation for assignment in planned.assignments} == {2}
