"""Jobs of an earlier operator continue."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from ddp_operator.api.status import NOTES, Bookkeeping, DDPJobStatus
from ddp_operator.engine.status_patch import as_stored, status_patch
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
            "restartsInARow",
            "suspendedSeconds",
            "schedulingRetries",
        ),
        _counts,
    ),
}
_notes = st.fixed_dictionaries(_values).map(Bookkeeping.model_validate)


def test_stored_jobs_have_bookkeeping() -> None:
    notes = [stored_jobs.load(name).status["bookkeeping"] for name in stored_jobs.NAMES]
    assert len(notes) == 2
    names = {name for note in notes for name, value in note.items() if value}
    assert names >= {"replacements", "replacing", "isolation", "suspendedSeconds"}
    assert names >= {"acceptedSpecHash", "restartsWithoutProgress"}
    assert names <= NOTES


@pytest.mark.parametrize("name", stored_jobs.NAMES)
async def test_job_of_an_earlier_operator_keeps_its_pods(name: str) -> None:
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
def test_bookkeeping_survives_being_stored(notes: Bookkeeping) -> None:
    status = DDPJobStatus(attempt=1, bookkeeping=notes)
    assert DDPJobStatus.model_validate(as_stored(status)) == status


def test_bookkeeping_of_a_newer_operator_is_kept() -> None:
    stored = as_stored(DDPJobStatus(phase="Running"))
    stored["bookkeeping"]["novelty"] = 2
    wanted = as_stored(DDPJobStatus(phase="Running").noting(scheduling_retries=1))
    after = merged(stored, status_patch(stored, wanted))
    assert after["bookkeeping"]["novelty"] == 2
    assert after["bookkeeping"]["schedulingRetries"] == 1
