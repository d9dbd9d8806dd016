"""Waiting for a condition in asynchronous tests."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]],
    *,
    timeout_seconds: float = 180.0,
    interval_seconds: float = 0.01,
    describe: Callable[[], object] = lambda: "",
) -> None:
    """Return once `condition` holds; it may be a coroutine function.

    Raises AssertionError after `timeout_seconds`, with the text of `describe`.
    """
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    while True:
        holds = condition()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        if asyncio.get_running_loop().time() >= deadline:
            raise AssertionError(f"not within {timeout_seconds:g} s {describe()}".rstrip())
        await asyncio.sleep(interval_seconds)
