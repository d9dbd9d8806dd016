"""Changes between the hundreds of writes of one plan."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from ddp_operator.engine import deletion, reconciler, slow_start
from ddp_operator.job.planning.model import Plan
from ddp_operator.job.planning.plan import plan

from tests.unit.engine.test_reconciler import CRASHED, KEY, World, job

REPLICAS = 70
AT_ONCE = 32
"""Creations at the same time. A change does not cancel those that have started."""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(slow_start, "_RECHECK_SECONDS", 0.0)
    return World()


def after_writes(
    world: World, monkeypatch: pytest.MonkeyPatch, call: str, count: int, then: Callable[[], object]
) -> None:
    """Call `then` once the method has been called `count` times; all calls overlap."""
    original = getattr(world.cluster, call)
    made = 0

    async def counted(*args: Any, **options: Any) -> None:
        nonlocal made
        await asyncio.sleep(0)
        await original(*args, **options)
        made += 1
        if made == count:
            then()

    monkeypatch.setattr(world.cluster, call, counted)


def suspended(world: World, *, suspend: bool = True) -> Mapping[str, Any]:
    manifest = job(replicas=REPLICAS, suspend=suspend)
    manifest["metadata"]["generation"] = 2
    return manifest | {"status": world.cluster.jobs[KEY].get("status") or {}}


def created(calls: list[str]) -> int:
    return sum(call.startswith("create_pod") for call in calls)


def deleted(calls: list[str]) -> int:
    return sum(call.count(" ") for call in calls if call.startswith("delete_pods"))


async def interrupted_creation(
    world: World, monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]
) -> None:
    """Reconcile a new job that changes after 30 pods, and check that its creation ends."""
    after_writes(world, monkeypatch, "create_pod", 30, change)
    world.apply(job(replicas=REPLICAS))
    calls = await world.reconcile()
    assert 30 <= created(calls) <= 30 + AT_ONCE
    assert "patch_status train" not in calls, "the missing pods are not recorded"


async def test_suspension_interrupts_creation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await interrupted_creation(world, monkeypatch, lambda: world.apply(suspended(world)))
    calls = await world.reconcile()
    assert created(calls) == 0
    assert calls[0] == "patch_status train"
    assert world.status["phase"] == "Suspended"
    assert world.cluster.pods == {}


async def test_deleted_job_interrupts_creation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await interrupted_creation(world, monkeypatch, lambda: world.jobs.remove(KEY))
    assert await world.reconcile() == []


@pytest.mark.parametrize("position", [7, -1], ids=["known pod", "newest pod"])
async def test_failure_interrupts_creation(
    world: World, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    def crash() -> None:
        world.cluster.set_pod_status(list(world.cluster.pods)[position].name, CRASHED)

    await interrupted_creation(world, monkeypatch, crash)
    calls = await world.reconcile()
    assert calls[0] == "patch_status train"
    assert world.status["attempt"] == world.status["restarts"] == 1
    assert created(await world.reconcile()) == REPLICAS
    assert {pod.name for pod in world.cluster.pods} == {f"train-1-{i}" for i in range(REPLICAS)}


async def test_starting_pods_do_not_interrupt_creation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        world.cluster.set_pod_status("train-0-7", {"phase": "Running"})

    after_writes(world, monkeypatch, "create_pod", 30, run)
    world.apply(job(replicas=REPLICAS))
    calls = await world.reconcile()
    assert created(calls) == REPLICAS
    assert calls[-1] == "patch_status train"


async def test_resumption_interrupts_deletion(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start(replicas=REPLICAS)
    world.apply(suspended(world))
    monkeypatch.setattr(deletion, "_AT_ONCE", 1)
    delete_pods = world.cluster.delete_pods

    async def delete_pods_and_resume(*args: Any, **options: Any) -> Any:
        rest = await delete_pods(*args, **options)
        world.apply(suspended(world, suspend=False))
        return rest

    monkeypatch.setattr(world.cluster, "delete_pods", delete_pods_and_resume)
    calls = await world.reconcile()
    assert deleted(calls) == 64, "one group"
    await world.reconcile_until_quiet()
    assert world.status["attempt"] == 1
    assert {pod.name for pod in world.cluster.pods} == {f"train-1-{i}" for i in range(REPLICAS)}
    assert world.status["reason"] == "PodsStarting"


@pytest.mark.parametrize("call", ["create_pod", "delete_pods"])
async def test_own_writes_do_not_cause_a_new_plan(
    world: World, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    plans = 0

    def counted(*args: Any, **options: Any) -> Plan:
        nonlocal plans
        plans += 1
        return plan(*args, **options)

    world.apply(job(replicas=REPLICAS))
    if call == "delete_pods":
        await world.reconcile_until_quiet()
        world.apply(suspended(world))
    monkeypatch.setattr(reconciler, "plan", counted)
    calls = await world.reconcile()
    assert (created if call == "create_pod" else deleted)(calls) == REPLICAS
    assert plans <= 2, "one decides, and one is executed"
