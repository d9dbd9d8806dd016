"""The datagrams of ranks, which may contain anything."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest
from ddp_trainer.launcher.memory.protocol.messages import RankReport
from ddp_trainer.launcher.memory.thread import Inbox

REPORT = {"rank": 1, "generation": 2, "step": 5, "saved": True}


def send(path: Path, *contents: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for content in contents:
            sender.sendto(content, str(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "socket"


def test_valid_reports_are_read_and_others_are_ignored(path: Path) -> None:
    inbox = Inbox(path)
    wrong = [
        b"",
        b"x",
        b"\xff",
        b"[" * 4000,
        b"{}",
        json.dumps(REPORT | {"rank": -1}).encode(),
        json.dumps(REPORT | {"refusal": "x" * 5000}).encode(),
    ]
    send(path, *wrong, json.dumps(REPORT | {"refusal": "full", "more": 1}).encode())
    report = RankReport(rank=1, generation=2, step=5, saved=True, refusal="full")
    assert inbox.wait(0) == [report]
    assert inbox.wait(0) == []


def test_other_threads_can_end_a_wait(path: Path) -> None:
    inbox = Inbox(path)
    waiting = threading.Thread(target=inbox.wait, args=[None])
    waiting.start()
    inbox.wake()
    waiting.join(60)
    assert not waiting.is_alive()
    inbox.wake()
    inbox.wake()
    assert inbox.wait(None) == []


def test_an_endless_stream_of_datagrams_is_read_in_parts(path: Path) -> None:
    inbox = Inbox(path)
    ends = threading.Event()

    def flood() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(1)
            while not ends.is_set():
                try:
                    sender.sendto(b"x", str(path))
                except TimeoutError:
                    continue

    flooding = threading.Thread(target=flood)
    flooding.start()
    assert inbox.wait(60) == []
    ends.set()
    flooding.join()


def test_a_new_launcher_replaces_the_socket_even_at_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 150)
    folder.mkdir()
    Inbox(folder / "socket")
    Inbox(folder / "socket")
    assert (folder / "socket").is_socket()
