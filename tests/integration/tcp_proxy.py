"""A TCP proxy between a client and the API server, for what networks do: cut, and fall silent."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class TcpProxy:
    """Forwards bytes both ways; TLS passes through untouched."""

    def __init__(self, server: str) -> None:
        target = urlsplit(server)
        assert target.hostname is not None
        assert target.port is not None
        self._target = (target.hostname, target.port)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._connections: set[asyncio.Task[None]] = set()
        self.accepted = 0
        self.url = ""

    def cut(self) -> None:
        """Break every connection; new ones are welcome."""
        for connection in list(self._connections):
            connection.cancel()

    def silence(self) -> None:
        """Keep all connections, old and new, and forward nothing from now on."""
        self._flowing.clear()

    def resume(self) -> None:
        """Forward again, what had arrived meanwhile included."""
        self._flowing.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["TcpProxy"]:
        """Listen on a free port of loopback."""
        listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            listener.close()
            self.cut()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connection(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        self.accepted += 1

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_writer = None
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, upstream_writer))
                both.create_task(self._pump(upstream_reader, writer))
        except (OSError, asyncio.CancelledError, ExceptionGroup):
            pass
        finally:
            for end in (writer, upstream_writer):
                if end is not None:
                    end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError  # one half closed: end the other
