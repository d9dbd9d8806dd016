"""Ranks find rank 0 although DNS does not know it or returns an old address."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ddp_trainer.launcher.status_server.server import serve_status
from ddp_trainer.process_group.admission import REFUSAL
from ddp_trainer.process_group.rendezvous.announcement import MAX_BYTES, AnnouncedAddress, Announcer
from ddp_trainer.settings.environment import Placement

from tests.ports import free_port
from tests.trainer.support.pods import TOKEN, contract, until
from tests.trainer.support.status_requests import ask
from tests.trainer.support.status_server import Pod

PEER = "digits-0-1.digits"


def placement(node_rank: int, *, port: int | None = None, attempt: int = 0) -> Placement:
    variables = contract(node_rank=node_rank, nodes=2, port=1234)
    of_pod = Placement.from_env(variables | {"MASTER_ADDR": "digits-0-0.digits"})
    return replace(of_pod, status_port=port, attempt=attempt)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace DNS by one that knows only the other pod; return the names in its queries."""
    queries: list[str] = []
    original = socket.getaddrinfo

    def getaddrinfo(host: str, *arguments: Any, **options: Any) -> Any:
        queries.append(host)
        if host.startswith("digits-") and host != PEER:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return original("127.0.0.1" if host == PEER else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return queries


@pytest.fixture
def other(tmp_path: Path) -> tuple[int, AnnouncedAddress]:
    """Return the other pod's status port, and the address that its ranks see."""
    port, path = free_port(), tmp_path / "status.json"
    serve_status(port, path, Pod(), placement(1))
    return port, AnnouncedAddress(path)


def test_called_pod_knows_the_address(
    other: tuple[int, AnnouncedAddress], names: list[str]
) -> None:
    port, announced = other
    assert announced.read(generation=0) is None
    announcer = Announcer(placement(0, port=port))
    announcer.tell([0, 1])
    until(lambda: announced.read(generation=0) == "127.0.0.1", "the address to arrive")
    announcer.tell([0, 1])
    announcer.tell([0, 1])
    assert names == [PEER], "called itself, or called again at once"


def test_pod_that_cannot_be_called_blocks_no_other(
    other: tuple[int, AnnouncedAddress], names: list[str]
) -> None:
    port, announced = other
    announcer = Announcer(placement(0, port=port))
    announcer.tell([2, 1])  # there is no name for a third pod
    until(lambda: announced.read(generation=0) == "127.0.0.1", "the address to arrive")
    assert names == ["digits-0-2.digits", PEER]


@pytest.mark.parametrize("token", [None, "another"])
def test_announcement_without_the_token_is_refused(
    other: tuple[int, AnnouncedAddress], token: str | None
) -> None:
    port, announced = other
    true = {"jobUid": "7d1f", "attempt": 0, "address": "10.0.0.1"}
    code, text = post(port, true, token=token)
    assert (code, text) == (403, f"{REFUSAL}\n")
    assert post(port, {}, token=token, path="/dump-stacks")[0] == 403
    assert post(port, {}, token=token, path="/checkpoint")[0] == 403
    assert announced.read(generation=0) is None
    assert post(port, true)[0] == 200
    assert announced.read(generation=0) == "10.0.0.1"


def test_request_without_a_token_is_refused_before_its_body(
    other: tuple[int, AnnouncedAddress],
) -> None:
    port, _ = other
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"POST /rank-0 HTTP/1.1\r\nContent-Length: 1000000000000\r\n\r\n")
        assert b" 403 " in connection.recv(1024)


def test_announcement_of_another_attempt_is_refused(
    other: tuple[int, AnnouncedAddress], names: list[str]
) -> None:
    port, announced = other
    code, text = post(port, {"jobUid": "7d1f", "attempt": 1, "address": "10.0.0.1"})
    assert (code, text) == (409, "this pod belongs to another job or attempt\n")
    code, text = post(port, {"jobUid": "another", "attempt": 0, "address": "10.0.0.1"})
    assert code == 409
    assert announced.read(generation=0) is None
    assert names == ["127.0.0.1"] * 2


def test_announcement_of_an_earlier_rank_0_is_refused(other: tuple[int, AnnouncedAddress]) -> None:
    port, announced = other
    body = {"jobUid": "7d1f", "attempt": 0, "address": "10.0.0.2", "generation": 2}
    assert post(port, body)[0] == 200
    code, text = post(port, body | {"address": "10.0.0.1", "generation": 1})
    assert (code, text) == (409, "another pod is rank 0 by now\n")
    assert [announced.read(generation=number) for number in (1, 2, 3)] == ["10.0.0.2"] * 2 + [None]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (
            {"jobUid": "7d1f", "attempt": 0, "address": "rank-0"},
            "'rank-0' does not appear to be",
        ),
        ({"jobUid": "7d1f", "attempt": 0}, "address is missing"),
        ({"jobUid": "7d1f", "attempt": "0", "address": "10.0.0.1"}, "attempt must be a whole"),
        ({"address": "1" * MAX_BYTES}, "at most 1024 bytes of JSON"),
        ([], "must be a JSON object"),
    ],
)
def test_invalid_announcement_is_refused(
    other: tuple[int, AnnouncedAddress], body: object, error: str
) -> None:
    port, announced = other
    code, text = post(port, body)
    assert code == 400
    assert error in text
    assert announced.read(generation=0) is None


@pytest.mark.parametrize(
    ("master", "peer"),
    [
        ("digits-0-0.digits", "digits-0-12.digits"),
        ("a-0.b-0.c", "a-12.b-0.c"),
        ("trainer-0", "trainer-12"),
        ("10.0.0.1", None),
        ("localhost", None),
        ("node-10.cluster", None),
    ],
)
def test_host_of_another_pod(master: str, peer: str | None) -> None:
    assert replace(placement(0), master_addr=master).host_of(12) == peer


def test_pod_without_a_status_port_calls_nobody(names: list[str]) -> None:
    Announcer(placement(0)).tell([1])
    assert names == []


def post(
    port: int, body: object, *, token: str | None = TOKEN, path: str = "/rank-0"
) -> tuple[int, str]:
    code, text = ask(port, path, method="POST", body=json.dumps(body).encode(), token=token)
    return code, text.decode()
