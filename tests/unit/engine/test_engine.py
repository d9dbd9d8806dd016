"""The engine: its queue and workers, and the changes that make it reconcile a job."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from ddp_operator.api.job import DDPJob
from ddp_operator.engine.engine import Engine
from ddp_operator.job.planning.plan import plan
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.projection import project
from ddp_operator.job.pods.state import Identity, PodState
from ddp_operator.ports import Key, Manifest, Node, UnavailableError

from tests.simulation.clock import BEGINNING, Clock, VirtualLoop
from tests.unit.cpu_budget import LOOP_SECONDS, loops
from tests.unit.engine.fakes import SETTINGS, TOKEN, FakeCluster, FakeTrainers
from tests.unit.engine.test_reconciler import CRASHED, KEY, READY, job
from tests.waiting import eventually


class PoisonedCluster(FakeCluster):
    """Creating a pod of the job `poison` fails with an unexpected error."""

    async def create_pod(self, manifest: Manifest) -> None:
        if manifest["metadata"]["name"].startswith("poison"):
            self.calls.append("create_pod poison")
            raise RuntimeError("a bug")
        await super().create_pod(manifest)


def named(name: str) -> dict[str, Any]:
    manifest = job()
    manifest["metadata"] = {**manifest["metadata"], "name": name, "uid": f"uid-{name}"}
    return manifest


@asynccontextmanager
async def running(cluster: FakeCluster, *jobs: Manifest, **options: Any) -> AsyncIterator[Engine]:
    """Run an engine with some jobs."""
    engine = Engine(cluster, settings=SETTINGS, **options)
    engine.start()
    for manifest in jobs:
        engine.job_changed(cluster.store_job(manifest))
    yield engine
    await engine.stop()


async def until(condition: Callable[[], bool]) -> None:
    await eventually(condition, timeout_seconds=30)


async def test_job_that_raises_is_retried_and_delays_no_other() -> None:
    cluster = PoisonedCluster()
    jobs = (named(name) for name in ("poison", *(f"good-{i}" for i in range(20))))
    async with running(cluster, *jobs, workers=1):
        await until(lambda: len(cluster.pods) == 40)
        await until(lambda: cluster.calls.count("create_pod poison") >= 3)


async def test_unavailable_server_is_retried_until_it_answers() -> None:
    cluster = FakeCluster()
    cluster.refuse["create_pod"] = UnavailableError("down", retry_after_seconds=0.01)
    async with running(cluster, job()):
        await until(lambda: sum(call.startswith("create_pod") for call in cluster.calls) >= 2)
        cluster.refuse.clear()
        await until(lambda: len(cluster.pods) == 2)


async def test_own_write_seen_by_the_watch_is_not_new() -> None:
    cluster = FakeCluster()
    stored = cluster.store_job(job())
    async with running(cluster) as engine:
        engine.job_changed(stored)
        await until(lambda: "status" in cluster.jobs[KEY])
    assert not engine.jobs.put(stored)
    assert not engine.jobs.put(cluster.jobs[KEY])


async def test_stop_finishes_a_reconcile_and_starts_none() -> None:
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
    assert "status" in cluster.jobs[KEY]
    assert "status" not in cluster.jobs[Key("default", "later")]


async def test_standby_does_nothing_until_it_starts() -> None:
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


async def test_stop_at_once_cancels_running_reconciles() -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    class StuckCluster(FakeCluster):
        async def create_service(self, manifest: Manifest) -> None:
            del manifest
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

    cluster = StuckCluster()
    engine = Engine(cluster, settings=SETTINGS)
    engine.start()
    engine.job_changed(cluster.store_job(job()))
    await entered.wait()
    await asyncio.wait_for(engine.stop(at_once=True), 5)
    assert cancelled.is_set()
    assert cluster.pods == {}


class CountingCluster(FakeCluster):
    """Counts how often the pods were read."""

    reads = 0

    def pods_of(self, job: Key) -> list[PodState]:
        self.reads += 1
        return super().pods_of(job)


class VirtualEngine:
    """An engine with one job, in virtual time."""

    def __init__(self, replicas: int = 500) -> None:
        clock = Clock()
        self.loop = VirtualLoop(clock)  # type: ignore[abstract]
        self.cluster = CountingCluster()
        self.engine = Engine(self.cluster, settings=SETTINGS, clock=clock.now, workers=1)
        self.engine.job_changed(self.cluster.store_job(job(replicas=replicas)))
        self.loop.call_soon(self.engine.start)
        self.loop.run_until(100.0)
        assert len(self.cluster.pods) == replicas

    def end(self) -> None:
        self.loop.halt()
        self.loop.cancel_tasks()

    def pod_becomes(self, index: int, status: Manifest, *, at: float) -> None:
        def change() -> None:
            self.cluster.set_pod_status(f"train-0-{index}", status)
            self.engine.pods_changed(KEY)

        self.loop.call_at(at, change)

    @property
    def status(self) -> Manifest:
        stored: Manifest = self.cluster.jobs[KEY]["status"]
        return stored


@pytest.fixture
def world() -> Iterator[VirtualEngine]:
    world = VirtualEngine()
    yield world
    world.end()


@pytest.mark.parametrize(("seconds", "most"), [(1, 8), (4, 20)])
def test_500_pods_that_start_cost_few_reconciles(
    world: VirtualEngine, seconds: int, most: int
) -> None:
    before = world.cluster.reads
    for index in range(500):
        world.pod_becomes(index, READY, at=101.0 + index / 500 * seconds)
    world.loop.run_until(102.0 + seconds)
    assert world.status["phase"] == "Running", "the last one is seen too"
    assert world.cluster.reads - before <= most


@pytest.mark.parametrize(("replicas", "most"), [(8, 8), (200, 12)])
def test_launchers_that_report_together_cost_few_reconciles(replicas: int, most: int) -> None:
    world = VirtualEngine(replicas)
    before = world.cluster.reads
    for index in range(replicas):
        world.loop.call_at(101.0 + index / replicas / 5, world.engine._launcher_reported, KEY)
    world.loop.run_until(102.0)
    assert 0 < world.cluster.reads - before <= most
    world.end()


@pytest.mark.parametrize("replicas", [500, 2000])
def test_reconciles_of_starting_pods_take_a_small_share_of_the_time(replicas: int) -> None:
    cluster = FakeCluster()
    engine = Engine(cluster, settings=SETTINGS)
    engine.job_changed(cluster.store_job(job(replicas=replicas)))
    key = KEY
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
    reconcile_seconds = loops(lambda: plan(stored, pods, now)) * LOOP_SECONDS
    assert reconcile_seconds <= 0.06 * engine._rest_seconds(key)


def test_failure_in_a_quiet_job_is_handled_at_once(world: VirtualEngine) -> None:
    world.pod_becomes(7, CRASHED, at=101.0)
    world.loop.run_until(101.0)
    assert world.status["restarts"] == 1


def test_failure_in_a_burst_is_handled_with_the_burst(world: VirtualEngine) -> None:
    for index in range(50):
        world.pod_becomes(index, READY, at=101.0 + index / 1000)
    world.pod_becomes(107, CRASHED, at=101.001)
    world.loop.run_until(101.06)
    assert world.status["restarts"] == 1


def test_change_by_a_user_is_not_delayed_by_changes_of_pods(world: VirtualEngine) -> None:
    world.pod_becomes(0, READY, at=101.0)
    suspended = job(replicas=500, suspend=True)

    def suspend() -> None:
        stored = world.cluster.store_job({**suspended, "status": world.status})
        world.engine.job_changed(stored)

    world.loop.call_at(101.001, suspend)
    world.loop.run_until(101.001)
    assert world.status["phase"] == "Suspended"
    assert world.cluster.pods == {}


async def test_only_leaving_nodes_enqueue_the_jobs_on_them(
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
    engine.pods_changed(KEY)
    stored = cluster.jobs[KEY]
    await until(lambda: stored.get("status", {}).get("phase") == "Running")
    engine._check_nodes()
    enqueued: list[Key] = []
    monkeypatch.setattr(engine, "enqueue", enqueued.append)
    cluster.node_list[2:4] = [
        replace(cluster.node_list[2], labels={"new": "one"}),
        replace(cluster.node_list[3], leaving="taint x"),
    ]
    engine._check_nodes()
    assert enqueued == [], "none of them concerns the job"
    announced = datetime(2026, 12, 31, tzinfo=UTC)
    for change in ({"maintenance_at": announced}, {"leaving": "taint x"}):
        cluster.node_list[1] = replace(cluster.node_list[1], **change)
        engine._check_nodes()
        assert enqueued == [KEY], change
        engine._check_nodes()
        assert enqueued == [KEY], "nothing has changed"
        enqueued.clear()
    await engine.stop()


class SavingTrainers(FakeTrainers):
    """Records requests for checkpoints, and refuses them."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []

    async def checkpoint(self, address: str, *, token: str) -> bool:
        self.requests.append((address, token))
        return False

    async def poll_world(self, address: str, **_: object) -> bytes | str:
        return f"{address}: nobody listens"


async def test_trainer_on_a_leaving_node_receives_one_request_to_save() -> None:
    cluster, trainers, key = FakeCluster(), SavingTrainers(), KEY
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
    assert trainers.requests == [("10.0.0.1:28737", TOKEN)]
    assert cluster.events[-1].reason == "CheckpointRequested"
    await engine.stop()
