"""A launcher's status server bounds what it is asked, in time and in number."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest
from ddp_trainer.launcher.status_server import bounded_http, server
from ddp_trainer.settings.environment import Placement

from tests.ports import free_port
from tests.trainer.support.pods import contract, until


class Pod:
    """A launcher without ranks."""

    rank_restarts = 0

    def rank_processes(self) -> Mapping[int, int]:
        return {}

    def rank_ends(self) -> Mapping[int, int]:
        return {}


def serve(folder: Path) -> int:
    port = free_port()
    path = folder / "status.json"
    server.serve_status(port, path, Pod(), Placement.from_env(contract()))
    return port


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def is_closed(connection: socket.socket) -> bool:
    """Send one more byte; return True if the other side has closed the connection."""
    connection.settimeout(0.02)
    try:
        connection.sendall(b"x")
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_a_request_that_comes_letter_by_letter_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "_REQUEST_SECONDS", 0.3)
    with connect(serve(tmp_path)) as slow:
        until(lambda: is_closed(slow), "the connection to be closed")


def test_too_many_at_once_are_not_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "_AT_ONCE", 2)
    monkeypatch.setattr(bounded_http, "_REQUEST_SECONDS", 3600.0)
    port = serve(tmp_path)
    with connect(port), connect(port), connect(port) as third:
        assert third.recv(1) == b""

    def is_served() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    until(is_served, "the others to have gone")


@pytest.mark.parametrize("path", ["/metrics", "/nowhere"])
def test_nobody_reads_an_answers_head_without_its_body(tmp_path: Path, path: str) -> None:
    port = serve(tmp_path)
    for _ in range(100):
        with connect(port) as asker:
            asker.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            head, _, body = asker.recv(65536).partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}\r\n".encode() in head + b"\r\n"
        assert body
