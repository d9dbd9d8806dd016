"""The bookkeeping survives being stored, also by another release."""

from datetime import datetime
from typing import Any

from ddp_operator.api.status import Bookkeeping, DDPJobStatus
from ddp_operator.engine.status_patch import as_stored, status_patch
from hypothesis import given
from hypothesis import strategies as st

from tests.mergepatch import merged

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
    **dict.fromkeys(
        ("acceptedSpecHash", "restartRequested", "codeRequested", "code", "isolation"), _words
    ),
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
