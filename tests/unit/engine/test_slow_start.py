"""Calls that start slowly: few at the same time until some succeed."""

import asyncio

import pytest
from ddp_operator.engine.slow_start import slow_start
from hypothesis import given
from hypothesis import strategies as st


class Caller:
    """Succeeds with the first `good` items and refuses all others."""

    def __init__(self, *, good: int) -> None:
        self.good = good
        self.started: list[int] = []
        self.done: list[int] = []
        self.at_once: list[int] = []

    async def do(self, item: int) -> None:
        self.started.append(item)
        self.at_once.append(len(self.started) - len(self.done))
        await asyncio.sleep(0)  # one cycle of the event loop represents a round trip
        self.done.append(item)
        if item >= self.good:
            raise ValueError(item)


async def test_each_success_allows_one_more_call_up_to_a_limit() -> None:
    caller = Caller(good=100)
    assert await slow_start(caller.do, range(40), most=8) == []
    assert sorted(caller.done) == list(range(40))
    assert caller.at_once[:3] == [1, 1, 2], "the first one alone, then two"
    assert max(caller.at_once) == 8


@given(items=st.integers(0, 60), good=st.integers(0, 60), most=st.integers(1, 40))
def test_failures_are_at_most_one_more_than_successes(items: int, good: int, most: int) -> None:
    caller = Caller(good=good)
    errors = asyncio.run(slow_start(caller.do, range(items), most=most))
    assert caller.started == list(range(len(caller.started))), "each one once, in order"
    assert caller.started == caller.done, "all started calls were awaited"
    assert [str(error) for error in errors] == [str(item) for item in caller.done if item >= good]
    assert len(errors) <= min(good + 1, most)
    if not errors:
        assert len(caller.done) == items


async def test_calls_no_longer_needed_are_not_started() -> None:
    caller = Caller(good=100)
    errors = await slow_start(caller.do, range(40), most=8, wanted=lambda: len(caller.started) < 10)
    assert errors == []
    assert caller.done == list(range(10)), "all started calls were awaited"


async def test_cancelling_ends_running_calls() -> None:
    ended: list[int] = []

    async def never(item: int) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(item)

    task = asyncio.create_task(slow_start(never, range(3), most=2))
    while not ended:
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [0]
