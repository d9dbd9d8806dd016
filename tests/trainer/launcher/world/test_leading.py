"""Node rank 0 leads while the operator is away: when, with which requests, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ddp_protocol.message import to_json
from ddp_protocol.world import LEAD_SECONDS, FailureReport
from ddp_trainer.launcher.status_server.server import serve_status
from ddp_trainer.launcher.world import state
from ddp_trainer.launcher.world.leading import Leader, PutResponse, host_of, slots_of
from ddp_trainer.launcher.world.rank_environment import RankEnvironment
from ddp_trainer.launcher.world.requests import WorldRequests
from ddp_trainer.launcher.world.state import GroupState
from ddp_trainer.process_group.assignment import Assignment

from tests.flood import connect
from tests.ports import free_port
from tests.trainer.support.clock import Clock
from tests.trainer.support.pods import TOKEN, contract, until
from tests.trainer.support.status_server import Pod

BORN = Assignment(
    job_uid="7d1f",
    attempt=0,
    generation=4,
    node_rank=0,
    nodes=3,
    master_addr="train-0-0.train",
    members="0-1,7",
)
REPORT = FailureReport(
    job_uid="7d1f",
    attempt=0,
    pod="train-0-7",
    node_rank=2,
    generation=4,
    exit_code=3,
    message='{"exitCode": 3}',
    time="2026-11-21T03:00:00Z",
)


class Job:
    """Three launchers; node rank 0's leads the other two."""

    def __init__(self, *, born: Assignment = BORN) -> None:
        self.clock = Clock(1000.0)
        self.first = GroupState(born, clock=self.clock)
        self.others = {
            f"train-0-{slot}.train": GroupState(replace(born, node_rank=rank, members=""))
            for rank, slot in ((1, 1), (2, 7))
        }
        self.calls: list[tuple[str, int, bool]] = []
        self.before_call: Callable[[str], None] = lambda _: None
        self.lost: set[str] = set()
        self.leader = Leader(
            self.first,
            RankEnvironment(contract()).placement,
            pod="train-0-0",
            call=self._call,
            sleep=self._sleep,
        )
        self.pauses = 0

    def _call(self, host: str, place: Assignment, wait_seconds: int) -> PutResponse | None:
        assert wait_seconds <= 5
        self.before_call(host)
        if host in self.lost:
            return None
        assert len(to_json(place)) < 1000
        accepted = self.others[host].accept(place)
        self.calls.append((host, place.generation, place.start))
        return PutResponse(knows=accepted, ended=accepted)

    def _sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.pauses += 1
        if self.pauses == 3:
            self.lost.clear()

    def fail(self) -> None:
        """Let a pod's ranks fail while no operator polls."""
        self.first.news(after=0, wait_seconds=0)
        generation = self.first.assignment.generation
        assert self.first.note(replace(REPORT, generation=generation)) is None

    def fail_everywhere(self) -> None:
        """Let the ranks of all pods fail."""
        for rank, pod in enumerate(("train-0-0", "train-0-1", "train-0-7")):
            assert self.first.note(replace(REPORT, pod=pod, node_rank=rank)) is None

    @property
    def known(self) -> list[tuple[int, int | None, bool]]:
        places = [self.first.assignment, *(world.assignment for world in self.others.values())]
        return [(place.generation, place.node_rank, place.start) for place in places]


def is_due(world: GroupState) -> bool:
    due = world._due_to_lead()
    return due is not None and due <= world._clock()


def test_nobody_leads_with_an_operator_or_without_a_failure() -> None:
    job = Job()
    world, clock = job.first, job.clock
    clock.now += 10 * LEAD_SECONDS
    assert not is_due(world), "nothing has failed"
    job.fail()
    assert not is_due(world)
    clock.now += LEAD_SECONDS - 1
    assert not is_due(world), "an operator may be about to start"
    world.news(after=0, wait_seconds=0)
    clock.now += LEAD_SECONDS - 1
    assert not is_due(world), "one has polled"
    clock.now += 1
    assert is_due(world)
    world.accept(replace(BORN, generation=5))
    assert not is_due(world), "it has decided"


def test_launcher_without_an_earlier_operator_or_members_does_not_lead() -> None:
    clock = Clock(1000.0)
    never_polled = GroupState(BORN, clock=clock)
    assert never_polled.note(REPORT) is not None
    not_first, too_old = (
        GroupState(replace(BORN, node_rank=1), clock=clock),
        GroupState(replace(BORN, members=""), clock=clock),
    )
    for world in (not_first, too_old):
        world.news(after=0, wait_seconds=0)
        assert world.note(REPORT) is None
    clock.now += 10 * LEAD_SECONDS
    assert not any(is_due(world) for world in (never_polled, not_first, too_old))


def test_failures_long_after_the_last_poll_are_led() -> None:
    job = Job()
    job.first.news(after=0, wait_seconds=0)
    job.clock.now += 3600
    assert job.first.note(REPORT) is None
    assert not is_due(job.first), "others may fail a moment later"
    job.clock.now += 3
    assert is_due(job.first)


def test_failures_of_all_pods_are_led_at_once() -> None:
    job = Job()
    job.first.news(after=0, wait_seconds=0)
    job.clock.now += 3600
    assert job.first.note(REPORT) is None
    assert not is_due(job.first), "the cause may come from another pod"
    job.fail_everywhere()
    assert is_due(job.first)


def test_failures_are_led_when_the_operator_breaks_its_promise() -> None:
    job = Job()
    job.first.news(after=0, wait_seconds=0, lead_seconds=5)
    assert job.first.note(REPORT) is None
    job.clock.now += 4
    assert not is_due(job.first)
    job.first.news(after=0, wait_seconds=0, lead_seconds=5)
    job.clock.now += 4
    assert not is_due(job.first), "it has asked again"
    job.clock.now += 1
    assert is_due(job.first)


def test_awaited_start_is_led_as_late_as_without_a_promise() -> None:
    job = Job()
    job.first.news(after=0, wait_seconds=0, lead_seconds=5)
    job.first.accept(replace(BORN, generation=5, start=False))
    job.clock.now += LEAD_SECONDS - 1
    assert not is_due(job.first), "the operator may have a reason to wait"
    job.clock.now += 1
    assert is_due(job.first)


@pytest.mark.parametrize("hangs_up", [False, True])
def test_answer_that_nobody_receives_is_no_sign_of_an_operator(
    hangs_up: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_LOOK_SECONDS", 0.05)
    job = Job()
    environment = RankEnvironment({**contract(), "DDP_STATUS_PORT": "1", "DDP_GENERATION": "4"})
    requests, port = WorldRequests(job.first, environment), free_port()
    serve_status(port, tmp_path / "status.json", Pod(), environment.placement, world=requests)
    with connect(port) as operator:
        head = f"GET /world?after=1&wait=20&lead=5 HTTP/1.0\r\nAuthorization: Bearer {TOKEN}"
        operator.sendall(f"{head}\r\n\r\n".encode())
        until(lambda: bool(job.first._waiting), "the request to wait")
        job.clock.now += 20
        if hangs_up:
            operator.close()
            until(lambda: not job.first._waiting, "the launcher to notice")
        job.fail_everywhere()
        until(lambda: not job.first._waiting, "the answer")
        assert is_due(job.first) is hangs_up


def test_restart_without_its_operator_is_led() -> None:
    job = Job()
    job.first.news(after=0, wait_seconds=0)
    job.first.accept(replace(BORN, generation=5, start=False))
    assert not is_due(job.first)
    job.clock.now += LEAD_SECONDS
    assert is_due(job.first)


def test_leader_ends_all_ranks_before_any_start() -> None:
    job = Job()
    job.fail()
    job.clock.now += LEAD_SECONDS
    present = job.first.wait_to_lead()
    assert job.leader.lead(present)
    assert job.known == [(5, 0, True), (5, 1, True), (5, 2, True)]
    assert job.calls[-2:] == [("train-0-1.train", 5, True), ("train-0-7.train", 5, True)]
    assert not any(start for *_, start in job.calls[:-2])
    assert not is_due(job.first)


def test_led_generations_are_reported_until_the_operator_confirms() -> None:
    job = Job()
    for generation in (5, 6):
        job.fail()
        job.clock.now += 100
        assert job.leader.lead(job.first.wait_to_lead())
        assert job.first.assignment.generation == generation
    job.fail()
    news = json.loads(to_json(job.first.news(after=0, wait_seconds=0)))
    assert (news["generation"], news["members"]) == (6, "0-1,7")
    assert [each["generation"] for each in news["led"]] == [5, 6]
    assert all(each["time"].endswith("Z") for each in news["led"])
    assert [each["generation"] for each in news["failures"]] == [4, 5, 6]
    accepted = replace(BORN, generation=6, leader="train-0-0")
    assert job.first.accept(accepted)
    after = json.loads(to_json(job.first.news(after=0, wait_seconds=0)))
    assert after["led"] == []
    assert [each["generation"] for each in after["failures"]] == [6]
    assert after["number"] > news["number"]
    assert not job.first.is_led


def test_news_of_many_generations_stay_below_the_limit() -> None:
    job = Job()
    job.first.news(after=0, wait_seconds=0)
    for generation in range(4, 100):
        for pod in range(70):
            failure = replace(REPORT, generation=generation, pod=f"p{pod}", message='"' * 500)
            assert job.first.note(failure) is None
        led = replace(BORN, generation=generation + 1, led=True, leader="train-0-0")
        job.first.accept(replace(led, start=False))
        job.first.accept(led)
    news = job.first.news(after=0, wait_seconds=0)
    assert len(to_json(news).encode()) < 64 * 1024
    assert news.led is not None
    assert news.led[-1].generation == 100
    assert news.failures[-1].generation == 99


def test_failures_of_the_present_generation_come_first() -> None:
    job = Job()
    job.first.news(after=0, wait_seconds=0)
    for pod in range(64):
        assert job.first.note(replace(REPORT, pod=f"p{pod}", message="x" * 1500)) is None
    news = job.first.news(after=0, wait_seconds=0)
    assert len(to_json(news).encode()) < 64 * 1024
    assert [failure.pod for failure in news.failures] == [f"p{pod}" for pod in range(64)]
    assert news.failures[0].message == "x" * 1500


def test_silent_pod_is_asked_again_before_any_process_ends() -> None:
    job = Job()
    job.lost = {"train-0-7.train"}
    states: list[int] = []
    job.before_call = lambda _: states.append(job.first.assignment.generation)
    job.fail()
    job.clock.now += LEAD_SECONDS
    assert job.leader.lead(job.first.wait_to_lead())
    assert states[:4] == [4, 4, 4, 4]
    assert job.known == [(5, 0, True), (5, 1, True), (5, 2, True)]


def test_replaced_node_rank_0_leads_nobody() -> None:
    job = Job()
    job.fail()
    job.clock.now += LEAD_SECONDS
    by_operator = replace(BORN, generation=5, node_rank=1, leader="train-0-9", members="")
    job.others["train-0-1.train"].accept(by_operator)
    assert not job.leader.lead(job.first.wait_to_lead())
    assert job.known[:2] == [(4, 0, True), (5, 1, True)]
    assert job.others["train-0-1.train"].assignment is by_operator


def test_decision_of_the_operator_meanwhile_wins() -> None:
    job = Job()
    job.fail()
    job.clock.now += LEAD_SECONDS
    decided = replace(BORN, generation=5, start=False, leader="train-0-0")

    def decide(host: str) -> None:
        del host
        job.first.accept(decided)

    job.before_call = decide
    assert job.leader.lead(job.first.wait_to_lead())
    assert job.first.assignment is decided
    assert not job.first.is_led


@pytest.mark.parametrize(
    ("changes", "accepted"),
    [
        ({"leader": "train-0-0"}, True),
        ({"leader": "train-0-0", "start": False}, True),
        ({"leader": "train-0-0", "members": "0-1,8"}, False),
        ({"leader": "train-0-0", "code": "aaaaaaaaaaaa-0001"}, False),
        ({"leader": "train-0-8"}, False),
        ({"leader": ""}, False),
        ({"leader": "train-0-8", "led": True}, False),
        ({"leader": "train-0-8", "generation": 6}, True),
    ],
)
def test_led_generation_is_confirmed_only_unchanged(
    changes: dict[str, object], accepted: bool
) -> None:
    world = GroupState(BORN)
    led = replace(BORN, generation=5, leader="train-0-0", led=True)
    assert world.accept(led)
    assert world.accept(replace(BORN, **{"generation": 5, **changes})) is accepted  # type: ignore[arg-type]
    assert (world.assignment is led) is (changes.get("generation") != 6)
    assert world.is_led is not accepted


def test_generations_that_fail_at_once_back_off() -> None:
    job = Job()
    job.first.news(after=0, wait_seconds=0)
    job.clock.now += 1000
    waits: list[float] = []
    for ran in (1000.0, 1.0, 1.0, 1.0, *([1.0] * 6), 60.0):
        job.clock.now += ran
        generation = job.first.assignment.generation
        assert job.first.note(replace(REPORT, generation=generation)) is None
        due = job.first._due_to_lead()
        assert due is not None
        waits.append(due - job.clock.now)
        job.clock.now = due
        assert job.leader.lead(job.first.wait_to_lead())
    assert waits == [3, 6, 12, 24, 48, 96, 192, 300, 300, 300, 3]


def test_members_are_read_from_the_environment() -> None:
    required = {"DDP_STATUS_PORT": "8090", "DDP_GENERATION": "4"}
    env = {**contract(node_rank=0, nodes=2), **required}
    assert RankEnvironment({**env, "DDP_MEMBERS": "0-1"}).initial.members == "0-1"
    assert RankEnvironment(env).initial.members == ""


def test_hosts_of_slots() -> None:
    assert slots_of("0-2,7,4-5") == [0, 1, 2, 7, 4, 5]
    for wrong in ("", "0-", "a", "1;2", "-1", "0-1,"):
        with pytest.raises(ValueError, match="members"):
            slots_of(wrong)
    assert host_of("train-0-3.train", 12) == "train-0-12.train"
    assert host_of("train-0-3", 12) == "train-0-12"
    assert host_of("127.0.0.1", 12) is None
