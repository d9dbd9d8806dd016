"""Runs many calls at once, but only few until the first ones have succeeded."""

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
    """Call `do` with each item: first with one, then with one more at a time for every success, up
    to `most`.

    After a failure, or once the items are no longer `wanted`, no more calls start. Running calls
    finish, and all errors are returned. So there is at most one more failure than successes, for
    any number of items.
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
