"""What kopf asks the API server with: answers come whole, or count as lost connections."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import kopf
import pytest
from ddp_operator.handlers import session_for
from ddp_operator.kube import Connection

WHOLE = b'{"kind": "DDPJobList", "items": []}'


@asynccontextmanager
async def server(*answers: bytes) -> AsyncIterator[str]:
    """A server that gives each connection the next answer, and closes it; its URL."""
    left = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
        length = f"Content-Length: {len(WHOLE)}\r\n\r\n".encode()
        writer.write(head + length + left.pop(0))
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


def connection(url: str) -> Connection:
    return Connection(
        server=url,
        ca_path=None,
        insecure=True,
        scheme=None,
        token="secret",
        certificate_path=None,
        private_key_path=None,
        default_namespace="default",
        proxy_url=None,
    )


async def test_an_answer_that_breaks_off_is_a_lost_connection() -> None:
    async with server(WHOLE[:7], WHOLE) as url, session_for(connection(url)) as session:
        with pytest.raises(aiohttp.ClientConnectionError, match="the answer broke off"):
            await session.get(f"{url}/apis")
        async with session.get(f"{url}/apis") as response:
            assert await response.json() == {"kind": "DDPJobList", "items": []}


async def test_kopf_asks_again_when_an_answer_breaks_off() -> None:
    """With kopf's own client, as its scan for resources and its lists of jobs use it."""
    from kopf._cogs.clients import api, auth  # noqa: PLC0415

    async with server(WHOLE[:7], b"", WHOLE) as url, session_for(connection(url)) as session:
        settings = kopf.OperatorSettings()
        settings.networking.error_backoffs = [0, 0]
        info = kopf.AiohttpSession(server=url, aiohttp_session=session)
        response = await api.request(
            method="get",
            url="/apis",
            settings=settings,
            logger=logging.getLogger(__name__),
            context=auth.APIContext(info),
        )
        assert await response.json() == {"kind": "DDPJobList", "items": []}


async def test_a_watch_is_read_as_it_comes() -> None:
    async with (
        server(WHOLE[:7]) as url,
        session_for(connection(url)) as session,
        session.get(f"{url}/jobs?watch=true") as response,
    ):
        assert await response.content.read(7) == WHOLE[:7]
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.read()
