"""The step at which ranks stop after a signal: all at the same one."""

from __future__ import annotations

import math
import signal
from itertools import pairwise

import pytest
from ddp_trainer.run.stop import StopSignal, Votes, is_carried

from tests.trainer.support.same_group import group_of_one


def stopped(stop: StopSignal, *, seconds_ago: float = 0.0) -> StopSignal:
    """Make it as if SIGTERM had arrived this long ago."""
    stop._remember(signal.SIGTERM, None)
    stop.told_at -= seconds_ago
    return stop


def test_a_stopped_rank_continues_for_a_while_and_then_stops_all() -> None:
    stop = StopSignal(within_seconds=1000, leave_seconds=100)
    assert stop.vote(4) == 0
    assert not is_carried(stopped(stop).vote(4) + 2 / 4)
    assert is_carried(stopped(stop, seconds_ago=101).vote(4))


def test_half_of_the_time_is_left_for_saving() -> None:
    stop = StopSignal(within_seconds=100, leave_seconds=1000)
    assert not is_carried(stopped(stop, seconds_ago=1).vote(2))
    assert is_carried(stopped(stop, seconds_ago=50).vote(2))


def test_without_time_to_leave_a_stopped_rank_stops_all() -> None:
    assert is_carried(stopped(StopSignal(within_seconds=100)).vote(1000))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 49, 1000, 65536, 10**6])
def test_all_stopped_ranks_together_stop_at_once(ranks: int) -> None:
    vote = stopped(StopSignal(within_seconds=1000, leave_seconds=100)).vote(ranks)
    one_by_one = 0.0
    for _ in range(ranks - 1):
        one_by_one += vote
    assert not is_carried(one_by_one)
    assert is_carried(one_by_one + vote)
    assert math.isclose(vote, 1 / ranks)


def test_votes_are_regular_although_their_interval_changes() -> None:
    with group_of_one() as group:
        votes = Votes(group, stop=lambda _: 0.0, save=lambda: True)
        voted = []
        for step in range(1, 100):
            votes.begin(step)
            votes.read()
            if votes.save:
                voted.append(step)
            interval = 10 if (step + 1) % 10 else 11  # the next step is not a multiple
            votes.pace(0.25 / (interval + 0.5))
    assert voted[0] == 1
    assert {later - earlier for earlier, later in pairwise(voted)} <= {10, 11}
    assert len(voted) >= 9
