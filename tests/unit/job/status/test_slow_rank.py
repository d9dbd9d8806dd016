"""Tests of slow ranks: when a rank counts as slow, and when it no longer does."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import SlowRank
from ddp_operator.job.pods.observed import observe
from ddp_operator.job.pods.state import PodState
from ddp_operator.job.status.progress import Report, with_report
from ddp_operator.job.status.slow_rank import DEFAULT_FACTOR, IN_A_ROW, with_pace
from ddp_operator.ports import Event
from ddp_protocol.message import InvalidMessageError
from ddp_protocol.progress import TrainerStatus
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.job.builders import later, running_job, with_status
from tests.unit.job.status.test_progress import report

Pace = tuple[int, float]
"""A rank and its seconds per step; the others need one second."""


def reports(paces: Sequence[Pace], *, begin: int = 1, others: float = 1.0) -> Iterator[Report]:
    """Yield one report for each comparison, every ten seconds."""
    for step, (rank, ratio) in zip(count(begin), paces, strict=False):
        pace = {"step": step, "rank": rank, "seconds": ratio * others, "othersSeconds": others}
        yield report(step, received=10 * step, pace=pace)


def after_reports(
    job: DDPJob, pods: Sequence[PodState], reported: Iterator[Report]
) -> tuple[DDPJob, list[Event]]:
    """Return the job after these reports, and its events."""
    events: list[Event] = []
    for one in reported:
        status, new = with_pace(job, with_report(job, one), one, observe(job, pods))
        job, events = replace(job, status=status), [*events, *new]
    return job, events


def trained(
    *paces: Pace, begin: int = 1, others: float = 1.0, **spec: Any
) -> tuple[DDPJob, list[Event]]:
    job, pods = running_job(**{"replicas": 4, **spec})
    return after_reports(job, pods, reports(paces, begin=begin, others=others))


def slow_rank(job: DDPJob) -> SlowRank:
    assert job.status.slow_rank is not None
    return job.status.slow_rank


def faster_in_a_row(job: DDPJob) -> int:
    assert job.status.bookkeeping.pace is not None
    return job.status.bookkeeping.pace.faster_in_a_row


def test_rank_is_slow_after_three_comparisons() -> None:
    job, events = trained((3, 1.8), (3, 1.6))
    assert (job.status.slow_rank, events) == (None, [])
    job, events = trained((3, 1.8), (3, 1.6), (3, 1.75), others=2.0)
    slow = slow_rank(job)
    assert (slow.rank, slow.pod, slow.node) == (3, "digits-0-3", "node-a")
    assert (slow.ratio, slow.seconds_per_step) == (1.75, 1.5)
    assert slow.since == later(10)
    [event] = events
    assert (event.reason, event.warning) == ("SlowRank", True)
    assert event.message == (
        "rank 3 (pod digits-0-3 on node node-a) is slow: its own time per step is 1.75 times the "
        "mean of the others, 1.5 s more"
    )


@pytest.mark.parametrize(
    "paces",
    [
        pytest.param([(3, DEFAULT_FACTOR - 0.01)] * 9, id="less than the factor"),
        pytest.param([(3, 1.8), (2, 1.8), (1, 1.8)] * 9, id="two other ranks in between"),
        pytest.param([(3, 1.8), (2, 1.8), (3, 1.8), (1, 1.8)] * 9, id="turns with two others"),
        pytest.param([(3, 1.8), (2, 1.8), (3, 1.8), (0, 1.2)] * 9, id="two turns, then none"),
        pytest.param([(3, 1.8), (3, 1.8), (3, 1.2)] * 9, id="faster in between"),
        pytest.param([(4, 1.8)] * 9, id="a rank that no pod has"),
        pytest.param([(2**53 - 1, 1.8)] * 9, id="a rank that no job has"),
    ],
)
def test_rank_is_not_slow(paces: list[Pace]) -> None:
    job, events = trained(*paces)
    assert (job.status.slow_rank, events) == (None, [])


def test_less_than_a_millisecond_is_not_slow() -> None:
    assert trained(*[(3, 1.8)] * 9, others=0.001)[0].status.slow_rank is None
    assert trained(*[(3, 2.1)] * 9, others=0.001)[0].status.slow_rank is not None


def test_factor_of_the_spec_decides() -> None:
    restart = {"slowRank": {"factor": 1.2}}
    assert trained(*[(3, 1.25)] * 3, restart=restart)[0].status.slow_rank is not None
    assert trained(*[(3, 1.19)] * 3, restart=restart)[0].status.slow_rank is None


def test_same_comparison_counts_once() -> None:
    job, pods = running_job(replicas=4)
    [first] = reports([(3, 1.8)])
    job, events = after_reports(job, pods, iter([first] * 9))
    assert (job.status.slow_rank, events) == (None, [])
    assert job.status.bookkeeping.pace is not None
    assert [turn.times for turn in job.status.bookkeeping.pace.turns] == [1]


def test_ranks_of_one_pod_count_together() -> None:
    job, events = trained((6, 1.8), (7, 1.6), (6, 1.7), nprocPerNode=2)
    assert (slow_rank(job).rank, slow_rank(job).pod) == (6, "digits-0-3")
    assert len(events) == 1


def test_slow_rank_stays_until_it_is_clearly_faster() -> None:
    job, events = trained(*[(3, 1.8)] * 3, *[(3, 1.3)] * 9)  # above half of the excess
    assert slow_rank(job).ratio == 1.3
    assert slow_rank(job).since == later(10)
    assert len(events) == 1
    job, events = trained(*[(3, 1.8)] * 3, (3, 1.2), (2, 1.1), (3, 1.3), (3, 1.2), (1, 1.1))
    assert job.status.slow_rank is not None, "three in a row are needed"
    assert faster_in_a_row(job) == 2
    job, events = trained(*[(3, 1.8)] * 3, (3, 1.2), (2, 1.1), (1, 1.7))
    assert job.status.slow_rank is None
    assert [event.reason for event in events] == ["SlowRank", "SlowRankOver"]
    assert not events[-1].warning


def test_slower_rank_replaces_the_slow_rank() -> None:
    job, events = trained(*[(3, 1.8)] * 3, *[(1, 1.9)] * 3)
    assert slow_rank(job).rank == 1
    assert [event.reason for event in events] == ["SlowRank", "SlowRankOver", "SlowRank"]


def test_one_of_two_alternating_pods_is_slow() -> None:
    turns = [(3, 1.8), (2, 1.7)] * 9
    job, events = trained(*turns[:4])
    assert (job.status.slow_rank, events) == (None, [])
    for length in range(5, len(turns)):
        job, events = trained(*turns[:length])
        slow = slow_rank(job)
        assert (slow.rank, slow.since, slow.ratio) == (3, later(10), 1.8)
        assert faster_in_a_row(job) == (length + 1) % 2
        assert [event.reason for event in events] == ["SlowRank"]
    job, events = trained(*[(1, 1.8), (0, 1.8)] * 9, replicas=2)
    assert (job.status.slow_rank, events) == (None, []), "the job has only these two"


def test_pod_that_is_slowest_more_often_is_slow() -> None:
    job, _ = trained((2, 1.7), (3, 1.8), (3, 1.8), (2, 1.7), (3, 1.8))
    assert (slow_rank(job).rank, slow_rank(job).since) == (3, later(20))
    job, _ = trained((2, 1.7), (3, 1.8), (3, 1.8), (2, 1.7), (2, 1.7))
    assert (slow_rank(job).rank, slow_rank(job).since) == (2, later(10))


def test_second_slow_pod_is_named_after_the_first_is_replaced() -> None:
    job, pods = running_job(replicas=4)
    job, _ = after_reports(job, pods, reports([(3, 1.8), (2, 1.7)] * 3))
    job = with_status(job, replacements={"3": 1})
    job, events = after_reports(job, pods, reports([(2, 1.7)], begin=7))
    assert slow_rank(job).rank == 2
    assert [event.reason for event in events] == ["SlowRankOver", "SlowRank"]


def test_replacement_of_a_slow_pod_is_not_slow_yet() -> None:
    job, pods = running_job(replicas=4)
    job, _ = after_reports(job, pods, reports([(3, 1.8)] * 3))
    job = with_status(job, replacements={"3": 1})
    job, events = after_reports(job, pods, reports([(3, 1.8)] * 2, begin=4))
    assert job.status.slow_rank is None
    [event] = events
    assert event.reason == "SlowRankOver"
    assert "its pod was replaced" in event.message
    job, events = after_reports(job, pods, reports([(3, 1.8)], begin=6))
    assert slow_rank(job).pod == "digits-0-3-r1"


@pytest.mark.parametrize(
    "pace",
    [
        {"step": 1, "rank": -1, "seconds": 1, "othersSeconds": 1},
        {"step": 1, "rank": 1, "seconds": -1, "othersSeconds": 1},
        {"step": 1, "rank": 1, "seconds": 1e300, "othersSeconds": 1},
        {"step": 1, "rank": 1, "seconds": "1", "othersSeconds": 1},
        {"step": 1, "rank": 1, "seconds": 1},
        {"step": 1, "rank": 1, "seconds": 1e999, "othersSeconds": 1},
        [],
    ],
)
def test_invalid_pace_is_refused(pace: object) -> None:
    with pytest.raises(InvalidMessageError, match=r"^pace"):
        report(1, pace=pace)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "step": st.integers(0, 3) | st.integers(0, 2**53 - 1),
                "rank": st.integers(0, 5) | st.integers(0, 2**53 - 1),
                "seconds": st.floats(0, 1e6) | st.sampled_from([0.0, 1.8, 1e6]),
                "othersSeconds": st.floats(0, 1e6) | st.sampled_from([0.0, 1.0, 5e-324]),
            }
        ),
        max_size=12,
    )
)
def test_events_match_the_changes_of_the_slow_rank(paces: list[dict[str, Any]]) -> None:
    job, pods = running_job(replicas=4)
    named = ""
    for step, pace in enumerate(paces):
        job, events = after_reports(job, pods, iter([report(step, received=10 * step, pace=pace)]))
        slow = job.status.slow_rank
        assert job.status.bounded() == job.status
        new = slow.pod if slow else ""
        wanted = ["SlowRankOver"] * bool(named) + ["SlowRank"] * bool(new)
        assert [event.reason for event in events] == (wanted if new != named else [])
        assert all(len(event.message) <= 200 for event in events)
        assert slow is None or step + 1 >= IN_A_ROW
        named = new


def test_report_without_a_comparison_changes_nothing() -> None:
    job, pods = running_job(replicas=4)
    job, _ = after_reports(job, pods, reports([(3, 1.8)] * 3))
    unchanged, events = after_reports(job, pods, iter([report(9, received=99)]))
    assert (unchanged.status.slow_rank, events) == (job.status.slow_rank, [])
    assert TrainerStatus.read(b'{"step": 1, "pace": null}').pace is None
