"""Liveness and readiness of the operator, for the kubelet's probes."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from aiohttp import web
from ddp_protocol.server.refusals import RefusalLog

from ddp_operator.endpoints.listening import listening


class HealthEndpoint:
    """Alive while the event loop runs, ready when set so."""

    def __init__(self) -> None:
        self.ready: Callable[[], bool] = lambda: False

    def serving(self, port: int) -> AbstractAsyncContextManager[None]:
        """Serve on a port during the block; port 0 turns it off.

        Raises `ListenError` if the port is not available.
        """
        routes = [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)]
        return listening(routes, port, flag="--health-port", refusals=RefusalLog())

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if self.ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not watching yet\n")
