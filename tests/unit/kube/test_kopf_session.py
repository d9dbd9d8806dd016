"""Requests of kopf: incomplete responses count as lost connections, and lists come in pages of
limited size.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import aiohttp
import kopf
import pytest
from ddp_operator.api.constants import GROUP, PLURAL, VERSION
from ddp_operator.kube import MAX_PAGE_BYTES, PAGE_SIZE, Connection, Resource
from ddp_operator.kube.kopf_session import session_for
from ddp_operator.process.handlers import settings

from tests.unit.kube.fake_api_server import FakeApiServer

JOBS = Resource(GROUP, VERSION, PLURAL)


LIST = {"kind": "DDPJobList", "items": []}


def answer(content: Any, *, status: str = "200 OK") -> bytes:
    """Return a server's response."""
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


WHOLE = answer(LIST)
PART = WHOLE[:-7]
HEAD = WHOLE[: WHOLE.index(b"{")]


@asynccontextmanager
async def server(*answers: bytes) -> AsyncIterator[str]:
    """Yield the URL of a server that sends each connection the next response, and closes it."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(left.pop(0))
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
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


async def test_incomplete_response_is_a_lost_connection() -> None:
    async with server(PART, WHOLE) as url, session_for(connection(url), JOBS) as session:
        with pytest.raises(aiohttp.ClientConnectionError, match="the response broke off"):
            await session.get(f"{url}/list")
        async with session.get(f"{url}/list") as response:
            assert await response.json() == LIST


async def test_kopf_repeats_a_request_after_an_incomplete_response() -> None:
    """Use kopf's own client, like its scan for resources and its lists of jobs."""
    from kopf._cogs.clients import api, auth  # noqa: PLC0415

    async with server(PART, HEAD, WHOLE) as url, session_for(connection(url), JOBS) as session:
        settings = kopf.OperatorSettings()
        settings.networking.error_backoffs = [0, 0]
        info = kopf.AiohttpSession(server=url, aiohttp_session=session)
        response = await api.request(
            method="get",
            url="/list",
            settings=settings,
            logger=logging.getLogger(__name__),
            context=auth.APIContext(info),
        )
        assert await response.json() == LIST


async def test_kopf_scans_until_the_server_knows_the_crd() -> None:
    """kopf scans only once. A starting server learns of CRDs after its first responses."""
    from kopf._cogs.clients import auth, scanning  # noqa: PLC0415
    from kopf._cogs.structs import credentials  # noqa: PLC0415

    version = {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}
    group = {"name": GROUP, "versions": [version], "preferredVersion": version}
    kind = {
        "kind": "DDPJob",
        "name": PLURAL,
        "singularName": "ddpjob",
        "namespaced": True,
        "verbs": ["list", "watch", "patch"],
    }
    answers = (
        answer({"groups": [{**group, "name": "apps"}]}),
        answer({"groups": [group]}),
        answer({"kind": "Status", "code": 404}, status="404 Not Found"),
        answer({"resources": [kind]}),
    )
    async with server(*answers) as url, session_for(connection(url), JOBS) as session:
        chosen = kopf.OperatorSettings()
        chosen.networking.error_backoffs = [0]
        info = kopf.AiohttpSession(server=url, aiohttp_session=session)
        auth.vault_var.set(credentials.Vault({"the session": info}))
        logger = logging.getLogger(__name__)
        resources = await scanning.scan_resources(groups={GROUP}, settings=chosen, logger=logger)
    assert [(one.group, one.plural) for one in resources] == [(GROUP, PLURAL)]


async def test_watch_is_read_before_it_is_complete() -> None:
    async with (
        server(PART) as url,
        session_for(connection(url), JOBS) as session,
        session.get(f"{url}/jobs?watch=true") as response,
    ):
        assert await response.content.read(7) == b'{"kind"'
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.read()


async def jobs_listed(url: str) -> list[str]:
    """Return the names that kopf's own watch reports until the list is complete."""
    from kopf._cogs.clients import auth, watching  # noqa: PLC0415
    from kopf._cogs.structs import credentials, references  # noqa: PLC0415

    names: list[str] = []
    async with session_for(connection(url), JOBS) as session:
        info = kopf.AiohttpSession(server=url, aiohttp_session=session)
        auth.vault_var.set(credentials.Vault({"the session": info}))
        resource = references.Resource(GROUP, VERSION, PLURAL, namespaced=True)
        watch = cast(
            AsyncGenerator[Any, None],
            watching.infinite_watch(settings=settings(), resource=resource, namespace=None),
        )
        async with asyncio.timeout(60), aclosing(watch) as events:
            async for event in events:
                if event is watching.Bookmark.LISTED:
                    break
                names.append(event["object"]["metadata"]["name"])
    return names


def with_jobs(server: FakeApiServer, count: int) -> list[str]:
    names = [f"job-{i}" for i in range(count)]
    for name in names:
        server.create(PLURAL, {"metadata": {"namespace": "default", "name": name}})
    return names


async def test_kopf_lists_jobs_in_pages() -> None:
    async with FakeApiServer().running() as server:
        names = with_jobs(server, 2 * PAGE_SIZE + 1)
        assert await jobs_listed(server.url) == names
        lists = [request.query for request in server.requests if "watch" not in request.query]
    assert [query["limit"] for query in lists] == 3 * [str(PAGE_SIZE)]
    assert ["continue" in query for query in lists] == [False, True, True]


async def test_kopf_lists_large_jobs_in_smaller_pages() -> None:
    async with FakeApiServer().running() as server:
        names = with_jobs(server, 2 * PAGE_SIZE)
        for name in names[100:108]:
            server.update(PLURAL, "default", name, {"spec": {"x": "x" * (MAX_PAGE_BYTES // 3)}})
        assert await jobs_listed(server.url) == names
        lists = [request.query for request in server.requests if "watch" not in request.query]
    limits = {query.get("continue"): int(query["limit"]) for query in lists}  # the last try of each
    assert len(lists) > len(limits)
    begin = 0
    for limit in limits.values():
        assert sum(100 <= i < 108 for i in range(begin, begin + limit)) <= 2
        begin += limit
    assert int(lists[-1]["limit"]) == PAGE_SIZE


async def test_kopf_lists_again_after_its_list_expired_between_pages() -> None:
    async with FakeApiServer().running() as server:
        names = with_jobs(server, PAGE_SIZE + 1)

        def expire(page: int) -> None:
            server.before_page = lambda _page: None
            assert page == 0
            server.update(PLURAL, "default", names[0], {"spec": {}})
            server.compact()

        server.before_page = expire
        listed = await jobs_listed(server.url)
    assert listed == names[:PAGE_SIZE] + names
