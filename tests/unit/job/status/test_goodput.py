"""Tests of goodput: the seconds of a job's age add up in all cases."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, get_args

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import CheckpointRecord, Failure, Goodput, Phase, Progress
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status.goodput import account
from ddp_operator.job.status.progress import Report
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.job.builders import (
    NOW,
    edited,
    ended,
    fresh_job,
    later,
    pod,
    ready,
    running_job,
    stored,
)
from tests.unit.job.status.test_progress import report

SCHEDULED_AT, READY_AT = 5, 12
SAVED_AT_100: dict[str, Any] = {"checkpoint": {"step": 100, "time": later(90).isoformat()}}


def look(job: DDPJob, pods: Sequence[PodState], at: float, heard: Report | None = None) -> DDPJob:
    """Return the job as stored after all decisions of one moment."""
    while (planned := plan(job, pods, later(at), report=heard)).decided:
        job = stored(job, planned)
    return stored(job, planned)


def goodput(job: DDPJob) -> Goodput:
    """Return the job's account, which must balance."""
    books = job.status.goodput
    assert books is not None
    assert total(books) == (accounted_until(job) - job.created).total_seconds()
    return books


def accounted_until(job: DDPJob) -> datetime:
    """Return until when the job's time is accounted for."""
    watch = job.status.bookkeeping.stopwatch
    assert watch is not None
    return watch.accounted_until


def total(books: Goodput) -> int:
    return (
        books.pending_seconds
        + books.starting_seconds
        + books.training_seconds
        + books.lost_seconds
        + books.suspended_seconds
    )


def trained(**spec: object) -> tuple[DDPJob, list[PodState]]:
    """Return a job that waited 5 s for nodes and trains after 7 more, and its pods."""
    job = look(fresh_job(**spec), [], 0.25)
    job = look(job, [pod(job, index, node="node-a") for index in range(2)], SCHEDULED_AT + 0.5)
    pods = [ready(job, index) for index in range(2)]
    return look(job, pods, READY_AT + 0.75), pods


def after_failure(
    job: DDPJob, at: float, ready_at: float, heard: Report | None = None
) -> tuple[DDPJob, list[PodState]]:
    """Return the job after its pod 1 failed and all pods are ready again, and the pods."""
    first, second = current(job)
    end = ended(job, 1, code=1, at=at).exit
    failed = replace(second, phase="Failed", ready=False, exit=end)
    job = look(job, [first, failed], at, heard)
    return look(job, current(job), ready_at), current(job)


def current(job: DDPJob) -> list[PodState]:
    """Return the two ready pods that the job has now."""
    replaced = job.status.bookkeeping.replacements
    return [ready(job, index, replacement=replaced.get(str(index), 0)) for index in range(2)]


def test_pending_and_starting_are_separate() -> None:
    job, _ = trained()
    books = goodput(job)
    assert (books.pending_seconds, books.starting_seconds) == (SCHEDULED_AT, 7)
    assert accounted_until(job) == later(READY_AT)


def test_running_job_is_accounted_for_when_it_ends() -> None:
    job, pods = trained()
    before = job.status.goodput
    assert look(job, pods, 60).status.goodput == before
    job = look(job, [ended(job, index, code=0) for index in range(2)], 112.5)
    books = goodput(job)
    assert (books.training_seconds, books.lost_seconds) == (100, 0)
    assert accounted_until(job) == job.status.completion_time
    assert look(job, pods, 500).status.goodput == books


def test_training_that_nobody_counts_is_lost_until_pods_are_ready() -> None:
    job, pods = trained()
    heard = report(120, received=100, totalSteps=960, **SAVED_AT_100)
    job = look(job, [pods[0], ended(job, 1, code=1, at=110)], 112.5, heard)
    job = look(job, current(job), 122.5)
    assert goodput(job).steps_lost == 0, "no step is repeated yet"
    job = look(job, current(job), 124, report(104, attempt=1))
    books = goodput(job)
    assert (books.training_seconds, books.lost_seconds) == (100, 10)
    assert books.steps_lost == 20


def test_restart_without_a_checkpoint_time_loses_nothing_yet() -> None:
    job, pods = trained()
    failed = ended(job, 1, code=1, at=112)
    job = look(job, [pods[0], failed], 112, report(120, received=100))
    books = goodput(job)
    assert (books.training_seconds, books.lost_seconds, books.steps_lost) == (100, 0, 0)
    # The next report shows the lost steps.
    pods = current(job)
    job = look(look(job, pods, 120), pods, 124, report(30, received=124, attempt=1))
    assert goodput(job).steps_lost == 90


def test_replaced_pod_with_training_peers_loses_no_step() -> None:
    job, _ = trained(restart={"scope": "Pod"})
    job, pods = after_failure(job, 112, 115, report(120, received=100, **SAVED_AT_100))
    books = goodput(look(job, pods, 118, report(121, received=118)))
    assert (books.training_seconds, books.lost_seconds, books.steps_lost) == (100, 3, 0)


def resumed(step: int, at: float) -> dict[str, Any]:
    """Return the trainer's report about the start of its group."""
    return {"resumed": {"step": step, "time": later(at).isoformat()}}


def after_loss(scope: str, **spec: Any) -> tuple[DDPJob, list[PodState]]:
    """Return a job that lost a pod at step 120 and has ready pods again."""
    job, pods = trained(restart={"scope": scope}, **spec)
    job = look(job, pods, 100, report(120, received=100, **SAVED_AT_100, **resumed(0, 13)))
    return after_failure(job, 112, 120)


@pytest.mark.parametrize("scope", ["Gang", "Pod"])
@pytest.mark.parametrize(
    ("begins", "lost"),
    [(120, 0), (121, 0), (118, 2), (100, 20), (0, 120)],
    ids=["in memory", "beyond the last report", "an older snapshot", "checkpoint", "wiped"],
)
def test_repeated_steps_are_lost(scope: str, begins: int, lost: int) -> None:
    job, pods = after_loss(scope)
    assert goodput(job).steps_lost == 0, "the new group has not started yet"
    attempt = job.status.attempt
    for step, at in ((begins + 1, 124), (begins + 200, 160)):
        heard = report(step, received=at, attempt=attempt, **resumed(begins, 121))
        job = look(job, pods, at, heard)
        assert goodput(job).steps_lost == lost
    assert job.status.bookkeeping.resumed_step == begins


def test_late_first_report_of_a_group_counts_repeated_steps() -> None:
    job, pods = after_loss("Gang")
    job = look(job, pods, 160, report(300, received=160, attempt=1, **resumed(100, 121)))
    assert goodput(job).steps_lost == 20


@pytest.mark.parametrize(
    ("saved", "lost"),
    [
        (SAVED_AT_100, 20),
        ({}, 20),
        ({"checkpoint": {"step": 125, "time": later(113).isoformat()}}, 0),
    ],
    ids=["same checkpoint", "no checkpoint", "saved when it was deleted"],
)
def test_checkpoint_shows_where_a_group_resumed(saved: dict[str, Any], lost: int) -> None:
    job, pods = trained()
    job = look(job, pods, 100, report(120, received=100, **SAVED_AT_100))
    job, pods = after_failure(job, 112, 120)
    job = look(job, pods, 160, report(300, received=160, attempt=1, **saved))
    assert goodput(job).steps_lost == lost


def test_spare_resuming_from_memory_loses_no_step() -> None:
    job, pods = trained(restart={"scope": "Pod"}, spares=1)
    spare = replace(ready(job, 2), started=later(1), address="10.0.0.2:29501")
    heard = report(120, received=100, **SAVED_AT_100, **resumed(0, 13))
    job = look(job, [*pods, spare], 100, heard)
    job = look(job, [pods[0], ended(job, 1, code=1, at=112), spare], 112)
    assert job.status.world is not None
    assert job.status.world.members == "0,2"
    assert (goodput(job).training_seconds, goodput(job).lost_seconds) == (100, 0)
    heard = report(121, received=115, **SAVED_AT_100, **resumed(120, 113))
    assert goodput(look(job, [pods[0], spare], 115, heard)).steps_lost == 0


@pytest.mark.parametrize("change", [{"suspend": True}, {"masterPort": 2000}])
def test_changed_spec_and_suspension_lose_nothing(change: dict[str, Any]) -> None:
    job, pods = trained()
    heard = report(120, received=100, **SAVED_AT_100)
    books = goodput(look(edited(job, **change), pods, 112, heard))
    assert (books.training_seconds, books.lost_seconds, books.steps_lost) == (100, 0, 0)


def test_suspension_is_accounted_for() -> None:
    job, pods = trained()
    job = look(edited(job, suspend=True), pods, 20)
    job = look(edited(job, suspend=False), [], 50)
    books = goodput(job)
    assert (books.training_seconds, books.suspended_seconds) == (8, 30)


_moments = st.integers(-200, 2000).map(later)
_steps = st.integers(0, 99)


def _progress(step: int, updated_at: datetime) -> Progress:
    return Progress(step=step, updated_at=updated_at)


def _saved(step: int, time: datetime | None) -> CheckpointRecord:
    return CheckpointRecord(step=step, time=time)


_changes = st.fixed_dictionaries(
    {
        "seconds": st.floats(-30, 5000),
        "phase": st.sampled_from(get_args(Phase)[:5]),
        "restarted": st.booleans(),
        "failed": st.booleans(),
        "progress": st.none() | st.builds(_progress, _steps, _moments),
        "checkpoint": st.none() | st.builds(_saved, _steps, st.none() | _moments),
    }
)


@given(st.lists(_changes, min_size=1), st.sampled_from(["Succeeded", "Failed"]))
def test_sums_are_exact_in_every_history(history: list[dict[str, Any]], end: Phase) -> None:
    job, at = fresh_job(), 0.0
    for drawn in [*history, {"seconds": 1.5, "phase": end}]:
        change = dict(drawn)
        at += change.pop("seconds")
        attempt = job.status.attempt + change.pop("restarted", False)
        failed = (_failure(attempt),) if change.pop("failed", False) else ()
        failures = (*job.status.failures, *failed)[-10:]
        update = {**change, "attempt": attempt, "failures": failures}
        after = job.status.model_copy(update=update)
        after = account(after, before=job.status, created=job.created, now=later(at))
        job = stored(job, Plan(after))
        if job.status.goodput is not None:
            books = goodput(job)
            assert min(books.training_seconds, books.lost_seconds, books.steps_lost) >= 0
    assert accounted_until(job) >= later(at).replace(microsecond=0)


def _failure(attempt: int) -> Failure:
    return Failure(
        time=NOW, attempt=attempt, index=0, pod="digits-0-0", reason="Error", class_="Application"
    )


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_final_phase_without_its_condition_counts_as_pending(phase: Phase) -> None:
    """Users with the right to write a status may store such a phase."""
    job, pods = running_job()
    denied = job.status.model_copy(update={"phase": phase, "goodput": None})
    assert goodput(look(replace(job, status=denied), pods, 60)).pending_seconds == 60


def test_job_created_in_the_future_has_no_age() -> None:
    job = replace(fresh_job(), created=later(30))
    job = look(look(job, [], 0), [pod(job, index, node="node-a") for index in range(2)], 5)
    assert (goodput(job), accounted_until(job)) == (Goodput(), later(30))
