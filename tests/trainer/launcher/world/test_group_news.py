"""A launcher's state of the group, and how it handles requests, without processes."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from ddp_protocol.copies import fingerprint
from ddp_protocol.message import to_json
from ddp_protocol.progress import CheckpointStatus
from ddp_protocol.world import (
    MESSAGE_BYTES,
    FailureReport,
    LauncherStatus,
    MemoryReport,
    RestoreDecision,
)
from ddp_trainer.exit_codes import ConfigurationError
from ddp_trainer.launcher.lifetime import Standing
from ddp_trainer.launcher.local_checkpoints import LocalCheckpoints
from ddp_trainer.launcher.world.failure_reports import Refusal, ReportResult, answer_of, message_of
from ddp_trainer.launcher.world.rank_environment import RankEnvironment
from ddp_trainer.launcher.world.state import GroupState
from ddp_trainer.process_group.assignment import Assignment
from ddp_trainer.telemetry.termination import TerminationReport

from tests.trainer.support.clock import Clock
from tests.trainer.support.pods import DEADLINE_SECONDS, contract

BORN = Assignment(
    job_uid="7d1f", attempt=0, generation=4, node_rank=1, nodes=2, master_addr="j-0-0.j"
)
REPORT = FailureReport(
    job_uid="7d1f",
    attempt=0,
    pod="j-0-1-x7k2p",
    node_rank=1,
    generation=4,
    exit_code=3,
    message='{"exitCode": 3}',
    time="2026-11-21T03:00:00Z",
)


def number(world: GroupState) -> int:
    return world.news(after=0, wait_seconds=0).number


def test_newer_assignment_of_the_same_attempt_wins() -> None:
    woken: list[None] = []
    world = GroupState(BORN, wake=lambda: woken.append(None))
    newer = replace(BORN, generation=6, node_rank=0)
    cases = [
        (replace(BORN, node_rank=0), True, BORN),  # the first one of a generation stays
        (newer, True, newer),
        (replace(newer, node_rank=1), True, newer),
        (replace(BORN, generation=5), False, newer),
        (BORN, False, newer),
        (replace(newer, generation=7, attempt=1), False, newer),
        (replace(newer, generation=7, job_uid="another"), False, newer),
        (
            replace(newer, generation=7, node_rank=None),
            True,
            replace(newer, generation=7, node_rank=None),
        ),
    ]
    for place, accepted, known in cases:
        assert world.accept(place) is accepted
        assert world.assignment == known
    assert len(woken) == 2


def test_within_a_generation_only_the_start_changes() -> None:
    world = GroupState(BORN)
    held = replace(BORN, generation=5, start=False)
    started = replace(held, start=True, master_address="10.0.0.7")
    for place, known in [(held, held), (started, started), (held, started)]:
        assert world.accept(place)
        assert world.assignment == known


def test_number_of_the_news_grows_with_each_change() -> None:
    world = GroupState(BORN)
    numbers = [number(world)]
    world.joined()
    numbers.append(number(world))
    world.joined()
    assert number(world) == numbers[-1]
    world.note(REPORT)
    numbers.append(number(world))
    world.note(REPORT)
    assert number(world) == numbers[-1]
    world.accept(replace(BORN, generation=5, start=False))
    numbers.append(number(world))
    world.accept(replace(BORN, generation=5))
    assert number(world) == numbers[-1]
    assert numbers == [1, 2, 3, 4]


def test_remark_makes_news_and_ends_with_its_generation() -> None:
    world = GroupState(BORN)
    world.set_remark("rank 0 listens at localhost")
    news = world.news(after=0, wait_seconds=0)
    assert (news.number, news.remark) == (2, "rank 0 listens at localhost")
    world.set_remark("rank 0 listens at localhost")
    assert number(world) == 2
    world.accept(replace(BORN, generation=5))
    assert world.news(after=0, wait_seconds=0).remark == ""


def test_failure_reports_are_bounded_and_end_with_their_generation() -> None:
    world = GroupState(BORN)
    world.news(after=0, wait_seconds=0)
    for i in range(100):
        assert world.note(replace(REPORT, pod=f"pod-{i}")) is None
        assert world.note(replace(REPORT, pod=f"pod-{i}")) is None, "repeated"
    news = world.news(after=0, wait_seconds=0)
    assert [failure.pod for failure in news.failures] == [f"pod-{i}" for i in range(64)]
    document = json.loads(to_json(news))
    assert document["failures"][0] == {
        "pod": "pod-0",
        "nodeRank": 1,
        "generation": 4,
        "exitCode": 3,
        "message": '{"exitCode": 3}',
        "time": "2026-11-21T03:00:00Z",
    }
    assert {**document, "failures": []} == {
        "number": 65,
        "generation": 4,
        "scope": "InPlace",
        "failures": [],
        "members": "",
        "led": [],
        "savedInPod": False,
        "code": "",
        "remark": "",
        "copyOrder": "",
    }
    world.accept(replace(BORN, generation=5))
    assert json.loads(to_json(world.news(after=0, wait_seconds=0)))["failures"] == []


def test_failure_reports_without_a_reader_are_refused() -> None:
    clock = Clock(0.0)
    world = GroupState(BORN, clock=clock)
    unread = Refusal(error="the operator does not poll node rank 0 for failures")
    assert world.note(REPORT) == unread
    world.news(after=0, wait_seconds=0)
    clock.now = 600.0
    assert world.note(REPORT) is None
    clock.now = 601.0
    assert world.note(REPORT) == unread
    world.news(after=0, wait_seconds=0)
    assert world.note(replace(REPORT, generation=3)) == Refusal(
        error="node rank 0 is in generation 4", generation=4
    )
    for other in (replace(REPORT, attempt=1), replace(REPORT, job_uid="another")):
        refusal = world.note(other)
        assert refusal == Refusal(error="node rank 0 belongs to another job or attempt")
    assert [failure.pod for failure in world.news(after=0, wait_seconds=0).failures] == [REPORT.pod]


def test_answer_of_each_refusal() -> None:
    assert answer_of(None, REPORT) == ReportResult()
    assert answer_of(Refusal(error="why"), REPORT) == ReportResult("why")
    assert answer_of(Refusal(error="why", generation=5), REPORT) == ReportResult()
    assert answer_of(Refusal(error="why", generation=3), REPORT) == ReportResult(
        "why", is_final=False
    )


def test_only_the_newest_two_wait_for_news() -> None:
    waits: list[threading.Thread] = []
    began = threading.Semaphore(0)
    world = GroupState(BORN, wake=began.release)
    for _ in range(3):
        options = {"after": 1, "wait_seconds": DEADLINE_SECONDS}
        waits.append(threading.Thread(target=world.news, kwargs=options, daemon=True))
        waits[-1].start()
        assert began.acquire(timeout=DEADLINE_SECONDS)
        while len(waits) < 3 and len(world._waiting) < len(waits):
            pass
    waits[0].join(DEADLINE_SECONDS)
    assert [wait.is_alive() for wait in waits] == [False, True, True]
    world.joined()
    for wait in waits:
        wait.join(DEADLINE_SECONDS)
        assert not wait.is_alive()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"pod": ""}, "pod"),
        ({"pod": "p" * 300}, "pod"),
        ({"message": "ü" * 769}, "message: at most 1536 bytes"),
        ({"time": "2" * 40}, "time"),
        ({"exitCode": -1}, "exitCode"),
        ({"generation": "4"}, "generation"),
        ({"jobUid": None}, "jobUid is missing"),
    ],
)
def test_invalid_failure_report_is_refused(wrong: dict[str, object], error: str) -> None:
    text = json.loads(to_json(REPORT)) | wrong
    with pytest.raises(ValueError, match=error):
        FailureReport.read(json.dumps(text, ensure_ascii=False).encode())


def test_failure_report_survives_json() -> None:
    assert FailureReport.read(to_json(REPORT).encode()) == REPORT
    assert (
        len(to_json(replace(REPORT, message='"' * MESSAGE_BYTES)).encode())
        < FailureReport.MAX_BYTES
    )


@pytest.mark.parametrize("error", ["", "short", "x" * 600, "ü" * 600, '"\\' * 300, "\ud800" * 600])
@pytest.mark.parametrize("folder", ["", "checkpoints/" * 30, "c" * 600])
def test_message_fits_a_failure_report_and_stays_json(error: str, folder: str) -> None:
    checkpoint = CheckpointStatus(step=7, path=folder) if folder else None
    report = TerminationReport(step=9, error=error or None, exit_code=3, checkpoint=checkpoint)
    text = message_of(report)
    assert len(text.encode(errors="replace")) <= MESSAGE_BYTES
    kept = TerminationReport.from_json(text)
    assert error.startswith(kept.error or "")
    assert len(kept.error or "") >= min(len(error), 20)
    if len(folder) < 500:
        assert replace(kept, error=None) == replace(report, error=None)
    else:
        assert kept.exit_code == 3


@pytest.mark.parametrize(
    ("scope", "joined", "asks"),
    [
        ("", False, False),
        ("Auto", False, True),
        ("Auto", True, False),
        ("InPlace", False, True),
        ("InPlace", True, True),
        ("Pod", False, False),
        ("Gang", False, False),
    ],
)
def test_restart_in_place_depends_on_scope_and_join(scope: str, joined: bool, asks: bool) -> None:
    standing = Standing.from_env({"DDP_POD": "pod", "DDP_RESTART_SCOPE": scope})
    assert standing.may_ask(joined=joined) is asks
    assert not Standing(pod="", scope=scope).may_ask(joined=joined)


def test_unknown_scope_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="DDP_RESTART_SCOPE is 'Node': set it to"):
        Standing.from_env({"DDP_RESTART_SCOPE": "Node"})


def member(**variables: str) -> dict[str, str]:
    required = {"DDP_STATUS_PORT": "8090", "DDP_GENERATION": "4"}
    return {**contract(node_rank=1, nodes=2, local_world_size=2), **required, **variables}


def spare(**variables: str) -> dict[str, str]:
    place = {"NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR"}
    return {name: value for name, value in member(**variables).items() if name not in place}


def for_torchrun(rank: int, *, of: int) -> dict[str, str]:
    """Return the variables that make a rank a node of one process."""
    return {"PET_NODE_RANK": str(rank), "PET_NNODES": str(of), "PET_NPROC_PER_NODE": "1"}


def test_first_assignment_leaves_the_environment_unchanged() -> None:
    rank_environment = RankEnvironment(member())
    assert rank_environment.can_change
    assert rank_environment.initial == replace(BORN, master_addr="localhost")
    assert rank_environment.ranks(rank_environment.initial, by_name=True) == {
        2: {"RANK": "2", "LOCAL_RANK": "0", **for_torchrun(2, of=4)},
        3: {"RANK": "3", "LOCAL_RANK": "1", **for_torchrun(3, of=4)},
    }


@pytest.mark.parametrize("made", [member(), spare()])
def test_another_assignment_sets_all_variables(made: dict[str, str]) -> None:
    rank_environment = RankEnvironment(made)
    place = replace(BORN, generation=9, node_rank=2, nodes=3, master_address="10.0.0.7")
    common = {
        "MASTER_ADDR": "10.0.0.7",
        "PET_MASTER_ADDR": "10.0.0.7",
        "WORLD_SIZE": "6",
        "NODE_RANK": "2",
        "GROUP_RANK": "2",
        "GROUP_WORLD_SIZE": "3",
        "DDP_GENERATION": "9",
    }
    assert rank_environment.ranks(place, by_name=False) == {
        4: {**common, "RANK": "4", "LOCAL_RANK": "0", **for_torchrun(4, of=6)},
        5: {**common, "RANK": "5", "LOCAL_RANK": "1", **for_torchrun(5, of=6)},
    }
    for by_name, known in [(True, place), (False, replace(place, master_address=""))]:
        assert rank_environment.ranks(known, by_name=by_name)[4]["MASTER_ADDR"] == "j-0-0.j"
    assert rank_environment.ranks(replace(place, node_rank=None), by_name=False) == {}
    assert rank_environment.why_unfit(place) == ""


def test_spare_has_no_node_rank() -> None:
    rank_environment = RankEnvironment(spare())
    assert rank_environment.initial.node_rank is None
    assert (
        rank_environment.initial.job_uid,
        rank_environment.initial.attempt,
        rank_environment.initial.generation,
    ) == ("7d1f", 0, 4)
    assert rank_environment.placement.local_world_size == 2


@pytest.mark.parametrize("lacks", ["DDP_GENERATION", "DDP_STATUS_PORT", "DDP_TOKEN"])
def test_pod_that_cannot_receive_an_assignment_needs_one(lacks: str) -> None:
    assert not RankEnvironment({**member(), lacks: ""}).can_change
    with pytest.raises(ConfigurationError, match="is not set"):
        RankEnvironment({**spare(), lacks: ""})


def test_negative_generation_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="DDP_GENERATION is -1: set it to"):
        RankEnvironment(member(DDP_GENERATION="-1"))


def test_assignment_must_fit_pods_of_different_sizes() -> None:
    rank_environment = RankEnvironment(
        member(DDP_POD_SIZES="1,2,2", WORLD_SIZE="5", GROUP_WORLD_SIZE="3")
    )
    place = replace(BORN, generation=9, node_rank=2, nodes=3)
    assert rank_environment.why_unfit(place) == ""
    ranks = rank_environment.ranks(place, by_name=True)
    assert {rank: each["WORLD_SIZE"] for rank, each in ranks.items()} == {3: "5", 4: "5"}
    assert rank_environment.why_unfit(replace(place, node_rank=None)) == ""
    assert rank_environment.why_unfit(replace(place, nodes=4)).startswith("nodes: ")
    assert rank_environment.why_unfit(replace(place, node_rank=0)).startswith("nodeRank: ")


def test_new_files_on_the_pods_disk_are_checkpoints(tmp_path: Path) -> None:
    old, link = tmp_path / "old.pt", tmp_path / "link"
    old.write_text("of the image")
    os.utime(old, (1000, 1000))
    link.symlink_to(__file__)
    found = LocalCheckpoints.from_env({"DDP_LOCAL_PATHS": f"{tmp_path}:/nowhere/s.pt"})
    (tmp_path / "runs" / "empty").mkdir(parents=True)
    assert (found.exist(), found.may_come) == (False, True)
    (tmp_path / "runs" / "s.pt").write_text("a checkpoint")
    assert (found.exist(), found.may_come) == (True, False)
    (tmp_path / "runs" / "s.pt").unlink()
    assert found.exist(), "the ranks have begun to save"
    none = LocalCheckpoints.from_env({})
    assert (none.exist(), none.may_come) == (False, False)


def test_first_checkpoint_in_the_pod_is_in_the_news(tmp_path: Path) -> None:
    local = LocalCheckpoints([str(tmp_path)], since=0.0)
    world = GroupState(replace(BORN, node_rank=0), local_checkpoints=local)
    assert json.loads(to_json(world.news(after=0, wait_seconds=0)))["savedInPod"] is False
    threading.Timer(0.2, (tmp_path / "s.pt").write_text, ("a checkpoint",)).start()
    news = world.news(after=1, wait_seconds=DEADLINE_SECONDS)
    assert json.loads(to_json(news))["savedInPod"] is True
    assert news.number == 2


def test_rank_0_with_a_local_checkpoint_leads_no_other_pod(tmp_path: Path) -> None:
    for nodes, due in ((1, True), (2, False)):
        clock = Clock(0.0)
        local = LocalCheckpoints([str(tmp_path)], since=0.0)
        place = replace(BORN, node_rank=0, nodes=nodes, members="0-1")
        world = GroupState(place, clock=clock, local_checkpoints=local)
        world.news(after=0, wait_seconds=0)
        world.note(REPORT)
        assert world._due_to_lead() is not None
        (tmp_path / "s.pt").write_text("a checkpoint")
        assert (world._due_to_lead() is not None) is due
        (tmp_path / "s.pt").unlink()


def test_the_operator_reads_the_news_of_the_memory() -> None:
    at = "2026-11-21T03:00:00Z"
    restored = RestoreDecision(generation=4, step=35, time=at, reason="none")
    memory = MemoryReport(step=40, time=at, bytes=4096, copies=1, refusal="full", restored=restored)
    memory = replace(memory, copy_order="0123abcd", replicated=True)
    world = GroupState(BORN)
    world.memory = lambda: memory
    read = LauncherStatus.read(to_json(world.news(after=0, wait_seconds=0))).memory
    assert read == memory


def test_only_a_new_restore_decision_of_the_memory_makes_news() -> None:
    world = GroupState(BORN)
    assert "memory" not in json.loads(to_json(world.news(after=0, wait_seconds=0)))
    before = number(world)
    world.memory = lambda: MemoryReport(step=5, time="2026-11-21T03:00:00Z", bytes=4096, copies=1)
    news = json.loads(to_json(world.news(after=before, wait_seconds=0)))
    assert news["number"] == before
    assert news["memory"] == {
        "step": 5,
        "time": "2026-11-21T03:00:00Z",
        "bytes": 4096,
        "copies": 1,
        "refusal": "",
        "replicated": False,
    }
    restored = RestoreDecision(generation=4, time="2026-11-21T03:00:00Z", reason="none is complete")
    world.memory = lambda: MemoryReport(copies=1, restored=restored)
    world.restore_decided()
    news = json.loads(to_json(world.news(after=before, wait_seconds=DEADLINE_SECONDS)))
    assert news["number"] == before + 1
    assert news["memory"] == {
        "copies": 1,
        "refusal": "",
        "replicated": False,
        "restored": {
            "generation": 4,
            "time": "2026-11-21T03:00:00Z",
            "reason": "none is complete",
        },
    }


def test_order_for_copies_changes_without_another_assignment() -> None:
    woken: list[bool] = []
    world = GroupState(BORN, wake=lambda: woken.append(True))
    before = number(world)
    woken.clear()
    assert world.accept(replace(BORN, copy_order="1,0"))
    assert woken, "the supervisor passes it to the ranks"
    assert world.assignment is BORN, "nothing restarts"
    assert world.copy_order == "1,0"
    news = world.news(after=before, wait_seconds=0)
    assert (news.number, news.copy_order) == (before + 1, fingerprint("1,0"))
    assert world.accept(BORN)
    assert world.copy_order == "1,0", "an operator that does not know the nodes yet"
    led = replace(BORN, generation=5, led=True, leader="j-0-0")
    assert world.accept(led)
    assert world.copy_order == "1,0", "the pods are the same"
    assert world.accept(replace(BORN, generation=6))
    assert world.copy_order == ""


def test_pause_is_requested_and_reported_within_one_generation() -> None:
    woken: list[bool] = []
    world = GroupState(BORN)
    world.wake_memory = lambda: woken.append(True)
    assert world.news(after=0, wait_seconds=0).pause is None, "the pod keeps no snapshots"
    world.set_pause("", 4)
    assert world.accept(replace(BORN, pause=True))
    assert world.accept(replace(BORN, pause=True))
    assert woken == [True]
    assert [world.is_pause_wanted(generation) for generation in (3, 4)] == [False, True]
    before = number(world)
    world.set_pause("Paused", 4)
    news = world.news(after=before, wait_seconds=0)
    assert (news.number, news.pause) == (before + 1, "Paused")
    assert world.accept(replace(BORN, generation=5))
    world.set_pause("Paused", 4)  # from a thread that was slow
    assert world.news(after=0, wait_seconds=0).pause == ""
    assert not world.is_pause_wanted(5)
    assert world.accept(replace(BORN, generation=5, pause=True))
    assert world.accept(replace(BORN, generation=6, led=True, leader="j-0-0"))
    assert not world.is_pause_wanted(6)
