"""Programs and ports of pods, as a kubelet serves them over WebSockets.

Written from the description of the subprotocols (k8s.io/apimachinery, package wsstream) and of
remotecommand's Status, not from the client.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from aiohttp import WSMsgType, web


class ProgramRun:
    """A run of a fake program: its command, input and output."""

    def __init__(self, socket: web.WebSocketResponse, command: Sequence[str], tty: bool) -> None:
        self._socket = socket
        self.command = command
        self.tty = tty
        self.sizes: list[tuple[int, int]] = []

    async def print(self, text: bytes, *, error: bool = False) -> None:
        await self._socket.send_bytes(bytes((2 if error else 1,)) + text)

    async def input(self) -> AsyncIterator[bytes]:
        """Yield the input, until its end (v5) or the end of the connection."""
        async for message in self._socket:
            if message.type is not WSMsgType.BINARY:
                continue
            if message.data[0] == 255:
                return
            if message.data[0] == 4:
                size = json.loads(message.data[1:])
                self.sizes.append((size["Width"], size["Height"]))
            if message.data[0] == 0:
                yield message.data[1:]

    async def break_connection(self) -> None:
        await self._socket.close()


FakeProgram = Callable[[ProgramRun], Awaitable[int]]
"""Prints, reads, and returns its exit code; below zero: it could not start."""


@dataclass
class FakePort:
    """Echoes in capitals, or has no listener."""

    listens: bool = True


async def serve_program(
    request: web.Request, program: FakeProgram, protocols: Sequence[str]
) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(protocols=protocols)
    await socket.prepare(request)
    command = request.query.getall("command")
    code = await program(ProgramRun(socket, command, request.query.get("tty") == "true"))
    end: dict[str, object] = {"metadata": {}, "status": "Success"}
    if code < 0:
        end = {"status": "Failure", "reason": "InternalError", "message": "no such executable"}
    elif code:
        cause = {"reason": "ExitCode", "message": str(code)}
        end = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}
    with contextlib.suppress(ConnectionError):  # the client may have left
        if not socket.closed:
            await socket.send_bytes(b"\x03" + json.dumps(end).encode())
    await socket.close()
    return socket


async def serve_port(request: web.Request, port: FakePort) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
    await socket.prepare(request)
    number = int(request.query["ports"]).to_bytes(2, "little")
    await socket.send_bytes(b"\x00" + number)
    await socket.send_bytes(b"\x01" + number)
    if not port.listens:
        await socket.send_bytes(b"\x01connection refused")
        await socket.close()
        return socket
    async for message in socket:
        if message.type is WSMsgType.BINARY and message.data[0] == 0:
            await socket.send_bytes(b"\x00" + message.data[1:].upper())
            if message.data.endswith(b"bye"):
                await socket.close()
    return socket
