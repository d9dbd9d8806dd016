"""Tests of restarts that launchers led without an operator: the operator accounts for them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import CheckpointRecord
from ddp_operator.job.membership.launchers import LauncherStates
from ddp_operator.job.membership.world import world_of
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import PodState
from ddp_protocol.world import LauncherStatus, Led, PodFailure

from tests.unit.job.builders import (
    condition,
    ended,
    event_reasons,
    group,
    later,
    listening,
    ready,
    running_job,
    stored,
    with_status,
)
from tests.unit.job.status.test_progress import report

HOUR = 3600
OLD, NEW = "aaaaaaaaaaaa-0001", "bbbbbbbbbbbb-0002"
"""IDs of code."""


def training(**spec: Any) -> tuple[DDPJob, list[PodState]]:
    """Return a training job of three pods as an operator left it."""
    restart = {"scope": "InPlace", **spec.pop("restart", {})}
    job, pods = running_job(replicas=3, restart=restart, **spec)
    pods = [listening(pod) for pod in pods]
    return stored(job, plan(job, pods, later(20), launchers=LauncherStates(scope="InPlace"))), pods


def failed(
    of: PodState, generation: int, at: float, *, code: int = 1, message: str = ""
) -> PodFailure:
    return PodFailure(
        pod=of.key.name,
        generation=generation,
        exit_code=code,
        message=message,
        time=later(at).isoformat(),
    )


def launchers(
    *failures: PodFailure, led: dict[int, float], members: str = "0-2", **more: Any
) -> LauncherStates:
    """Return the state of rank 0's launcher that led generations from these times on."""
    news = tuple(Led(generation=number, time=later(at).isoformat()) for number, at in led.items())
    states = LauncherStatus(
        number=9, generation=max(led), failures=failures, members=members, led=news
    )
    return LauncherStates(scope="InPlace", failures=failures, leader=states, **more)


def seconds(job: DDPJob, name: str) -> int:
    books, watch = job.status.goodput, job.status.bookkeeping.stopwatch
    assert books is not None
    assert watch is not None
    parts = ("pending", "starting", "training", "lost", "suspended")
    spent = sum(getattr(books, f"{part}_seconds") for part in parts)
    assert spent == (watch.accounted_until - job.created).total_seconds()
    return int(getattr(books, f"{name}_seconds"))


def look(job: DDPJob, pods: Sequence[PodState], at: float, states: LauncherStates) -> Plan:
    """Return the first plan without a decision, after the decisions before it are stored."""
    while (planned := plan(job, pods, later(at), launchers=states)).decided:
        job = stored(job, planned)
    return planned


def test_restarts_and_seconds_without_operator_are_accounted_for() -> None:
    job, pods = training()
    failures = [failed(pods[n % 3], n, 600 * n + 100) for n in range(3)]
    states = launchers(*failures, led={n + 1: 600 * n + 110 for n in range(3)})
    planned = plan(job, pods, later(HOUR), launchers=states)
    assert planned.decided
    assert event_reasons(planned) == ["LedWithoutOperator"]
    after = stored(job, planned)
    assert world_of(after).generation == 3
    assert after.status.restarts == after.status.bookkeeping.restarts_without_progress == 3
    assert [(each.index, each.charged) for each in after.status.failures] == [
        (0, True),
        (1, True),
        (2, True),
    ]
    assert all(each.action == "RestartInPlace" for each in after.status.failures)
    assert condition(planned, "Running")[0] == "True", "the job trains"
    # The operator repeats the assignments as its own.
    again = plan(after, pods, later(HOUR), launchers=states)
    assert not again.decided
    assert {assignment.group.generation for assignment in again.assignments} == {3}
    assert (again.create, again.delete) == ((), ())
    confirmed = LauncherStates(
        scope="InPlace",
        leader=LauncherStatus(number=10, generation=3, members="0-2"),
        told={each.key.name: (3, True) for each in pods},
    )
    done = plan(after, pods, later(HOUR + 1), launchers=confirmed)
    assert not done.decided
    assert not done.assignments
    over = [ended(job, index, code=0, at=HOUR + 100) for index in range(3)]
    end = look(after, over, HOUR + 100, confirmed)
    assert end.status.phase == "Succeeded"
    assert seconds(stored(after, end), "training") == HOUR + 100 - 10, "nobody counts"


@pytest.mark.parametrize("led", [1, 2])
@pytest.mark.parametrize(("code", "restarts"), [(OLD, True), (NEW, False), ("", False)])
def test_group_led_with_other_code_restarts(led: int, code: str, restarts: bool) -> None:
    job, pods = training()
    world = world_of(job).updated(generation=1)
    job = with_status(job, world=world, code=f"{NEW}/1")
    states = launchers(failed(pods[1], led - 1, 100), led={led: 110})
    assert states.leader is not None
    states = replace(states, leader=replace(states.leader, code=code))
    planned = plan(job, pods, later(200), launchers=states)
    after = stored(job, planned)
    assert world_of(after).generation == led + restarts
    groups = [one.group for one in look(after, pods, 201, states).assignments]
    assert {group.code for group in groups} <= {NEW}
    assert {group.generation for group in groups} <= {led + restarts}


def test_count_of_the_trainer_covers_restarts_without_operator() -> None:
    job, pods = training()
    failures = [failed(pods[1], 0, 200), failed(pods[2], 1, 400)]
    job = stored(job, look(job, pods, 500, launchers(*failures, led={1: 230, 2: 430})))
    # Steps take a second. Step 150 was saved at 170, step 270 at 379.
    heard = report(
        291,
        received=500,
        lastStepTime=later(470).isoformat(),
        resumed={"step": 270, "time": later(445).isoformat()},
        firstSteps=[{"step": 1, "time": later(20).isoformat()}],
        trainedSeconds=150 + 119 + 20,
    )
    confirmed = LauncherStates(
        scope="InPlace",
        leader=LauncherStatus(number=10, generation=2, members="0-2"),
        told={each.key.name: (2, True) for each in pods},
    )
    job = stored(job, plan(job, pods, later(501), report=heard, launchers=confirmed))
    assert seconds(job, "training") == 150 + 119 + 20 + 31
    assert seconds(job, "starting") == 10


def test_training_job_is_not_failed_for_past_restarts() -> None:
    job, pods = training(restart={"maxRestarts": 1})
    failures = [failed(pods[1], n, 100 * n + 100) for n in range(4)]
    states = launchers(*failures, led={n + 1: 100 * n + 101 for n in range(4)})
    job = stored(job, look(job, pods, HOUR, states))
    assert (job.status.restarts, job.status.phase) == (4, "Running")
    next_one = replace(states, leader=None, failures=(failed(pods[1], 4, HOUR + 10),))
    assert look(job, pods, HOUR + 11, next_one).status.reason == "MaxRestartsExceeded"


def test_checkpoint_between_two_failures_resets_the_budget() -> None:
    job, pods = training()
    saved = CheckpointRecord(step=900, time=later(150))
    job = with_status(job, checkpoint=saved)
    failures = [failed(pods[1], 0, 100), failed(pods[1], 1, 200)]
    job = stored(job, look(job, pods, HOUR, launchers(*failures, led={1: 101, 2: 201})))
    assert job.status.restarts == 2
    assert job.status.bookkeeping.restarts_without_progress == 1


def test_rules_and_classes_apply_to_failures_without_operator() -> None:
    rules = [{"exitCodes": [42], "action": "RestartPod", "charged": False}]
    job, pods = training(restart={"rules": rules})
    failures = [
        failed(pods[0], 0, 100, code=42),
        failed(pods[1], 1, 200, message="CUDA error: uncorrectable ECC error encountered"),
        failed(pods[2], 2, 301, code=75),
        failed(pods[0], 2, 302),
    ]
    job = stored(job, look(job, pods, HOUR, launchers(*failures, led={1: 101, 2: 201, 3: 303})))
    assert (job.status.restarts, job.status.disruptions) == (1, 2)
    classes = [(each.class_, each.index, each.charged) for each in job.status.failures]
    assert classes == [
        ("Application", 0, False),
        ("Infrastructure", 1, False),
        ("Application", 0, True),
    ], "of two failures in one generation, the cause"


def test_failure_known_to_the_operator_is_counted_once() -> None:
    job, pods = training()
    first = failed(pods[1], 0, 59)
    job = stored(
        job,
        plan(job, pods, later(60), launchers=LauncherStates(scope="InPlace", failures=(first,))),
    )
    assert (world_of(job).generation, job.status.restarts) == (1, 1)
    # The operator assigned nothing before it stopped; the launcher led both restarts.
    states = launchers(first, failed(pods[2], 1, 500), led={1: 95, 2: 510})
    job = stored(job, look(job, pods, HOUR, states))
    assert (world_of(job).generation, job.status.restarts) == (2, 2)


def test_failure_of_the_current_generation_restarts_the_ranks() -> None:
    job, pods = training()
    states = launchers(failed(pods[1], 0, 100), failed(pods[2], 1, HOUR - 5), led={1: 101})
    planned = look(job, pods, HOUR, states)
    assert planned.status.restarts == 2
    assert group(planned).generation == 2
    assert planned.assignments


def test_changed_group_gets_a_generation_above_the_leaders() -> None:
    job, pods = training(spares=1)
    spare = listening(ready(job, 3))
    lost = ended(job, 2, code=137, at=59)
    listens = LauncherStates(scope="InPlace")
    job = stored(job, plan(job, [*pods, spare], later(30), launchers=listens))
    job = stored(job, plan(job, [*pods[:2], lost, spare], later(60), launchers=listens))
    assert (world_of(job).generation, world_of(job).members) == (1, "0-1,3")
    states = launchers(failed(pods[0], 0, 58, code=75), led={1: 90})
    for now_led in (states, launchers(failed(pods[0], 1, 95), led={1: 90, 2: 100})):
        planned = look(job, [*pods[:2], spare], 120, now_led)
        assert group(planned).members == "0-1,3"
        assert now_led.leader is not None
        assert group(planned).generation == now_led.leader.generation + 1
        assert {assignment.group.generation for assignment in planned.assignments} == {
            now_led.leader.generation + 1
        }


def test_new_rank_0_gets_a_generation_above_its_predecessors() -> None:
    job, pods = training()
    job = stored(job, plan(job, pods[1:], later(60), launchers=LauncherStates(scope="InPlace")))
    assert world_of(job).generation == 1
    new = replace(
        ready(job, 0, replacement=1, generation=1), address="10.0.0.9:29501", started=later(70)
    )
    status = LauncherStatus(number=1, generation=1, members="0-2")
    refused = LauncherStates(scope="InPlace", leader=status, ahead=4)
    waits = plan(job, [new, *pods[1:]], later(80), launchers=replace(refused, leader=None))
    assert not waits.decided, "its launcher has not answered yet"
    planned = look(job, [new, *pods[1:]], 80, refused)
    assert group(planned).generation == 5
    assert planned.status.restarts == 0


@pytest.mark.parametrize("generation", [2**31, 2**53 - 1])
def test_implausible_generation_is_ignored(generation: int) -> None:
    job, pods = training()
    states = launchers(led={generation: 100})
    assert not plan(job, pods, later(HOUR), launchers=states).decided
    assert not plan(job, pods, later(HOUR), launchers=replace(states, ahead=generation)).decided


def test_wrong_clocks_still_balance_the_accounts() -> None:
    job, pods = training()
    states = launchers(
        failed(pods[1], 0, -500),
        failed(pods[1], 1, 9 * HOUR),
        led={1: -400, 2: 10 * HOUR},
    )
    job = stored(job, look(job, pods, HOUR, states))
    assert seconds(job, "lost") == 0
    assert job.status.restarts == 2
