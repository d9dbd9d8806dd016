"""A CRD of another release drops fields of the status. Without a field that decisions read, the
operator decides nothing; the others may be lost.
"""

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest
from ddp_operator.api.schema.crd import custom_resource_definition
from ddp_operator.api.status import DECISIVE
from ddp_operator.engine.reconciler import Reconciler
from ddp_operator.job.pods.state import Identity
from ddp_operator.job.status.progress import Report
from ddp_operator.ports import ClusterError
from ddp_protocol.progress import TrainerStatus

from tests.unit.engine.fakes import SETTINGS
from tests.unit.engine.test_reconciler import CRASHED, World, job

REPORT = {
    "step": 1000,
    "lastStepTime": "2026-01-01T00:05:00Z",
    "trainedSeconds": 250.5,
    "loss": 1.5,
    "resumed": {"step": 0, "time": "2026-01-01T00:00:30Z"},
    "checkpoint": {"step": 1000, "path": "/c", "time": "2026-01-01T00:05:00Z"},
    "pace": {"step": 1000, "rank": 1, "seconds": 1.0, "othersSeconds": 1.0},
}


async def running(world: World) -> None:
    """Run a job with ready pods, then let one of them fail. Nothing necessary is lost yet."""
    lost, world.cluster.lost_fields = world.cluster.lost_fields, set()
    await world.start(restart={"scope": "Pod"})
    world.make_pods_ready()
    await world.reconcile_until_quiet()
    assert world.status["phase"] == "Running"
    world.cluster.set_pod_status("train-0-1", CRASHED)
    world.cluster.lost_fields = lost


async def fails_for(world: World, seconds: int) -> None:
    """Reconcile every ten seconds."""
    for _ in range(0, seconds, 10):
        with pytest.raises(ClusterError, match="apply the CRD of this release"):
            await world.reconcile()
        world.now += timedelta(seconds=10)


@pytest.mark.parametrize(
    "field", ["bookkeeping", "bookkeeping.replacements", "restarts", "failures"]
)
async def test_decision_that_is_stored_in_part_is_undone_and_not_charged(
    world: World, field: str
) -> None:
    world.cluster.lost_fields = {field}
    await running(world)
    pods = set(world.cluster.pods)
    await fails_for(world, 200)
    assert world.status.get("restarts", 0) == 0
    assert set(world.cluster.pods) == pods
    assert world.status["reason"] == "APIServerError"
    assert f"the CRD does not store status.{field}" in world.status["message"]
    warnings = [event.reason for event in world.cluster.events if event.warning]
    assert warnings == ["APIServerError"], "and none about a restart"
    world.cluster.lost_fields = set()
    await world.reconcile_until_quiet()
    assert world.status["restarts"] == 1
    assert "train-0-1-r1" in {key.name for key in world.cluster.pods}
    assert world.status["reason"] != "APIServerError"


def not_decisive() -> Iterator[str]:
    """Yield all fields of the status that no decision reads."""
    [version] = custom_resource_definition()["spec"]["versions"]
    fields = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    for name, field in fields.items():
        inner = {each for each in DECISIVE if each.startswith(f"{name}.")}
        if inner:
            yield from {f"{name}.{each}" for each in field["properties"]} - inner
        elif name not in DECISIVE:
            yield name


async def test_fields_that_only_people_read_may_be_lost() -> None:
    world = World()
    world.cluster.lost_fields = set(not_decisive())
    assert world.cluster.lost_fields >= {"goodput", "progress.lastStepTime", "checkpoint.path"}
    said = TrainerStatus.read(json.dumps(REPORT))
    world.reconciler = Reconciler(
        world.cluster,
        world.jobs,
        settings=SETTINGS,
        clock=lambda: world.now,
        report_of=lambda _: Report("u1", Identity.at(0, 0, 0, index=0), said, world.now, world.now),
    )
    await world.start(restart={"scope": "Pod"})
    world.make_pods_ready()
    await world.reconcile()
    world.cluster.set_pod_status("train-0-1", CRASHED)
    await world.reconcile()
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
    await fails_for(world, 60)
    assert world.status["reason"] == "APIServerError"
    assert "status.world.members" in world.status["message"]
    assert not world.cluster.pods
