"""An HTTP proxy between the operator and the API server.

It records requests, answers some of them like an overloaded or dying server, and cuts or silences
connections.
"""

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web

_WRITES: Final = frozenset({"POST", "PATCH", "PUT", "DELETE"})
# Headers of one connection (RFC 9110, section 7.6.1), or wrong after a body is unpacked.
_NOT_FORWARDED: Final = frozenset(
    {"connection", "transfer-encoding", "content-length", "content-encoding", "host"}
)


@dataclass(frozen=True)
class Seen:
    """A request, and the status of its answer."""

    method: str
    path: str
    status: int
    watch: bool = False

    @property
    def is_write(self) -> bool:
        """Return whether it changes stored objects; some questions are a POST, too."""
        return self.method in _WRITES and "/selfsubjectaccessreviews" not in self.path

    @property
    def about_event(self) -> bool:
        """Return whether it is about a Kubernetes Event."""
        return self.path.endswith("/events")


Matches = Callable[[Seen], bool]
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def write(method: str, ending: str) -> Matches:
    """Match requests of one method with this end of the path."""
    return lambda seen: seen.method == method and seen.path.endswith(ending)


def any_write(seen: Seen) -> bool:
    """Match every write except those of Events."""
    return seen.is_write and not seen.about_event


class HttpProxy:
    """Forwards requests to `server`, except those that a test makes fail."""

    def __init__(self, server: str, certificate: ssl.SSLContext) -> None:
        self._server = server
        self._certificate = certificate
        self._faults: list[tuple[Matches, Answer]] = []
        self._requests: list[web.Request] = []  # requests are unhashable
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._session: aiohttp.ClientSession | None = None
        self.seen: list[Seen] = []
        self.accepted = 0
        self.url = ""
        self.open = True
        self.on_write: Callable[[Seen], None] = lambda _: None

    @property
    def faults_left(self) -> int:
        """Return how many of the added faults have not happened yet."""
        return len(self._faults)

    def refuse(
        self, matches: Matches, *, times: int, status: int, headers: dict[str, str] | None = None
    ) -> None:
        """Refuse the next matching requests without forwarding them."""

        async def refused(_: web.Request) -> web.StreamResponse:
            body = {"kind": "Status", "code": status, "message": "refused by the test"}
            return web.json_response(body, status=status, headers=headers)

        self._faults += [(matches, refused)] * times

    def lose_answers(self, matches: Matches, *, times: int) -> None:
        """Forward the next matching requests, and break the connection instead of answering."""

        async def lost(request: web.Request) -> web.StreamResponse:
            return _broken(request, (await self._forward(request)).status)

        self._faults += [(matches, lost)] * times

    def expire_watches(self, *, times: int) -> None:
        """Answer the next watches with the error for an expired resource version."""

        async def expired(_: web.Request) -> web.StreamResponse:
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            line = json.dumps({"type": "ERROR", "object": status}) + "\n"
            return web.Response(text=line, content_type="application/json")

        self._faults += [(lambda seen: seen.watch, expired)] * times

    def cut(self) -> None:
        """Break all connections with open requests, such as watches."""
        for request in list(self._requests):
            _broken(request)

    def silence(self) -> None:
        """Keep all connections, old and new, but forward nothing from now on."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward again, including what arrived in the meantime."""
        self._flowing.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["HttpProxy"]:
        """Listen on a free port of loopback."""
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        connector = aiohttp.TCPConnector(ssl=self._certificate, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            self._session = session
            try:
                yield self
            finally:
                self.resume()
                self.cut()
                await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.accepted += 1
        self._requests.append(request)
        try:
            return await self._answer(request)
        finally:
            self._requests.remove(request)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        await self._flowing.wait()
        if not self.open:
            return _broken(request)
        watch = request.query.get("watch") == "true"
        seen = Seen(request.method, request.path, 0, watch)
        fault = next((fault for fault in self._faults if fault[0](seen)), None)
        answer: Answer = self._forward
        if fault is not None:
            self._faults.remove(fault)
            answer = fault[1]
        if watch and fault is None:
            return await self._stream(request)
        response = await answer(request)
        seen = replace(seen, status=response.status)
        self.seen.append(seen)
        if seen.is_write:
            self.on_write(seen)
        return response if self.open else _broken(request)

    def _send(self, request: web.Request, body: bytes) -> "aiohttp.client._RequestContextManager":
        assert self._session is not None
        return self._session.request(
            request.method,
            self._server + request.path_qs,
            data=body or None,
            headers=_forwarded(request.headers.items()),
        )

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        async with self._send(request, await request.read()) as answer:
            return web.Response(
                status=answer.status,
                body=await answer.read(),
                headers=_forwarded(answer.headers.items()),
            )

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        async with self._send(request, b"") as answer:
            self.seen.append(Seen(request.method, request.path, answer.status, watch=True))
            headers = _forwarded(answer.headers.items())
            response = web.StreamResponse(status=answer.status, headers=headers)
            try:
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await self._flowing.wait()
                    await response.write(chunk)
            except ConnectionResetError:
                return _broken(request)
            return response


def _broken(request: web.Request, status: int = 499) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=status)


def _forwarded(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name: value for name, value in headers if name.lower() not in _NOT_FORWARDED}


@contextlib.asynccontextmanager
async def http_proxy(kubeconfig: Path, target: Path) -> AsyncIterator[HttpProxy]:
    """Run a proxy to the server of `kubeconfig`, and write the proxy's kubeconfig to `target`."""
    config = json.loads(await asyncio.to_thread(kubeconfig.read_text))
    cluster = config["clusters"][0]["cluster"]
    certificate = await asyncio.to_thread(_trusting, cluster.pop("certificate-authority-data"))
    async with HttpProxy(cluster["server"], certificate).running() as proxy:
        cluster["server"] = proxy.url
        await asyncio.to_thread(target.write_text, json.dumps(config))
        yield proxy


def _trusting(authority: str) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=base64.b64decode(authority).decode())
