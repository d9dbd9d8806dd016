"""Writes of priority boosts."""

import asyncio
import logging
from datetime import datetime
from typing import Any

import pytest
from ddp_operator.__main__ import main
from ddp_operator.api.constants import KUEUE_GROUP, KUEUE_MANAGED, PREBUILT_WORKLOAD
from ddp_operator.api.job import DDPJob
from ddp_operator.engine.background.priority_boosts import PriorityBoosts
from ddp_operator.engine.engine import Engine
from ddp_operator.engine.job_cache import JobCache
from ddp_operator.job.pods import manifests
from ddp_operator.job.pods.state import Identity
from ddp_operator.ports import (
    ClusterError,
    ForbiddenError,
    InvalidError,
    Key,
    NotLeaderError,
    UnavailableError,
)

from tests.unit.engine.fakes import SETTINGS, FakeCluster
from tests.unit.job.builders import NAMESPACE, NOW, UID, later, stored_job
from tests.waiting import eventually


class World:
    """Jobs in a queue, which have been running since NOW, and their Workloads."""

    def __init__(self, *names: str) -> None:
        self.cluster = FakeCluster()
        self.jobs = JobCache()
        self.now = NOW
        self.version = 0
        self.restart_operator()
        for name in names:
            self.store(name)
            self.cluster.boosts[workload(name)] = None

    def restart_operator(self) -> None:
        self.boosts = PriorityBoosts(self.cluster, self.jobs, most=10, clock=lambda: self.now)

    def store(self, name: str, *, group: int = 0, **changes: Any) -> None:
        self.jobs.put(self.manifest(name, group=group, **changes))
        self.add_pod(name, workload(name, group).name)

    def add_pod(self, name: str, group: str) -> None:
        """Store a pod of a job in a pod group."""
        self.version += 1
        pod = manifests.pod(DDPJob.parse(stored_job(name=name)), Identity(0, 0))
        pod["metadata"]["labels"] |= {KUEUE_MANAGED: "true", KUEUE_GROUP: group}
        pod["metadata"]["name"] = f"{name}-{self.version}"
        self.cluster.pods[Key(NAMESPACE, pod["metadata"]["name"])] = pod

    def manifest(
        self, name: str, *, phase: str = "Running", group: int = 0, **spec: Any
    ) -> dict[str, Any]:
        self.version += 1
        manifest = stored_job(**{"scheduling": {"queueName": "team"}, **spec}, name=name)
        manifest["metadata"]["resourceVersion"] = str(self.version)
        manifest["status"] = {
            "phase": phase,
            "conditions": [_running(NOW)],
            "bookkeeping": {"queueGroup": group},
        }
        return manifest

    async def write(self, seconds: float) -> list[str]:
        """Write boosts that long after NOW; return the requests."""
        self.now = later(seconds)
        self.cluster.calls.clear()
        await self.boosts.write()
        return [call.removeprefix("set_priority_boost ") for call in self.cluster.calls]


def _running(since: datetime) -> dict[str, Any]:
    condition = {"type": "Running", "status": "True", "reason": "AllPodsReady"}
    return {**condition, "lastTransitionTime": since.isoformat()}


def workload(name: str, group: int = 0) -> Key:
    return Key(NAMESPACE, f"{name}-{UID}-{group}")


@pytest.mark.parametrize("boost", ["-1", "1001", "high"])
def test_boost_out_of_range_is_refused(boost: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"--priority-boost={boost}"]) == 64
    assert f"invalid boost {boost!r}: use 0 to 1000" in capsys.readouterr().err


async def test_boost_is_written_when_it_changes() -> None:
    world = World("one")
    wrote = {seconds: await world.write(seconds) for seconds in range(0, 7200, 30)}
    assert {seconds: calls for seconds, calls in wrote.items() if calls} == {
        0: ["one-7d1c-0 0"],
        450: ["one-7d1c-0 1"],
        1800: ["one-7d1c-0 2"],
    }
    assert await world.write(7200) == ["one-7d1c-0 3"]
    assert world.cluster.boosts == {workload("one"): 3}


@pytest.mark.parametrize("operator_restarts", [False, True])
async def test_restarting_job_has_no_boost(*, operator_restarts: bool) -> None:
    world = World("one")
    await world.write(7200)
    world.store("one", phase="Restarting")
    if operator_restarts:
        world.restart_operator()
    assert await world.write(7230) == ["one-7d1c-0 0"]
    assert await world.write(7260) == []


@pytest.mark.parametrize(
    ("phase", "writes"),
    [
        ("Pending", ["one-7d1c-0 0"]),
        ("Starting", ["one-7d1c-0 0"]),
        ("Suspended", []),
        ("Succeeded", []),
        ("Failed", []),
    ],
)
async def test_waiting_job_has_no_boost_and_ended_workloads_keep_theirs(
    phase: str, writes: list[str]
) -> None:
    world = World("one")
    world.store("one", phase=phase)
    assert await world.write(7200) == writes


async def test_job_that_stops_running_loses_its_boost_at_once() -> None:
    world = World("one")
    world.now = later(7200)
    running = asyncio.create_task(world.boosts.run())
    await eventually(lambda: world.cluster.boosts[workload("one")] == 3)
    key = Key(NAMESPACE, "one")
    world.boosts.reconciled(key)
    world.store("one", phase="Restarting")
    world.boosts.reconciled(key)
    await eventually(lambda: world.cluster.boosts[workload("one")] == 0, timeout_seconds=5)
    running.cancel()


async def test_job_outside_a_queue_has_no_boost() -> None:
    world = World()
    world.store("one", scheduling=None)
    world.jobs.put({**stored_job(name="bad"), "spec": {"replicas": "many"}})
    assert await world.write(7200) == []


async def test_label_of_a_job_boosts_no_workload_of_another_owner() -> None:
    world = World("one")
    theirs = Key(NAMESPACE, "job-notebook-1a2b3")
    world.cluster.boosts[theirs] = None
    manifest = world.manifest("one")
    manifest["metadata"]["labels"] = {PREBUILT_WORKLOAD: theirs.name}
    world.jobs.put(manifest)
    assert await world.write(7200) == []
    world.add_pod("one", theirs.name)
    assert await world.write(7230) == [f"{theirs.name} 3"], "pods in its group: it is checked"


async def test_another_group_has_another_workload() -> None:
    world = World("one")
    await world.write(7200)
    world.store("one", group=1)
    assert await world.write(7230) == ["one-7d1c-1 3"]  # not there yet
    world.cluster.boosts[workload("one", 1)] = None
    assert await world.write(7260) == ["one-7d1c-1 3"]
    assert await world.write(7290) == []


async def test_missing_permission_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World("one", "two")
    world.cluster.refuse["set_priority_boost"] = ForbiddenError("may not patch", status=403)
    for seconds in (7200, 7230, 7260):
        assert len(await world.write(seconds)) == 1  # one request for each namespace
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"Kueue preempts jobs in {NAMESPACE} without regard to their checkpoints: may not patch; "
        "grant the rights in manifests/components/priority-boost/rbac.yaml, or remove "
        "--priority-boost"
    )
    world.cluster.refuse.clear()
    assert await world.write(7290) == ["one-7d1c-0 3", "two-7d1c-0 3"]


@pytest.mark.parametrize("error", [UnavailableError("timeout"), NotLeaderError("lost")])
async def test_unavailable_server_is_retried_in_the_next_round(error: ClusterError) -> None:
    world = World("one", "two")
    world.cluster.refuse["set_priority_boost"] = error
    assert len(await world.write(7200)) == 1
    world.cluster.refuse.clear()
    assert len(await world.write(7230)) == 2


async def test_refused_workload_does_not_stop_the_others() -> None:
    world = World("one", "two")
    world.cluster.refuse["set_priority_boost"] = InvalidError("odd", status=422)
    assert len(await world.write(7200)) == 2


@pytest.mark.parametrize(("most", "written"), [(0, None), (2, 2)])
async def test_engine_writes_boosts_if_enabled(most: int, written: int | None) -> None:
    world = World("one")
    engine = Engine(
        world.cluster,
        settings=SETTINGS,
        clock=lambda: later(7200),
        workers=0,
        priority_boost=most,
    )
    engine.job_changed(world.manifest("one"))
    engine.start()
    await asyncio.sleep(0.03)
    await eventually(lambda: world.cluster.boosts[workload("one")] == written)
    await engine.stop()
