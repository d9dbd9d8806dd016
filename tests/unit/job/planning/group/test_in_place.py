"""Tests of scope `InPlace`: which processes restart, and the assignments of launchers."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import CheckpointRecord
from ddp_operator.job.membership.launchers import NO_LAUNCHERS, LauncherStates
from ddp_operator.job.membership.world import world_of
from ddp_operator.job.planning.cleanup import KEPT_SECONDS
from ddp_operator.job.planning.gaps import UNREACHABLE_SECONDS
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.environment import environment
from ddp_operator.job.pods.state import Identity, PodState
from ddp_protocol.world import GroupAssignment, PodFailure

from tests.unit.job.builders import (
    condition,
    ended,
    group,
    later,
    listening,
    pod,
    ready,
    running_job,
    stored,
    with_status,
)

LISTENS = LauncherStates(scope="InPlace")


def in_place(**spec: Any) -> tuple[DDPJob, list[PodState]]:
    """Return a running job of three pods with launchers that answer."""
    restart = {"scope": "InPlace", **spec.pop("restart", {})}
    job, pods = running_job(replicas=3, restart=restart, **spec)
    pods = [listening(each) for each in pods]
    return stored(job, plan(job, pods, later(20), launchers=LISTENS)), pods


def failure(of: PodState, *, generation: int = 0, code: int = 1, at: float = 59) -> PodFailure:
    return PodFailure(
        pod=of.key.name,
        generation=generation,
        exit_code=code,
        message="boom",
        time=later(at).isoformat(),
    )


def launchers(*failures: PodFailure, **more: Any) -> LauncherStates:
    return replace(LISTENS, failures=failures, **more)


def plan_with(job: DDPJob, pods: list[PodState], when: datetime, **what: Any) -> Plan:
    return plan(job, pods, when, launchers=replace(LISTENS, **what))


def knowing(pods: list[PodState], generation: int, *, start: bool = True) -> Mapping[str, Any]:
    return {"told": {each.key.name: (generation, start) for each in pods}}


def test_failed_process_restarts_all_processes_and_no_pod() -> None:
    job, pods = in_place()
    planned = plan(job, pods, later(60), launchers=launchers(failure(pods[1])))
    assert planned.decided
    assert planned.assignments == (), "the decision is stored first"
    world = group(planned)
    assert (world.generation, world.members) == (1, "0-2")
    assert planned.status.bookkeeping.grace_seconds == 15
    of_rank_0 = plan(job, pods, later(60), launchers=launchers(failure(pods[0])))
    assert of_rank_0.status.bookkeeping.grace_seconds == 0, "only rank 0 saves"
    assert (planned.status.restarts, planned.status.attempt) == (1, 0)
    assert planned.status.bookkeeping.replacements == {}
    [failed] = planned.status.failures
    assert (failed.action, failed.index, failed.message) == ("RestartInPlace", 1, "boom")
    assert condition(planned, "PodsCreated")[0] == "True"
    assert condition(planned, "Running")[0] == "False"

    job = stored(job, planned)
    planned = plan(job, pods, later(60), launchers=launchers(failure(pods[1])))
    assert not planned.decided
    assert (planned.create, planned.delete) == ((), ())
    assert [assignment.group.node_rank for assignment in planned.assignments] == [0, 1, 2]
    assert not any(starts(planned).values()), "old processes may still run"
    some = plan_with(job, pods, later(61), **knowing(pods[:2], 1, start=False))
    assert starts(some) == {pods[2].key.name: False}
    planned = plan_with(job, pods, later(61), **knowing(pods, 1, start=False))
    assert all(starts(planned).values())
    assert {assignment.group.generation for assignment in planned.assignments} == {1}
    assert planned.assignments[2].group == GroupAssignment(
        job_uid=job.uid,
        attempt=0,
        generation=1,
        node_rank=2,
        nodes=3,
        master_addr="digits-0-0.digits",
        master_address="10.0.0.0",
        start=True,
        grace_seconds=15,
        broken=False,
        host="digits-0-2",
        leader="digits-0-0",
        members="",
    )
    assert planned.assignments[0].group.members == "0-2", "node rank 0 may lead a restart"
    assert condition(planned, "Running")[0] == "False", "no launcher has confirmed it"


BROKEN = [
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    "OSError: [Errno 107] Transport endpoint is not connected: '/gcs/data'",
]
"""Last words about what a restart in the same pod does not repair."""


@pytest.mark.parametrize("scope", ["InPlace", "Auto"])
@pytest.mark.parametrize("words", BROKEN)
def test_pod_with_a_fault_of_its_node_is_replaced(words: str, scope: str) -> None:
    job, pods = in_place(restart={"scope": scope})
    broken = replace(failure(pods[1]), message=words)
    planned = plan(job, pods, later(60), launchers=launchers(broken))
    [failed] = planned.status.failures
    assert (failed.class_, failed.action) == ("Infrastructure", "RestartInPlace")
    assert planned.status.bookkeeping.replacements == {"1": 1}
    assert group(planned).generation == 1, "the others restart in their pods"
    assert "replacing the pod of node rank 1" in planned.status.message
    job = stored(job, planned)
    planned = plan(job, pods, later(60), launchers=launchers(broken))
    assert planned.delete == (pods[1].key,)
    assert [each.pod_name(job.name) for each in planned.create] == ["digits-0-1-r1"]


def test_each_pod_with_a_fault_of_its_node_is_replaced() -> None:
    job, pods = in_place()
    broken = [replace(failure(pods[index]), message=BROKEN[0]) for index in (0, 2)]
    both = plan(job, pods, later(60), launchers=launchers(failure(pods[1]), *broken))
    assert both.status.bookkeeping.replacements == {"0": 1, "2": 1}


@pytest.mark.parametrize(
    ("again", "saved", "replaced"),
    [(1, None, {"1": 1}), (2, None, {}), (1, 70, {})],
    ids=["same pod", "another pod", "after progress"],
)
def test_pod_that_fails_again_without_progress_is_replaced(
    again: int, saved: float | None, replaced: dict[str, int]
) -> None:
    job, pods = in_place(restart={"maxRestarts": 9})
    job = stored(job, plan(job, pods, later(60), launchers=launchers(failure(pods[1]))))
    job = stored(job, plan_with(job, pods, later(62), **knowing(pods, 1)))
    assert job.status.phase == "Running"
    if saved:
        job = with_status(job, checkpoint=CheckpointRecord(step=9, time=later(saved)))
    second = failure(pods[again], generation=1, at=80)
    planned = plan(job, pods, later(81), launchers=launchers(second))
    assert planned.status.failures[-1].action == "RestartInPlace"
    assert planned.status.bookkeeping.replacements == replaced


def test_launcher_that_confirmed_gets_no_second_assignment() -> None:
    job, pods = in_place()
    job = stored(job, plan(job, pods, later(60), launchers=launchers(failure(pods[1]))))
    both = {**knowing(pods, 1, start=False)["told"], **knowing(pods[:2], 1)["told"]}
    some = plan_with(job, pods, later(61), told=both)
    assert starts(some) == {pods[2].key.name: True}
    assert condition(some, "Running")[0] == "False"
    done = plan_with(job, pods, later(61), **knowing(pods, 1))
    assert done.assignments == ()
    assert condition(done, "Running") == ("True", "PodsReady")


def starts(planned: Plan) -> dict[str, bool]:
    """Return the pods that get an assignment, and if they start."""
    return {assignment.pod: assignment.group.start for assignment in planned.assignments}


def test_others_wait_for_the_replacement_of_a_lost_pod() -> None:
    job, pods = in_place()
    lost = ended(job, 2, code=137, at=59)
    planned = plan(job, [*pods[:2], lost], later(63), launchers=LISTENS)
    assert group(planned).generation == 1
    assert planned.status.bookkeeping.replacements == {"2": 1}
    job = stored(job, planned)

    planned = plan(job, [*pods[:2], lost], later(63), launchers=LISTENS)
    assert [each.replacement for each in planned.create] == [1]
    assert starts(planned) == {pod.key.name: False for pod in pods[:2]}
    new = pod(job, 2, replacement=1, generation=1)
    waiting = plan_with(job, [*pods[:2], new], later(64), **knowing(pods[:2], 1, start=False))
    assert waiting.assignments == ()
    new = listening(ready(job, 2, replacement=1, generation=1))
    going = plan_with(job, [*pods[:2], new], later(65), **knowing(pods[:2], 1, start=False))
    assert [assignment.group.start for assignment in going.assignments] == [True, True, True], (
        "the new pod waits for its assignment"
    )
    done = plan_with(job, [*pods[:2], new], later(66), **knowing([*pods[:2], new], 1))
    assert done.assignments == ()
    assert condition(done, "Running")[0] == "True"


@pytest.mark.parametrize(("policy", "waits"), [({}, True), ({"replaceWhen": "Terminating"}, False)])
def test_ranks_wait_while_a_terminating_pod_may_save(policy: Any, waits: bool) -> None:
    job, pods = in_place(restart=policy)
    going = replace(pods[0], deleting=True, ends_by=later(90))
    planned = plan(job, [going, *pods[1:]], later(60), launchers=LISTENS)
    job = stored(job, planned)
    new = listening(ready(job, 0, replacement=1, generation=1))
    there = [going, new, *pods[1:]]
    job = stored(job, plan(job, there, later(65), launchers=LISTENS))
    knows = knowing(pods[1:], 1, start=False)
    planned = plan_with(job, there, later(65), **knows)
    assert [assignment.group.start for assignment in planned.assignments] == (
        [] if waits else [True] * 3
    )
    assert condition(planned, "Running")[0] == "False"
    assert planned.requeue_at is not None
    for seen, when in ((there[1:], 66), (there, 101)):  # it is gone, or its time is over
        assert [
            each.group.start for each in plan_with(job, seen, later(when), **knows).assignments
        ] == [True] * 3


def test_failures_of_another_generation_or_pod_are_ignored() -> None:
    job, pods = in_place()
    foreign = PodFailure(pod="another", generation=0, exit_code=1, time=later(59).isoformat())
    for other in (failure(pods[1], generation=3), foreign):
        assert not plan(job, pods, later(60), launchers=launchers(other)).decided


@pytest.mark.parametrize("code", [64, 1])
def test_failure_without_budget_fails_the_job(code: int) -> None:
    job, pods = in_place(restart={"maxRestarts": 0})
    planned = plan(job, pods, later(60), launchers=launchers(failure(pods[1], code=code)))
    assert condition(planned, "Failed")[0] == "True"


def test_failed_job_keeps_the_pod_of_its_cause_for_its_log() -> None:
    job, pods = in_place(restart={"maxRestarts": 0})
    job = stored(job, plan(job, pods, later(60), launchers=launchers(failure(pods[1]))))
    planned = plan(job, pods, later(61))
    assert planned.delete == (pods[0].key, pods[2].key)
    assert planned.requeue_at == later(60 + KEPT_SECONDS)
    assert pods[1].key in plan(job, pods, later(60 + KEPT_SECONDS)).delete
    over = ended(job, 1, code=1, at=100)
    assert plan(job, [over], later(60 + KEPT_SECONDS)).delete == ()


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"restart": {"scope": "InPlace"}}, True),
        ({}, True),
        ({"restart": {"scope": "Gang"}}, False),
        ({"restart": {"rules": [{"exitCodes": [1], "action": "RestartGang"}]}}, False),
        ({"scheduling": {"queueName": "research"}}, True),
    ],
)
def test_gang_restarts_where_no_launcher_has_answered(spec: dict[str, Any], named: bool) -> None:
    job, pods = running_job(replicas=3, **spec)
    planned = plan(job, [*pods[:2], ended(job, 2, code=1, at=59)], later(60))
    assert planned.status.attempt == 1
    message = planned.events[0].message
    assert ("; no launcher answers)" in message) is named


def test_backoff_holds_processes_back() -> None:
    job, pods = in_place()
    for number in range(2):
        generation = group(job).generation if job.status.world else 0
        fault = launchers(failure(pods[number], generation=generation, at=60 + number))
        fault = replace(fault, **knowing(pods, generation))
        job = stored(job, plan(job, pods, later(60 + number), launchers=fault))
    assert job.status.next_start_time is not None
    held = plan_with(job, pods, later(62), **knowing(pods, 2, start=False))
    assert held.assignments == ()
    after = plan_with(job, pods, later(600), **knowing(pods, 2, start=False))
    assert [assignment.group.start for assignment in after.assignments] == [True] * 3


def test_pod_with_an_unreachable_launcher_is_replaced() -> None:
    job, pods = in_place()
    job = stored(job, plan(job, pods, later(60), launchers=launchers(failure(pods[1]))))
    unreachable = {"unreached_since": {pods[2].key.name: later(61)}, **knowing(pods[:2], 1)}
    early = plan_with(job, pods, later(61 + UNREACHABLE_SECONDS - 1), **unreachable)
    assert not early.decided
    late = plan_with(job, pods, later(61 + UNREACHABLE_SECONDS), **unreachable)
    [*_, lost] = late.status.failures
    assert (lost.reason, lost.index, lost.charged) == ("LauncherUnreachable", 2, False)
    assert late.status.bookkeeping.replacements == {"2": 1}
    assert group(late).generation == 2


def test_training_group_outlives_an_operator_that_cannot_reach_it() -> None:
    job, pods = in_place()
    job = stored(job, plan(job, pods, later(60), launchers=launchers(failure(pods[1]))))
    job = stored(job, plan_with(job, pods, later(61), **knowing(pods, 1)))
    unreachable = {"unreached_since": {pods[2].key.name: later(100)}}  # for a restarted operator
    asks = plan_with(job, pods, later(100 + 2 * UNREACHABLE_SECONDS), **unreachable)
    assert not asks.decided
    assert len(asks.assignments) == 3


def test_restarted_gang_continues_the_generations() -> None:
    job, pods = in_place(restart={"rules": [{"exitCodes": [9], "action": "RestartGang"}]})
    job = stored(job, plan(job, pods, later(60), launchers=launchers(failure(pods[1]))))
    fault = launchers(failure(pods[1], generation=1, code=9, at=70), **knowing(pods, 1))
    planned = plan(job, pods, later(70), launchers=fault)
    assert planned.status.attempt == 1
    assert group(planned).generation == 2


@pytest.mark.parametrize(
    ("reported", "action", "spec"),
    [
        ("Pod", "RestartPod", {}),
        ("InPlace", "RestartInPlace", {}),
        ("", "RestartGang", {}),
        ("Pod", "RestartPod", {"scheduling": {"queueName": "research"}}),
    ],
)
def test_launcher_scope_decides_about_the_restart(
    reported: Any, action: str, spec: dict[str, Any]
) -> None:
    job, pods = running_job(replicas=3, restart={"scope": "Auto"}, **spec)
    pods = [listening(each) for each in pods]
    known = replace(NO_LAUNCHERS, scope=reported)
    job = stored(job, plan(job, pods, later(20), launchers=known))
    assert job.status.bookkeeping.launcher == reported
    lost = [*pods[:2], ended(job, 2, code=1, at=59)]
    planned = plan(job, lost, later(60), launchers=NO_LAUNCHERS)  # the scope is recorded
    assert planned.status.failures[-1].action == action
    if action == "RestartGang":
        assert planned.status.bookkeeping.launcher == "", "new pods may have another image"


def test_new_pods_are_held_only_in_scope_in_place() -> None:
    job, _ = in_place()
    world = world_of(job).model_copy(update={"generation": 2})
    job = replace(job, status=job.status.model_copy(update={"world": world}))
    for scope, reported, held in (
        ("InPlace", "InPlace", True),
        ("Auto", "InPlace", True),
        ("Auto", "Pod", False),
        ("Auto", "", False),
        ("Pod", "Pod", False),
    ):
        restart = job.spec.restart.model_copy(update={"scope": scope})
        spec = job.spec.model_copy(update={"restart": restart})
        of_scope = replace(job, spec=spec, status=job.status.noting(launcher=reported))
        variables = environment(of_scope, Identity(1, 0, 1), token="")
        assert (variables["DDP_RESTART_SCOPE"], "DDP_HELD" in variables) == (scope, held)
