"""Programs run in pods, and ports of pods, through the API server.

Both are WebSockets whose messages begin with the number of a channel, by Kubernetes' subprotocols
(k8s.io/apimachinery, package wsstream). v5 of the one for programs can end their input; servers
before 1.30 speak v4.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import aiohttp

from ddp_operator.kube.client import ApiClient
from ddp_operator.kube.errors import AnswerTooLargeError
from ddp_operator.kube.resources import PODS
from ddp_operator.ports import InvalidError, Key, UnavailableError

_V4: Final = "v4.channel.k8s.io"
_V5: Final = "v5.channel.k8s.io"
_CLOSE: Final = 255
"""v5: the byte after it names a channel that has ended."""
_FAILURES: Final = (aiohttp.ClientError, OSError)
_PIECE: Final = 32 * 1024
"""Bytes sent at once: less than any proxy refuses."""


class Stream(IntEnum):
    """The channels of a program: its file descriptors, how it ended, the size of its terminal."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    END = 3
    RESIZE = 4


@dataclass(frozen=True)
class Ran:
    """What a program printed, and how it ended."""

    stdout: bytes
    stderr: bytes
    exit_code: int


class Program:
    """A program that runs in a pod. Iterate over what it prints until it ends."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.exit_code: int | None = None
        """Known once the iteration is over."""

    async def output(self) -> AsyncGenerator[tuple[Stream, bytes], None]:
        """Yield what it prints, piece by piece.

        Raises:
            UnavailableError: the connection broke before the program had ended.
            InvalidError: it could not be started, or its end is not known.
        """
        async for channel, content in _messages(self._socket):
            if channel == Stream.END:
                self.exit_code = _exit_code(content)
            elif content and channel in (Stream.STDOUT, Stream.STDERR):
                yield Stream(channel), content
        if self.exit_code is None:
            raise UnavailableError("the connection to the pod broke before the program had ended")

    async def write(self, content: bytes) -> None:
        """Send it input; in vain once it has ended."""
        await _send(self._socket, Stream.STDIN, content)

    async def end_input(self) -> bool:
        """Tell it that no more input comes; False where the server has no way to say so."""
        if self._socket.protocol != _V5:
            return False
        with contextlib.suppress(*_FAILURES):
            await self._socket.send_bytes(bytes((_CLOSE, Stream.STDIN)))
        return True

    async def resize(self, columns: int, rows: int) -> None:
        """Tell it how large its terminal is."""
        size = json.dumps({"Width": columns, "Height": rows}).encode()
        await _send(self._socket, Stream.RESIZE, size)


@contextlib.asynccontextmanager
async def open_exec(
    client: ApiClient,
    pod: Key,
    container: str,
    command: Sequence[str],
    *,
    stdin: bool = False,
    tty: bool = False,
) -> AsyncIterator[Program]:
    """Start a program in a container; with a terminal, its errors are among its output.

    Raises:
        ClusterError: the API server refuses it, or there is no such pod.
    """
    wanted = {"stdin": stdin, "stdout": True, "stderr": not tty, "tty": tty}
    params = [("container", container), *(("command", word) for word in command)]
    params += [(name, "true") for name, value in wanted.items() if value]
    path = PODS.path(namespace=pod.namespace, name=pod.name, subresource="exec")
    async with client.websocket(path, params=params, protocols=(_V5, _V4)) as socket:
        yield Program(socket)


async def run_in_pod(
    client: ApiClient,
    pod: Key,
    container: str,
    command: Sequence[str],
    *,
    limit_bytes: int,
    timeout_seconds: float,
) -> Ran:
    """Run a program to its end, and return what it printed.

    Raises:
        AnswerTooLargeError: it printed more than `limit_bytes`.
        ClusterError: it could not be run, its end is not known, or the time was over.
    """
    printed = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
    try:
        async with (
            asyncio.timeout(timeout_seconds),
            open_exec(client, pod, container, command) as program,
            contextlib.aclosing(program.output()) as output,
        ):
            async for stream, content in output:
                printed[stream] += content
                if sum(map(len, printed.values())) > limit_bytes:
                    raise AnswerTooLargeError(
                        f"pod {pod.name} printed more than {limit_bytes} bytes"
                    )
    except TimeoutError:
        raise UnavailableError(
            f"pod {pod.name}: {command[0]} had not ended after {timeout_seconds:g} s"
        ) from None
    assert program.exit_code is not None  # or `output` has raised
    return Ran(bytes(printed[Stream.STDOUT]), bytes(printed[Stream.STDERR]), program.exit_code)


class Port:
    """One connection to a port of a pod."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, port: int) -> None:
        self._socket = socket
        self._number = port.to_bytes(2, "little")

    async def received(self) -> AsyncGenerator[bytes, None]:
        """Yield what the pod sends until it ends the connection.

        Raises:
            UnavailableError: nobody listens on the port, or the connection broke.
        """
        begun: set[int] = set()
        async for channel, content in _messages(self._socket):
            rest = content
            if channel not in begun:  # each channel begins with the port's number
                begun.add(channel)
                if not content.startswith(self._number):
                    raise UnavailableError("the server answers for another port")
                rest = content[2:]
            if rest and channel == 0:
                yield rest
            elif rest:
                raise UnavailableError(rest[:512].decode(errors="replace"))

    async def write(self, content: bytes) -> None:
        """Send to the pod; in vain once the connection is over."""
        await _send(self._socket, 0, content)


@contextlib.asynccontextmanager
async def open_port(client: ApiClient, pod: Key, port: int) -> AsyncIterator[Port]:
    """Connect to a port of a pod; nothing is known yet of whether anybody listens there.

    Raises:
        ClusterError: the API server refuses it, or there is no such pod.
    """
    path = PODS.path(namespace=pod.namespace, name=pod.name, subresource="portforward")
    params = [("ports", str(port))]
    async with client.websocket(path, params=params, protocols=(_V4,)) as socket:
        yield Port(socket, port)


async def _messages(
    socket: aiohttp.ClientWebSocketResponse,
) -> AsyncGenerator[tuple[int, bytes], None]:
    async for message in socket:
        if message.type is aiohttp.WSMsgType.BINARY and message.data:
            channel, content = message.data[0], message.data[1:]
            if channel != _CLOSE:
                yield channel, content
        elif message.type is aiohttp.WSMsgType.ERROR:
            raise UnavailableError(f"the connection to the pod broke: {message.data}")


async def _send(socket: aiohttp.ClientWebSocketResponse, channel: int, content: bytes) -> None:
    with contextlib.suppress(*_FAILURES):
        for at in range(0, len(content), _PIECE):
            await socket.send_bytes(bytes((channel,)) + content[at : at + _PIECE])


def _exit_code(content: bytes) -> int:
    """Of the Status object that ends a program.

    Raises:
        InvalidError: it could not be started; the text says why.
    """
    try:
        status: Any = json.loads(content)
        if status["status"] == "Success":
            return 0
        if status.get("reason") == "NonZeroExitCode":
            causes = status["details"]["causes"]
            return next(int(c["message"]) for c in causes if c["reason"] == "ExitCode")
        raise InvalidError(str(status.get("message"))[:1024])
    except (ValueError, KeyError, TypeError, StopIteration, AttributeError, RecursionError):
        said = content[:512].decode(errors="replace")
        raise InvalidError(f"the program's end is not known: {said}") from None
