"""Pods cannot shut out the kubelet and Prometheus, or fill the operator's memory or log."""

import asyncio
import http.client
import logging
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_operator.endpoints import HealthEndpoint, listening

from tests.flood import connect, flood, memory_bytes
from tests.ports import free_port
from tests.unit.endpoints.test_endpoints import TEXT, Reviews, asking, make_certificate, metrics

BOMB = b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + b"".join(
    b"X-%d: %s\r\n" % (number, b"a" * 8100) for number in range(110)
)
SMALL_BOMB = b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + b"".join(
    b"X-%d: %s\r\n" % (number, b"a" * 4000) for number in range(22)
)


def get(port: int, path: str, address: str = "127.0.0.2") -> int:
    """Send a request as a probe does; return the status."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", port, timeout=30, source_address=(address, 0)
    )
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("payload", [BOMB, SMALL_BOMB], ids=["large", "within-limits"])
@pytest.mark.parametrize("clients", [1, 20])
def test_flood_costs_little_memory_and_no_probe(payload: bytes, clients: int) -> None:
    ports = free_port(), free_port()
    command = [sys.executable, "-m", "tests.unit.endpoints.serving", *map(str, ports)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            before = memory_bytes(process.pid)
            with (
                flood(ports[0], payload, clients=clients, held=200),
                flood(ports[1], payload, clients=clients, held=200),
            ):
                for _ in range(5):
                    assert get(ports[0], "/healthz") == 200
                    assert get(ports[1], "/metrics") == 200
            grown = memory_bytes(process.pid) - before
            assert grown < 40 << 20
        finally:
            process.kill()


async def closed(connection: socket.socket) -> bytes:
    """Wait until the server closes a connection; return what it sent."""
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        async with asyncio.timeout(30):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("payload", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"])
async def test_slow_headers_are_closed(payload: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_HEADER_SECONDS", 0.2)
    port = free_port()
    async with HealthEndpoint().serving(port):
        client = connect(port)
        client.sendall(payload)
        assert await closed(client) == b""


async def test_slow_handshake_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_HEADER_SECONDS", 0.2)
    make_certificate(tmp_path)
    port = free_port()
    async with metrics().serving(port, certificates=tmp_path):
        assert await closed(connect(port)) == b""


async def test_silent_connections_delay_no_handshake(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    port = free_port()
    async with metrics().serving(port, certificates=tmp_path):
        silent = [connect(port, "127.0.1.1") for _ in range(listening._CONNECTIONS + 10)]
        shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        assert shown == (tmp_path / "tls.crt").read_text()
        assert await closed(silent[0]) == b""
        for connection in silent:
            connection.close()


async def test_client_that_reads_no_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "_CONNECTION_SECONDS", 0.5)
    port, endpoint = free_port(), metrics()
    endpoint.text = lambda: TEXT * 1_000_000  # more than the buffers of two sockets
    async with endpoint.serving(port):
        client = connect(port)
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(1)
        assert len(await closed(client)) < len(TEXT) * 1_000_000


async def test_refused_requests_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    with caplog.at_level(logging.WARNING):
        async with metrics(Reviews({})).serving(port), asking(port) as scrape:
            for _ in range(9):
                assert (await scrape("/metrics"))[0] == 401
                client = connect(port)
                client.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 5000 + b"\r\n\r\n")
                assert (await closed(client)).startswith(b"HTTP/1.0 400 Bad Request\r\n")
    assert caplog.messages == [
        "refused GET /metrics from 127.0.0.1: a bearer token is required",
        "refused a request from 127.0.0.1: Got more than 4096 bytes when reading",
    ]
