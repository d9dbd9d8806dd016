"""Totals of all jobs in the metrics."""

from dataclasses import replace
from typing import Any

from ddp_operator.api.job import DDPJob, InvalidJobError, NewerJobError
from ddp_operator.api.status import CheckpointRecord, DDPJobStatus, Progress
from ddp_operator.engine.job_cache import Entry
from ddp_operator.engine.metrics.totals import count_jobs

from tests.unit.job.builders import ended, fresh_job, later
from tests.unit.job.status.test_goodput import goodput, look, trained
from tests.unit.job.status.test_training_count import counted, restarted, said


def entry(job: DDPJob | InvalidJobError) -> Entry:
    return Entry("", "", "{}", job, problem=None if isinstance(job, DDPJob) else job)


def seconds(*jobs: DDPJob, at: float) -> dict[str, int]:
    totals = count_jobs([entry(job) for job in jobs], now=later(at))
    return {kind: amount for kind, amount in totals.seconds.items() if amount}


def test_job_of_a_newer_operator_counts_in_no_phase() -> None:
    running, _ = trained()
    jobs: list[DDPJob | InvalidJobError] = [running, fresh_job()]
    jobs += [InvalidJobError("no"), NewerJobError("later")]
    totals = count_jobs([entry(job) for job in jobs], now=later(60))
    assert {phase: n for phase, n in totals.phases.items() if n} == {
        "Running": 1,
        "Pending": 1,
        "Failed": 1,
    }
    assert totals.phases["Suspended"] == 0
    assert totals.newer_jobs == 1


def test_job_with_an_invalid_edit_counts_by_its_stored_phase() -> None:
    stored = '{"status": {"phase": "Running", "startTime": "2026-03-01T12:00:00Z"}}'
    left = replace(entry(InvalidJobError("no")), stored=stored)
    assert count_jobs([left], now=later(60)).phases["Running"] == 1
    newer = replace(entry(trained()[0]), problem=NewerJobError("later"))
    assert count_jobs([newer], now=later(60)).newer_jobs == 1


def test_running_time_is_counted_up_to_now() -> None:
    job, _ = trained()
    assert seconds(job, at=62) == {"pending": 5, "starting": 7, "training": 50}
    assert seconds(fresh_job(), at=9) == {"pending": 9}
    assert seconds(job, fresh_job(), at=62) == {"pending": 67, "starting": 7, "training": 50}
    assert seconds(job, at=-100) == seconds(job, at=12), "the clock was set back"


def test_running_totals_equal_the_stored_ones() -> None:
    job, pods = restarted()
    lost = seconds(job, at=120)["lost"]
    assert seconds(job, at=131)["lost"] == lost + 11  # ready pods do not train yet
    job = look(job, pods, 131, said(103, 131, attempt=1, **counted(80, 125, (101, 129))))
    assert seconds(job, at=131)["lost"] == goodput(job).lost_seconds
    before = seconds(job, at=200.9)
    job = look(job, [ended(job, index, code=0) for index in range(2)], 200.9)
    assert seconds(job, at=200.9) == before


def test_time_of_an_ended_job_does_not_grow() -> None:
    job, _ = trained()
    job = look(job, [ended(job, index, code=0) for index in range(2)], 112)
    assert seconds(job, at=500) == seconds(job, at=112)
    assert seconds(job, at=500)["training"] == 100


def at_step(phase: str, *, step: float | None, saved: float | None = None) -> DDPJob:
    changes: dict[str, Any] = {"phase": phase}
    if step is not None:
        changes["progress"] = Progress(step=1, updated_at=later(step))
    if saved is not None:
        changes["checkpoint"] = CheckpointRecord(step=1, time=later(saved))
    return replace(fresh_job(), status=DDPJobStatus().model_copy(update=changes))


def test_oldest_step_and_checkpoint_of_active_jobs_count() -> None:
    jobs = [
        at_step("Running", step=50, saved=20),
        at_step("Restarting", step=30, saved=25),
        at_step("Running", step=None),
        at_step("Suspended", step=1, saved=1),
        at_step("Succeeded", step=2, saved=2),
    ]
    totals = count_jobs([entry(job) for job in jobs], now=later(60))
    assert totals.oldest_step == later(30)
    assert totals.oldest_checkpoint == later(20)
    silent = [fresh_job(), at_step("Running", step=None)]
    totals = count_jobs([entry(job) for job in silent], now=later(60))
    assert (totals.oldest_step, totals.oldest_checkpoint) == (None, None)
