"""The work queue."""

import asyncio

import pytest
from ddp_operator.engine.queue import QueueClosedError, WorkQueue

SOON = 10.0
"""Deadline of a name that must come."""


async def take(queue: WorkQueue[str]) -> str:
    return await asyncio.wait_for(queue.get(), SOON)


async def test_waiting_name_is_not_queued_twice() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.add("b")
    queue.add("a")
    assert len(queue) == 2
    assert [await take(queue), await take(queue)] == ["a", "b"]


async def test_name_added_during_work_comes_again_afterwards() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await take(queue) == "a"
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert len(queue) == 1
    assert await take(queue) == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_waiting_worker_is_woken() -> None:
    queue: WorkQueue[str] = WorkQueue()
    workers = [asyncio.create_task(take(queue)) for _ in range(3)]
    await asyncio.sleep(0)
    for name in "abc":
        queue.add(name)
    assert sorted(await asyncio.gather(*workers)) == ["a", "b", "c"]


async def test_cancelled_worker_passes_its_wake_up_on() -> None:
    queue: WorkQueue[str] = WorkQueue()
    first, second = (asyncio.create_task(queue.get()) for _ in range(2))
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, SOON) == "a"


async def test_earlier_of_two_delays_counts() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 3600.0)
    queue.add_after("a", 0.01)
    queue.add_after("a", 1800.0)
    assert await take(queue) == "a"
    queue.done("a")
    queue.close()


async def test_delayed_name_that_is_added_is_due_at_once_and_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 0.05)
    queue.add("a")
    assert await take(queue) == "a"
    queue.done("a")
    queue.add_after("b", 0.1)
    assert await take(queue) == "b"  # not a: its delay was overtaken


def add_rested(queue: WorkQueue[str], *, first: float = 0.2, most: float = 1.0) -> None:
    queue.add_rested("a", first_seconds=first, most_seconds=most)


async def test_burst_of_changes_is_one_piece_of_work() -> None:
    queue: WorkQueue[str] = WorkQueue()
    add_rested(queue)
    assert len(queue) == 1, "it was never given out: it need not rest"
    assert await take(queue) == "a"
    queue.done("a")
    for _ in range(100):
        add_rested(queue)
    assert len(queue) == 0
    assert await take(queue) == "a"
    queue.done("a")
    assert len(queue) == 0
    queue.close()


async def test_rests_grow_in_a_burst_and_are_short_after_a_pause() -> None:
    queue: WorkQueue[str] = WorkQueue()
    time = asyncio.get_running_loop().time
    rests = []
    for pause in (0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 0.0):
        await asyncio.sleep(pause)
        began = time()
        add_rested(queue)
        await take(queue)
        queue.done("a")
        rests.append(round(time() - began, 1))
    assert rests == [0.0, 0.2, 0.4, 0.8, 1.0, 0.0, 0.2]
    queue.close()


async def test_resting_name_that_is_added_is_due_at_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await take(queue)
    queue.done("a")
    add_rested(queue, first=5.0, most=5.0)
    queue.add("a")
    assert len(queue) == 1


@pytest.mark.parametrize("rested", [True, False])
async def test_change_during_failing_work_shortens_the_backoff(rested: bool) -> None:
    queue: WorkQueue[str] = WorkQueue(first_backoff_seconds=3600.0, last_backoff_seconds=3600.0)
    queue.add("a")
    await take(queue)
    if rested:
        add_rested(queue)
    else:
        queue.add("a")
    queue.failed("a", retry_after_seconds=7200.0)
    assert len(queue) == 0, "what keeps failing must not keep a worker busy"
    assert await take(queue) == "a"
    assert queue.failed("a") == 3600.0, "nothing new happened"
    queue.close()


async def test_backoff_grows_until_a_success() -> None:
    queue: WorkQueue[str] = WorkQueue(first_backoff_seconds=0.001, last_backoff_seconds=0.004)
    waits = []
    for _ in range(4):
        queue.add("a")
        await take(queue)
        waits.append(queue.failed("a"))
    assert waits == [0.001, 0.002, 0.004, 0.004]
    assert await take(queue) == "a"
    queue.done("a")
    queue.add("a")
    await take(queue)
    assert queue.failed("a") == 0.001


async def test_retry_after_extends_the_backoff() -> None:
    queue: WorkQueue[str] = WorkQueue(first_backoff_seconds=0.001)
    queue.add("a")
    await take(queue)
    assert queue.failed("a", retry_after_seconds=7.0) == 7.0
    queue.close()


async def test_closed_queue_gives_out_nothing() -> None:
    queue: WorkQueue[str] = WorkQueue()
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.close()
    with pytest.raises(QueueClosedError):
        await asyncio.wait_for(worker, SOON)
    with pytest.raises(QueueClosedError):
        await queue.get()
