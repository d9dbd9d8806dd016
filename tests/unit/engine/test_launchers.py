"""The engine and the launchers in pods: polls and assignments."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.api.status import DDPJobStatus
from ddp_operator.api.status.world import World as Group
from ddp_operator.engine.engine import Engine
from ddp_operator.engine.job_cache import JobCache
from ddp_operator.engine.pod_settings import PodSettings
from ddp_operator.engine.tokens.access import Access
from ddp_operator.engine.trainers import launchers
from ddp_operator.engine.trainers.launchers import Launchers, pause_seconds
from ddp_operator.job.membership.launchers import Assignment
from ddp_operator.ports import Key, OutOfFilesError
from ddp_protocol.message import InvalidMessageError
from ddp_protocol.world import LEAD_SECONDS, GroupAssignment, LauncherStatus, WorldAnswer

from tests.unit.engine.fakes import ACCESS, TOKEN, FakeCluster, FakeTrainers
from tests.unit.engine.test_reconciler import READY, job
from tests.unit.fast_loop import loop_now
from tests.waiting import eventually

FAILURE = {
    "pod": "train-0-1",
    "generation": 0,
    "exitCode": 3,
    "message": "boom",
    "time": "2026-11-21T03:00:00Z",
}
LED = {"generation": 1, "time": "2026-11-21T03:00:40Z"}
JOB = Key("default", "train")
FIRST, SECOND, THIRD = (f"10.0.0.{number}:28737" for number in (1, 2, 3))
"""Addresses of launchers."""
GROUP = GroupAssignment(
    job_uid="u1", attempt=0, generation=1, nodes=2, master_addr="train-0-0.train", start=False
)


class FakeLaunchers(FakeTrainers):
    """Launchers by their address; all send the same response to polls."""

    def __init__(self) -> None:
        self.response: bytes | str = "nobody listens"
        self.silent: set[str] = set()
        """Pods that answer no assignment."""
        self.unreached: set[str] = set()
        """Pods that answer no poll."""
        self.ignored = 0
        """Number of assignments that silent launchers ignored."""
        self.led: dict[str, int] = {}
        """Launchers with another generation, which launchers began."""
        self.lingering: set[str] = set()
        """Pods with old processes that do not end."""
        self.assigned: list[tuple[str, int, bool, str]] = []
        self.polled: list[str] = []
        self.promises: list[int] = []
        """After how many seconds without a poll the launcher may lead, of each poll."""
        self.called: list[str] = []
        """Pods that were asked for any answer."""
        self._changed = asyncio.Event()

    def report(self, *failures: Mapping[str, Any], number: int = 1) -> None:
        status = {"number": number, "generation": 0, "failures": list(failures)}
        self.response = json.dumps(status).encode()
        self._changed.set()
        self._changed = asyncio.Event()

    async def put_world(
        self, address: str, group: GroupAssignment, *, wait_seconds: int, token: str
    ) -> WorldAnswer | None:
        assert wait_seconds == 5
        generation = group.generation
        if address in self.silent:
            self.ignored += 1
            return None
        self.assigned.append((address, generation, group.start, token))
        if address in self.led:
            return WorldAnswer(self.led[address], ended=True, led=True)
        return WorldAnswer(generation, address not in self.lingering)

    async def poll_world(
        self, address: str, *, after: int, wait_seconds: int, lead_seconds: int, token: str
    ) -> bytes | str:
        assert token == TOKEN
        if wait_seconds == 0:
            self.called.append(address)
            return "no answer" if address in self.silent | self.unreached else self.response
        assert wait_seconds == 20
        self.polled.append(address)
        self.promises.append(lead_seconds)
        if address in self.unreached:
            return "no answer"
        if isinstance(self.response, bytes) and json.loads(self.response).get("number") == after:
            await self._changed.wait()
        return self.response


class World:
    """A job of two running pods; their processes restart in place."""

    def __init__(self) -> None:
        self.cluster, self.launchers = FakeCluster(), FakeLaunchers()
        self.ahead = timedelta()
        self.restart_operator(ACCESS)

    def restart_operator(self, access: Access) -> None:
        """Start an operator with these keys."""
        self.engine = Engine(
            self.cluster,
            settings=PodSettings(access=access),
            clock=lambda: loop_now() + self.ahead,
            trainers=self.launchers,
        )
        for stored in self.cluster.jobs.values():
            self.engine.job_changed(stored)
        self.cluster.tell = self.engine.enqueue
        self.engine.start()

    def request_restart(self) -> None:
        """Request that all pods restart as a new attempt."""
        stored = self.cluster.jobs[JOB]
        annotations = {"ddp-operator.io/restart-requested": "now"}
        changed = {**stored, "metadata": {**stored["metadata"], "annotations": annotations}}
        self.engine.job_changed(self.cluster.store_job(changed))

    async def run(self, *, without: str = "", **spec: Any) -> None:
        """Run the job until its launchers are known; the pod `without` does not start."""
        manifest = job(**{"restart": {"scope": "InPlace"}, **spec})
        manifest["metadata"]["creationTimestamp"] = loop_now().isoformat()
        self.engine.job_changed(self.cluster.store_job(manifest))
        await self.until(lambda: len(self.cluster.pods) == 2)
        for number, name in enumerate(("train-0-0", "train-0-1"), start=1):
            if name != without:
                self.start(name, f"10.0.0.{number}")
        if not without:
            await self.until(lambda: self.status.get("phase") == "Running")
        if isinstance(self.launchers.response, bytes) and not without:
            await self.until(lambda: self.status["bookkeeping"].get("launcher") == "InPlace")

    def start(self, name: str, ip: str) -> None:
        running = {"running": {"startedAt": loop_now().isoformat()}}
        containers = [{"name": "trainer", "state": running}]
        status = {**READY, "podIP": ip, "containerStatuses": containers}
        self.cluster.set_pod_status(name, status)
        self.engine.enqueue(JOB)

    @property
    def status(self) -> dict[str, Any]:
        stored: dict[str, Any] = self.cluster.jobs[JOB].get("status") or {}
        return stored

    @property
    def generation(self) -> int:
        generation: int = self.status.get("world", {}).get("generation", 0)
        return generation

    async def until(self, condition: Callable[[], bool]) -> None:
        await eventually(condition, describe=lambda: self.cluster.jobs)

    async def until_running(self) -> None:
        await self.until(lambda: self.status["phase"] == "Running")


def without_engine(
    trainers: FakeTrainers, *, on_news: Callable[[Key], None] = lambda _: None
) -> Launchers:
    """Return only the part that talks to launchers."""
    return Launchers(
        FakeCluster(), JobCache(), trainers, access=ACCESS, clock=loop_now, on_news=on_news
    )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    world.launchers.report()
    yield world
    await world.engine.stop()


async def test_reported_failure_restarts_the_processes_of_all_pods(world: World) -> None:
    await world.run()
    world.launchers.report(FAILURE, number=2)
    await world.until(lambda: world.generation == 1)
    await world.until_running()
    first, then = world.launchers.assigned[:2], world.launchers.assigned[2:]
    assert sorted(first) == [(address, 1, False, TOKEN) for address in (FIRST, SECOND)]
    assert sorted(then) == [(address, 1, True, TOKEN) for address in (FIRST, SECOND)]
    assert sorted(pod.name for pod in world.cluster.pods) == ["train-0-0", "train-0-1"]
    assert world.status["restarts"] == 1


@pytest.mark.parametrize(
    ("restart", "seconds"),
    [
        ({}, 5),
        ({"maxRestarts": 0}, LEAD_SECONDS),
        ({"rules": [{"exitCodes": [3], "action": "FailJob"}]}, LEAD_SECONDS),
    ],
)
async def test_launcher_leads_soon_if_it_needs_no_rule_and_no_budget(
    world: World, restart: Mapping[str, Any], seconds: int
) -> None:
    await world.run(restart={"scope": "InPlace", **restart})
    assert set(world.launchers.promises) == {seconds}


async def test_launcher_leads_late_once_the_budget_is_used_up(world: World) -> None:
    await world.run(restart={"scope": "InPlace", "maxRestarts": 1})
    world.launchers.report(FAILURE, number=2)
    await world.until(lambda: world.generation == 1)
    world.launchers.report(number=3)
    await world.until(lambda: world.launchers.promises[-1] == LEAD_SECONDS)


@pytest.mark.parametrize("set_back", [timedelta(), timedelta(hours=1)])
async def test_pod_with_a_silent_launcher_is_replaced(world: World, set_back: timedelta) -> None:
    world.launchers.silent.add(SECOND)
    await world.run()
    world.launchers.report(FAILURE, number=2)
    await world.until(lambda: len(world.launchers.assigned) == 1)
    assert world.status["phase"] == "Restarting"
    world.ahead -= set_back
    before = world.launchers.ignored
    await world.until(lambda: world.launchers.ignored > before + 1)
    world.ahead += timedelta(seconds=31)
    await world.until(lambda: Key("default", "train-0-1-r1") in world.cluster.pods)
    assert world.generation == 2
    assert Key("default", "train-0-0") in world.cluster.pods
    world.start("train-0-1-r1", "10.0.0.3")
    await world.until_running()
    started = {address for address, *rest, _ in world.launchers.assigned if rest == [2, True]}
    assert started == {FIRST, THIRD}


async def test_clock_that_is_set_back_during_a_reconcile_delays_no_retry(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.launchers.silent.add(SECOND)
    await world.run()
    reconcile = world.engine._reconciler.reconcile

    async def then_set_back(key: Key) -> datetime | None:
        due = await reconcile(key)
        world.ahead -= timedelta(hours=1)
        return due

    monkeypatch.setattr(world.engine._reconciler, "reconcile", then_set_back)
    world.launchers.report(FAILURE, number=2)
    await world.until(lambda: world.launchers.ignored > 2)


async def test_all_pods_restart_if_no_launcher_answers_after_a_failure(world: World) -> None:
    await world.run()
    world.launchers.silent |= {FIRST, SECOND}
    world.launchers.report(FAILURE, number=2)
    await world.until(lambda: world.launchers.ignored > 2)
    assert {key.name for key in world.cluster.pods} == {"train-0-0", "train-0-1"}
    await world.until(lambda: Key("default", "train-1-1") in world.cluster.pods)
    assert world.status["failures"][-1]["reason"] == "PodsUnreachable"
    assert world.status["restarts"] == 1, "only the failure is charged"


@pytest.mark.parametrize("also", [set(), {SECOND}])
async def test_silence_is_reported_unless_another_launcher_answers(
    world: World, also: set[str]
) -> None:
    await world.run()
    await world.until(lambda: world.launchers.polled == [FIRST])
    world.launchers.unreached |= {FIRST, *also}
    world.launchers.report(number=2)
    await world.until(lambda: world.launchers.called.count(SECOND) > 10)
    known = world.engine._launchers
    assert known is not None
    parsed = DDPJob.parse(world.cluster.jobs[JOB])
    if not also:
        assert known.of(parsed).silent_since is None
        return
    await world.until(lambda: known.of(parsed).silent_since is not None)
    await world.until(lambda: world.status["reason"] == "PodsUnreachable")
    assert world.status["phase"] == "Running"
    world.launchers.unreached.clear()
    await world.until(lambda: world.status["reason"] == "PodsReady")
    assert world.generation == 0


async def test_image_without_a_launcher_is_not_called_unreachable(world: World) -> None:
    world.launchers.response = "nobody listens"
    await world.run()
    await world.until(lambda: len(world.launchers.polled) > 3)
    known = world.engine._launchers
    assert known is not None
    assert known.of(DDPJob.parse(world.cluster.jobs[JOB])).silent_since is None
    assert world.launchers.called == []


async def test_launchers_that_wait_for_a_start_are_called(world: World) -> None:
    await world.run()
    assert world.launchers.called == []
    await world.cluster.delete_pod(Key("default", "train-0-1"), grace_seconds=0)
    await world.until(lambda: FIRST in world.launchers.called)
    world.start("train-0-1-r1", "10.0.0.3")
    await world.until_running()


async def test_new_processes_start_after_all_old_ones_have_ended(world: World) -> None:
    world.launchers.lingering.add(SECOND)
    await world.run()
    world.launchers.report(FAILURE, number=2)
    await world.until(
        lambda: [a[:3] for a in world.launchers.assigned].count((SECOND, 1, False)) == 2
    )
    assert not any(start for _, _, start, _ in world.launchers.assigned)
    world.launchers.lingering.clear()
    await world.until_running()
    assert world.generation == 1


async def test_slow_launchers_of_a_job_receive_assignments_at_the_same_time() -> None:
    waiting: set[str] = set()
    may_answer = asyncio.Event()

    class Slow(FakeLaunchers):
        async def put_world(self, address: str, *args: Any, **options: Any) -> WorldAnswer | None:
            waiting.add(address)
            await may_answer.wait()
            return await super().put_world(address, *args, **options)

    known = without_engine(Slow())
    parsed = DDPJob.parse(job())
    addresses = {f"pod-{number}": f"10.0.{number}.1:28737" for number in range(500)}
    known.assign(parsed, [Assignment(pod, at, GROUP) for pod, at in addresses.items()])
    await eventually(lambda: waiting == {*addresses.values()}, describe=lambda: len(waiting))
    may_answer.set()
    await eventually(lambda: known.of(parsed).told == dict.fromkeys(addresses, (1, False)))


class Unresponsive(FakeLaunchers):
    """All accept connections, but those of network 10.1 never answer."""

    waiting = 0

    async def put_world(self, address: str, *args: Any, **options: Any) -> WorldAnswer | None:
        if address.startswith("10.1."):
            self.waiting += 1
            await asyncio.Event().wait()
        return await super().put_world(address, *args, **options)


def named(name: str) -> DDPJob:
    manifest = job()
    manifest["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    return DDPJob.parse(manifest)


@pytest.mark.parametrize(("jobs", "pods"), [(1, 2000), (20, 100), (200, 10)])
async def test_unresponsive_pods_delay_no_other_job(jobs: int, pods: int) -> None:
    unresponsive = Unresponsive()
    known = without_engine(unresponsive)
    for number in range(jobs):
        addresses = (f"10.1.{pod // 250}.{pod % 250}:28737" for pod in range(pods))
        assignments = [Assignment(at, at, GROUP) for at in addresses]
        known.assign(named(f"silent-{number}"), assignments)
    await eventually(lambda: unresponsive.waiting >= min(jobs * 40, 500))
    for number in range(10):
        address = f"10.2.0.{number}:28737"
        known.assign(named(f"other-{number}"), [Assignment("pod", address, GROUP)])
    await eventually(
        lambda: len(unresponsive.assigned) == 10, describe=lambda: unresponsive.waiting
    )
    for task in known._sending:
        task.cancel()
    await asyncio.gather(*known._sending, return_exceptions=True)


async def test_launcher_is_not_called_silent_when_the_operator_is_out_of_files() -> None:
    class WithoutFiles(FakeLaunchers):
        async def put_world(self, *_: object, **__: object) -> WorldAnswer | None:
            self.ignored += 1
            raise OutOfFilesError("Too many open files")

    out_of_files = WithoutFiles()
    known = without_engine(out_of_files)
    parsed = DDPJob.parse(job())
    for times in (1, 2):
        known.assign(parsed, [Assignment("train-0-0", FIRST, GROUP)])
        await eventually(lambda: out_of_files.ignored == times)  # noqa: B023
    assert known.of(parsed).unreached_since == {}
    assert known.of(parsed).told == {}


async def test_new_pod_is_polled_at_once_after_a_silent_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.launchers.response = "nobody listens"
    monkeypatch.setattr(launchers, "pause_seconds", lambda *_, **__: 10**6)
    await world.run()
    await world.until(lambda: world.launchers.polled == [FIRST])
    await world.cluster.delete_pod(Key("default", "train-0-0"), grace_seconds=0)
    await world.until(lambda: Key("default", "train-1-0") in world.cluster.pods)
    assert any("no launcher answers" in event.message for event in world.cluster.events)
    world.start("train-1-0", "10.0.0.3")
    await world.until(lambda: world.launchers.polled == [FIRST, THIRD])


async def test_elastic_job_continues_without_a_rank_0_that_never_started(world: World) -> None:
    await world.run(without="train-0-0", elastic={"minReplicas": 1, "shrinkAfterSeconds": 0})
    await world.until(lambda: world.generation == 2)
    assert world.launchers.polled[0] == SECOND
    assert world.status["world"]["members"] == "1"
    await world.until(lambda: (SECOND, 2, True) in [a[:3] for a in world.launchers.assigned])
    await world.until_running()


async def test_polling_ends_with_the_job(world: World) -> None:
    await world.run()
    known = world.engine._launchers
    assert known is not None
    [state] = known._known.values()
    polling = state.polling
    assert polling is not None
    del world.cluster.jobs[JOB]
    world.engine.job_gone(JOB)
    world.engine.pods_changed(JOB)
    await eventually(polling.cancelled)
    assert known._known == {}


def test_status_of_a_launcher_includes_led_generations() -> None:
    content = {"number": 9, "generation": 2, "members": "0-1", "led": [LED], "failures": [FAILURE]}
    status = LauncherStatus.read(json.dumps(content).encode())
    assert (status.members, status.led[0].generation) == ("0-1", 1)
    assert status.led[0].time == LED["time"]
    assert LauncherStatus.read(b'{"number": 1, "generation": 0}').led == ()


async def test_launcher_with_a_led_generation_has_not_confirmed_the_assigned_one() -> None:
    trainers, news = FakeLaunchers(), list[Key]()
    known = without_engine(trainers, on_news=news.append)
    parsed = replace(DDPJob.parse(job()), status=DDPJobStatus(world=Group(generation=3)))
    trainers.led[FIRST] = 3
    known.assign(parsed, [Assignment("train-0-0", FIRST, replace(GROUP, generation=3))])
    await eventually(lambda: known.of(parsed).ahead == 3)
    assert known.of(parsed).told == {}
    assert news == [parsed.key]
    later = replace(parsed, status=DDPJobStatus(world=Group(generation=4)))
    assert known.of(later).ahead == 0, "no launcher has refused that generation yet"


class GuardedLaunchers(FakeLaunchers):
    """Launchers that accept only requests with the token in their pod's environment."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__()
        self._cluster = cluster
        self.refused: list[str] = []

    def _admits(self, address: str, token: str) -> bool:
        pods = [
            pod
            for pod in self._cluster.pods.values()
            if address.startswith(f"{pod.get('status', {}).get('podIP')}:")
        ]
        if any(token_of(pod) == token for pod in pods):
            return True
        self.refused.append(address)
        return False

    async def put_world(
        self, address: str, group: GroupAssignment, *, wait_seconds: int, token: str
    ) -> WorldAnswer | None:
        if not self._admits(address, token):
            return None
        return await super().put_world(address, group, wait_seconds=wait_seconds, token=token)

    async def poll_world(
        self, address: str, *, after: int, wait_seconds: int, lead_seconds: int, token: str
    ) -> bytes | str:
        if not self._admits(address, token):
            return "HTTP status 403"
        shared = {"after": after, "wait_seconds": wait_seconds, "lead_seconds": lead_seconds}
        return await super().poll_world(address, **shared, token=TOKEN)


def token_of(pod: Mapping[str, Any]) -> str:
    """Return a pod's token, which is in plain text."""
    env = pod["spec"]["containers"][0]["env"]
    return next(str(entry["value"]) for entry in env if entry["name"] == "DDP_TOKEN")


async def test_no_launcher_refuses_a_request_after_a_rotation(world: World) -> None:
    guarded = world.launchers = GuardedLaunchers(world.cluster)
    guarded.report()
    await world.engine.stop()
    world.restart_operator(ACCESS)
    await world.run()
    assert {token_of(pod) for pod in world.cluster.pods.values()} == {TOKEN}

    rotated = Access(keys={**ACCESS.keys, "2": b"newer"})
    await world.engine.stop()
    world.restart_operator(rotated)
    guarded.report(FAILURE, number=2)
    await world.until(lambda: len(guarded.assigned) >= 4)  # both restart in place
    assert {key.name for key in world.cluster.pods} == {"train-0-0", "train-0-1"}
    assert {address for address, *_ in guarded.assigned} == {FIRST, SECOND}

    crashed = {"terminated": {"exitCode": 3, "reason": "Error"}}
    status = {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": crashed}]}
    world.cluster.set_pod_status("train-0-1", status)
    world.engine.enqueue(JOB)
    await world.until(lambda: Key("default", "train-0-1-r1") in world.cluster.pods)
    assert token_of(world.cluster.pods[Key("default", "train-0-1-r1")]) == TOKEN

    world.request_restart()
    newest = rotated.token_of("u1", "2")
    await world.until(lambda: {*map(token_of, world.cluster.pods.values())} == {newest})
    polls = len(guarded.polled)
    for number in (0, 1):
        world.start(f"train-1-{number}", f"10.0.1.{number}")
    await world.until(lambda: len(guarded.polled) > polls)
    assert guarded.refused == []


def test_launcher_that_never_answered_is_polled_less_and_less_often() -> None:
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
        *(
            json.dumps({"number": 1, "generation": 0, **wrong}).encode()
            for wrong in (
                {"failures": [FAILURE] * 193},
                {"led": [LED] * 65},
                {"led": [{**LED, "time": "2026-11-21T03:00:00"}]},
                {"led": [{"generation": 1}]},
                {"members": "0," * 1025},
                {"failures": [{**FAILURE, "pod": "x" * 300}]},
                {"failures": [{**FAILURE, "exitCode": 0}]},
                {"failures": [{**FAILURE, "exitCode": 256}]},
                {"failures": [{**FAILURE, "generation": 1e300}]},
                {"failures": [{**FAILURE, "message": "x" * 5000}]},
                {"failures": [{**FAILURE, "time": "2026-11-21T03:00:00"}]},
                {"failures": [{**FAILURE, "time": "0001-01-01T00:00:00Z"}]},
                {"failures": [{**FAILURE, "time": None}]},
            )
        ),
    ],
)
def test_invalid_status_of_a_launcher_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidMessageError):
        LauncherStatus.read(content)
