"""Turns of jobs under a rate limit."""

from collections.abc import Callable, Iterator

import pytest
from ddp_operator.engine.status_writer import RateLimiter
from ddp_operator.ports import Key

from tests.simulation.clock import Clock, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop(Clock())  # type: ignore[abstract]
    yield loop
    loop.halt()
    loop.cancel_tasks()


def at(loop: VirtualLoop, seconds: float, do: Callable[[], None]) -> None:
    loop.call_at(seconds, do)
    loop.run_until(seconds)


def key(number: int) -> Key:
    return Key("default", f"job-{number}")


def test_jobs_get_turns_in_order(loop: VirtualLoop) -> None:
    limiter = RateLimiter(per_second=10)
    waits: list[float] = []
    at(loop, 1.0, lambda: waits.extend(limiter.wait_seconds(key(i)) for i in range(5)))
    assert waits == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])


def test_job_that_asks_again_keeps_its_turn(loop: VirtualLoop) -> None:
    limiter = RateLimiter(per_second=10)
    waits: list[float] = []
    at(loop, 1.0, lambda: waits.extend(limiter.wait_seconds(key(i)) for i in (0, 1, 1)))
    at(loop, 1.05, lambda: waits.append(limiter.wait_seconds(key(1))))
    at(loop, 1.2, lambda: waits.append(limiter.wait_seconds(key(1))))
    assert waits == pytest.approx([0.0, 0.1, 0.1, 0.05, 0.0])


def test_job_that_has_written_queues_behind_the_others(loop: VirtualLoop) -> None:
    limiter = RateLimiter(per_second=10)
    waits: list[float] = []

    def ask() -> None:
        waits.extend(limiter.wait_seconds(key(i)) for i in range(3))
        limiter.reset(key(0))
        waits.append(limiter.wait_seconds(key(0)))

    at(loop, 1.0, ask)
    assert waits == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_unused_time_is_not_saved(loop: VirtualLoop) -> None:
    limiter = RateLimiter(per_second=10)
    waits: list[float] = []
    at(loop, 1.0, lambda: waits.append(limiter.wait_seconds(key(0))))
    at(loop, 50.0, lambda: waits.extend(limiter.wait_seconds(key(i)) for i in (1, 2)))
    assert waits == pytest.approx([0.0, 0.0, 0.1])


def test_turns_of_deleted_jobs_expire(loop: VirtualLoop) -> None:
    limiter = RateLimiter(per_second=10)
    left = iter(range(1000))

    def ask() -> None:
        limiter.wait_seconds(key(next(left)))

    for second in range(1000):
        at(loop, float(second), ask)
    assert len(limiter._reserved) <= 62
