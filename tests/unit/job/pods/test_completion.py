"""Tests of completed pods: they are recorded and may be deleted."""

from collections.abc import Sequence

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.values.text import in_ranges
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods.observed import SETTLED_SECONDS, completed_indexes
from ddp_operator.job.pods.state import PodState
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.job.builders import (
    condition,
    does_nothing,
    ended,
    later,
    ready,
    running_job,
    stored,
)

AT = 100.0
"""Seconds after NOW when a pod ends."""


def after_one_has_ended(index: int, *, seconds: float = 10, **spec: object) -> DDPJob:
    """Return the job some seconds after one of three pods completed."""
    job, pods = running_job(replicas=3, **spec)
    pods[index] = ended(job, index, code=0, at=AT)
    return stored(job, plan(job, pods, later(AT + seconds)))


def without(job: DDPJob, *indices: int) -> list[PodState]:
    """Return the other pods, which train."""
    return [ready(job, index) for index in range(3) if index not in indices]


@pytest.mark.parametrize("index", [0, 2])
def test_completed_pod_may_be_deleted(index: int) -> None:
    job = after_one_has_ended(index)
    assert job.status.completed_indexes == str(index)
    planned = plan(job, without(job, index), later(AT + 20))
    assert does_nothing(planned)
    assert planned.status.attempt == 0
    assert planned.status.ready == "3/3"
    done = [ended(job, i, code=0, at=AT + 30) for i in range(3) if i != index]
    assert condition(plan(job, done, later(AT + 40)), "Succeeded")[0] == "True"


def test_all_completed_pods_but_one_may_be_deleted() -> None:
    job = after_one_has_ended(0)
    pods = [ended(job, 1, code=0, at=AT + 15), ready(job, 2)]
    job = stored(job, plan(job, pods, later(AT + 25)))
    assert job.status.completed_indexes == "0-1"
    planned = plan(job, [ended(job, 2, code=0, at=AT + 30)], later(AT + 31))
    assert condition(planned, "Succeeded")[0] == "True"


def test_pods_that_complete_together_are_not_recorded() -> None:
    job, pods = running_job(replicas=3)
    pods[0] = ended(job, 0, code=0, at=AT)
    planned = plan(job, pods, later(AT + 1))
    assert planned.status.completed_indexes == ""
    assert planned.requeue_at == later(AT + SETTLED_SECONDS)


def test_vanished_running_pod_has_not_completed() -> None:
    job = after_one_has_ended(0)
    planned = plan(job, without(job, 0, 1), later(AT + 20))
    assert planned.decided
    assert planned.status.attempt == 1
    assert planned.status.completed_indexes == ""


def test_failure_after_a_completed_rank_restarts_the_gang() -> None:
    job = after_one_has_ended(0, restart={"scope": "Pod"})
    failed = [ended(job, 1, code=1, at=AT + 20), ready(job, 2)]
    planned = plan(job, failed, later(AT + 21))
    assert (planned.status.attempt, planned.status.bookkeeping.replacements) == (1, {})


@given(st.frozensets(st.integers(0, 60)))
def test_recorded_indexes_are_read_back(indices: frozenset[int]) -> None:
    text = in_ranges(sorted(indices))
    assert completed_indexes(text, below=61) == indices
    assert completed_indexes(text, below=30) == {index for index in indices if index < 30}


@pytest.mark.parametrize(
    ("text", "indices"),
    [("0-2,5", [0, 1, 2, 5]), ("", []), ("x,-1,2-,3-x,4", [2, 4]), ("0-99999999999", range(8))],
)
def test_invalid_indexes_are_ignored(text: str, indices: Sequence[int]) -> None:
    assert completed_indexes(text, below=8) == set(indices)
