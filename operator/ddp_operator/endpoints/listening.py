"""Listening on a port, for as long as it takes."""

import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from aiohttp import web


class ListenError(Exception):
    """A port cannot be listened on; the message says in one line which, and why."""


@asynccontextmanager
async def listening(
    routes: Iterable[web.AbstractRouteDef],
    port: int,
    *,
    flag: str,
    ssl_context: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Answer on a port for the length of the block; 0: not at all.

    Raises:
        ListenError: the port cannot be had; `flag` is what chooses another one.
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
