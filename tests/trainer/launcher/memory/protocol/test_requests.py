"""Requests about snapshots to a real status server."""

from __future__ import annotations

import json
import threading
import zlib
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path

import pytest
from ddp_protocol.message import to_json
from ddp_trainer.launcher.memory import leading
from ddp_trainer.launcher.memory.group import GenerationMemory
from ddp_trainer.launcher.memory.leading import LeadingMemory
from ddp_trainer.launcher.memory.pod_memory import PodMemory
from ddp_trainer.launcher.memory.protocol import requests
from ddp_trainer.launcher.memory.protocol.messages import PIECE_BYTES, KeysReport, RankReport
from ddp_trainer.launcher.memory.protocol.peers import NoAnswerError, PeerResponse, caller
from ddp_trainer.launcher.memory.protocol.requests import MemoryRequests
from ddp_trainer.launcher.memory.store import Store
from ddp_trainer.launcher.status_server.server import serve_status
from ddp_trainer.launcher.world.rank_environment import RankEnvironment
from ddp_trainer.launcher.world.state import GroupState
from ddp_trainer.memory.volume import Volume
from ddp_trainer.process_group.admission import Request
from ddp_trainer.settings.environment import Placement

from tests.flood import connect
from tests.ports import free_port
from tests.trainer.launcher.memory.files import content_of, save, snapshot, volume_at
from tests.trainer.launcher.memory.network import without_threads
from tests.trainer.support.pods import contract
from tests.trainer.support.status_server import Pod

LARGE = 2 * PIECE_BYTES + 1000


@dataclass
class Served:
    """A pod's launcher."""

    volume: Volume
    world: GroupState
    memory: PodMemory
    placement: Placement

    @property
    def group(self) -> GenerationMemory:
        assert self.memory.group is not None
        return self.memory.group

    @property
    def leading(self) -> LeadingMemory:
        assert self.group.leading is not None
        return self.group.leading

    def ask(self, method: str, target: str, body: bytes = b"", *, token: str = "") -> PeerResponse:
        placement = replace(self.placement, token=token) if token else self.placement
        request = Request(method=method, target=target, body=body)
        return caller(placement)("127.0.0.1", request, PIECE_BYTES)

    def put(self, body: bytes, **changed: object) -> tuple[int, str]:
        """Send a piece of a large snapshot of rank 1."""
        query: dict[str, object] = {"offset": 0, "total": LARGE, "to": 0, "held": "5"}
        name = changed.pop("name", snapshot(5, 1, generation=0))
        text = "&".join(f"{key}={value}" for key, value in {**query, **changed}.items())
        answer = self.ask("PUT", f"/memory/{name}?{text}", body)
        return answer.status, answer.body.decode()

    def post(self, path: str, message: object) -> tuple[int, object]:
        answer = self.ask("POST", path, to_json(message).encode())
        is_json = answer.body.startswith(b"{")
        return answer.status, json.loads(answer.body) if is_json else answer.body.decode()


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Node rank 0 of two pods; its ranks have started in generation 0."""
    without_threads(monkeypatch)
    port = free_port()
    variables = contract(nodes=2) | {"DDP_STATUS_PORT": str(port), "DDP_MEMBERS": "0-1"}
    environment = RankEnvironment(variables | {"MASTER_ADDR": "job-0"})
    world = GroupState(environment.initial)
    volume = volume_at(tmp_path / "memory", size=4 * LARGE)
    placement = environment.placement
    memory = PodMemory(volume, Store(volume), world, environment, call=caller(placement))
    served = serve_status(
        port, tmp_path / "status.json", Pod(), placement, memory=MemoryRequests(memory, placement)
    )
    assert served
    memory.begin(world.assignment)
    return Served(volume, world, memory, placement)


def test_a_snapshot_arrives_in_pieces_and_is_read_in_pieces(pod: Served) -> None:
    name, content = snapshot(5, 1, generation=0), content_of(snapshot(5, 1), LARGE)
    received = 0
    while received < LARGE:
        piece = content[received : received + PIECE_BYTES]
        status, answer = pod.put(piece, offset=received)
        assert status == HTTPStatus.OK
        received = json.loads(answer)["received"]
    inventory = json.loads(pod.ask("GET", "/memory").body)
    checksum = zlib.crc32(content)
    assert json.loads(answer) == {"received": LARGE, "checksum": checksum}
    assert inventory["snapshots"] == [{"name": str(name), "bytes": LARGE, "checksum": checksum}]
    assert (inventory["generation"], inventory["nodeRank"]) == (0, 0)
    found = b""
    while piece := pod.ask("GET", f"/memory/{name}?offset={len(found)}").body:
        found += piece
    assert found == content


@pytest.mark.parametrize(
    ("changed", "status", "error"),
    [
        ({"total": 10**12}, 400, "total: set it to a whole number"),
        ({"total": ""}, 400, "total: set it"),
        ({"offset": LARGE + 1}, 400, "offset: set it"),
        ({"offset": 1}, 409, "the next piece begins at 0"),
        ({"to": 1}, 409, "another node rank"),
        ({"held": "6"}, 400, "that their pod holds"),
        ({"held": "5,6,7,8,9"}, 400, "held: set it to at most 4 steps"),
        ({"held": "x"}, 400, "held: set it"),
        ({"name": snapshot(5, 1, generation=1)}, 409, "another generation"),
        ({"name": snapshot(5, 1, generation=0, replicated=True)}, 400, "only sharded"),
        ({"name": "..%2f..%2fx"}, 404, "no such snapshot"),
        ({"name": "0-5-1-1-sharded.snapshot"}, 404, "no such snapshot"),
    ],
)
def test_foreign_pieces_are_refused(
    pod: Served, changed: dict[str, object], status: int, error: str
) -> None:
    found, answer = pod.put(b"x", **changed)
    assert (found, error in answer) == (status, True), answer
    assert not [*pod.volume.received.iterdir()]


def test_source_has_at_most_two_copies_of_steps_that_it_holds(pod: Served) -> None:
    for step in (5, 6):
        name = snapshot(step, 1, generation=0)
        assert pod.put(b"", name=name, held="5,6")[0] == HTTPStatus.OK
    seven = snapshot(7, 1, generation=0)
    assert pod.put(b"", name=seven, held="5,6,7")[0] == HTTPStatus.INSUFFICIENT_STORAGE
    assert pod.put(b"", name=seven, held="5,7")[0] == HTTPStatus.OK


def test_repeated_request_drops_no_newer_copy(pod: Served) -> None:
    def put(step: int, held: str) -> int:
        return pod.put(b"x", name=snapshot(step, 1, generation=0), held=held, total=1)[0]

    assert put(5, "5") == put(6, "5,6") == HTTPStatus.OK
    newest = {str(snapshot(step, 1, generation=0)) for step in (6, 7)}
    assert put(7, "6,7") == HTTPStatus.OK
    assert put(6, "5,6") == HTTPStatus.OK
    assert put(5, "5") == HTTPStatus.INSUFFICIENT_STORAGE
    assert {path.name for path in pod.volume.received.iterdir()} == newest
    assert put(8, "7,8") == HTTPStatus.OK


def test_body_without_the_token_is_not_waited_for(pod: Served) -> None:
    name = snapshot(5, 1, generation=0)
    head = (
        f"PUT /memory/{name}?offset=0&total=1&to=0&held=5 HTTP/1.1\r\n"
        f"Authorization: DDP-HMAC-SHA256 1:{'0' * 64}:{'0' * 64}\r\nContent-Length: {PIECE_BYTES}"
    )
    assert pod.placement.status_port
    for _ in range(10):
        with connect(pod.placement.status_port) as client:
            client.sendall(f"{head}\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.0 403 ")


def test_a_piece_has_a_limit(pod: Served) -> None:
    with pytest.raises(NoAnswerError):  # refused before it is read
        pod.put(b"x" * (PIECE_BYTES + 1))


def test_requests_and_answers_need_the_jobs_signature(pod: Served) -> None:
    for method, path in [("GET", "/memory"), ("PUT", "/memory/x"), ("POST", "/memory/keys")]:
        with pytest.raises(NoAnswerError, match="not signed with this job's token"):
            pod.ask(method, path, token="another")
    foreign = caller(pod.placement)
    with pytest.raises(NoAnswerError, match="not signed"):
        foreign("127.0.0.1", Request(method="GET", target="/metrics"), 1 << 20)


def test_an_answer_has_a_limit(pod: Served) -> None:
    with pytest.raises(NoAnswerError, match="more than 5 bytes"):
        caller(pod.placement)("127.0.0.1", Request(method="GET", target="/memory"), 5)


def test_node_rank_0_takes_reports_of_its_own_generation(pod: Served) -> None:
    report = KeysReport(job_uid="7d1f", attempt=0, generation=0, node_rank=1)
    status, answer = pod.post("/memory/keys", report)
    targets = [{"nodeRank": 0, "host": "job-0"}]
    assert (status, answer) == (200, {"dead": [], "targets": targets, "sources": [0]})
    for wrong in ({"generation": 1}, {"attempt": 1}, {"job_uid": "x"}):
        assert pod.post("/memory/keys", replace(report, **wrong))[0] == 409
    assert pod.post("/memory/keys", replace(report, node_rank=2))[0] == 400
    assert pod.ask("POST", "/memory/keys", b"{").status == 400
    assert pod.ask("POST", "/memory/keys", b"[" * 4000).status == 400
    pod.world.accept(replace(pod.world.assignment, generation=1, node_rank=1))
    assert pod.post("/memory/keys", report)[0] == 409


def test_rank_waits_for_the_decision(pod: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_WAIT_SECONDS", 0.01)
    body = {"rank": 0, "generation": 0}
    assert pod.ask("POST", "/memory/restore", json.dumps(body).encode()).status == 202
    assert pod.ask("GET", "/memory/restore?generation=0&first=1&count=1").status == 202
    assert pod.ask("GET", "/memory/restore?generation=1&first=1&count=1").status == 409
    for wrong in ({"rank": 1}, {"generation": 1}):
        answer = pod.ask("POST", "/memory/restore", json.dumps(body | wrong).encode())
        assert answer.status == 409
        assert json.loads(answer.body)["reason"]
    monkeypatch.setattr(requests, "_WAIT_SECONDS", 60.0)
    pod.leading._hosts = ["job-0"]  # as if the other were unknown
    answers: list[PeerResponse] = []
    asks = threading.Thread(
        target=lambda: answers.append(pod.ask("POST", "/memory/restore", json.dumps(body).encode()))
    )
    asks.start()
    pod.group.restoring.run()
    asks.join()
    reason = "node rank 0 does not know the other pods ($DDP_MEMBERS)"
    assert json.loads(answers[0].body) == {
        "path": None,
        "step": None,
        "generation": None,
        "reason": reason,
    }
    decision = pod.ask("GET", "/memory/restore?generation=0&first=1&count=1")
    assert json.loads(decision.body) == {"sources": [], "reason": reason}


def test_pod_without_its_volume_reports_that(tmp_path: Path) -> None:
    port = free_port()
    placement = Placement.from_env(contract() | {"DDP_STATUS_PORT": str(port)})
    unusable = MemoryRequests(None, placement)
    assert serve_status(port, tmp_path / "status.json", Pod(), placement, memory=unusable)

    def ask(method: str, target: str) -> PeerResponse:
        return caller(placement)("127.0.0.1", Request(method=method, target=target), 1000)

    assert json.loads(ask("GET", "/memory").body)["usable"] is False
    assert json.loads(ask("POST", "/memory/restore").body)["path"] is None
    assert ask("GET", f"/memory/{snapshot(5, 0)}?offset=0").status == 404


def test_a_job_without_snapshots_has_no_such_paths(tmp_path: Path) -> None:
    port = free_port()
    placement = Placement.from_env(contract() | {"DDP_STATUS_PORT": str(port)})
    assert serve_status(port, tmp_path / "status.json", Pod(), placement)
    with pytest.raises(NoAnswerError, match="not signed"):
        caller(placement)("127.0.0.1", Request(method="GET", target="/memory"), 1000)


def test_the_news_name_the_newest_complete_step(pod: Served) -> None:
    pod.leading._nodes = pod.leading.completeness._nodes = 1
    pod.leading._hosts = ["job-0"]
    pod.group.copies = 0
    assert pod.memory.news() == pod.memory._news
    pod.group.restoring.run()
    save(pod.volume, 0, snapshot(5, 0, generation=0))
    pod.memory.note(RankReport(rank=0, generation=0, step=5, saved=True))
    pod.memory.turn(0.0)
    news = pod.memory.news()
    assert news is not None
    assert (news.step, news.bytes, news.copies, news.refusal) == (5, 1000, 1, "")
    assert news.time is not None
    assert news.restored is not None
    assert (news.restored.step, news.restored.reason) == (None, "no pod has a snapshot")
    pod.memory.note(RankReport(rank=0, generation=0, step=6, saved=False, refusal="too large"))
    pod.memory.turn(0.0)
    assert pod.memory.news() == replace(news, refusal="node rank 0: too large")


def test_the_news_name_pods_that_never_save(pod: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pod.leading
    save(pod.volume, 0, snapshot(5, 0, generation=0))
    pod.memory.turn(0.0)
    news = pod.memory.news()
    assert news is not None
    assert news.refusal == ""
    monkeypatch.setattr(leading, "_LATE_SECONDS", 0.0)
    assert pod.memory.news() == replace(
        news,
        refusal="step 5 waits for node ranks 1: all ranks must call memory.save with the same "
        "steps",
    )
