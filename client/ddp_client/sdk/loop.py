"""An event loop in its own thread.

Synchronous code can call coroutines with it, also in a notebook, which runs a loop of its own.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import Any, Final, TypeVar

T = TypeVar("T")

_END_SECONDS: Final = 30.0


class Loop:
    """Runs coroutines for other threads, also concurrently."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon thread: a program that forgets to close can still end.
        self._thread = threading.Thread(target=self._loop.run_forever, name="ddp", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine's result; Ctrl-C cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("this call would deadlock: use AsyncClient in asynchronous code")
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError("this client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Yield items one by one, each read only on demand."""
        turn = asyncio.Lock()  # a cancelled read finishes before the generator is closed
        try:
            while (item := self.run(_next(items, turn))) is not None:
                yield item
        finally:
            if self._thread.is_alive():
                self.run(_end(items, turn))

    def close(self) -> None:
        """Cancel what still runs, and end the thread."""
        if not self._thread.is_alive():
            return
        self.run(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_SECONDS)
        self._loop.close()


async def _next(items: AsyncGenerator[T, None], turn: asyncio.Lock) -> T | None:
    async with turn:
        return await anext(items, None)


async def _end(items: AsyncGenerator[Any, None], turn: asyncio.Lock) -> None:
    async with turn:
        await items.aclose()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_END_SECONDS)
