"""Tests of trainers' reports: valid fields are stored, and others are ignored."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from ddp_operator.api.status import CheckpointRecord, Progress
from ddp_operator.engine.status_patch import as_stored
from ddp_operator.job.pods.state import Identity
from ddp_operator.job.status.progress import Report, with_last_words, with_report
from ddp_protocol.message import InvalidMessageError, moment
from ddp_protocol.progress import TrainerStatus
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.job.builders import NOW, UID, ended, fresh_job, later, running_job, with_status

FULL = {
    "step": 120,
    "totalSteps": 960,
    "epoch": 2,
    "loss": 0.12345678,
    "samplesPerSecond": 8123,
    "checkpoint": {
        "step": 100,
        "path": "/checkpoints/step-100",
        "time": "2026-03-01T13:00:00+01:00",
    },
    "unknown": ["fields", "of", "later", "versions"],
}


def report(
    step: int,
    *,
    received: float = 0,
    first_received: float | None = None,
    attempt: int = 0,
    **fields: Any,
) -> Report:
    """Return a report of pod 0's trainer, received `received` seconds after NOW."""
    first = later(received if first_received is None else first_received)
    document = json.dumps({"step": step, **fields}).encode()
    return Report(UID, Identity(0, attempt), TrainerStatus.read(document), first, later(received))


def test_full_report_is_read() -> None:
    status = TrainerStatus.read(json.dumps(FULL).encode())
    assert (status.step, status.total_steps, status.epoch) == (120, 960, 2)
    assert (status.loss, status.samples_per_second) == (0.12345678, 8123.0)
    assert status.checkpoint is not None
    assert status.checkpoint.time is not None
    assert moment(status.checkpoint.time) == NOW


def test_loss_that_is_no_number_is_dropped() -> None:
    assert TrainerStatus.read(
        b'{"step": 1, "loss": NaN, "samplesPerSecond": 1e999}'
    ) == TrainerStatus(step=1)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "not JSON"),
        (b"<html>", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 60_000, "not JSON"),
        (b'{"step": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"[]", "the document"),
        (b"{}", "step"),
        (b'{"step": "7"}', "step"),
        (b'{"step": true}', "step"),
        (b'{"step": -1}', "step"),
        (b'{"step": 9007199254740992}', "step"),
        (b'{"step": 1, "loss": "0.1"}', "loss"),
        (b'{"step": 1, "epoch": 1.5}', "epoch"),
        (b'{"step": 1, "checkpoint": "/checkpoints/step-1"}', "checkpoint"),
        (b'{"step": 1, "checkpoint": {"path": "/c"}}', "checkpoint.step"),
        (b'{"step": 1, "checkpoint": {"step": 1, "path": "\\ud800"}}', "checkpoint.path"),
        (b'{"step": 1, "checkpoint": {"step": 1, "time": "yesterday"}}', "checkpoint.time"),
        (b'{"step": 1, "checkpoint": {"step": 1, "time": "0001-01-01T00:00:00+14:00"}}', "time"),
        (b'{"step": 1, "checkpoint": {"step": 1, "time": 1e300}}', "time"),
    ],
)
def test_invalid_report_is_refused_with_its_field(content: bytes, word: str) -> None:
    with pytest.raises(InvalidMessageError, match=word):
        TrainerStatus.read(content)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
_checkpoints = _json | st.fixed_dictionaries(
    {"step": st.integers(0, 9)},
    optional={"path": _json, "time": _json | st.datetimes().map(str)},
)
_answers = st.fixed_dictionaries(
    {"step": st.integers(0, 2**53 - 1)},
    optional={"loss": _json, "epoch": _json, "checkpoint": _checkpoints},
)


@given(_answers)
def test_accepted_report_can_be_stored(answer: dict[str, Any]) -> None:
    try:
        status = TrainerStatus.read(json.dumps(answer).encode())
    except InvalidMessageError:
        return
    heard = Report(UID, Identity(0, 0), status, NOW, NOW)
    stored = json.dumps(as_stored(with_report(fresh_job(), heard)), allow_nan=False)
    assert json.loads(stored)["progress"]["step"] == answer["step"]


def test_step_keeps_the_time_of_its_first_report() -> None:
    job, _ = running_job()
    job = with_status(job, progress=with_report(job, report(7, received=20.7)).progress)
    assert job.status.progress == Progress(step=7, updated_at=later(20))
    again = with_report(job, report(7, received=30, loss=0.12345678)).progress
    assert again == Progress(step=7, loss=0.123457, updated_at=later(20))
    further = with_report(job, report(8, received=40)).progress
    assert further == Progress(step=8, updated_at=later(40))
    back = with_report(job, report(5, received=50)).progress
    assert back == Progress(step=5, updated_at=later(50))


@pytest.mark.parametrize(
    "stale",
    [
        report(9, attempt=1),
        Report("another", Identity(0, 0), TrainerStatus(step=9), NOW, NOW),
        Report(UID, Identity(0, 0, replacement=1), TrainerStatus(step=9), NOW, NOW),
    ],
)
def test_report_of_another_pod_or_job_is_ignored(stale: Report) -> None:
    job, _ = running_job()
    assert with_report(job, stale) == job.status


@pytest.mark.parametrize(
    ("step", "checkpointed", "expected"),
    [
        (130, 120, 120),
        (130, 80, 100),  # an older checkpoint, reported late
        (90, 80, 80),  # training resumed before the known checkpoint
        (90, None, 100),  # no checkpoint is reported
        (110, 100, 100),
    ],
)
def test_checkpoint_goes_back_only_with_training(
    step: int, checkpointed: int | None, expected: int
) -> None:
    job, _ = running_job()
    known = CheckpointRecord(step=100, path="/c/100", time=datetime(2026, 1, 1, tzinfo=UTC))
    job = with_status(job, checkpoint=known)
    fields: dict[str, Any] = {"checkpoint": {"step": checkpointed}} if checkpointed else {}
    found = with_report(job, report(step, **fields)).checkpoint
    assert found is not None
    assert found.step == expected


@pytest.mark.parametrize(
    ("message", "step", "saved"),
    [
        ('{"step": 960, "checkpoint": {"step": 950, "path": "/c/950"}}', 960, 950),
        ('{"step": 100, "checkpoint": {"step": 100, "path": "/c/100"}}', 100, 100),
        ('{"step": 100, "checkpoint": {"step": 80}}', 100, 90),
        ('{"step": 960}', 960, 90),
        ('{"step": 7}', 100, 90),
        ('{"step": "960"}', 100, 90),
        ('{"step": 960, "checkpoint": "/c/960"}', 100, 90),
        ('{"step": 960', 100, 90),
        ("[" * 4096, 100, 90),
        ("Traceback", 100, 90),
        ("", 100, 90),
    ],
)
def test_termination_message_gives_last_step_and_checkpoint(
    message: str, step: int, saved: int
) -> None:
    job, _ = running_job()
    known = {
        "progress": Progress(step=100, updated_at=NOW),
        "checkpoint": CheckpointRecord(step=90, path="/c/90"),
    }
    status = job.status.model_copy(update=known)
    found = with_last_words(status, ended(job, code=0, message=message), later(5))
    assert found.progress is not None
    assert found.checkpoint is not None
    assert (found.progress.step, found.checkpoint.step) == (step, saved)
