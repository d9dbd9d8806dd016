"""Doing many things at once, but few as long as it is not known whether they succeed at all."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def slow_start(
    do: Callable[[T], Awaitable[None]],
    items: Iterable[T],
    *,
    most: int,
    wanted: Callable[[], bool] = lambda: True,
) -> list[Exception]:
    """Do something with each item: with the first one alone, then with one more at the same time
    for every success, up to `most`.

    After a failure, or once they are no longer `wanted`, no more are begun. Those under way are
    waited for, and all errors returned; so however many items there are, failures are at most one
    more than successes.
    """
    waiting = iter(items)
    errors: list[Exception] = []
    workers = 0

    async def work() -> None:
        for item in waiting:
            if not wanted():
                return
            try:
                await do(item)
            except Exception as error:
                errors.append(error)
            if errors:
                return
            add_worker()

    def add_worker() -> None:
        nonlocal workers
        if workers < most:
            workers += 1
            group.create_task(work())

    async with asyncio.TaskGroup() as group:
        add_worker()
    return errors
