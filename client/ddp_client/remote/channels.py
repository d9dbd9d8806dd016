"""Runs programs in pods and connects to their ports, through the API server.

Both use WebSockets. Each message begins with a channel number, as in Kubernetes' subprotocols
(k8s.io/apimachinery, package wsstream). v5 of the exec protocol can end a program's input; servers
before 1.30 speak v4.
"""

import asyncio
import contextlib
import json
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeVar

import aiohttp
from ddp_operator.job.pods.state import PodState
from ddp_operator.kube.client import ApiClient
from ddp_operator.kube.errors import AnswerTooLargeError
from ddp_operator.kube.resources import PODS
from ddp_operator.ports import InvalidError, Key, UnavailableError

from ddp_client.remote.websocket import websocket

T = TypeVar("T")

_V4: Final = "v4.channel.k8s.io"
_V5: Final = "v5.channel.k8s.io"
_CLOSE: Final = 255
"""v5: the next byte names a channel that has ended."""
_FAILURES: Final = (aiohttp.ClientError, OSError)
AT_ONCE: Final = 8
"""Programs started in pods at the same time: all that they read and print passes the API server."""
_PIECE: Final = 32 * 1024
"""Bytes sent at once: less than any proxy refuses."""
RECEIVE: Final = """
import sys
def receive(file, left):
    while left:
        piece = sys.stdin.buffer.read1(min(left, 65536))
        if not piece:
            sys.exit("the connection ended early")
        file.write(piece)
        left -= len(piece)
"""
"""Begins a program for a pod: writes so many bytes of its input to a file."""


class Stream(IntEnum):
    """Channels of a program: its file descriptors, its exit status, the size of its terminal."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    END = 3
    RESIZE = 4


@dataclass(frozen=True)
class Ran:
    """Output and exit code of a program."""

    stdout: bytes
    stderr: bytes
    exit_code: int


class Program:
    """A program that runs in a pod. Iterate over its output until it ends."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.exit_code: int | None = None
        """Known once the iteration is over."""

    async def output(self) -> AsyncGenerator[tuple[Stream, bytes], None]:
        """Yield the program's output, piece by piece.

        Raises:
            UnavailableError: the connection broke before the program ended.
            InvalidError: the program could not start, or its exit code is unknown.
        """
        async for channel, content in _messages(self._socket):
            if channel == Stream.END:
                self.exit_code = _exit_code(content)
            elif content and channel in (Stream.STDOUT, Stream.STDERR):
                yield Stream(channel), content
        if self.exit_code is None:
            raise UnavailableError("the connection to the pod broke before the program ended")

    async def write(self, content: bytes) -> None:
        """Send input. No effect once the program has ended."""
        await _send(self._socket, Stream.STDIN, content)

    async def end_input(self) -> bool:
        """End the program's input. Return False if the server cannot do that."""
        if self._socket.protocol != _V5:
            return False
        with contextlib.suppress(*_FAILURES):
            await self._socket.send_bytes(bytes((_CLOSE, Stream.STDIN)))
        return True

    async def resize(self, columns: int, rows: int) -> None:
        """Set the size of the program's terminal."""
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
    """Start a program in a container. With a terminal, its errors are part of its output.

    Raises:
        ClusterError: the API server refuses it, or the pod does not exist.
    """
    wanted = {"stdin": stdin, "stdout": True, "stderr": not tty, "tty": tty}
    params = [("container", container), *(("command", word) for word in command)]
    params += [(name, "true") for name, value in wanted.items() if value]
    path = PODS.path(namespace=pod.namespace, name=pod.name, subresource="exec")
    async with websocket(client, path, params=params, protocols=(_V5, _V4)) as socket:
        yield Program(socket)


async def run_in_pod(
    client: ApiClient,
    pod: Key,
    container: str,
    command: Sequence[str],
    *,
    content: bytes = b"",
    limit_bytes: int,
    timeout_seconds: float,
) -> Ran:
    """Run a program with this input to its end, and return its output and exit code.

    Raises:
        AnswerTooLargeError: it printed more than `limit_bytes`.
        ClusterError: it could not run, its exit code is unknown, or it took too long.
    """
    printed = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
    try:
        async with (
            asyncio.timeout(timeout_seconds),
            open_exec(client, pod, container, command, stdin=bool(content)) as program,
            contextlib.aclosing(program.output()) as output,
        ):
            await program.write(content)
            async for stream, piece in output:
                printed[stream] += piece
                if sum(map(len, printed.values())) > limit_bytes:
                    raise AnswerTooLargeError(
                        f"pod {pod.name} printed more than {limit_bytes} bytes"
                    )
    except TimeoutError:
        raise UnavailableError(
            f"pod {pod.name}: {command[0]} did not end within {timeout_seconds:g} s"
        ) from None
    assert program.exit_code is not None  # otherwise `output` has raised
    return Ran(bytes(printed[Stream.STDOUT]), bytes(printed[Stream.STDERR]), program.exit_code)


async def each_of(pods: Iterable[PodState], ask: Callable[[PodState], Awaitable[T]]) -> list[T]:
    """Return the answers of pods; `AT_ONCE` of them are asked at the same time.

    Raises:
        Exception: the first error of `ask`. All other questions are given up then.
    """
    slots = asyncio.Semaphore(AT_ONCE)

    async def answer(pod: PodState) -> T:
        async with slots:
            return await ask(pod)

    try:
        async with asyncio.TaskGroup() as group:
            answers = [group.create_task(answer(pod)) for pod in pods]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [each.result() for each in answers]


class Port:
    """One connection to a port of a pod."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, port: int) -> None:
        self._socket = socket
        self._number = port.to_bytes(2, "little")

    async def received(self) -> AsyncGenerator[bytes, None]:
        """Yield what the pod sends until it closes the connection.

        Raises:
            UnavailableError: no process listens on the port, or the connection broke.
        """
        begun: set[int] = set()
        async for channel, content in _messages(self._socket):
            rest = content
            if channel not in begun:  # each channel begins with the port number
                begun.add(channel)
                if not content.startswith(self._number):
                    raise UnavailableError("the server answered for another port")
                rest = content[2:]
            if rest and channel == 0:
                yield rest
            elif rest:
                raise UnavailableError(rest[:512].decode(errors="replace"))

    async def write(self, content: bytes) -> None:
        """Send to the pod. No effect once the connection is over."""
        await _send(self._socket, 0, content)


@contextlib.asynccontextmanager
async def open_port(client: ApiClient, pod: Key, port: int) -> AsyncIterator[Port]:
    """Connect to a port of a pod. It is not yet known whether a process listens there.

    Raises:
        ClusterError: the API server refuses it, or the pod does not exist.
    """
    path = PODS.path(namespace=pod.namespace, name=pod.name, subresource="portforward")
    params = [("ports", str(port))]
    async with websocket(client, path, params=params, protocols=(_V4,)) as socket:
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
    """Return the exit code from the Status object that ends a program.

    Raises:
        InvalidError: the program could not start. The text says why.
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
        text = content[:512].decode(errors="replace")
        raise InvalidError(f"the program's exit code is unknown: {text}") from None
