"""The loop that skips waiting: sleeps take no time, sockets and threads do."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.unit.fast_loop import FastLoop, loop_now


def run(main: Callable[[], Any]) -> Any:
    with asyncio.Runner(loop_factory=FastLoop) as runner:
        return runner.run(main())


def test_sleep_of_an_hour_takes_no_time() -> None:
    async def sleep() -> float:
        began = loop_now()
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(60))
        return (loop_now() - began).total_seconds()

    began = time.monotonic()
    assert run(sleep) == pytest.approx(3600, abs=5)
    assert time.monotonic() - began < 5


def test_timeout_does_not_expire_while_a_thread_works() -> None:
    async def work() -> str:
        async with asyncio.timeout(60):
            await asyncio.to_thread(time.sleep, 0.1)
        return "in time"

    assert run(work) == "in time"


def test_timeout_does_not_expire_before_a_response_arrives() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await asyncio.sleep(5)
        writer.write(await reader.readline())
        writer.close()

    async def talk() -> Mapping[str, bytes]:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        async with server, asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"one\ntwo\n")
            lines = {"at once": await reader.readline(), "later": await reader.readline()}
            writer.close()
        return lines

    assert run(talk) == {"at once": b"one\n", "later": b"two\n"}
