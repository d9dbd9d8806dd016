"""Tests of progress after a person has replaced a job's code: the status shows the new numbers."""

import json
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status import curve
from ddp_operator.job.status.progress import (
    Report,
    with_last_words,
    with_report,
    without_progress,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.job.builders import ended, later, running_job
from tests.unit.job.status.test_progress import report


def code_id(number: int) -> str:
    return f"{number:012x}-0001"


def with_code(job: DDPJob, number: int) -> DDPJob:
    """Return the job once the operator has decided to use this code."""
    return replace(job, status=without_progress(job.status.noting(code=f"{code_id(number)}/1")))


def seen(job: DDPJob, heard: Report | None, pod: PodState | None = None) -> DDPJob:
    """Return the job after a plan: with the last report, and with what pod 0 left."""
    status = with_report(job, heard)
    return replace(job, status=with_last_words(status, pod, later(60)))


def trained_to_100(**fields: Any) -> tuple[DDPJob, Report]:
    """Return a job with a first code that has reported step 100 twice, and the last report."""
    job, _ = running_job()
    job = with_code(job, 1)
    fields = {"loss": 1.0, "metrics": {"lr": 0.1}, "code": code_id(1), **fields}
    job = seen(job, report(40, **fields))
    heard = report(100, **fields)
    return seen(job, heard), heard


def left(job: DDPJob, **message: Any) -> PodState:
    return ended(job, code=0, message=json.dumps({"exitCode": 0, **message}))


def step_of(job: DDPJob) -> int | None:
    return job.status.progress.step if job.status.progress else None


def test_last_words_of_new_code_count_though_it_made_fewer_steps() -> None:
    job, heard = trained_to_100()
    assert (step_of(job), job.status.bookkeeping.metrics) == (100, {"lr": 0.1})
    job = with_code(job, 2)
    pod = left(job, step=3, loss=0.5, code=code_id(2))
    job = seen(job, heard, pod)
    assert (step_of(job), job.status.bookkeeping.metrics) == (3, {})
    assert job.status.bookkeeping.curve == "3:0.5"
    assert seen(job, heard, pod) == job, "the report of the code before is still there"


def test_report_of_the_code_before_changes_nothing() -> None:
    job, heard = trained_to_100()
    job = with_code(job, 2)
    assert not heard.concerns(job)
    assert seen(job, heard) == job
    assert seen(job, None, left(job, step=101, code=code_id(1))) == job
    job = seen(job, report(3, code=code_id(2)))
    assert step_of(job) == 3
    assert seen(job, None, left(job, step=101, code=code_id(1))) == job


@pytest.mark.parametrize("label", [{}, {"code": ""}, {"code": 7}])
def test_report_without_a_valid_code_counts(label: dict[str, Any]) -> None:
    job, _ = trained_to_100()
    job = with_code(job, 2)
    assert step_of(seen(job, report(3, **label))) == 3
    assert step_of(seen(job, None, left(job, step=4, **label))) == 4


@pytest.mark.parametrize(
    ("resumed", "kept"),
    [(None, "103:0.5"), (0, "103:0.5"), (70, "40:1 103:0.5"), (100, "40:1 100:1 103:0.5")],
)
def test_curve_keeps_the_steps_that_new_code_continues(resumed: int | None, kept: str) -> None:
    job, _ = trained_to_100()
    job = with_code(job, 2)
    began: dict[str, Any] = {"step": resumed, "time": "2026-03-01T13:00:00Z"}
    more: dict[str, Any] = {} if resumed is None else {"resumed": began}
    job = seen(job, report(103, loss=0.5, code=code_id(2), **more))
    assert job.status.bookkeeping.curve == kept


ACTIONS = st.lists(st.sampled_from(("edit", "restart", "train", "poll")), max_size=30)


@given(ACTIONS, st.integers(1, 9))
def test_only_numbers_of_the_present_code_are_shown(actions: list[str], last: int) -> None:
    """The processes change after the operator's decision, and reports arrive late. The loss is the
    number of the code.
    """
    job, _ = running_job()
    job = with_code(job, 1)
    runs, step = 1, 0
    decided, heard = 1, None
    for action in [*actions, "end"]:
        if action == "edit":
            decided += 1
            job = with_code(job, decided)
        elif action in ("restart", "end") and runs != decided:
            runs, step = decided, 0
        elif action == "train":
            step += 10
        elif action == "poll" and step:
            heard = report(step, loss=float(runs), code=code_id(runs))
        pod = None
        if action == "end":
            step += last
            pod = left(job, step=step, loss=float(runs), code=code_id(runs))
        job = seen(job, heard, pod)
        assert job.status.progress is None or job.status.progress.loss == decided
        if job.status.progress is not None:
            points = curve.rows(job.status.bookkeeping.curve)
            assert {row.loss for row in points} == {decided}
    assert step_of(job) == step
