"""Tests of causes that appear after the restart for their secondary failure."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.state import PodState

from tests.unit.job.builders import (
    condition,
    does_nothing,
    ended,
    event_reasons,
    later,
    ready,
    running_job,
    stored,
)

LOST_PEER = "RuntimeError: Connection closed by peer"


def after_consequence(
    *, at: datetime | None = None, message: str = "", **spec: Any
) -> tuple[DDPJob, PodState]:
    """Return a job that restarted after rank 0 lost its peer, and the peer's pod."""
    job, pods = running_job(**spec)
    code = 1 if message else 75
    lost = ended(job, 0, code=code, at=60, message=message)
    job = stored(job, plan(job, [lost, pods[1]], at or later(70)))
    assert job.status.attempt == 1
    return job, replace(pods[1], deleting=True, disrupted_at=later(70))


@pytest.mark.parametrize("message", ["", LOST_PEER])
@pytest.mark.parametrize(
    "how", [{"disruption": "DeletionByTaintManager"}, {"reason": "NodeLost"}], ids=str
)
def test_late_lost_node_removes_the_charge(how: dict[str, Any], message: str) -> None:
    job, silent = after_consequence(message=message)
    assert (job.status.restarts, job.status.bookkeeping.restarts_without_progress) == (1, 1)
    planned = plan(job, [replace(silent, phase="Failed", **how)], later(300))
    assert planned.decided
    assert event_reasons(planned) == ["CauseFound"]
    status = planned.status
    assert (status.restarts, status.disruptions) == (0, 1)
    assert status.bookkeeping.restarts_without_progress == 0
    [record] = status.failures
    assert (record.pod, record.class_, record.charged) == ("digits-0-1", "Disruption", False)
    assert record.action == "RestartGang"
    assert status.attempt == 1
    assert condition(planned, "Restarting") == ("True", "PodFailed")
    assert "digits-0-1" in status.message
    job = stored(job, planned)
    again = plan(job, [replace(silent, phase="Failed", **how)], later(301))
    assert not again.decided


def test_late_failure_is_named_and_stays_charged() -> None:
    job, silent = after_consequence()
    late = replace(ended(job, 1, code=139, at=59, attempt=0), deleting=True)
    planned = plan(job, [late], later(71))
    assert (planned.status.restarts, planned.status.disruptions) == (1, 0)
    [record] = planned.status.failures
    assert (record.pod, record.exit_code, record.charged) == ("digits-0-1", 139, True)
    assert silent.key == late.key


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"at": 71, "code": 1},
        {"at": 59, "code": 75},
        {"at": 59, "code": 143},
        {"at": 69, "code": 137, "ended_by_deletion": True},
        {"at": 59, "code": 64},
    ],
    ids=str,
)
def test_later_or_secondary_end_changes_nothing(state: dict[str, Any]) -> None:
    """A running pod, a later or secondary exit, and an exit with 64 are no causes."""
    job, silent = after_consequence()
    pod = replace(ended(job, 1, **state), identity=silent.identity) if state else silent
    pods = [replace(pod, key=silent.key, deleting=True)]
    pods += [ready(job, index) for index in (0, 1)]
    assert does_nothing(plan(stored(job, plan(job, pods, later(80))), pods, later(81)))


def test_known_cause_is_not_replaced() -> None:
    job, pods = running_job()
    job = stored(job, plan(job, [pods[0], ended(job, 1, code=1)], later(60)))
    evicted = replace(pods[0], deleting=True, disruption="EvictionByEvictionAPI")
    planned = plan(job, [evicted], later(61))
    assert not planned.decided
    assert planned.status.failures[0].pod == "digits-0-1"


class TestTheLastOfTheBudget:
    """A secondary failure alone does not end a job, because its cause is unknown."""

    def test_secondary_failure_without_budget_restarts_once(self) -> None:
        job, silent = after_consequence(restart={"maxRestarts": 0})
        assert (job.status.phase, job.status.restarts) == ("Restarting", 0)
        assert (job.status.disruptions, job.status.failures[0].charged) == (1, False)
        planned = plan(job, [replace(silent, disruption="DeletionByPodGC")], later(300))
        assert (planned.status.restarts, planned.status.disruptions) == (0, 1)
        assert planned.status.failures[0].class_ == "Disruption"

    def test_second_secondary_failure_without_budget_fails(self) -> None:
        job, _ = after_consequence(restart={"maxRestarts": 0})
        job = stored(job, plan(job, [], later(80)))
        planned = plan(job, [ready(job, 0), ended(job, 1, code=75, at=90)], later(100))
        assert planned.status.reason == "MaxRestartsExceeded"

    @pytest.mark.parametrize(("replicas", "code"), [(2, 1), (1, 75)])
    def test_primary_or_only_failure_without_budget_fails(self, replicas: int, code: int) -> None:
        job, pods = running_job(replicas=replicas, restart={"maxRestarts": 0})
        planned = plan(job, [*pods[:-1], ended(job, replicas - 1, code=code)], later(60))
        assert planned.status.reason == "MaxRestartsExceeded"
