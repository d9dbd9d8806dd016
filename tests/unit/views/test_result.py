"""The result of a job, from its status alone or with its metrics.jsonl."""

import json
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from ddp_client.report.history import read
from ddp_client.sdk import ClientError, JobResult
from ddp_client.views.result import Result, Score, _even
from ddp_operator.job.status.curve import Row

from tests.unit.cli.jobs import ESCAPES, at, seen
from tests.unit.job.builders import later

CURVE = "10:2.306 100:1.5 150::0.91 200:0.5 250::0.985 260:0.2 270::0.983 276:0.0135"
MESSAGE = 'all 2 pods completed; rank 0 says: {"step": 276, "loss": 0.0135, "rank": 0}'


def ended(**notes: Any) -> Any:
    return seen(
        "Succeeded",
        "Completed",
        MESSAGE,
        progress={
            **{"step": 276, "totalSteps": 276, "epoch": 12, "loss": 0.01347, "updatedAt": at(5)}
        },
        checkpoint={"step": 276, "path": "/checkpoints/step-00000276", "time": at(0)},
        bookkeeping={"curve": CURVE, "metrics": {"lr": 0.001, "f1": 0.93}} | notes,
    )


def test_result_of_a_job_without_pods_is_complete() -> None:
    result = Result.of(ended())
    assert (result.phase, result.step, result.loss, result.accuracy) == (
        *("Succeeded", 276, 0.01347, 0.983),
    )
    assert result.best == Score(250, 0.985)
    assert result.checkpoint is not None
    assert (result.checkpoint.step, result.checkpoint.path[-4:]) == (276, "0276")
    assert result.rows[:3] == [Row(10, 2.306, None), Row(100, 1.5, None), Row(150, None, 0.91)]
    assert result.lines(later(120), 100) == [
        "digits in namespace research",
        "",
        "state       Succeeded",
        "reason      Completed: all 2 pods completed; rank 0: step 276, loss 0.0135",
        "step        276 of 276, epoch 12",
        "loss        2.306 ██▆▂▁ 0.01347",
        "accuracy    91.0% ▁▁█ 98.3%",
        "best        98.5% at step 250",
        "metrics     lr 0.001, f1 0.93",
        "checkpoint  step 276, 2m ago, /checkpoints/step-00000276",
    ]


def test_object_has_rows_and_times_as_text() -> None:
    made = json.loads(json.dumps(Result.of(ended()).as_dict(), allow_nan=False))
    assert made["rows"][0] == {"step": 10, "loss": 2.306, "accuracy": None}
    assert made["best"] == {"step": 250, "value": 0.985}
    assert made["checkpoint"]["time"] == "2026-03-01T12:00:00Z"
    assert made["metrics"] == {"lr": 0.001, "f1": 0.93}


def test_job_that_reports_nothing_says_so() -> None:
    result = Result.of(seen("Failed", "MaxRestartsExceeded", "its pod failed"))
    assert (result.step, result.loss, result.best, result.checkpoint) == (None,) * 4
    assert result.lines(later(0), 80)[2:] == [
        "state   Failed",
        "reason  MaxRestartsExceeded: its pod failed",
        "        the trainer reported no loss and no accuracy",
    ]


def test_curve_of_replaced_code_is_not_the_result_of_new_code() -> None:
    result = Result.of(seen("Running", "PodsReady", "", bookkeeping={"curve": CURVE}))
    assert (result.step, result.loss, result.best, result.rows) == (None, None, None, ())


def test_metrics_file_gives_each_logged_step() -> None:
    lines = [
        '{"kind": "training", "step": 1, "time": "2026-03-01T12:00:01Z", "loss": 3.0}',
        '{"kind": "evaluation", "step": 1, "time": "2026-03-01T12:00:01Z", "accuracy": 0.25}',
        '{"kind": "training", "step": 2, "time": "2026-03-01T12:00:02Z", "loss": null}',
    ]
    result = Result.of(ended(), read(line.encode() for line in lines).curve())
    assert result.rows == [Row(1, 3.0, 0.25), Row(2, None, None)]
    assert (result.best, result.accuracy) == (Score(1, 0.25), 0.25)


def test_curve_is_drawn_over_steps_not_over_rows() -> None:
    assert _even([(0, 1.0), (90, 2.0), (95, 3.0), (100, 4.0)]) == [1.0, 1.0, 1.0, 4.0]
    assert len(_even([(step, 1.0) for step in range(128)])) == 40


def test_hostile_text_has_no_control_characters() -> None:
    job = ended(metrics={f"a{ESCAPES}": 1.0}, curve=f"{ESCAPES} 7:0.5 7:x 8:nan 9:1:2:3")
    result = Result.of(job)
    assert result.rows == [Row(7, 0.5, None)]
    assert all(line.isprintable() for line in result.lines(later(0), 80))


class TestDataframe:
    def test_columns_are_step_loss_and_accuracy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[Any] = []

        class DataFrame:
            def __init__(self, rows: Sequence[Any], *, columns: Sequence[str]) -> None:
                made.append((rows, columns))

            def astype(self, kinds: Any) -> Any:
                made.append(kinds)
                return self

        monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=DataFrame))
        assert isinstance(JobResult.of(ended(curve="1:2 3::0.5")).to_dataframe(), DataFrame)
        assert made == [
            ([(1, 2.0, None), (3, None, 0.5)], ["step", "loss", "accuracy"]),
            {"step": int, "loss": float, "accuracy": float},
        ]

    def test_without_pandas_the_error_names_the_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(
            ClientError, match=r"needs pandas \(.*\): pip install pandas, or use the rows"
        ):
            JobResult.of(ended()).to_dataframe()
