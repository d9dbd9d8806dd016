"""The engine keeps working, whatever one job does."""

import asyncio
from collections.abc import Callable

from ddp_operator.engine.engine import Engine
from ddp_operator.ports import Key, Manifest, UnavailableError

from tests.unit.engine.fakes import ACCESS, FakeCluster
from tests.unit.engine.test_reconciler import job


class PoisonedCluster(FakeCluster):
    """Creating a pod of the job `poison` fails in a way that nobody foresaw."""

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
    engine = Engine(cluster, access=ACCESS, workers=1)
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
    engine = Engine(cluster, access=ACCESS)
    engine.start()
    engine.job_changed(cluster.store_job(job()))
    await until(lambda: sum(call.startswith("create_pod") for call in cluster.calls) >= 2)
    cluster.refuse.clear()
    await until(lambda: len(cluster.pods) == 2)
    await engine.stop()


async def test_our_own_echo_is_no_news() -> None:
    cluster = FakeCluster()
    engine = Engine(cluster, access=ACCESS)
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
    engine = Engine(cluster, access=ACCESS, workers=1)
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
    engine = Engine(cluster, access=ACCESS)
    engine.job_changed(cluster.store_job(named("early")))
    engine.look_at(Key("default", "gone"))
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
    engine = Engine(cluster, access=ACCESS)
    engine.start()
    engine.job_changed(cluster.store_job(job()))
    await entered.wait()
    await asyncio.wait_for(engine.stop(at_once=True), 5)
    assert broken_off.is_set()
    assert cluster.pods == {}
