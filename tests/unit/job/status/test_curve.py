"""The curve that the status keeps of a training."""

from itertools import pairwise
from typing import Any

import pytest
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.engine.status_patch import News, as_stored, news
from ddp_operator.job.status import curve
from ddp_operator.job.status.curve import Row
from ddp_operator.job.status.progress import with_last_words, with_report
from ddp_protocol.progress import TrainerStatus
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.job.builders import NOW, ended, fresh_job, running_job, with_status
from tests.unit.job.status.test_progress import report


def kept(*reports: dict[str, Any], text: str = "") -> str:
    for fields in reports:
        text = curve.extended(text, TrainerStatus(**fields))
    return text


def test_each_report_with_a_loss_is_a_row() -> None:
    text = kept({"step": 10, "loss": 2.30581}, {"step": 20, "loss": None}, {"step": 30, "loss": 1})
    assert text == "10:2.306 30:1"
    assert curve.rows(text) == [Row(10, 2.306, None), Row(30, 1.0, None)]


def test_repeated_report_changes_nothing() -> None:
    seen = {"step": 10, "loss": 2.5, "accuracy": 0.5, "accuracy_step": 8}
    assert kept(seen, seen, seen) == "8::0.5 10:2.5"


@pytest.mark.parametrize(
    ("before", "scored_at", "after"),
    [
        ("10:3", 15, "10:3 15::0.9 20:2"),
        ("10:3", 20, "10:3 20:2:0.9"),
        ("10:3", 10, "10:3:0.9 20:2"),
        ("10:3 16:2.5", 12, "10:3 12::0.9 16:2.5 20:2"),
        ("10:3 15::0.9", 15, "10:3 15::0.9 20:2"),
        ("10:3", 25, "10:3 20:2"),
    ],
)
def test_score_is_a_row_of_its_step(before: str, scored_at: int, after: str) -> None:
    new = {"step": 20, "loss": 2.0, "accuracy": 0.9, "accuracy_step": scored_at}
    assert kept(new, text=before) == after


def test_score_without_a_step_counts_once() -> None:
    scores = (0.5, 0.5, 0.75, 0.75)
    reports = ({"step": step, "loss": 1.0, "accuracy": a} for step, a in enumerate(scores, 1))
    assert kept(*reports) == "1:1:0.5 2:1 3:1:0.75 4:1"


def test_rows_that_are_trained_again_are_removed() -> None:
    assert kept({"step": 15, "loss": 1.5}, text="10:2 20:1:0.9 30:0.5") == "10:2 15:1.5"


def test_first_report_of_a_restart_without_loss_keeps_the_curve() -> None:
    assert kept({"step": 0}, text="10:2 20:1") == "10:2 20:1"


def test_long_training_keeps_even_rows_best_score_and_last_row() -> None:
    text = ""
    for step in range(10, 30_010, 10):
        score = {"accuracy": 1.5 if step == 12_330 else step / 1e6} if step % 30 == 0 else {}
        score |= {"accuracy_step": step} if score else {}
        text = kept({"step": step, "loss": 1e4 / step, **score}, text=text)
    points = curve.rows(text)
    assert 24 <= len(points) <= 128
    assert (points[0].step, points[-1].step) == (10, 30_000)
    assert curve.best(points) == Row(12_330, 0.811, 1.5)
    assert max(after.step - one.step for one, after in pairwise(points)) <= 2 * 1024


_numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
_reports = st.fixed_dictionaries(
    {"step": st.integers(0, 2**53 - 1), "loss": _numbers, "accuracy": _numbers},
    optional={"accuracy_step": st.none() | st.integers(0, 2**53 - 1)},
)


@given(text=st.text("0123456789:. eE-_", max_size=200), reports=st.lists(_reports, max_size=5))
def test_any_curve_stays_in_order_and_in_bounds(text: str, reports: list[dict[str, Any]]) -> None:
    text = kept(*reports, text=kept({"step": 2**53 - 1, "loss": 1.0}, text=text))
    assert len(text) <= 4096
    assert as_stored(DDPJobStatus().noting(curve=text))["bookkeeping"].get("curve", "") == text


def test_curve_of_longest_rows_fits() -> None:
    text = ""
    for step in range(2**53 - 400, 2**53):
        extreme = {"loss": -1.234e-300} if step % 2 else {"accuracy": -1.234e-300}
        text = kept({"step": step, **extreme, "accuracy_step": step}, text=text)
        assert len(text) <= 4096
    assert curve.rows(text)[-1].step == 2**53 - 1


def test_report_brings_curve_and_metrics_into_the_status() -> None:
    job, _ = running_job()
    names = {f"metric_{number}": 1.23456789 for number in range(20)} | {"bad name": 1.0}
    status = with_report(job, report(7, loss=0.5, accuracy=0.9, metrics=names))
    notes = status.bookkeeping
    assert notes.curve == "7:0.5:0.9"
    assert len(notes.metrics) == 16
    assert notes.metrics["metric_0"] == 1.23457
    quiet = with_report(with_status(job, bookkeeping=notes), report(8, loss=0.25))
    assert quiet.bookkeeping.metrics == notes.metrics
    assert news(status, quiet) == News.PROGRESS


def test_metrics_that_are_no_numbers_are_ignored() -> None:
    job = fresh_job()
    status = with_report(job, report(7, loss=0.5, metrics={"lr": "high"}))
    assert status.bookkeeping.metrics == {}
    assert status.bookkeeping.curve == "7:0.5"


@pytest.mark.parametrize(("step", "curve_after"), [(8, "7:0.5 8:0.4:0.9"), (6, "7:0.5")])
def test_last_words_complete_the_curve(step: int, curve_after: str) -> None:
    job, _ = running_job()
    known = with_report(job, report(7, loss=0.5))
    job = with_status(job, progress=known.progress, bookkeeping=known.bookkeeping)
    said = f'{{"step": {step}, "loss": 0.4, "accuracy": 0.9, "rank": 0}}'
    status = with_last_words(job.status, ended(job, code=0, message=said), NOW)
    assert status.bookkeeping.curve == curve_after
