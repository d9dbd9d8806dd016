"""What the operator answers over HTTP: whether it is alive and ready, and metrics."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from ddp_operator.engine.metrics import CONTENT_TYPE


class Health:
    """Alive while the event loop turns, ready when told so."""

    def __init__(self) -> None:
        self.ready: Callable[[], bool] = lambda: False
        self.metrics: Callable[[], str] = lambda: ""
        """In Prometheus' text format."""

    @asynccontextmanager
    async def serving(self, port: int) -> AsyncIterator[None]:
        """Answer on a port for the length of the block; 0: not at all."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
            ]
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            if port:
                await web.TCPSite(runner, port=port).start()
            yield
        finally:
            await runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if self.ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not watching yet\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        body = self.metrics().encode()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})
