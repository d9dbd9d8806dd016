"""Pods decide on a snapshot and fetch it, although some pods do not answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from ddp_protocol.message import to_json
from ddp_trainer.launcher.memory import leading, restoring
from ddp_trainer.launcher.memory.leading import LeadingMemory
from ddp_trainer.launcher.memory.own_steps import Pod
from ddp_trainer.launcher.memory.protocol.messages import (
    MAX_ANSWER_BYTES,
    PIECE_BYTES,
    Decision,
    Inventory,
    Source,
    Stored,
)
from ddp_trainer.launcher.memory.protocol.peers import NoAnswerError, PeerResponse
from ddp_trainer.launcher.memory.restoring import Restored, Restoring, to_rank
from ddp_trainer.launcher.memory.store import Store
from ddp_trainer.memory.volume import Key, SnapshotName
from ddp_trainer.process_group.admission import Request

from tests.trainer.launcher.memory.files import content_of, snapshot, volume_at

OWN, OTHER = snapshot(5, 0), snapshot(5, 1)


def inventory(node_rank: int, *names: SnapshotName, generation: int = 2) -> Inventory:
    stored = tuple(Stored(name=str(name), bytes=1000) for name in names)
    return Inventory(generation=generation, node_rank=node_rank, snapshots=stored)


class TwoPods:
    """Node rank 0 of two pods, and the answers of the other pod in their order."""

    def __init__(self, *answers: Inventory | PeerResponse | None) -> None:
        self.answers = list(answers)
        self.leading = LeadingMemory(
            generation=2,
            nodes=2,
            hosts=["job-0", "job-1"],
            copies=1,
            world_size=2,
            call=self._call,
            sleep=lambda _: None,
        )

    def _call(self, host: str, request: Request, most: int) -> PeerResponse:
        assert (host, request.target, most) == ("job-1", "/memory", MAX_ANSWER_BYTES)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise NoAnswerError("unreachable")
        return (
            answer
            if isinstance(answer, PeerResponse)
            else PeerResponse(200, to_json(answer).encode())
        )

    def decide(self) -> Decision:
        assert self.leading.decide(inventory(0, OWN), lambda: True)
        decision = self.leading.decision(range(1, 2))
        assert decision is not None
        return decision


def test_a_pod_may_answer_late_or_be_in_an_earlier_generation_first() -> None:
    pods = TwoPods(
        None,
        PeerResponse(403, b"no"),
        PeerResponse(200, b"{"),
        inventory(1, generation=1),
        inventory(0, OTHER),
        inventory(1, OTHER, generation=3),
    )
    source = Source(name=str(OTHER), bytes=1000, hosts=("job-1",))
    assert pods.decide() == Decision(sources=(source,))
    assert len(pods.answers) == 1


def test_a_silent_pod_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "_ANSWER_SECONDS", -1.0)
    decision = TwoPods(None).decide()
    assert not decision.sources
    assert decision.reason.endswith("no answer from node ranks 1")


def test_unusable_volume_of_one_pod_prevents_any_restore() -> None:
    unusable = Inventory(generation=2, node_rank=1, usable=False)
    pods = TwoPods(PeerResponse(200, to_json(unusable).encode()))
    replicated = snapshot(5, 0, replicated=True)
    assert pods.leading.decide(inventory(0, replicated), lambda: True)
    assert pods.leading.decision(range(1)) == Decision(
        reason="node rank 1 cannot use its memory volume"
    )


def test_a_group_that_restarts_meanwhile_decides_nothing() -> None:
    pods = TwoPods(None)
    assert not pods.leading.decide(inventory(0, OWN), lambda: False)
    assert pods.leading.decision(range(1)) is None


def test_decision_does_not_change() -> None:
    pods = TwoPods(inventory(1, OTHER))
    first = pods.decide()
    assert pods.leading.decision(range(1, 2)) == first


def test_pods_begin_with_different_replicated_snapshots() -> None:
    names = [snapshot(5, rank, replicated=True) for rank in range(2)]
    pods = TwoPods(inventory(1, names[1]))
    assert pods.leading.decide(inventory(0, names[0]), lambda: True)
    for first in range(2):
        decision = pods.leading.decision(range(first, first + 1))
        assert decision is not None
        assert [source.name for source in decision.sources] == [
            str(names[first]),
            str(names[1 - first]),
        ]


class Fetching:
    """A pod that resumes, and the pods that it asks."""

    def __init__(
        self,
        folder: Path,
        decision: Decision,
        pods: Mapping[str, Mapping[SnapshotName, bytes]],
        *,
        restarts_after: int = 1000,
    ) -> None:
        self.store = Store(volume_at(folder))
        self.decided: list[Key | None] = []
        self.hosts: list[str] = []
        self.looks = 0
        self.pods = pods
        self.restarts_after = restarts_after
        self.restoring = Restoring(
            Pod(generation=2, ranks=range(1), world_size=2),
            self.store,
            self._call,
            decide=lambda: decision,
            decided=self.decided.append,
            is_current=self._is_current,
            sleep=lambda _: None,
        )
        self.restoring.run()
        result = self.restoring.result(wait_seconds=0)
        assert result is not None
        self.result = result

    def _is_current(self) -> bool:
        self.looks += 1
        return self.looks < self.restarts_after

    def _call(self, host: str, request: Request, most: int) -> PeerResponse:
        self.hosts.append(host)
        assert most == PIECE_BYTES
        path, _, offset = request.target.partition("?offset=")
        for name, content in self.pods.get(host, {}).items():
            if path == f"/memory/{name}":
                return PeerResponse(200, content[int(offset) : int(offset) + 300])
        raise NoAnswerError("unreachable")


def decision(*names: SnapshotName, hosts: tuple[str, ...] = ("a", "b")) -> Decision:
    return Decision(
        sources=tuple(Source(name=str(name), bytes=1000, hosts=hosts) for name in names)
    )


def test_the_next_pod_serves_what_the_first_does_not(tmp_path: Path) -> None:
    half = {OWN: content_of(OWN)[:500]}
    fetching = Fetching(tmp_path, decision(OWN), {"a": half, "b": {OWN: content_of(OWN)}})
    assert not fetching.result.failed
    assert fetching.result.paths[0].read_bytes() == content_of(OWN)
    assert fetching.decided == [OWN.key]
    assert set(fetching.hosts) == {"a", "b"}


def test_any_replicated_snapshot_will_do(tmp_path: Path) -> None:
    names = [snapshot(5, rank, replicated=True) for rank in range(2)]
    fetching = Fetching(tmp_path, decision(*names), {"b": {names[1]: content_of(names[1])}})
    assert fetching.result.paths[0].read_bytes() == content_of(names[1])


def test_a_snapshot_that_no_pod_gives_fails_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "_FETCH_SECONDS", -1.0)
    fetching = Fetching(tmp_path, decision(OWN), {})
    assert fetching.result == Restored(reason=f"cannot fetch {OWN}: b: unreachable", failed=True)


def test_a_restart_ends_the_restore(tmp_path: Path) -> None:
    fetching = Fetching(tmp_path, decision(OWN), {}, restarts_after=3)
    assert (fetching.result.failed, fetching.result.reason) == (True, "the group has restarted")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (decision(OTHER), "snapshots of other ranks"),
        (decision(OWN, snapshot(6, 1)), "do not belong together"),
        (decision(OWN, snapshot(5, 1, replicated=True)), "do not belong together"),
        (Decision(sources=(Source(name="../x", bytes=1),)), "'../x', which is no snapshot"),
    ],
)
def test_invalid_decision_is_refused(tmp_path: Path, wrong: Decision, error: str) -> None:
    fetching = Fetching(tmp_path, wrong, {})
    assert fetching.result.failed
    assert error in fetching.result.reason
    assert not fetching.decided


def test_rank_gets_no_snapshot_after_newer_complete_steps(tmp_path: Path) -> None:
    fetching = Fetching(tmp_path, decision(OWN), {"a": {OWN: content_of(OWN)}})
    assert json.loads(to_rank(fetching.result, 0)) == {
        "path": str(fetching.result.paths[0]),
        "step": 5,
        "generation": 1,
        "reason": "",
    }
    fetching.store.drop(lambda _: True)
    assert json.loads(to_rank(fetching.result, 0)) == {
        "path": None,
        "step": None,
        "generation": None,
        "reason": "newer steps are complete by now",
    }


def test_pods_ask_for_the_decision_until_it_is_made(tmp_path: Path) -> None:
    pauses: list[float] = []
    answers = [None, None, Decision(reason="no pod has a snapshot")]
    waiting = Restoring(
        Pod(generation=2, ranks=range(1), world_size=2),
        Store(volume_at(tmp_path)),
        lambda *_: PeerResponse(404, b""),
        decide=lambda: answers.pop(0),
        decided=lambda _: None,
        is_current=lambda: True,
        ask_seconds=7.0,
        sleep=pauses.append,
    )
    waiting.run()
    assert waiting.result(wait_seconds=0) == Restored(reason="no pod has a snapshot")
    assert pauses == [7.0, 7.0]


def test_a_node_rank_0_that_never_decides_fails_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "_DECISION_SECONDS", 0.0)
    fetching = Fetching(tmp_path, decision(OWN), {})
    assert fetching.result.failed
    assert "did not decide" in fetching.result.reason
