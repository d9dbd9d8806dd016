"""A bare HTTP client: as little as a client can do, so that what it reaches is the server's limit.

Nothing of the operator's own client is used here, which is a part of what is measured.
"""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from tests.bench.benchmark import BenchmarkError
from tests.bench.server.metrics import Requests, parse_requests
from tests.cluster import ControlPlane

IN_FLIGHT = 32
"""Requests at the same time; the operator's own limit of writes."""


class BareClient:
    """Requests to the API server of a control plane, with all rights."""

    def __init__(self, control_plane: ControlPlane) -> None:
        access = control_plane.client
        self._server = access.server
        context = ssl.create_default_context(cafile=str(access.certificate))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=context),
            headers={"Authorization": f"Bearer {access.token}"},
            timeout=aiohttp.ClientTimeout(total=60),
        )
        self.pod_lists = 0
        """Lists of pods that this client has asked for: to be taken off the server's count."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def get(self, path: str) -> Any:
        """Return the object at a path, None where there is none."""
        content = await self._request("GET", path, expected=(200, 404))
        return None if content is None else json.loads(content)

    async def post(self, path: str, body: bytes) -> None:
        """Create an object."""
        await self._request("POST", path, body, expected=(201,))

    async def create(self, path: str, manifest: dict[str, Any]) -> dict[str, Any]:
        """Create an object and return it as stored."""
        content = await self._request("POST", path, json.dumps(manifest).encode(), expected=(201,))
        stored: dict[str, Any] = json.loads(content or b"")
        return stored

    async def patch(self, path: str, change: dict[str, Any]) -> None:
        """Change an object, or its status, by a strategic merge patch."""
        content_type = "application/strategic-merge-patch+json"
        await self._request("PATCH", path, json.dumps(change).encode(), content_type=content_type)

    async def delete(self, path: str) -> None:
        """Delete an object."""
        await self._request("DELETE", path, expected=(200, 202))

    async def _request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        content_type: str = "application/json",
        expected: Collection[int] = (200,),
    ) -> bytes | None:
        """Return the server's answer, unparsed; None: 404."""
        async with self._session.request(
            method, self._server + path, data=body, headers={"Content-Type": content_type}
        ) as response:
            content = await response.read()
            if response.status not in expected:
                raise BenchmarkError(f"{method} {path}: {response.status} {content[:300]!r}")
            return None if response.status == 404 else content

    @asynccontextmanager
    async def watch(self, path: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Watch a collection: within the block, iterate over its events.

        What exists already is `ADDED` first. It is listed: a watch without a version may time out
        on etcd 3.4, and one that the server ends among its first events, which are in no order,
        cannot continue. The server ends watches that are old or too slow; they continue.
        """
        if path.endswith("/pods"):
            self.pod_lists += 1
        existing = await self.get(path)
        async with AsyncExitStack() as stack:

            async def begin(version: str) -> aiohttp.ClientResponse:
                response = await stack.enter_async_context(
                    self._session.get(
                        f"{self._server}{path}?watch=true&resourceVersion={version}",
                        timeout=aiohttp.ClientTimeout(total=None),
                    )
                )
                if response.status != 200:
                    raise BenchmarkError(f"watching {path}: {response.status}")
                return response

            async def events(
                response: aiohttp.ClientResponse, version: str
            ) -> AsyncIterator[dict[str, Any]]:
                for item in existing["items"]:
                    yield {"type": "ADDED", "object": item}
                while True:
                    rest = b""
                    async for chunk in response.content.iter_any():
                        *lines, rest = (rest + chunk).split(b"\n")
                        for line in lines:
                            event = orjson.loads(line)
                            if event["type"] == "ERROR":
                                raise BenchmarkError(f"watching {path}: {event['object']}")
                            version = event["object"]["metadata"]["resourceVersion"]
                            yield event
                    response = await begin(version)

            listed = existing["metadata"]["resourceVersion"]
            yield events(await begin(listed), listed)

    async def post_all(self, path: str, bodies: Iterable[bytes]) -> None:
        """Create many objects, `IN_FLIGHT` at the same time."""
        waiting = iter(bodies)

        async def work() -> None:
            for body in waiting:
                await self.post(path, body)

        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(work())

    async def count_pods(self, namespace: str = "") -> int:
        """Count a namespace's pods, or all, at the price of listing one of them."""
        self.pod_lists += 1
        within = f"namespaces/{namespace}/" if namespace else ""
        answer = await self.get(f"/api/v1/{within}pods?limit=1")
        return len(answer["items"]) + int(answer["metadata"].get("remainingItemCount") or 0)

    async def requests(self) -> Requests:
        """Return how many requests the server has counted since it started, but for this client's
        looks at the pods.
        """
        lists = self.pod_lists
        async with self._session.get(f"{self._server}/metrics") as response:
            counted = parse_requests(await response.text())
        counted[("LIST", "pods")] -= lists
        return counted

    async def settle(self, *, quiet_seconds: float = 2.0, deadline_seconds: float = 90.0) -> None:
        """Wait until nobody has written anything, events included, for a while."""
        end = time.monotonic() + deadline_seconds
        last, since = -1, time.monotonic()
        while time.monotonic() - since < quiet_seconds:
            async with self._session.get(f"{self._server}/metrics") as response:
                writes = sum(parse_requests(await response.text()).writes(events=True).values())
            if writes != last:
                last, since = writes, time.monotonic()
            if time.monotonic() > end:
                raise BenchmarkError(f"still being written to after {deadline_seconds:g} s")
            await asyncio.sleep(quiet_seconds / 8)


async def wait_for(
    condition: Callable[[], Awaitable[bool]],
    *,
    what: str,
    deadline_seconds: float = 120.0,
    interval_seconds: float = 0.02,
    alive: Sequence[Callable[[], None]] = (),
) -> None:
    """Wait until a condition holds; each of `alive` may raise what makes waiting pointless."""
    end = time.monotonic() + deadline_seconds
    while not await condition():
        for check in alive:
            check()
        if time.monotonic() > end:
            raise BenchmarkError(f"{what}: not within {deadline_seconds:g} s")
        await asyncio.sleep(interval_seconds)
