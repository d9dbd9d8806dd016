"""The engine and the launchers in pods: polls and assignments."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.api.status.world import World as Group
from ddp_operator.engine.engine import Engine
from ddp_operator.engine.job_cache import JobCache
from ddp_operator.engine.trainers import launchers
from ddp_operator.engine.trainers.launchers import Launchers, pause_seconds
from ddp_operator.job.membership.answers import InvalidAnswerError
from ddp_operator.job.membership.launcher_protocol import Assignment, LauncherStatus
from ddp_operator.ports import Key, OutOfFilesError, SentToken, WorldAnswer

from tests.unit.engine.fakes import ACCESS, SETTINGS, TOKEN, FakeCluster
from tests.unit.engine.test_reconciler import READY, job
from tests.waiting import eventually

FAILURE = {
    "pod": "train-0-1",
    "generation": 0,
    "exitCode": 3,
    "message": "boom",
    "time": "2026-11-21T03:00:00Z",
}

LED = {"generation": 1, "time": "2026-11-21T03:00:40Z"}


class FakeLaunchers:
    """Implements `ports.Trainers`: launchers by their address."""

    def __init__(self) -> None:
        self.answer: bytes | str = "nobody listens"
        self.deaf: set[str] = set()
        self.in_vain = 0
        """Number of assignments sent to a launcher in `silent`."""
        self.led: dict[str, int] = {}
        """Launchers with another generation, which launchers began."""
        self.lingering: set[str] = set()
        """Pods with old processes that do not end."""
        self.told: list[tuple[str, int, bool, str]] = []
        self.asked: list[str] = []
        self._changed = asyncio.Event()

    def say(self, *failures: Mapping[str, Any], number: int = 1, generation: int = 0) -> None:
        said = {"number": number, "generation": generation, "failures": list(failures)}
        self.answer = json.dumps(said).encode()
        self._changed.set()
        self._changed = asyncio.Event()

    async def status(self, address: str) -> bytes | str:
        return f"{address}: nothing to report yet"

    async def dump_stacks(self, address: str, *, token: str) -> bool:
        raise AssertionError((address, token))

    async def traces(self, address: str, *, token: str) -> bytes | str:
        raise AssertionError((address, token))

    async def checkpoint(self, address: str, *, token: str) -> bool:
        raise AssertionError((address, token))

    async def put_world(
        self, address: str, document: Mapping[str, Any], *, wait_seconds: int, token: str
    ) -> WorldAnswer | None:
        assert wait_seconds == 5
        generation: int = document["generation"]
        if address in self.deaf:
            self.in_vain += 1
            return None
        self.told.append((address, generation, document["start"], token))
        if address in self.led:
            return WorldAnswer(self.led[address], ended=True, led=True)
        return WorldAnswer(generation, address not in self.lingering)

    async def poll_world(
        self, address: str, *, after: int, wait_seconds: int, token: str
    ) -> bytes | str:
        assert (wait_seconds, token) == (20, TOKEN)
        self.asked.append(address)
        if isinstance(self.answer, bytes) and json.loads(self.answer).get("number") == after:
            await self._changed.wait()
        return self.answer

    async def close(self) -> None:
        """Nothing is open."""


class World:
    """A job of two running pods; their processes restart in place."""

    def __init__(self) -> None:
        self.cluster, self.launchers = FakeCluster(), FakeLaunchers()
        self.ahead = timedelta()
        self.engine = Engine(
            self.cluster,
            settings=SETTINGS,
            clock=lambda: datetime.now(UTC) + self.ahead,
            trainers=self.launchers,
        )
        self.cluster.tell = self.engine.enqueue
        self.engine.start()

    async def run(self, *, without: str = "", **spec: Any) -> None:
        """Run the job; the pod `without` does not start."""
        manifest = job(restart={"scope": "InPlace"}, **spec)
        manifest["metadata"]["creationTimestamp"] = datetime.now(UTC).isoformat()
        self.engine.job_changed(self.cluster.store_job(manifest))
        await self.until(lambda: len(self.cluster.pods) == 2)
        for number, name in enumerate(("train-0-0", "train-0-1"), start=1):
            if name != without:
                self.start(name, f"10.0.0.{number}")
        if not without:
            await self.until(lambda: self.status.get("phase") == "Running")

    def start(self, name: str, ip: str) -> None:
        running = {"running": {"startedAt": datetime.now(UTC).isoformat()}}
        containers = [{"name": "trainer", "state": running}]
        status = {**READY, "podIP": ip, "containerStatuses": containers}
        self.cluster.set_pod_status(name, status)
        self.engine.enqueue(Key("default", "train"))

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.jobs[Key("default", "train")].get("status") or {}
        return found

    @property
    def generation(self) -> int:
        found: int = self.status.get("world", {}).get("generation", 0)
        return found

    async def until(self, condition: Callable[[], bool]) -> None:
        await eventually(condition, describe=lambda: self.cluster.jobs)


def alone(trainers: FakeLaunchers, *, on_news: Callable[[Key], None] = lambda _: None) -> Launchers:
    """Return only the part that talks to launchers, without the rest of an engine."""
    return Launchers(
        FakeCluster(),
        JobCache(),
        trainers,
        access=ACCESS,
        clock=lambda: datetime.now(UTC),
        on_news=on_news,
    )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.engine.stop()


async def test_a_failure_that_is_told_has_all_launchers_begin_anew(world: World) -> None:
    world.launchers.say()
    await world.run()
    await world.until(lambda: world.status["bookkeeping"].get("launcher") == "InPlace")
    world.launchers.say(FAILURE, number=2)
    await world.until(lambda: world.generation == 1)
    await world.until(lambda: world.status["phase"] == "Running")
    both = ("10.0.0.1:28737", "10.0.0.2:28737")
    first, then = world.launchers.told[:2], world.launchers.told[2:]
    assert sorted(first) == [(address, 1, False, TOKEN) for address in both]
    assert sorted(then) == [(address, 1, True, TOKEN) for address in both]
    assert sorted(pod.name for pod in world.cluster.pods) == ["train-0-0", "train-0-1"]
    assert world.status["restarts"] == 1


@pytest.mark.parametrize("set_back", [timedelta(), timedelta(hours=1)])
async def test_a_pod_whose_launcher_stays_deaf_is_replaced(
    world: World, set_back: timedelta
) -> None:
    world.launchers.say()
    world.launchers.deaf.add("10.0.0.2:28737")
    await world.run()
    await world.until(lambda: world.status["bookkeeping"].get("launcher") == "InPlace")
    world.launchers.say(FAILURE, number=2)
    await world.until(lambda: len(world.launchers.told) == 1)
    assert world.status["phase"] == "Restarting"
    world.ahead -= set_back
    before = world.launchers.in_vain
    await world.until(lambda: world.launchers.in_vain > before + 1)
    world.ahead += timedelta(seconds=31)
    await world.until(lambda: Key("default", "train-0-1-r1") in world.cluster.pods)
    assert world.generation == 2
    assert Key("default", "train-0-0") in world.cluster.pods
    world.start("train-0-1-r1", "10.0.0.3")
    await world.until(lambda: world.status["phase"] == "Running")
    started = {address for address, *what, _ in world.launchers.told if what == [2, True]}
    assert started == {"10.0.0.1:28737", "10.0.0.3:28737"}


async def test_nothing_starts_before_all_of_before_has_ended(world: World) -> None:
    world.launchers.say()
    world.launchers.lingering.add("10.0.0.2:28737")
    await world.run()
    await world.until(lambda: world.status["bookkeeping"].get("launcher") == "InPlace")
    world.launchers.say(FAILURE, number=2)
    asked = [("10.0.0.2:28737", 1, False)] * 2
    await world.until(lambda: [t[:3] for t in world.launchers.told].count(asked[0]) == len(asked))
    assert not any(start for _, _, start, _ in world.launchers.told)
    world.launchers.lingering.clear()
    await world.until(lambda: world.status["phase"] == "Running")
    assert world.generation == 1


async def test_launchers_whose_processes_take_time_keep_the_news_from_nobody() -> None:
    waiting: set[str] = set()
    may_answer = asyncio.Event()

    class Slow(FakeLaunchers):
        async def put_world(
            self, address: str, document: Mapping[str, Any], *, wait_seconds: int, token: str
        ) -> WorldAnswer | None:
            waiting.add(address)
            await may_answer.wait()
            return await super().put_world(
                address, document, wait_seconds=wait_seconds, token=token
            )

    told = alone(Slow())
    of = DDPJob.parse(job())
    document = {"generation": 1, "start": False}
    all_of_them = {f"pod-{number}": f"10.0.{number}.1:28737" for number in range(500)}
    told.assign(of, [Assignment(pod, at, 1, False, document) for pod, at in all_of_them.items()])
    await eventually(lambda: waiting == {*all_of_them.values()}, describe=lambda: len(waiting))
    may_answer.set()
    await eventually(lambda: told.of(of).told == dict.fromkeys(all_of_them, (1, False)))


class Silent(FakeLaunchers):
    """All accept connections, but those of network 10.1 never answer."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0

    async def put_world(
        self, address: str, document: Mapping[str, Any], *, wait_seconds: int, token: str
    ) -> WorldAnswer | None:
        if address.startswith("10.1."):
            self.waiting += 1
            await asyncio.Event().wait()
        return await super().put_world(address, document, wait_seconds=wait_seconds, token=token)


def named(name: str) -> DDPJob:
    manifest = job()
    manifest["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    return DDPJob.parse(manifest)


@pytest.mark.parametrize(("jobs", "pods"), [(1, 10_000), (20, 500), (200, 50)])
async def test_pods_that_never_answer_delay_no_other_job(jobs: int, pods: int) -> None:
    silent = Silent()
    told = alone(silent)
    document = {"generation": 1, "start": False}
    for number in range(jobs):
        addresses = (f"10.1.{pod // 250}.{pod % 250}:28737" for pod in range(pods))
        assignments = [Assignment(at, at, 1, False, document) for at in addresses]
        told.assign(named(f"silent-{number}"), assignments)
    await eventually(lambda: silent.waiting >= min(jobs * 40, 500))
    for number in range(10):
        other = named(f"other-{number}")
        told.assign(other, [Assignment("pod", f"10.2.0.{number}:28737", 1, False, document)])
    await eventually(lambda: len(silent.told) == 10, describe=lambda: silent.waiting)
    for task in told._sending:
        task.cancel()
    await asyncio.gather(*told._sending, return_exceptions=True)


async def test_who_could_not_be_told_for_want_of_files_is_not_called_silent() -> None:
    class WithoutFiles(FakeLaunchers):
        async def put_world(self, *_: object, **__: object) -> WorldAnswer | None:
            self.in_vain += 1
            raise OutOfFilesError("Too many open files")

    launchers_ = WithoutFiles()
    told = alone(launchers_)
    of = DDPJob.parse(job())
    assignment = Assignment("train-0-0", "10.0.0.1:28737", 1, False, {"generation": 1})
    for times in (1, 2):
        told.assign(of, [assignment])
        await eventually(lambda: launchers_.in_vain == times)  # noqa: B023
    assert told.of(of).unreached_since == {}
    assert told.of(of).told == {}


async def test_a_new_pod_is_asked_at_once_however_long_the_one_before_was_silent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "pause_seconds", lambda *_, **__: 3600.0)
    await world.run()
    await world.until(lambda: world.launchers.asked == ["10.0.0.1:28737"])
    await world.cluster.delete_pod(Key("default", "train-0-0"), grace_seconds=0)
    await world.until(lambda: Key("default", "train-1-0") in world.cluster.pods)
    assert any("no launcher answers" in event.message for event in world.cluster.events)
    world.start("train-1-0", "10.0.0.9")
    await world.until(lambda: world.launchers.asked == ["10.0.0.1:28737", "10.0.0.9:28737"])


async def test_an_elastic_job_goes_on_without_rank_0_that_never_came(world: World) -> None:
    world.launchers.say()
    await world.run(without="train-0-0", elastic={"minReplicas": 1, "shrinkAfterSeconds": 0})
    await world.until(lambda: world.generation == 2)
    assert world.launchers.asked[0] == "10.0.0.2:28737"
    assert world.status["world"]["members"] == "1"
    told = ("10.0.0.2:28737", 2, True)
    await world.until(lambda: told in [each[:3] for each in world.launchers.told])
    await world.until(lambda: world.status["phase"] == "Running")


async def test_nobody_is_asked_once_the_job_is_gone(world: World) -> None:
    world.launchers.say()
    await world.run()
    known = world.engine._launchers
    assert known is not None
    await world.until(lambda: len(known._known) == 1)
    [one] = known._known.values()
    polling = one.polling
    assert polling is not None
    del world.cluster.jobs[Key("default", "train")]
    world.engine.job_gone(Key("default", "train"))
    world.engine.pods_changed(Key("default", "train"))
    await eventually(polling.cancelled)
    assert known._known == {}


def test_what_launchers_led_is_read() -> None:
    said = {"number": 9, "generation": 2, "members": "0-1", "led": [LED], "failures": [FAILURE]}
    status = LauncherStatus.read(json.dumps(said).encode())
    assert (status.members, status.led[0].generation) == ("0-1", 1)
    assert status.led[0].time == datetime(2026, 11, 21, 3, 0, 40, tzinfo=UTC)
    assert LauncherStatus.read(b'{"number": 1, "generation": 0}').led == ()


async def test_a_launcher_that_knows_a_led_generation_has_not_heard_of_ours() -> None:
    trainers, news = FakeLaunchers(), list[Key]()
    told = alone(trainers, on_news=news.append)
    of = DDPJob.parse(job())
    of = replace(of, status=DDPJobStatus(world=Group(generation=3)))
    trainers.led["10.0.0.1:28737"] = 3
    assignment = Assignment(
        "train-0-0", "10.0.0.1:28737", 3, False, {"generation": 3, "start": False}
    )
    told.assign(of, [assignment])
    await eventually(lambda: told.of(of).ahead == 3)
    assert told.of(of).told == {}
    assert news == [of.key]
    later = replace(of, status=DDPJobStatus(world=Group(generation=4)))
    assert told.of(later).ahead == 0, "nobody has refused that yet"


async def test_pods_of_an_earlier_operator_are_sent_the_token_that_others_are_not(
    world: World,
) -> None:
    tokens: list[str] = []
    tell = world.launchers.put_world

    async def note(address: str, document: Mapping[str, Any], **options: Any) -> WorldAnswer | None:
        tokens.append(options["token"])
        return await tell(address, document, **options)

    world.launchers.put_world = note  # type: ignore[method-assign]
    world.launchers.say()
    await world.run()
    of_before = world.cluster.pods[Key("default", "train-0-0")]
    del of_before["metadata"]["annotations"]["ddp-operator.io/signed-requests"]
    world.launchers.say({**FAILURE, "exitCode": 3}, number=2)
    await world.until(lambda: len(world.launchers.told) >= 4)
    addresses = [address for address, *_ in world.launchers.told]
    told = dict(zip(addresses, tokens, strict=True))
    assert isinstance(told["10.0.0.1:28737"], SentToken)
    assert not isinstance(told["10.0.0.2:28737"], SentToken)


def test_who_has_never_answered_is_asked_ever_more_rarely() -> None:
    never = [pause_seconds(silent, has_answered=False) for silent in range(1, 9)]
    assert never == [2, 4, 8, 16, 32, 60, 60, 60]
    assert pause_seconds(2000, has_answered=False) == 60
    assert pause_seconds(2000, has_answered=True) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 50_000,
        b'{"number": 1}',
        b'{"number": -1, "generation": 0}',
        b'{"number": "1", "generation": 0}',
        json.dumps({"number": 1, "generation": 0, "failures": [FAILURE] * 193}).encode(),
        *(
            json.dumps({"number": 1, "generation": 0, **wrong}).encode()
            for wrong in (
                {"led": [LED] * 65},
                {"led": [{**LED, "time": "2026-11-21T03:00:00"}]},
                {"led": [{"generation": 1}]},
                {"members": "0," * 1025},
            )
        ),
        *(
            json.dumps({"number": 1, "generation": 0, "failures": [{**FAILURE, **wrong}]}).encode()
            for wrong in (
                {"pod": "x" * 300},
                {"exitCode": 0},
                {"exitCode": 256},
                {"generation": 1e300},
                {"message": "x" * 5000},
                {"time": "2026-11-21T03:00:00"},
                {"time": "0001-01-01T00:00:00Z"},
                {"time": None},
            )
        ),
    ],
)
def test_what_is_no_answer_decides_nothing(content: bytes) -> None:
    with pytest.raises(InvalidAnswerError):
        LauncherStatus.read(content)
