"""Statuses of any version and length: read as far as possible, and written within limits."""

from datetime import UTC, datetime
from typing import Any

import pytest
from ddp_operator.api.status import Condition, DDPJobStatus, Failure
from ddp_operator.engine.status_patch import as_stored

from tests.full_status import FULL_STATUS

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONG = "é" * 10_000
LONG_IN_FAILURES = {"pod": 253, "container": 253, "node": 253, "reason": 256, "message": 1024}
STORED_CONDITION = {
    "type": "Running",
    "status": "True",
    "reason": "PodsReady",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def overlong() -> DDPJobStatus:
    """Return a status with more of everything than the schema allows."""
    condition = Condition(type="Running", status="True", reason="Ready", last_transition_time=NOW)
    condition = condition.model_copy(update={"reason": LONG, "message": LONG})
    failure = Failure(time=NOW, attempt=0, index=0, pod="p", reason="r", class_="Application")
    failure = failure.model_copy(update=dict.fromkeys(LONG_IN_FAILURES, LONG))
    return DDPJobStatus().model_copy(
        update={
            "reason": LONG,
            "message": LONG,
            "ready": LONG,
            "conditions": (condition,) * 20,
            "failures": tuple(failure.model_copy(update={"attempt": n}) for n in range(20)),
            "excluded_nodes": tuple(f"node-{number}" for number in range(200)),
        }
    )


def test_written_status_is_bounded() -> None:
    stored = as_stored(overlong())
    assert {name: len(stored[name]) for name in ("reason", "message", "ready")} == {
        "reason": 256,
        "message": 4096,
        "ready": 16,
    }
    lists = ("conditions", "failures", "excludedNodes")
    assert [len(stored[name]) for name in lists] == [16, 10, 100]
    condition, failure = stored["conditions"][0], stored["failures"][0]
    assert [len(condition[name]) for name in ("reason", "message")] == [256, 4096]
    assert {name: len(failure[name]) for name in LONG_IN_FAILURES} == LONG_IN_FAILURES


def test_newest_entries_are_kept() -> None:
    status = overlong().bounded()
    assert [failure.attempt for failure in status.failures] == list(range(10, 20))
    assert status.excluded_nodes[-1] == "node-199"


@pytest.mark.parametrize(
    "unknown",
    [
        {"phase": "Dreaming"},
        {"conditions": [{"type": "Dreaming", "status": "True"}, STORED_CONDITION]},
        {"failures": [{"class": "Dream"}]},
        {"failures": "none"},
        {"progress": {"step": "many"}},
        {"checkpoint": {"path": 7}},
        {"goodput": {"trainingSeconds": -0.5}},
        {"message": LONG},
        {"excludedNodes": [f"node-{number}" for number in range(101)]},
        {"dreams": {"of": "another version"}},
    ],
    ids=lambda unknown: next(iter(unknown)),
)
def test_status_of_another_version_fails_no_job(unknown: dict[str, Any]) -> None:
    stored = {"attempt": 3, "conditions": [STORED_CONDITION], **unknown}
    status = DDPJobStatus.model_validate(stored)
    assert status.attempt == 3
    assert status.is_true("Running")


def test_invalid_counter_is_refused() -> None:
    with pytest.raises(ValueError, match="attempt"):
        DDPJobStatus.model_validate({"attempt": "many"})


def test_full_status_has_every_field() -> None:
    everything = DDPJobStatus.model_validate(FULL_STATUS).model_dump(mode="json", by_alias=True)
    assert everything == FULL_STATUS
