"""A pod sends its snapshots to others: with pauses, retries and a limit."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from ddp_trainer.launcher.memory import copying
from ddp_trainer.launcher.memory.copying import Copy, Copying
from ddp_trainer.launcher.memory.protocol.messages import MAX_REPORT_BYTES, PIECE_BYTES, Target
from ddp_trainer.launcher.memory.protocol.peers import NoAnswerError, PeerResponse
from ddp_trainer.launcher.memory.store import Store
from ddp_trainer.process_group.admission import Request

from tests.trainer.launcher.memory.files import content_of, save, snapshot, volume_at
from tests.trainer.support.pods import until

NAME = snapshot(5, 0)
COPY = Copy(NAME, Target(node_rank=1, host="job-1"))
CONTENT = content_of(NAME, PIECE_BYTES + 10)


class Receiver:
    """The other pod."""

    def __init__(self) -> None:
        self.content = b""
        self.requests: list[str] = []
        self.refuses: Callable[[Request], PeerResponse | None] = lambda _: None

    def __call__(self, host: str, request: Request, most: int) -> PeerResponse:
        assert (host, request.method, most) == ("job-1", "PUT", MAX_REPORT_BYTES)
        assert len(request.body) <= PIECE_BYTES
        self.requests.append(request.target)
        if refused := self.refuses(request):
            return refused
        assert f"offset={len(self.content)}&" in request.target or not request.body
        self.content += request.body
        return PeerResponse(200, json.dumps({"received": len(self.content)}).encode())


class Sender:
    """This pod."""

    def __init__(self, folder: Path) -> None:
        self.receiver = Receiver()
        self.volume = volume_at(folder, size=1 << 30)
        self.store = Store(self.volume)
        self.changes = 0
        self.pauses: list[float] = []
        save(self.volume, 0, NAME, content=CONTENT)
        self.copying = Copying(
            self.store, self.receiver, changed=self._change, sleep=self.pauses.append
        )
        self.copying.want([COPY])

    def _change(self) -> None:
        self.changes += 1


@pytest.fixture
def sender(tmp_path: Path) -> Sender:
    return Sender(tmp_path)


def test_a_copy_is_sent_in_pieces_with_pauses(sender: Sender) -> None:
    assert sender.copying.attempt(COPY) == ""
    assert sender.receiver.content == CONTENT
    assert sender.copying.is_done(COPY)
    assert sender.receiver.requests[0] == (
        f"/memory/1-5-0-2-sharded.snapshot?offset=0&total={len(CONTENT)}&to=1&held=5"
    )
    assert len(sender.receiver.requests) == 3
    assert len(sender.pauses) == 2
    assert sender.pauses[0] >= 2 * PIECE_BYTES / (1 << 30), "two at once send 1 GiB a second"


def test_an_interrupted_copy_continues_where_it_stopped(sender: Sender) -> None:
    sender.receiver.content = CONTENT[:PIECE_BYTES]
    assert sender.copying.attempt(COPY) == ""
    assert sender.receiver.content == CONTENT


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (PeerResponse(507, b"no room\n"), "no room"),
        (PeerResponse(200, b"{}"), "received"),
        (PeerResponse(200, b"[]"), "list indices"),
        (PeerResponse(200, b"x"), "Expecting value"),
        (PeerResponse(200, b'{"received": 0}'), "does not keep what it receives"),
    ],
)
def test_refusals_and_invalid_answers_are_no_copy(
    sender: Sender, answer: PeerResponse, why: str
) -> None:
    sender.receiver.refuses = lambda _: answer
    assert why in sender.copying.attempt(COPY)
    assert not sender.copying.is_done(COPY)


def test_copy_that_is_no_longer_needed_stops(sender: Sender) -> None:
    def stop(_: Request) -> None:
        sender.copying.want([])

    sender.receiver.refuses = stop
    assert sender.copying.attempt(COPY) == "it is not needed any more"
    sender.store.drop(lambda _: True)
    assert sender.copying.attempt(COPY) == "it was released"


def test_copies_are_retried_by_threads_until_they_arrive(sender: Sender) -> None:
    answers = iter([NoAnswerError("unreachable"), NoAnswerError("timed out")])

    def fail(_: Request) -> None:
        if error := next(answers, None):
            raise error

    sender.receiver.refuses = fail
    sender.copying.start()
    until(lambda: sender.changes > 0, "the copy")
    assert sender.copying.is_done(COPY)
    assert sender.receiver.content == CONTENT
    assert not sender.copying.given_up


def test_refused_copy_is_given_up_in_the_end(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_GIVE_UP_SECONDS", -1.0)
    sender.receiver.refuses = lambda _: PeerResponse(507, b"no room")
    sender.copying.start()
    until(lambda: sender.changes > 0, "the copy to be given up")
    assert sender.copying.given_up == {
        NAME.key: "node rank 1 did not take a copy of step 5: no room"
    }
    sender.copying.want([COPY])
    assert sender.copying._next() is None, "it is not tried again"
    sender.copying.want([])
    assert not sender.copying.given_up


def test_two_copies_are_sent_at_once(sender: Sender) -> None:
    both, released = threading.Barrier(3), threading.Event()

    def wait(_: Request) -> PeerResponse:
        if not released.is_set():
            both.wait(60)
            released.wait(60)
        return PeerResponse(507, b"no room")

    copies = [Copy(snapshot(5, 0), Target(node_rank=rank, host="job-1")) for rank in range(3)]
    sender.receiver.refuses = wait
    sender.copying.want(copies)
    sender.copying.start()
    both.wait(60)
    assert len(sender.copying._running) == 2
    sender.copying.want([])
    released.set()
    until(lambda: not sender.copying._running, "both to stop")


def test_copy_with_another_checksum_is_not_done(tmp_path: Path) -> None:
    sender = Sender(tmp_path)
    whole = {"received": len(CONTENT), "checksum": zlib.crc32(CONTENT)}
    answers = [{"received": 0}, {"received": PIECE_BYTES}, {**whole, "checksum": 1}, whole]

    def answer(_: Request) -> PeerResponse:
        return PeerResponse(200, json.dumps(answers.pop(0)).encode())

    sender.receiver.refuses = answer
    assert sender.copying.attempt(COPY) == "its copy is damaged"
    assert not sender.copying.is_done(COPY)
    assert sender.copying.attempt(COPY) == ""
    assert sender.copying.is_done(COPY)
