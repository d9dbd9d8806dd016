"""Clients without the job's token cannot shut out the others, or fill memory or the log."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ddp_trainer.launcher.status_server import bounded_http
from ddp_trainer.process_group import admission
from ddp_trainer.process_group.admission import Request
from ddp_trainer.settings.environment import Placement
from ddp_trainer.telemetry.requests.checkpoint import CheckpointRequest
from ddp_trainer.telemetry.status import STATUS_FILE_VARIABLE

from tests.flood import connect, flood, memory_bytes
from tests.ports import free_port
from tests.trainer.launcher.status_server.test_bounded_http import STACKS, SlowPod, serve
from tests.trainer.support.pods import TOKEN, contract, until
from tests.trainer.support.status_requests import ask

HONEST = "127.0.0.2"
PLACEMENT = Placement.from_env(contract())
BOMB = b"GET /status HTTP/1.1\r\n" + b"".join(
    b"X-%d: %s\r\n" % (number, b"a" * 65400) for number in range(95)
)


def request(port: int, method: str, path: str, *, address: str = HONEST) -> int:
    """Send a signed request without a body; return its status."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", port, timeout=30, source_address=(address, 0)
    )
    try:
        admission.send(connection, PLACEMENT, Request(method=method, target=path))
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def is_answered(port: int) -> bool:
    """Return whether a signed request is answered; False if it is turned away."""
    try:
        return request(port, "GET", "/traces") == 200
    except ConnectionError:
        return False


@pytest.mark.parametrize("clients", [1, 20])
@pytest.mark.parametrize("payload", [b"", b"GET /traces HTTP/1.1\r\nX: "])
def test_flood_shuts_out_no_other_client(tmp_path: Path, clients: int, payload: bytes) -> None:
    port, threads = serve(tmp_path), threading.active_count()
    with flood(port, payload, clients=clients):
        for _ in range(10):
            assert request(port, "GET", "/traces") == 200
            assert request(port, "GET", "/metrics") == 200
            assert ask(port, "/metrics")[0] == 200, "the pod itself"
            # Threads of closed connections need a moment to end.
            assert threading.active_count() - threads < 4 * bounded_http._STRANGERS


def test_flood_ends_no_request_with_the_token(tmp_path: Path) -> None:
    pod = SlowPod()
    port = serve(tmp_path, pod)
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(ask, port, "/traces", token=TOKEN)
        assert pod.requested.acquire(timeout=60)
        with flood(port, clients=1):
            pod.shows.set()
            assert slow.result() == STACKS


def test_requests_with_the_token_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "_ADMITTED", 1)
    pod = SlowPod()
    port = serve(tmp_path, pod)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(request, port, "GET", "/traces")
        assert pod.requested.acquire(timeout=60)
        with pytest.raises(ConnectionError):
            request(port, "GET", "/traces")
        assert request(port, "GET", "/metrics") == 200
        pod.shows.set()
        assert first.result() == 200
        until(lambda: is_answered(port), "the slot to be free")


def test_header_bombs_take_little_memory(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "tests.trainer.support.status_server", str(port)]
    command.append(str(tmp_path))
    environment = os.environ | contract()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            before = memory_bytes(process.pid)
            with flood(port, BOMB, clients=20, held=100):
                assert request(port, "GET", "/traces") == 200
            assert memory_bytes(process.pid) - before < 40 << 20
        finally:
            process.kill()


def test_large_headers_are_refused(tmp_path: Path) -> None:
    with connect(serve(tmp_path)) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 8166)  # exactly the limit
        assert b" 431 headers: at most" not in client.recv(20)
        assert b"headers: at most 8192 bytes" in client.recv(4096)


def test_slow_body_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "_ADMITTED_SECONDS", 0.2)
    with connect(serve(tmp_path)) as client:
        head = f"POST /rank-0 HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 10\r\n"
        client.sendall(head.encode() + b"\r\n123")
        assert client.recv(100) == b""


def test_body_that_is_not_the_signed_one_is_refused(tmp_path: Path) -> None:
    signed = Request(method="POST", target="/rank-0", body=b"{}")
    headers = admission.credentials(PLACEMENT, signed)
    connection = http.client.HTTPConnection("127.0.0.1", serve(tmp_path), timeout=30)
    connection.request("POST", "/rank-0", b"[]", headers)
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (403, b"the body is not the signed one\n")
    connection.close()


def test_repeated_request_makes_no_second_checkpoint(tmp_path: Path) -> None:
    port = serve(tmp_path)
    rank = CheckpointRequest.from_env({STATUS_FILE_VARIABLE: str(tmp_path / "status.json")})
    assert rank
    command = Request(method="POST", target="/checkpoint")
    headers = admission.credentials(PLACEMENT, command)

    def send() -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/checkpoint", headers=headers)
        status = connection.getresponse().status
        connection.close()
        return status

    assert (send(), rank.is_open()) == (202, True)
    rank.answer()
    assert (send(), rank.is_open()) == (202, False)
    assert ask(port, "/checkpoint", method="POST", token=TOKEN)[0] == 202
    assert rank.is_open()


def test_refused_requests_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = serve(tmp_path)
    for _ in range(9):
        assert ask(port, "/checkpoint", method="POST")[0] == 403
    with connect(port) as client:
        client.sendall(b"nonsense\r\n\r\n")
        client.recv(1)
    assert [record.getMessage() for record in caplog.records] == [
        f"refused POST /checkpoint from 127.0.0.1: {admission.REFUSAL}",
        "refused a request from 127.0.0.1: Bad request syntax ('nonsense')",
    ]


# The launcher has copies of the operator's classes.
