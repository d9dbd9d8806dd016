"""The engine keeps working when one job misbehaves."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.engine.engine import Engine
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.projection import project
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.ports import Key, Manifest, Node, UnavailableError, WorldAnswer

from tests.simulation.clock import BEGINNING, Clock, VirtualLoop
from tests.unit.cpu_budget import LOOP_SECONDS, loops
from tests.unit.engine.fakes import SETTINGS, TOKEN, FakeCluster
from tests.unit.engine.test_reconciler import CRASHED, READY, job


class PoisonedCluster(FakeCluster):
    """Creating a pod of the job `poison` fails with an unexpected error."""

    async def create_pod(self, manifest: Manifest) -> None:
        if manifest["metadata"]["name"].startswith("poison"):
            self.calls.append("create_pod poison")
            raise RuntimeError("a bug")
        await super().create_pod(manifest)


def named(name: str) -> dict[str, object]:
    manifest = job()
    manifest["metadata"] = {**manifest["metadata"], "name": name, "uid": f"uid-{name}"}
    return manifest


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - the fake has nothing to wait on
            await asyncio.sleep(0.01)


async def test_a_poison_job_delays_no_other_and_is_tried_again() -> None:
    cluster = PoisonedCluster()
    engine = Engine(cluster, settings=SETTINGS, workers=1)
    engine.start()
    engine.job_changed(cluster.store_job(named("poison")))
    for i in range(20):
        engine.job_changed(cluster.store_job(named(f"good-{i}")))
    await until(lambda: len(cluster.pods) == 40)
    await until(lambda: cluster.calls.count("create_pod poison") >= 3)
    await engine.stop()


async def test_an_unavailable_server_is_tried_again_until_it_answers() -> None:
    cluster = FakeCluster()
    cluster.refuse["create_pod"] = UnavailableError("down", retry_after_seconds=0.01)
    engine = Engine(cluster, settings=SETTINGS)
    engine.start()
    engine.job_changed(cluster.store_job(job()))
    await until(lambda: sum(call.startswith("create_pod") for call in cluster.calls) >= 2)
    cluster.refuse.clear()
    await until(lambda: len(cluster.pods) == 2)
    await engine.stop()


async def test_our_own_echo_is_no_news() -> None:
    cluster = FakeCluster()
    engine = Engine(cluster, settings=SETTINGS)
    stored = cluster.store_job(job())
    engine.start()
    engine.job_changed(stored)
    await until(lambda: "status" in cluster.jobs[Key("default", "train")])
    await engine.stop()
    assert not engine.jobs.put(stored)
    assert not engine.jobs.put(cluster.jobs[Key("default", "train")])


async def test_stopping_lets_a_reconcile_end_and_begins_none() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    class SlowCluster(FakeCluster):
        async def create_service(self, manifest: Manifest) -> None:
            entered.set()
            await leave.wait()
            await super().create_service(manifest)

    cluster = SlowCluster()
    engine = Engine(cluster, settings=SETTINGS, workers=1)
    engine.start()
    engine.job_changed(cluster.store_job(job()))
    await entered.wait()
    engine.job_changed(cluster.store_job(named("later")))
    stopping = asyncio.create_task(engine.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    leave.set()
    await asyncio.wait_for(stopping, 30)
    assert "status" in cluster.jobs[Key("default", "train")]
    assert "status" not in cluster.jobs[Key("default", "later")]


async def test_a_standby_does_nothing_and_then_everything() -> None:
    cluster = FakeCluster()
    engine = Engine(cluster, settings=SETTINGS)
    engine.job_changed(cluster.store_job(named("early")))
    engine.enqueue(Key("default", "gone"))
    await asyncio.sleep(0)
    assert cluster.calls == []
    engine.start()
    engine.job_changed(cluster.store_job(named("late")))
    await until(lambda: len(cluster.pods) == 4)
    await engine.stop()


async def test_stopping_at_once_breaks_off_what_is_under_way() -> None:
    entered, broken_off = asyncio.Event(), asyncio.Event()

    class StuckCluster(FakeCluster):
        async def create_service(self, manifest: Manifest) -> None:
            del manifest
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                broken_off.set()

    cluster = StuckCluster()
    engine = Engine(cluster, settings=SETTINGS)
    engine.start()
    engine.job_changed(cluster.store_job(job()))
    await entered.wait()
    await asyncio.wait_for(engine.stop(at_once=True), 5)
    assert broken_off.is_set()
    assert cluster.pods == {}


class CountingCluster(FakeCluster):
    """Counts how often the pods were read."""

    looks = 0

    def pods_of(self, job: Key) -> list[PodState]:
        self.looks += 1
        return super().pods_of(job)


class VirtualEngine:
    """An engine at work on one job, with a clock that the test moves."""

    def __init__(self) -> None:
        clock = Clock()
        self.loop = VirtualLoop(clock)  # type: ignore[abstract]
        self.cluster = CountingCluster()
        self.engine = Engine(self.cluster, settings=SETTINGS, clock=clock.now, workers=1)
        self.engine.job_changed(self.cluster.store_job(job(replicas=500)))
        self.loop.call_soon(self.engine.start)
        self.loop.run_until(100.0)
        assert len(self.cluster.pods) == 500

    def pod_becomes(self, index: int, status: Manifest, *, at: float) -> None:
        def change() -> None:
            self.cluster.set_pod_status(f"train-0-{index}", status)
            self.engine.pods_changed(Key("default", "train"))

        self.loop.call_at(at, change)

    @property
    def status(self) -> Manifest:
        stored: Manifest = self.cluster.jobs[Key("default", "train")]["status"]
        return stored


@pytest.fixture
def world() -> Iterator[VirtualEngine]:
    world = VirtualEngine()
    yield world
    world.loop.halt()
    world.loop.bury()


def test_pods_that_come_up_within_a_second_cost_a_handful_of_looks(world: VirtualEngine) -> None:
    before = world.cluster.looks
    for index in range(500):
        world.pod_becomes(index, READY, at=100.0 + index / 500)
    world.loop.run_until(102.0)
    assert world.status["phase"] == "Running", "the last one is seen too"
    assert world.cluster.looks - before <= 25


@pytest.mark.parametrize("replicas", [500, 5000])
def test_looks_at_pods_that_come_up_take_a_small_share_of_the_time(replicas: int) -> None:
    cluster = FakeCluster()
    engine = Engine(cluster, settings=SETTINGS)
    engine.job_changed(cluster.store_job(job(replicas=replicas)))
    key = Key("default", "train")
    entry = engine.jobs.get(key)
    assert entry is not None
    assert isinstance(entry.job, DDPJob)
    stored, now = entry.job, BEGINNING
    stored = replace(stored, status=plan(stored, [], now).status)
    pods = [
        project(manifests.pod(stored, Identity(index, 0)) | {"status": (READY, {})[index % 2]})
        for index in range(replicas)
    ]
    pods = [replace(pod, owner_uid=stored.uid, node="node") for pod in pods]
    look_seconds = loops(lambda: plan(stored, pods, now)) * LOOP_SECONDS
    assert look_seconds <= 0.06 * engine._rest_seconds(key)


@pytest.mark.parametrize(
    ("replicas", "looks_a_second"), [(1, 20), (100, 20), (500, 18), (1000, 8), (5000, 1)]
)
def test_large_jobs_are_looked_at_more_rarely(replicas: int, looks_a_second: int) -> None:
    cluster = FakeCluster()
    engine = Engine(cluster, settings=SETTINGS)
    engine.job_changed(cluster.store_job(job(replicas=replicas)))
    assert int(1 / engine._rest_seconds(Key("default", "train"))) == looks_a_second


def test_a_failure_in_a_job_at_rest_is_acted_upon_at_once(world: VirtualEngine) -> None:
    world.pod_becomes(7, CRASHED, at=101.0)
    world.loop.run_until(101.0)
    assert world.status["restarts"] == 1


def test_a_failure_in_a_burst_is_acted_upon_with_the_burst(world: VirtualEngine) -> None:
    for index in range(50):
        world.pod_becomes(index, READY, at=101.0 + index / 1000)
    world.pod_becomes(107, CRASHED, at=101.001)
    world.loop.run_until(101.06)
    assert world.status["restarts"] == 1


def test_what_a_user_changes_waits_for_no_pods(world: VirtualEngine) -> None:
    world.pod_becomes(0, READY, at=101.0)
    suspended = job(replicas=500, suspend=True)

    def suspend() -> None:
        stored = world.cluster.store_job({**suspended, "status": world.status})
        world.engine.job_changed(stored)

    world.loop.call_at(101.001, suspend)
    world.loop.run_until(101.001)
    assert world.status["phase"] == "Suspended"
    assert world.cluster.pods == {}


async def test_jobs_hear_of_nodes_that_are_about_to_go_and_of_no_other_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster()
    engine = Engine(cluster, settings=SETTINGS)
    engine.start()
    cluster.node_list = [Node(f"node-{letter}", {}) for letter in "abcdefgh"]
    engine.job_changed(cluster.store_job(job(restart={"scope": "Pod"})))
    await until(lambda: len(cluster.pods) == 2)
    for index, pod in enumerate(cluster.pods.values()):
        pod["spec"]["nodeName"] = f"node-{'ab'[index]}"
        pod["status"] = READY
    engine.pods_changed(Key("default", "train"))
    stored = cluster.jobs[Key("default", "train")]
    await until(lambda: stored.get("status", {}).get("phase") == "Running")
    engine._check_nodes()
    looked: list[Key] = []
    monkeypatch.setattr(engine, "enqueue", looked.append)
    cluster.node_list[2:4] = [
        replace(cluster.node_list[2], labels={"new": "one"}),
        replace(cluster.node_list[3], leaving="taint x"),
    ]
    engine._check_nodes()
    assert looked == [], "none of them concerns the job"
    monkeypatch.undo()
    cluster.node_list[1] = replace(cluster.node_list[1], leaving="taint x")
    engine.nodes_changed()
    await until(lambda: "train-0-1-r1" in {pod.name for pod in cluster.pods})
    assert stored["status"]["failures"][0]["reason"] == "NodeLeaving"
    await engine.stop()


class AskedTrainers:
    """Implements `ports.Trainers`; reports nothing, and records its requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def status(self, address: str) -> bytes | str:
        return f"{address}: nobody listens"

    async def dump_stacks(self, address: str, *, token: str) -> bool:
        raise AssertionError((address, token))

    async def traces(self, address: str, *, token: str) -> bytes | str:
        raise AssertionError((address, token))

    async def checkpoint(self, address: str, *, token: str) -> bool:
        self.asked.append((address, token))
        return False

    async def put_world(
        self, address: str, document: Mapping[str, Any], *, wait_seconds: int, token: str
    ) -> WorldAnswer | None:
        raise AssertionError((address, document, wait_seconds, token))

    async def poll_world(
        self, address: str, *, after: int, wait_seconds: int, token: str
    ) -> bytes | str:
        raise AssertionError((address, after, wait_seconds, token))

    async def close(self) -> None:
        """Nothing is open."""


async def test_a_trainer_that_cannot_leave_its_node_is_asked_to_save_once() -> None:
    cluster, trainers, key = FakeCluster(), AskedTrainers(), Key("default", "train")
    engine = Engine(cluster, settings=SETTINGS, trainers=trainers)
    engine.start()
    cluster.node_list = [Node("node-a", {})]
    engine.job_changed(cluster.store_job(job()))
    await until(lambda: len(cluster.pods) == 2)
    for pod in cluster.pods.values():
        pod["spec"]["nodeName"] = "node-a"
        pod["status"] = {**READY, "podIP": "10.0.0.1"}
    engine.pods_changed(key)
    stored = cluster.jobs[key]
    await until(lambda: stored.get("status", {}).get("phase") == "Running")
    cluster.node_list = [Node("node-a", {}, leaving="taint x")]
    engine.nodes_changed()
    await until(lambda: "askedNodes" in stored["status"]["bookkeeping"])
    for _ in range(3):
        engine.enqueue(key)
        await asyncio.sleep(0.01)
    assert trainers.asked == [("10.0.0.1:28737", TOKEN)]
    assert cluster.events[-1].reason == "CheckpointRequested"
    await engine.stop()
