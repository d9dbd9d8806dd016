"""What a lost pod is said to have cost."""

from dataclasses import replace

import pytest

from tests.bench.reports.pod_outage import Begun, Moments, outage, steps_in, time_of_line

MOMENTS = Moments(
    killed=100.0, noticed=100.25, reported=101.0, created=101.5, container=102.0, ready=104.0
)
OLD = [Begun(99.75, 0, 7), Begun(99.75, 1, 7), Begun(100.0, 0, 8)]
"""The step that rank 0 began was not completed."""
NEW = [Begun(104.25, 0, 8), Begun(104.5, 1, 8), Begun(104.75, 0, 9), Begun(105.0, 1, 9)]


def test_an_outage_ends_when_the_last_rank_begins_a_step_that_none_had_begun() -> None:
    found = outage(MOMENTS, OLD + NEW)
    assert (found.kubelet, found.operator, found.pod) == (1.0, 0.5, 0.5)
    assert (found.python, found.trainer, found.noticed) == (2.0, 1.0, 0.25)
    assert (found.total, found.own) == (5.0, 1.5)


def test_the_step_that_broke_is_not_done_again_but_begun_again() -> None:
    assert outage(MOMENTS, OLD + NEW).steps_again == 0
    assert outage(MOMENTS, OLD + NEW[2:]).steps_again == 0


def test_steps_since_a_checkpoint_are_done_again() -> None:
    again = [replace(one, at=one.at - 0.125, step=step) for one in NEW[:2] for step in (6, 7)]
    assert outage(MOMENTS, OLD + again + NEW).steps_again == 2


def test_no_outage_ends_before_all_ranks_train() -> None:
    with pytest.raises(ValueError, match="empty"):
        outage(MOMENTS, OLD + NEW[:3])


def test_a_trace_tells_steps() -> None:
    lines = b'{"step": 7, "epoch": 0, "samples": [1]}\n{"step": 8, "epoch": 0, "samples": [2]}'
    assert steps_in(lines, rank=1, at=3.5) == [Begun(3.5, 1, 7), Begun(3.5, 1, 8)]
    assert steps_in(b"", rank=1, at=3.5) == []


def test_the_first_line_since_the_kill_tells_when_the_other_rank_noticed() -> None:
    log = (
        "1970-01-01T00:00:09.999999999Z 00:00:09 [rank 0] the group broke\n"
        "1970-01-01T00:00:10.250000000Z 00:00:10 [rank 0] the group broke\n"
        "1970-01-01T00:00:11.000000000Z 00:00:11 [rank 0] the group broke\n"
    )
    assert time_of_line(log, "the group broke", since=10.0) == 10.25
    with pytest.raises(ValueError, match="no line 'the group broke' since"):
        time_of_line(log, "the group broke", since=12.0)
