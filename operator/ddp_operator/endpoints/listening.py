"""Listens on a port during a block."""

import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from aiohttp import web


class ListenError(Exception):
    """The operator cannot listen on a port. The message says which and why, in one line."""


@asynccontextmanager
async def listening(
    routes: Iterable[web.AbstractRouteDef],
    port: int,
    *,
    flag: str,
    ssl_context: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Serve on a port during the block; port 0 turns it off.

    Raises:
        ListenError: the port is not available; `flag` chooses another one.
    """
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        if port:
            try:
                await web.TCPSite(runner, port=port, ssl_context=ssl_context).start()
            except OSError as error:
                reason = error.strerror or error
                raise ListenError(f"cannot listen on port {port} ({flag}): {reason}") from error
        yield
    finally:
        await runner.cleanup()
