"""Whether the operator is alive and ready, for the kubelet to ask."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from aiohttp import web

from ddp_operator.endpoints.listening import listening


class HealthEndpoint:
    """Alive while the event loop turns, ready when told so."""

    def __init__(self) -> None:
        self.ready: Callable[[], bool] = lambda: False

    def serving(self, port: int) -> AbstractAsyncContextManager[None]:
        """Answer on a port for the length of the block; 0: not at all.

        Raises `ListenError` when the port cannot be had.
        """
        routes = [web.get("/healthz", self._healthz), web.get("/readyz", self._readyz)]
        return listening(routes, port, flag="--health-port")

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        if self.ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not watching yet\n")
