"""A launcher's status server limits the time of requests, and lets those for stacks take turns."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ddp_trainer.launcher.status_server import bounded_http, server
from ddp_trainer.settings.environment import Placement

from tests.flood import connect
from tests.ports import free_port
from tests.trainer.support.pods import TOKEN, contract, until
from tests.trainer.support.status_requests import ask
from tests.trainer.support.status_server import Pod


class SlowPod(Pod):
    """A launcher with ranks that show their stacks when `shows` is set."""

    def __init__(self) -> None:
        self.requested = threading.Semaphore(0)
        self.shows = threading.Event()

    def rank_processes(self) -> Mapping[int, int]:
        self.requested.release()
        assert self.shows.wait(60)
        return {}


def serve(folder: Path, pod: Pod | None = None) -> int:
    port = free_port()
    path = folder / "status.json"
    server.serve_status(port, path, pod or Pod(), Placement.from_env(contract()))
    return port


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


def test_slow_request_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "_STRANGER_SECONDS", 0.3)
    with connect(serve(tmp_path)) as slow:
        until(lambda: is_closed(slow), "the connection to be closed")


@pytest.mark.parametrize("path", ["/metrics", "/nowhere"])
def test_head_and_body_of_an_answer_come_together(tmp_path: Path, path: str) -> None:
    port = serve(tmp_path)
    for _ in range(20):
        with connect(port) as asker:
            asker.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            head, _, body = asker.recv(65536).partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}\r\n".encode() in head + b"\r\n"
        assert body


BUSY = 409, b"other requests for stacks are running: try again\n"
STACKS = 200, b'{"ranks": []}'


def test_requests_for_stacks_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_TURN_SECONDS", 60.0)
    monkeypatch.setattr(server, "_STACKS_AT_ONCE", 2)
    pod = SlowPod()
    port = serve(tmp_path, pod)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(ask, port, "/traces", token=TOKEN)
        assert pod.requested.acquire(timeout=60)
        others = [
            threads.submit(ask, port, "/stacks", method="POST", token=TOKEN) for _ in range(2)
        ]
        until(lambda: any(other.done() for other in others), "one to be refused")
        assert [other.result() for other in others if other.done()] == [BUSY]
        assert not pod.requested.acquire(blocking=False)
        pod.shows.set()
        assert first.result() == STACKS
        assert sorted(other.result() for other in others) == [STACKS, BUSY]
        assert ask(port, "/traces", token=TOKEN) == STACKS


def test_request_for_stacks_that_waits_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_TURN_SECONDS", 0.1)
    pod = SlowPod()
    port = serve(tmp_path, pod)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(ask, port, "/traces", token=TOKEN)
        assert pod.requested.acquire(timeout=60)
        assert ask(port, "/traces", token=TOKEN) == BUSY
        pod.shows.set()
        assert first.result() == STACKS
