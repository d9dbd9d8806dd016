"""Lines that a follower returns together, and their order."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from ddp_client.remote import following
from ddp_client.remote.logs import Line
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.job.builders import fresh_job, pod

START = datetime(2026, 3, 1, tzinfo=UTC)
PODS = [pod(fresh_job(), index) for index in range(2)]
LINES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), max_size=30)


def line(index: int, second: int, text: str = "") -> Line:
    return Line(PODS[index], START + timedelta(seconds=second), text)


def test_lines_are_sorted_by_time() -> None:
    lines = [line(0, 1), line(0, 3), line(1, 2), line(1, 4)]
    assert following._in_order(lines) == [line(0, 1), line(1, 2), line(0, 3), line(1, 4)]


@given(LINES)
def test_lines_of_a_pod_keep_their_order(
    came: list[tuple[int, int]],
) -> None:
    lines = [line(index, second, str(at)) for at, (index, second) in enumerate(came)]
    ordered = following._in_order(lines)
    for own in PODS:
        assert [one for one in ordered if one.pod is own] == [
            one for one in lines if one.pod is own
        ]
    assert len(ordered) == len(lines)


class Busy:
    """A follower that always has another line."""

    idle = False

    def __init__(self) -> None:
        self.lines = self

    async def get(self) -> Line:
        return line(0, 0)


async def test_held_lines_are_bounded() -> None:
    busy: Any = Busy()
    until = asyncio.get_running_loop().time() + 60
    assert len(await following._together(busy, until, 60)) == following.MOST_HELD
    assert len(await following._together(busy, until, 0)) == 1
