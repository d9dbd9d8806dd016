"""Requests to trainers, which may send anything or nothing."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from aiohttp import web
from ddp_operator.engine.trainers.requests import HttpTrainers
from ddp_protocol.message import InvalidMessageError, Message, to_json
from ddp_protocol.world import GroupAssignment, WorldAnswer

from tests.trainer_server import ENDLESS, TrainerServer

TOKEN = "token-of-the-job"


def assert_signed(server: TrainerServer) -> None:
    """Check that the only request was signed and did not contain the token."""
    [header] = server.tokens
    assert header.startswith("DDP-HMAC-SHA256 ")
    assert TOKEN not in header


@pytest.fixture
async def trainers() -> AsyncIterator[HttpTrainers]:
    trainers = HttpTrainers(timeout_seconds=30.0)
    yield trainers
    await trainers.close()


@pytest.mark.parametrize("status", [404, 503])
async def test_other_http_status_is_an_error_text(trainers: HttpTrainers, status: int) -> None:
    async with TrainerServer() as server:
        server.answer = lambda: web.Response(status=status, text='{"step": 7}')
        assert await trainers.status(server.address) == f"HTTP status {status}"


async def test_redirects_of_a_trainer_are_not_followed(trainers: HttpTrainers) -> None:
    async with TrainerServer() as elsewhere, TrainerServer() as server:
        headers = {"Location": f"http://{elsewhere.address}/status"}
        server.answer = lambda: web.Response(status=302, headers=headers)
        assert await trainers.status(server.address) == "HTTP status 302"
        assert elsewhere.asked == []


def is_refused(answer: bytes | str) -> bool:
    """Return whether an answer is cut where it becomes too long to be read."""
    assert isinstance(answer, bytes)
    with pytest.raises(InvalidMessageError, match="more than 65536 bytes"):
        Message.read(answer)
    return len(answer) < 2 * Message.MAX_BYTES


async def test_endless_response_is_cut(trainers: HttpTrainers) -> None:
    async with TrainerServer() as server:
        server.answer = ENDLESS
        assert is_refused(await trainers.status(server.address))


async def test_compressed_response_is_not_decompressed(trainers: HttpTrainers) -> None:
    async with TrainerServer() as server:

        def bomb() -> web.Response:
            response = web.Response(text=" " * 10_000_000)
            response.enable_compression(web.ContentCoding.gzip)
            return response

        server.answer = bomb
        answer = await trainers.status(server.address)
        assert isinstance(answer, bytes)
        assert len(answer) < 65536


async def test_response_is_returned_without_the_proxy_of_the_environment(
    trainers: HttpTrainers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with TrainerServer() as server:
        assert await trainers.status(server.address) == b'{"step": 1}'


async def test_unreachable_trainer_is_an_error_text(trainers: HttpTrainers) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # no process listens
        address = f"127.0.0.1:{held.getsockname()[1]}"
        assert await trainers.status(address) == f"{address}: Connection refused"
        assert not await trainers.dump_stacks(address, token=TOKEN)


async def test_silent_trainer_ends_at_the_timeout() -> None:
    trainers = HttpTrainers(timeout_seconds=0.05)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert await trainers.status(address) == f"{address}: no answer in 0.05 s"
        assert not await trainers.dump_stacks(address, token=TOKEN)
        assert not await trainers.checkpoint(address, token=TOKEN)
    await trainers.close()


@pytest.mark.parametrize("path", ["dump-stacks", "checkpoint"])
@pytest.mark.parametrize(("status", "accepted"), [(202, True), (404, False), (403, False)])
async def test_request_returns_whether_the_trainer_accepted_it(
    trainers: HttpTrainers, path: str, status: int, *, accepted: bool
) -> None:
    send = trainers.checkpoint if path == "checkpoint" else trainers.dump_stacks
    async with TrainerServer() as server:
        server.dump_status = status
        assert await send(server.address, token=TOKEN) == accepted
        assert server.asked == [path]
        assert_signed(server)


async def test_traces_are_signed_and_only_their_beginning_is_read(
    trainers: HttpTrainers,
) -> None:
    async with TrainerServer() as server:
        server.traces = 200, b" " * Message.MAX_BYTES
        assert await trainers.traces(server.address, token=TOKEN) == b" " * Message.MAX_BYTES
        assert_signed(server)
        server.traces = 200, b" " * 4_000_000
        assert is_refused(await trainers.traces(server.address, token=TOKEN))
        server.traces = 404, b""
        assert await trainers.traces(server.address, token=TOKEN) == "HTTP status 404"


async def test_signed_request_is_not_redirected(trainers: HttpTrainers) -> None:
    async with TrainerServer() as elsewhere, TrainerServer() as server:
        server.dump_status = 307  # the same method again, at another place
        server.dump_headers = {"Location": f"http://{elsewhere.address}/dump-stacks"}
        assert not await trainers.dump_stacks(server.address, token=TOKEN)
        assert (server.asked, elsewhere.asked) == (["dump-stacks"], [])


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAMS = {
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2000),
    "answers": (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" * 1500),
    "chunks of one byte": (HEAD, b"1\r\nx\r\n" * 10_000),
    "a chunk's extension": (HEAD + b"5;", b"y" * 65_536),
    "trailers": (HEAD + b"0\r\n", b"X: y\r\n" * 10_000),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 10_000),
    "one header": (b"HTTP/1.1 200 OK\r\nX: ", b"y" * 65_536),
    "a status line": (b"HTTP/1.1 200 ", b"y" * 65_536),
}


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Answer one client with this function, in a separate thread."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                asking, _ = server.accept()
                with asking:
                    asking.recv(4096)
                    answer(asking)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        host, port = server.getsockname()
        yield f"{host}:{port}"
        thread.join(timeout=30)
        assert not thread.is_alive()


@pytest.mark.parametrize("name", STREAMS)
async def test_response_that_never_ends_is_cut_at_the_timeout(name: str) -> None:
    head, body = STREAMS[name]

    def never_end(asking: socket.socket) -> None:
        asking.sendall(head)
        while True:
            asking.sendall(body)

    trainers = HttpTrainers(timeout_seconds=0.5)
    with answering(never_end) as address:
        said = await trainers.status(address)
        await trainers.close()
    assert isinstance(said, str) or said == b"" or is_refused(said)


async def test_little_of_a_response_is_read_at_once() -> None:
    """The event loop parses at once only what the kernel holds."""
    asked, may_send, sent_all = threading.Event(), threading.Event(), threading.Event()
    sent = 0

    def fill(asking: socket.socket) -> None:
        nonlocal sent
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the smallest possible
        asked.set()
        may_send.wait(timeout=30)
        asking.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            while sent < 2**20:
                sent += asking.send(b"x" * 1024)
        sent_all.set()

    trainers = HttpTrainers(timeout_seconds=60)
    with answering(fill) as address:
        asking = asyncio.create_task(trainers.status(address))
        assert await asyncio.to_thread(asked.wait, 30)
        may_send.set()
        assert sent_all.wait(timeout=30), "the loop stands still meanwhile"
        await asking
        await trainers.close()
    assert sent < 64 * 1024


@pytest.mark.parametrize(
    ("status", "content", "knows"),
    [
        (200, b'{"generation": 5, "ended": true}', (5, True)),
        (200, b'{"generation": 5, "ended": 1}', None),
        (200, b'{"generation": 5}', (5, False)),
        (409, b'{"generation": 7, "ended": false}', (7, False)),
        (409, b'{"generation": 7, "ended": true, "led": true}', (7, True, True)),
        (200, b'{"generation": 5, "ended": true, "led": true}', (5, True)),
        (409, b"this pod is of another job", None),
        (200, b'{"generation": true}', None),
        (200, b'{"generation": -1}', None),
        (200, b"[5]", None),
        (200, b" " * 70_000, None),
        (403, b'{"generation": 5}', None),
        (404, b"", None),
    ],
)
async def test_assignment_returns_the_launchers_group(
    trainers: HttpTrainers, status: int, content: bytes, knows: tuple[Any, ...] | None
) -> None:
    async with TrainerServer() as server:
        server.world = status, content
        group = GroupAssignment(job_uid="u", attempt=0, generation=5, nodes=2, master_addr="j")
        told = trainers.put_world(server.address, group, wait_seconds=5, token=TOKEN)
        assert await told == (knows and WorldAnswer(*knows))
        assert server.asked == ["PUT /world?wait=5"]
        assert_signed(server)
        assert [json.loads(sent) for sent in server.documents] == [json.loads(to_json(group))]
    told = trainers.put_world(server.address, group, wait_seconds=5, token=TOKEN)
    assert await told is None


async def test_poll_returns_the_launchers_response(trainers: HttpTrainers) -> None:
    poll = {"after": 3, "wait_seconds": 20, "lead_seconds": 5}
    async with TrainerServer() as server:
        asked = trainers.poll_world(server.address, **poll, token=TOKEN)
        assert await asked == b'{"generation": 1}'
        assert server.asked == ["GET /world?after=3&wait=20&lead=5"]
        assert_signed(server)
        server.world = 503, b""
        asked = trainers.poll_world(server.address, **poll, token=TOKEN)
        assert await asked == "HTTP status 503"
        server.world = 200, b" " * 70_000
        asked = trainers.poll_world(server.address, **poll, token=TOKEN)
        assert is_refused(await asked)
