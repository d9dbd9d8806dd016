"""Sentences that claim no more than the job's status shows."""

import pytest
from ddp_client.views.job.last_words import readable

from tests.unit.cli.jobs import at, stored, training
from tests.unit.views.test_views import shown, why

REPORT = (
    '{"step": 276, "totalSteps": 276, "lastStepTime": "2026-11-28T22:51:41.156Z", '
    '"loss": 0.01346, "accuracy": 0.983, "checkpoint": {"step": 276, "path": "/c/step-276"}}'
)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            f"; rank 0 says: {REPORT}",
            "; rank 0: step 276 of 276, loss 0.01346, accuracy 98.3%, checkpoint of step 276",
        ),
        ('; rank 0 says: {"exitCode": 0, "rank": 0}', ""),
        ('; rank 0 says: {"step": 276, "los', ""),
        ('; rank 0 says: {"step": true, "loss": NaN, "checkpoint": []}', ""),
        ("; rank 0 says: loss 0.1 done", "; rank 0 says: loss 0.1 done"),
        ("", ""),
    ],
)
def test_report_of_rank_0_is_a_sentence(said: str, sentence: str) -> None:
    head = "all 2 pods completed"
    assert readable(head + said, succeeded=True) == head + sentence
    assert readable(head + said, succeeded=False) == head + said


def test_status_and_why_show_no_json() -> None:
    done = stored("Succeeded", "Completed", message=f"its pod completed; rank 0 says: {REPORT}")
    for text in (shown(done, width=200), why(done)):
        assert "its pod completed; rank 0: step 276 of 276" in " ".join(text.split())
        assert "{" not in text


def test_job_without_reported_steps_is_not_said_to_train() -> None:
    silent = training(progress=None)
    assert why(silent).startswith("digits runs again after 1 restart: all 2 pods are ready.")
    assert why(training(progress=None, restarts=0)).startswith("digits is running: all 2 pods")
    assert "goodput     pending 1m, starting 40s, running 16m" in shown(silent)


def test_job_that_resumed_at_its_last_step_trained_nothing() -> None:
    done = stored("Succeeded", "Completed")
    progress = {"step": 276, "totalSteps": 276, "updatedAt": at(30)}
    books = {"trainingSeconds": 96, "startingSeconds": 4}
    notes = {"resumedStep": 276, "stopwatch": {"accountedUntil": at(100)}}
    done["status"] |= {"progress": progress, "goodput": books, "bookkeeping": notes}
    assert "it trained no step: its checkpoint was of the last one" in why(done)
    assert "training" not in shown(done)
    notes["resumedStep"] = 200
    assert "96% training" in shown(done)
