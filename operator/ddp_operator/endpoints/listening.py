"""Listens on a port during a block, with limits on the time, size and number of requests.

Any pod of the cluster may connect. Without limits, some hundred connections with unfinished headers
would take more memory than the operator has.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web
from ddp_protocol.server.connections import Connections
from ddp_protocol.server.refusals import RefusalLog

_CONNECTIONS: Final = 64
_HEADER_SECONDS: Final = 3.0
"""Limit for the handshake of TLS, for the headers of a request, and between two requests."""
_CONNECTION_SECONDS: Final = 10.0
"""Limit for everything on one connection. Prometheus waits ten seconds by default."""
_FIELD_BYTES: Final = 4096
"""Limit of one header. Tokens of service accounts have about 1,000 bytes."""
_HEADERS: Final = 24
_RECEIVE_BYTES: Final = 16 * 1024
"""Size of the kernel's buffer for each connection: asyncio reads all that is in it at once."""
_BACKLOG: Final = 512
_RETRY_SECONDS: Final = 0.1


class ListenError(Exception):
    """The operator cannot listen on a port. The message says which and why, in one line."""


@asynccontextmanager
async def listening(
    routes: Iterable[web.AbstractRouteDef],
    port: int,
    *,
    flag: str,
    refusals: RefusalLog,
    ssl_context: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Serve on a port during the block; port 0 turns it off.

    Raises:
        ListenError: the port is not available; `flag` chooses another one.
    """
    if not port:
        yield
        return
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    assert runner.server is not None
    try:
        try:
            listener = _listener(port)
        except OSError as error:
            reason = error.strerror or error
            raise ListenError(f"cannot listen on port {port} ({flag}): {reason}") from error
        with listener:
            acceptor = _Acceptor(listener, runner.server, refusals, ssl_context)
            accepting = asyncio.create_task(acceptor.accept())
            try:
                yield
            finally:
                accepting.cancel()
                await acceptor.close()
    finally:
        await runner.cleanup()


def _listener(port: int) -> socket.socket:
    """Listen on IPv6 and IPv4, or only on IPv4 if there is no IPv6."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return _bound(port, socket.AF_INET6)
    return _bound(port, socket.AF_INET)


def _bound(port: int, family: socket.AddressFamily) -> socket.socket:
    listener = socket.create_server(
        ("", port), family=family, backlog=_BACKLOG, dualstack_ipv6=family == socket.AF_INET6
    )
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    listener.setblocking(False)
    return listener


class _Acceptor:
    """Serves each connection in a task of its own, up to a limit of tasks."""

    def __init__(
        self,
        listener: socket.socket,
        server: web.Server,
        refusals: RefusalLog,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        self._listener = listener
        self._server = server
        self._refusals = refusals
        self._ssl = ssl_context
        self._connections = Connections[asyncio.Task[None]](_CONNECTIONS)
        self._tasks: set[asyncio.Task[None]] = set()
        """All tasks, those that end included."""

    async def accept(self) -> None:
        """Accept connections until this is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._listener)
            except OSError:  # the client is gone, or there are too many open files
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            task = asyncio.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
            closed = self._connections.add(task, address_of(address[0]))
            if closed:
                closed[0].cancel()
                self._refusals.add(closed[1], 0, "a connection", "too many connections")
            await asyncio.sleep(0)  # a flood of connections must not stop the event loop

    async def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # TimeoutError and SSLError, too
            async with asyncio.timeout(_CONNECTION_SECONDS):
                transport, protocol = await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: _Protocol(self._server, self._refusals),
                    connection,
                    ssl=self._ssl,
                    ssl_handshake_timeout=_HEADER_SECONDS if self._ssl else None,
                )
                try:
                    await protocol.ended.wait()
                finally:
                    transport.abort()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._connections.remove(task)

    async def close(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Protocol(web.RequestHandler):
    """A connection of aiohttp's server."""

    def __init__(self, server: web.Server, refusals: RefusalLog) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=_HEADER_SECONDS,  # it begins with the connection
            lingering_time=0.0,
            max_line_size=_FIELD_BYTES,
            max_field_size=_FIELD_BYTES,
            max_headers=_HEADERS,
            access_log=None,  # type: ignore[arg-type] # its own runner passes None, too
        )
        self._refusals = refusals
        self.ended = asyncio.Event()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.ended.set()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer and log invalid HTTP, for which the base class would log a traceback each time."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        self.close()  # ignores what else arrives
        if exc is not None:
            exc.__traceback__ = None  # it would keep what arrived until the next garbage collection
        reason = (message or "invalid HTTP").partition(":")[0].strip()  # without what was sent
        self._refusals.add(address_of(request.remote), status, "a request", reason)
        answer = web.Response(status=status, text=f"{reason}\n")
        answer.force_close()
        return answer


def address_of(remote: str | None) -> str:
    """Return the address of a client; of an IPv4 client on an IPv6 socket, its IPv4 address."""
    return (remote or "unknown").removeprefix("::ffff:")
