"""A CRD of another release drops fields of the status. Without its record the operator decides
nothing.
"""

from datetime import timedelta

import pytest

from tests.unit.engine.test_reconciler import CRASHED, World, job


async def running(world: World) -> None:
    """Run a job with ready pods, then let one of them fail. Nothing necessary is lost yet."""
    lost, world.cluster.lost_fields = world.cluster.lost_fields, set()
    await world.start(restart={"scope": "Pod"})
    world.make_pods_ready()
    await world.reconcile_until_quiet()
    assert world.status["phase"] == "Running"
    world.cluster.set_pod_status("train-0-1", CRASHED)
    world.cluster.lost_fields = lost


@pytest.mark.parametrize(
    "field", ["bookkeeping", "bookkeeping.replacements", "restarts", "failures"]
)
async def test_decision_that_is_stored_in_part_is_undone_and_not_charged(
    world: World, field: str
) -> None:
    world.cluster.lost_fields = {field}
    await running(world)
    pods = set(world.cluster.pods)
    for _ in range(20):
        await world.reconcile()
        world.now += timedelta(seconds=10)
    assert world.status.get("restarts", 0) == 0
    assert set(world.cluster.pods) == pods
    assert world.status["reason"] == "StatusNotStored"
    assert f"status.{field}" in world.status["message"]
    assert "apply the CRD of the operator's release" in world.status["message"]
    warnings = [event.reason for event in world.cluster.events if event.warning]
    assert warnings == ["StatusNotStored"], "and none about a restart"
    metrics = world.metrics.lost_fields
    assert f"status.{field}" in metrics
    world.cluster.lost_fields = set()
    world.now += timedelta(seconds=61)
    await world.reconcile_until_quiet()
    assert world.status["restarts"] == 1
    assert "train-0-1-r1" in {key.name for key in world.cluster.pods}
    assert world.status["reason"] != "StatusNotStored"


async def test_decision_is_retried_once_a_minute(world: World) -> None:
    world.cluster.lost_fields = {"failures"}
    await running(world)
    calls = []
    for _ in range(60):
        calls += await world.reconcile()
        world.now += timedelta(seconds=1)
    assert calls == ["patch_status train", "patch_status train"], "written and undone"


async def test_fields_that_only_people_read_may_be_lost(world: World) -> None:
    world.cluster.lost_fields = {"ready", "selector", "placement", "goodput"}
    await running(world)
    await world.reconcile_until_quiet()
    assert world.status["restarts"] == 1
    assert "train-0-1-r1" in {key.name for key in world.cluster.pods}


async def test_job_ends_although_its_failures_are_lost(world: World) -> None:
    world.cluster.lost_fields = {"failures"}
    await world.start(restart={"maxRestarts": 0})
    world.cluster.set_pod_status("train-0-1", CRASHED)
    await world.reconcile()
    assert (world.status["phase"], world.status["reason"]) == ("Failed", "MaxRestartsExceeded")


async def test_group_that_is_stored_in_part_starts_no_pods(world: World) -> None:
    world.cluster.lost_fields = {"world.members"}
    world.apply(job(elastic={"minReplicas": 1}))
    for _ in range(10):
        await world.reconcile()
        world.now += timedelta(seconds=61)
    assert world.status["reason"] == "StatusNotStored"
    assert "status.world.members" in world.status["message"]
    assert not world.cluster.pods
