"""Writes to pods in a queue, also after their job is deleted."""

import contextlib
from datetime import timedelta
from typing import Any

import pytest
from ddp_operator.api.constants import KUEUE_MANAGED, KUEUE_RETRIABLE
from ddp_operator.engine.engine import Engine
from ddp_operator.ports import Key, NamespaceEndsError, UnavailableError

from tests.unit.engine.fakes import ENDING, SETTINGS
from tests.unit.engine.test_engine import until
from tests.unit.engine.test_reconciler import CRASHED, KEY, NOW, READY, World, job


@pytest.fixture
async def world() -> World:
    """Return a job in a queue with training pods."""
    world = World()
    world.apply(job(scheduling={"queueName": "team"}, restart={"maxRestarts": 0, "scope": "Gang"}))
    await world.reconcile_until_quiet()
    for pod in world.cluster.pods.values():
        pod["metadata"]["labels"][KUEUE_MANAGED] = "true"
        pod["metadata"]["finalizers"] = [KUEUE_MANAGED]
        world.cluster.set_pod_status(pod["metadata"]["name"], READY)
    await world.reconcile_until_quiet()
    return world


def lose_job(world: World) -> None:
    """Delete the job; its pods still exist."""
    del world.cluster.jobs[KEY]
    world.jobs.remove(KEY)


def pod(world: World, index: int) -> dict[str, Any]:
    return world.cluster.pods[Key("default", f"train-0-{index}")]


def marks(world: World) -> list[str]:
    """Return the names of pods that are marked as not retriable."""
    return [
        key.name
        for key, stored in world.cluster.pods.items()
        if (stored["metadata"].get("annotations") or {}).get(KUEUE_RETRIABLE) == "false"
    ]


async def test_training_job_needs_no_writes(world: World) -> None:
    assert marks(world) == []
    assert await world.reconcile() == []


async def test_failed_job_ends_its_group(world: World) -> None:
    world.cluster.set_pod_status("train-0-0", CRASHED)
    await world.reconcile_until_quiet()
    assert world.status["phase"] == "Failed"
    assert marks(world) == ["train-0-1"]


async def test_deleted_job_is_read_once_and_its_group_ends(world: World) -> None:
    lose_job(world)
    assert await world.reconcile() == ["patch_status train", "patch_pod train-0-0"]
    assert marks(world) == ["train-0-0"]
    assert await world.reconcile() == []


async def test_job_missing_in_the_watch_keeps_its_group(world: World) -> None:
    world.jobs.remove(KEY)
    assert await world.reconcile() == ["patch_status train"]
    assert marks(world) == []


async def test_pods_of_an_earlier_job_end_their_group(world: World) -> None:
    world.jobs.remove(KEY)
    other = job(scheduling={"queueName": "team"})
    other["metadata"]["uid"] = "u2"
    world.apply(other)
    await world.reconcile()
    assert marks(world) == ["train-0-0"]


async def test_waiting_pod_that_is_deleted_is_released(world: World) -> None:
    lose_job(world)
    for index in (0, 1):
        del pod(world, index)["spec"]["nodeName"]
        pod(world, index)["status"] = {"phase": "Pending"}
    pod(world, 1)["metadata"] |= ENDING
    assert await world.reconcile() == ["patch_pod train-0-1"]
    assert [key.name for key in world.cluster.pods] == ["train-0-0"]
    assert marks(world) == [], "no pod of the group has run"


async def test_pod_on_a_silent_node_is_deleted_by_force(world: World) -> None:
    pod(world, 1)["metadata"] |= ENDING
    world.now = NOW + timedelta(seconds=39)
    assert "delete_pod train-0-1" not in await world.reconcile(), "its kubelet may still answer"
    world.now = NOW + timedelta(seconds=40)
    assert {"delete_pod train-0-1", "patch_pod train-0-1"} <= {*await world.reconcile()}
    assert world.cluster.graces[Key("default", "train-0-1")] == 0
    assert Key("default", "train-0-1") not in world.cluster.pods


async def test_no_group_ends_while_the_jobs_group_is_unknown(world: World) -> None:
    world.cluster.lose_answers.add("patch_status")
    world.cluster.set_pod_status("train-0-0", CRASHED)
    await world.reconcile_fails(UnavailableError)
    assert marks(world) == []
    world.cluster.lose_answers.clear()
    await world.reconcile()
    assert marks(world) == ["train-0-1"]


async def test_deleted_job_is_reconciled_for_its_pods(world: World) -> None:
    engine = Engine(world.cluster, settings=SETTINGS, clock=lambda: NOW)
    engine.start()
    engine.job_changed(world.cluster.jobs.pop(KEY))
    engine.job_gone(KEY)
    await until(lambda: marks(world) == ["train-0-0"])
    await engine.stop()


async def test_pods_of_a_deleted_namespace_are_released(world: World) -> None:
    """Kubernetes deletes pods before their jobs, and allows no new ones."""
    world.cluster.pods.pop(Key("default", "train-0-0"))
    words = "unable to create new content in namespace default because it is being terminated"
    world.cluster.refuse["create_service"] = NamespaceEndsError(words, status=403)
    pod(world, 1)["metadata"].update(ENDING)
    world.cluster.set_pod_status("train-0-1", CRASHED)
    world.apply(job(scheduling={"queueName": "team"}, restart={"maxRestarts": 9, "scope": "Gang"}))
    for _ in range(3):
        with contextlib.suppress(NamespaceEndsError):
            await world.reconcile()
        world.now += timedelta(seconds=11)  # a pause follows the loss
    assert marks(world) == ["train-0-1"]
