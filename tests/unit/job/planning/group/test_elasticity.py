"""Tests of elastic jobs: when groups change their size, and which pods are members."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.membership import world
from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.environment import LEAVE_SECONDS, environment
from ddp_operator.job.pods.state import Identity, PodState

from tests.unit.job.builders import (
    condition,
    edited,
    ended,
    event_reasons,
    fresh_job,
    group,
    key,
    later,
    listening,
    pod,
    ready,
    stored,
)
from tests.unit.job.planning.group.test_in_place import knowing

JOINS = LauncherStates(scope="Pod")


def elastic_job(replicas: int = 4, **elastic: Any) -> tuple[DDPJob, list[PodState]]:
    """Return a running elastic job with pods that rebuild their group, and those pods."""
    return _running(fresh_job(replicas=replicas, restart={"scope": "Auto"}, elastic=elastic))


def _running(job: DDPJob) -> tuple[DDPJob, list[PodState]]:
    job = settled(job, [], later(0))
    pods = [member_pod(job, index) for index in range(job.spec.replicas)]
    job = settled(job, pods, later(10))
    return settled(job, pods, later(20)), pods


def member_pod(job: DDPJob, index: int, **state: Any) -> PodState:
    """Return a running pod that was created for the current group or to wait for it."""
    generation = world.world_of(job).generation
    return listening(ready(job, index, generation=generation, **state))


def settled(job: DDPJob, pods: Sequence[PodState], now: datetime, **launchers: Any) -> DDPJob:
    """Return the job after all decisions of one moment are stored."""
    for _ in range(3):
        planned = plan_with(job, pods, now, **launchers)
        job = stored(job, planned)
        if not planned.decided:
            return job
    raise AssertionError(f"decides without end: {planned}")


def plan_with(job: DDPJob, pods: Sequence[PodState], now: datetime, **launchers: Any) -> Plan:
    return plan(job, list(pods), now, launchers=replace(JOINS, **launchers))


def members(planned: Plan) -> str:
    return group(planned).members


def test_first_group_is_recorded_before_its_pods_are_created() -> None:
    job = fresh_job(replicas=4, restart={"scope": "Auto"}, elastic={"minReplicas": 2})
    first = plan_with(job, [], later(0))
    assert first.decided
    assert (first.create, first.create_service) == ((), False)
    assert members(first) == "0-3"
    job = stored(job, first)
    scaled = edited(job, replicas=6, elastic={"minReplicas": 2})
    assert scaled.spec_hash == job.spec_hash, "the size is not part of the spec hash"
    planned = plan_with(scaled, [], later(1))
    assert [each.slot for each in planned.create] == [0, 1, 2, 3]
    variables = environment(scaled, planned.create[1], token="secret")
    assert (variables["WORLD_SIZE"], variables["GROUP_WORLD_SIZE"]) == ("4", "4")
    assert (variables["DDP_BATCH"], variables["DDP_BATCH_RANKS"]) == ("global", "6")
    assert variables["DDP_LEAVE_SECONDS"] == str(LEAVE_SECONDS)


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_group_shrinks_after_shrink_after_seconds(victim: int) -> None:
    job, pods = elastic_job(minReplicas=2, shrinkAfterSeconds=30)
    lost = ended(job, victim, code=137, at=59)
    seen = [lost if each.identity.index == victim else each for each in pods]
    job = settled(job, seen, later(63))
    assert job.status.bookkeeping.replacements == {str(victim): 1}
    assert world.members(job) == (0, 1, 2, 3), "the group waits for the replacement"
    others = [each for each in pods if each.identity.index != victim]
    waiting = [*others, pod(job, victim, replacement=1)]
    early = plan_with(job, waiting, later(92))
    assert not early.decided
    assert early.requeue_at == later(93)

    planned = plan_with(job, waiting, later(93))
    assert planned.decided
    assert members(planned) == {0: "1-3", 1: "0,2-3", 3: "0-2"}[victim]
    assert planned.status.bookkeeping.replacements == {str(victim): 2}, (
        "the pod has a rank of the larger group"
    )
    [event] = planned.events
    assert event.reason == "GroupShrunk"
    late = waiting[-1].key.name
    assert event.message == f"training continues with 3 of 4 pods; not ready in time: {late}"
    assert planned.status.restarts == 1, "only the loss is charged"
    job = stored(job, planned)
    planned = plan_with(job, waiting, later(93))
    assert planned.delete == (waiting[-1].key,)
    [outside] = planned.create_spares
    assert (outside.slot, outside.replacement) == (victim, 2)
    assert "NODE_RANK" not in environment(job, outside, token="secret")
    for rank, assignment in enumerate(planned.assignments):
        group = assignment.group
        assert (group.node_rank, group.nodes, group.broken) == (rank, 3, True)
        assert group.master_addr == f"digits-0-{1 if victim == 0 else 0}.digits"
    assert len(planned.assignments) == 3
    known = plan_with(
        job, others, later(94), **knowing(others, planned.assignments[0].group.generation)
    )
    assert condition(known, "Running") == ("True", "PodsReady")
    assert known.status.ready == "3/4 +0"


def test_group_never_shrinks_below_min_replicas() -> None:
    job, pods = elastic_job(minReplicas=3, shrinkAfterSeconds=0)
    gone = [ended(job, index, code=137, at=59) for index in (1, 2)]
    job = settled(job, [pods[0], *gone, pods[3]], later(63))
    new = [pod(job, index, replacement=1) for index in (1, 2)]
    planned = plan_with(job, [pods[0], *new, pods[3]], later(500))
    assert not planned.decided
    assert [(gap.reason, gap.node_ranks) for gap in planned.status.gaps] == [("Unscheduled", "1-2")]


def test_shrink_after_0_records_loss_and_smaller_group_at_once() -> None:
    job, pods = elastic_job(minReplicas=2, shrinkAfterSeconds=0)
    lost = ended(job, 2, code=137, at=59)
    planned = plan_with(job, [*pods[:2], lost, pods[3]], later(63))
    assert members(planned) == "0-1,3"
    [event] = planned.events
    assert "training continues with 3 of 4 pods, without node rank 2 (" in event.message
    assert planned.status.next_start_time is None, "there is no backoff"
    planned = plan_with(stored(job, planned), [*pods[:2], lost, pods[3]], later(63))
    assert [each.pod_name("digits") for each in planned.create_spares] == ["digits-0-2-r1"]


def test_group_shrinks_at_once_without_a_terminating_pod() -> None:
    job, pods = elastic_job(minReplicas=2, shrinkAfterSeconds=3600)
    going = replace(pods[1], deleting=True, disrupted_at=later(60), ends_by=later(75))
    planned = plan_with(job, [pods[0], going, *pods[2:]], later(60))
    assert members(planned) == "0,2-3"
    assert (planned.status.restarts, planned.status.disruptions) == (0, 1)


def test_waiting_pod_joins_last_after_grow_after_seconds() -> None:
    job, pods = elastic_job(minReplicas=1, shrinkAfterSeconds=0, growAfterSeconds=120)
    lost = ended(job, 0, code=137, at=59)
    job = settled(job, [lost, *pods[1:]], later(63))
    generation = world.world_of(job).generation
    back = replace(member_pod(job, 0), identity=Identity(0, 0, 1))
    back = replace(back, key=key("digits-0-0-r1"))
    all_of_them = [back, *pods[1:]]
    known = dict(knowing(pods[1:], generation))
    job = stored(job, plan_with(job, all_of_them, later(70), **known))
    assert job.status.ready == "3/4 +1"
    unheard = plan_with(job, all_of_them, later(200), **known)
    assert not unheard.decided, "its launcher has not answered"
    known["told"] = {**known["told"], "digits-0-0-r1": (generation, False)}
    early = plan_with(job, all_of_them, later(182), **known)
    assert (early.decided, early.requeue_at) == (False, later(183))
    planned = plan_with(job, all_of_them, later(183), **known)
    assert members(planned) == "1-3,0"
    assert event_reasons(planned) == ["GroupGrown"]
    assert planned.status.bookkeeping.lost_members == 0, "no member was lost"
    job = stored(job, planned)
    planned = plan_with(job, all_of_them, later(183), **known)
    assert {t.pod: t.group.node_rank for t in planned.assignments}["digits-0-0-r1"] == 3
    assert planned.create_spares == ()


def test_job_grows_beyond_replicas_up_to_max_replicas() -> None:
    job, pods = elastic_job(replicas=2, maxReplicas=4, growAfterSeconds=10)
    planned = plan_with(job, pods, later(21))
    assert [each.slot for each in planned.create_spares] == [2, 3]
    pending = [*pods, *(pod(job, slot) for slot in (2, 3))]
    assert not plan_with(job, pending, later(500)).decided, "the group does not wait for new pods"
    one_more = [*pods, member_pod(job, 2), pod(job, 3)]
    generation = world.world_of(job).generation
    grown = plan_with(job, one_more, later(30), **knowing(one_more, generation, start=False))
    assert members(grown) == "0-2"
    job = stored(job, grown)
    known = knowing(one_more, generation + 1)
    assert plan_with(job, one_more, later(40), **known).status.ready == "3/3 +0"


@pytest.mark.parametrize("gang", ["native", "coscheduling", "kai"])
def test_elastic_gang_starts_with_fewest_pods_grows_and_shrinks(gang: str) -> None:
    sizes = {"minReplicas": 2, "maxReplicas": 4, "shrinkAfterSeconds": 0, "growAfterSeconds": 10}
    scheduling = {"gang": gang}
    job = fresh_job(replicas=3, restart={"scope": "Auto"}, elastic=sizes, scheduling=scheduling)
    job = stored(job, plan_with(job, [], later(0)))
    planned = plan_with(job, [], later(0))
    assert [each.slot for each in planned.create] == [0, 1]
    job = stored(job, planned)
    pods = [member_pod(job, slot) for slot in range(2)]
    job = settled(job, pods, later(10))
    assert [each.slot for each in plan_with(job, pods, later(10)).create_spares] == [2, 3]
    more = [*pods, *(member_pod(job, slot) for slot in (2, 3))]
    known = knowing(more, world.world_of(job).generation)
    job = stored(job, plan_with(job, more, later(30), **known))
    assert world.world_of(job).members == "0-3"
    job = settled(job, more, later(40), **known)
    planned = plan_with(job, pods, later(60), **known)  # the scheduler took two for another job
    assert (members(planned), planned.status.restarts) == ("0-1", 0)


def test_running_job_is_scaled_down_and_up() -> None:
    job, pods = elastic_job(replicas=4, minReplicas=1, growAfterSeconds=0)
    smaller = edited(job, replicas=2, elastic={"minReplicas": 1})
    planned = plan_with(smaller, pods, later(30))
    assert members(planned) == "0-1"
    smaller = stored(smaller, planned)
    planned = plan_with(smaller, pods, later(30))
    assert planned.delete == tuple(each.key for each in pods[2:])
    assert [assignment.group.nodes for assignment in planned.assignments] == [2, 2]
    larger = edited(smaller, replicas=3, elastic={"minReplicas": 1})
    known = knowing(pods[:2], world.world_of(smaller).generation)
    planned = plan_with(larger, pods[:2], later(40), **known)
    assert [each.slot for each in planned.create_spares] == [2]


@pytest.mark.parametrize("patience", [0, 30])
def test_first_group_forms_without_late_pods(patience: int) -> None:
    elastic = {"minReplicas": 2, "shrinkAfterSeconds": patience}
    job = fresh_job(replicas=4, restart={"scope": "Auto"}, elastic=elastic)
    job = settled(job, [], later(0))
    some = [member_pod(job, 1), pod(job, 0), pod(job, 2), member_pod(job, 3)]
    job = settled(job, some, later(5))
    assert not plan_with(job, some, later(29)).decided
    planned = plan_with(job, some, later(35))
    assert members(planned) == "1,3"
    assert condition(planned, "Restarting") == ("", ""), "the job has not started yet"


def test_group_without_launchers_keeps_its_size() -> None:
    job = fresh_job(replicas=3, restart={"scope": "Auto"}, elastic={"minReplicas": 1})
    for now in (0, 0, 5, 500):
        some = [member_pod(job, 0), pod(job, 1), member_pod(job, 2)] if now else []
        planned = plan(job, some, later(now))
        job = stored(job, planned)
    assert world.members(job) == (0, 1, 2)


@pytest.mark.parametrize(("replicas", "restarts"), [(2, True), (1, True), (3, False), (4, False)])
def test_group_that_waits_for_a_pod_begins_anew_if_scaled_down(
    replicas: int, restarts: bool
) -> None:
    """The pods have no launcher, so nobody could tell them that the group is smaller."""
    elastic = {"minReplicas": 1, "maxReplicas": 4}
    job = fresh_job(replicas=3, restart={"scope": "Auto"}, elastic=elastic)
    some: list[PodState] = []
    for now in (0, 0, 5):
        job = stored(job, plan(job, some, later(now)))
        some = [member_pod(job, 0), pod(job, 1, waiting="Unschedulable"), member_pod(job, 2)]
    scaled = edited(job, replicas=replicas, restart={"scope": "Auto"}, elastic=elastic)
    planned = plan(scaled, some, later(6))
    assert (planned.status.attempt, planned.decided) == (int(restarts), restarts)
    if restarts:
        assert members(planned) == ("0-1" if replicas == 2 else "0")
        assert condition(planned, "Restarting") == ("True", "SpecChanged")


def test_group_with_a_completed_pod_does_not_shrink() -> None:
    job, pods = elastic_job(minReplicas=1, shrinkAfterSeconds=0)
    done = ended(job, 1, code=0, at=59)
    waiting = pod(job, 2, replacement=0)
    planned = plan_with(job, [pods[0], done, waiting, pods[3]], later(500))
    assert not planned.decided


def test_ready_spare_replaces_a_lost_pod_instead_of_shrinking() -> None:
    job = fresh_job(
        replicas=3, spares=1, restart={"scope": "Auto"}, elastic={"shrinkAfterSeconds": 0}
    )
    job, pods = _running(job)
    spare = member_pod(job, 3)
    lost = ended(job, 1, code=137, at=59)
    planned = plan_with(job, [pods[0], lost, pods[2], spare], later(63))
    assert members(planned) == "0,3,2"
