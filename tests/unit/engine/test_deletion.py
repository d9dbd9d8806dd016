"""Deletion of many pods: by few requests, and one by one where that is not possible."""

import pytest
from ddp_operator.api.constants import LABEL_INDEX, LABEL_JOB_UID
from ddp_operator.ports import ForbiddenError, Key, UnavailableError

from tests.unit.engine.test_reconciler import World, job


async def suspended(world: World, *, replicas: int) -> None:
    """Create a job's pods, and suspend it."""
    await world.start(replicas=replicas)
    manifest = job(replicas=replicas, suspend=True)
    manifest["metadata"]["generation"] = 2
    world.apply(manifest | {"status": world.status})


def deletions(calls: list[str]) -> list[str]:
    return sorted(call for call in calls if call.startswith("delete_pod"))


async def test_pods_are_deleted_64_at_a_time(world: World) -> None:
    await suspended(world, replicas=66)
    calls = deletions(await world.reconcile())
    assert sorted(call.count(" ") for call in calls) == [2, 64]
    assert world.cluster.pods == {}


async def test_single_pod_is_deleted_by_its_own_request(world: World) -> None:
    await suspended(world, replicas=1)
    assert deletions(await world.reconcile()) == ["delete_pod train-0-0"]


@pytest.mark.parametrize("label", [LABEL_JOB_UID, LABEL_INDEX])
async def test_pod_without_the_labels_is_deleted_by_its_own_request(
    world: World, label: str
) -> None:
    """An earlier release created it, or somebody has changed its labels."""
    await suspended(world, replicas=3)
    world.cluster.pods[Key("default", "train-0-1")]["metadata"]["labels"].pop(label)
    calls = deletions(await world.reconcile())
    assert calls == ["delete_pod train-0-1", "delete_pods train-0-0 train-0-1 train-0-2"]
    assert world.cluster.pods == {}


async def test_refused_group_is_deleted_one_by_one_and_the_error_is_raised(world: World) -> None:
    await suspended(world, replicas=3)
    world.cluster.refuse["delete_pod"] = ForbiddenError("a webhook protects pods", status=403)
    await world.reconcile_fails(ForbiddenError)
    assert deletions(world.cluster.calls) == [f"delete_pod train-0-{i}" for i in range(3)]


async def test_all_groups_are_tried_if_the_server_does_not_answer(world: World) -> None:
    await suspended(world, replicas=66)
    world.cluster.refuse["delete_pods"] = UnavailableError("no answer")
    await world.reconcile_fails(UnavailableError)
    assert len(deletions(world.cluster.calls)) == 2
    world.cluster.refuse.clear()
    await world.reconcile_until_quiet()
    assert world.cluster.pods == {}
