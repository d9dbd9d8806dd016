"""Jobs of an older operator continue under this one, which keeps that operator's notes."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from ddp_operator.api.status import NOTES, Bookkeeping, DDPJobStatus
from ddp_operator.engine.statuspatch import as_stored, status_patch
from hypothesis import given
from hypothesis import strategies as st

from tests import stored_jobs
from tests.mergepatch import merged
from tests.unit.engine.test_reconciler import World

_counts = st.integers(0, 1000)
_words = st.text("abc-", max_size=8)
_times = st.none() | st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)).map(
    lambda moment: f"{moment:%Y-%m-%dT%H:%M:%SZ}"
)
_values: dict[str, st.SearchStrategy[Any]] = {
    "replacements": st.dictionaries(_counts.map(str), _counts, max_size=3),
    "replacing": st.lists(_counts, max_size=3),
    "queuedSince": _times,
    "noSpareBefore": _times,
    **dict.fromkeys(("acceptedSpecHash", "restartRequested", "isolation"), _words),
    **dict.fromkeys(
        (
            "restartsWithoutProgress",
            "checkpointStepAtRestart",
            "nodeFailuresWithoutProgress",
            "suspendedSeconds",
            "schedulingRetries",
        ),
        _counts,
    ),
}
_notes = st.fixed_dictionaries(_values).map(Bookkeeping.model_validate)


def after_a_write(stored: dict[str, Any], status: DDPJobStatus) -> dict[str, Any]:
    """Return the stored object of a server that knows the bookkeeping."""
    return merged(stored, status_patch(stored, as_stored(status)))


def without_bookkeeping(stored: dict[str, Any]) -> dict[str, Any]:
    """Return a status as a server with an older CRD keeps it."""
    return {name: value for name, value in stored.items() if name != "bookkeeping"}


def as_before(status: DDPJobStatus) -> dict[str, Any]:
    """Return the same status as an older operator has stored it."""
    stored = as_stored(status)
    notes: dict[str, Any] = stored.pop("bookkeeping")
    return stored | notes


def test_the_records_are_worth_their_name() -> None:
    statuses = [stored_jobs.load(name).status for name in stored_jobs.NAMES]
    assert len(statuses) == 4
    assert not any("bookkeeping" in status for status in statuses)
    found = {name for status in statuses for name in NOTES & status.keys() if status[name]}
    assert found >= {"replacements", "replacing", "isolation", "suspendedSeconds"}
    assert found >= {"acceptedSpecHash", "restartsWithoutProgress"}


@pytest.mark.parametrize("name", stored_jobs.NAMES)
def test_the_notes_are_read_where_they_were_and_move(name: str) -> None:
    stored = stored_jobs.load(name).status
    status = DDPJobStatus.model_validate(stored)
    notes = {note: stored[note] for note in NOTES & stored.keys()}
    assert as_stored(status)["bookkeeping"] == notes
    once = after_a_write(stored, status)
    assert once["bookkeeping"] == notes
    assert notes.keys() <= once.keys()
    twice = after_a_write(once, status)
    assert twice["bookkeeping"] == notes
    assert NOTES.isdisjoint(twice)
    others = {key: value for key, value in stored.items() if key not in NOTES}
    assert without_bookkeeping(twice) == others
    assert status_patch(twice, as_stored(status)) == {}


@pytest.mark.parametrize("name", stored_jobs.NAMES)
async def test_a_job_of_before_keeps_its_pods(name: str) -> None:
    world, record = World(), stored_jobs.load(name)
    world.now = datetime.fromisoformat(record.status["goodput"]["accountedUntil"])
    world.cluster.pods = dict(record.pods)
    world.apply(record.manifest)
    for _ in range(3):
        world.now += timedelta(seconds=10)
        await world.reconcile()
    assert not [call for call in world.cluster.calls if call.startswith("delete_pod")]
    created = {key.name for key in world.cluster.pods.keys() - record.pods.keys()}
    assert created == ({"train-0-1-r1"} if name == "replacing" else set())
    assert world.status["attempt"] == record.status["attempt"]
    assert world.status["restarts"] == record.status["restarts"]


@given(_notes)
def test_any_notes_survive_both_ways_of_storing_them(notes: Bookkeeping) -> None:
    status = DDPJobStatus(attempt=1, bookkeeping=notes)
    assert DDPJobStatus.model_validate(as_stored(status)) == status
    assert DDPJobStatus.model_validate(as_before(status)) == status


@given(_notes, _notes)
def test_an_older_crd_loses_no_note(old: Bookkeeping, new: Bookkeeping) -> None:
    before, after = (DDPJobStatus(attempt=1, bookkeeping=notes) for notes in (old, new))
    stored = as_before(before)
    for status in (after, before, after):
        stored = without_bookkeeping(after_a_write(stored, status))
        assert DDPJobStatus.model_validate(stored) == status


@given(_notes, _notes)
def test_an_operator_of_before_that_came_back_is_believed(
    stale: Bookkeeping, fresh: Bookkeeping
) -> None:
    stored = as_stored(DDPJobStatus(attempt=1, bookkeeping=stale))
    status = DDPJobStatus(attempt=2, bookkeeping=fresh)
    assert DDPJobStatus.model_validate(stored | as_before(status)) == status


def test_notes_of_a_newer_operator_stay() -> None:
    stored = as_stored(DDPJobStatus(phase="Running"))
    stored["bookkeeping"]["novelty"] = 2
    after = after_a_write(stored, DDPJobStatus(phase="Running").noting(scheduling_retries=1))
    assert after["bookkeeping"]["novelty"] == 2
    assert after["bookkeeping"]["schedulingRetries"] == 1
