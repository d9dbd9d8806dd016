"""A trainer as the operator sees it: a small HTTP server on loopback that says what it is told."""

from typing import Any, Self

from aiohttp import web


class TrainerServer:
    """Serves /status and /dump-stacks while its context lasts; `answer` and `dumps` may change."""

    def __init__(self) -> None:
        self.answer: web.Response | dict[str, Any] = {"step": 1}
        self.dump_status = 202
        self.asked: list[str] = []
        self.address = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.add_routes([web.get("/status", self._status), web.post("/dump-stacks", self._dump)])
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _status(self, request: web.Request) -> web.StreamResponse:
        self.asked.append("status")
        if isinstance(self.answer, dict):
            return web.json_response(self.answer)
        if self.answer.status == 102:  # never meant to be sent
            response = web.StreamResponse()
            await response.prepare(request)
            while True:  # until the other side has had enough
                await response.write(b" " * 65536)
        return self.answer

    async def _dump(self, _: web.Request) -> web.Response:
        self.asked.append("dump-stacks")
        return web.Response(status=self.dump_status)
