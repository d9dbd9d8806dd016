"""A trainer as the operator sees it: a small HTTP server on loopback with chosen responses."""

from collections.abc import Callable
from typing import Any, Final, Self

from aiohttp import web

ENDLESS: Final = "endless"


class TrainerServer:
    """Serves the paths of a launcher while its context lasts. Its responses may change."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] | Callable[[], web.Response] | str = {"step": 1}
        """A JSON object, a function that returns a response, or ENDLESS."""
        self.dump_status = 202
        self.dump_headers: dict[str, str] = {}
        self.traces: tuple[int, bytes] = 404, b""
        """Status and content of the response to GET /traces."""
        self.asked: list[str] = []
        self.world: tuple[int, bytes] | Callable[[bytes], bytes] = 200, b'{"generation": 1}'
        """Status and content of the response to PUT and GET /world, or a function that returns the
        content by the request's body."""
        self.documents: list[bytes] = []
        """Bodies of the PUT requests."""
        self.tokens: list[str] = []
        """The Authorization header of each request, except those for the status."""
        self.address = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        posts = (web.post(path, self._accept) for path in ("/dump-stacks", "/checkpoint"))
        world = web.route("*", "/world", self._answer_of_world)
        traces = web.get("/traces", self._answer_with_traces)
        app.add_routes([web.get("/status", self._status), traces, world, *posts])
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def port(self) -> int:
        """The job's `statusPort` with this server."""
        return int(self.address.rpartition(":")[2])

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _status(self, request: web.Request) -> web.StreamResponse:
        self.asked.append("status")
        if isinstance(self.answer, dict):
            return web.json_response(self.answer)
        if callable(self.answer):
            return self.answer()
        response = web.StreamResponse()
        await response.prepare(request)
        while True:  # until the client closes the connection
            await response.write(b" " * 65536)

    async def _answer_of_world(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path_qs}")
        self.tokens.append(request.headers.get("Authorization", ""))
        document = await request.read()
        self.documents.append(document)
        status, content = (200, self.world(document)) if callable(self.world) else self.world
        return web.Response(status=status, body=content)

    async def _answer_with_traces(self, request: web.Request) -> web.Response:
        self.asked.append("traces")
        self.tokens.append(request.headers.get("Authorization", ""))
        status, content = self.traces
        return web.Response(status=status, body=content)

    async def _accept(self, request: web.Request) -> web.Response:
        self.asked.append(request.path.removeprefix("/"))
        self.tokens.append(request.headers.get("Authorization", ""))
        return web.Response(status=self.dump_status, headers=self.dump_headers)
