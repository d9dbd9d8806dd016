"""Two replicas of the operator, one leader and one standby: stopped, killed, frozen, cut off.

A pod that is created twice would show as a second UID under one name, or as an unexpected name.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import aiohttp
import pytest
from ddp_operator.kube import LEASES, PODS, ApiClient, Reflector
from ddp_operator.ports import Manifest, NotFoundError

from tests.cluster import ControlPlane
from tests.good_manifests import job
from tests.integration.jobs import Jobs
from tests.integration.operator_process import OperatorProcess, running_operator
from tests.ports import free_port
from tests.waiting import eventually

LEASE = "test-operator"
REPLICAS = 3


class Pair:
    """Two replicas for one namespace, and all pods that they created in it."""

    def __init__(self, admin: ApiClient, jobs: Jobs, processes: Sequence[OperatorProcess]) -> None:
        self._admin = admin
        self._jobs = jobs
        self.processes = processes
        self.created: set[tuple[str, str]] = set()
        self.expected: set[str] = set()
        self.watch = Reflector(
            admin,
            PODS.path(namespace=jobs.namespace),
            label_selector="",
            project=self._see,
            group=lambda _: None,
            on_change=lambda _: None,
        )

    def _see(self, pod: Manifest) -> None:
        self.created.add((pod["metadata"]["name"], pod["metadata"]["uid"]))

    async def holder(self) -> str:
        path = LEASES.path(namespace=self._jobs.namespace, name=LEASE)
        try:
            lease = await self._admin.request("GET", path)
        except NotFoundError:
            return ""
        return lease["spec"].get("holderIdentity") or ""

    async def leader(self, *, other_than: OperatorProcess | None = None) -> OperatorProcess:
        """Wait until one of them serves as the holder of the lease."""
        found: OperatorProcess | None = None

        async def leads() -> bool:
            nonlocal found
            holder = await self.holder()
            for process in self.processes:
                _, held, since = process.log.partition(f"{holder} holds the lease")
                if holder and held and ": serving " in since and process is not other_than:
                    found = process
            return found is not None

        await eventually(leads, interval_seconds=0.05, describe=self._logs)
        assert found is not None
        return found

    def other(self, than: OperatorProcess) -> OperatorProcess:
        return next(process for process in self.processes if process is not than)

    async def create(self, names: Iterable[str]) -> None:
        names = list(names)
        self.expected |= {f"{name}-0-{index}" for name in names for index in range(REPLICAS)}
        await asyncio.gather(*(self._jobs.create(job(name, replicas=REPLICAS)) for name in names))

    async def until_created(self) -> None:
        """Wait until every job has its pods; none of them may have been created twice."""
        await eventually(
            lambda: {name for name, _ in self.created} >= self.expected,
            interval_seconds=0.05,
            describe=self._logs,
        )
        for name in {pod.rpartition("-0-")[0] for pod in self.expected}:
            status = await self._jobs.until(lambda status: status.is_true("PodsCreated"), name)
            assert (status.attempt, status.restarts, status.disruptions) == (0, 0, 0)
        assert sorted(name for name, _ in self.created) == sorted(self.expected)

    def _logs(self) -> str:
        return "\n".join(process.log for process in self.processes)


def options(namespace: str) -> list[str]:
    return ["--leader-elect", "--lease-name", LEASE, "--lease-namespace", namespace]


@pytest.fixture
def ports() -> list[int]:
    """Two free ports."""
    first = second = free_port()
    while second == first:
        second = free_port()
    return [first, second]


@pytest.fixture
async def pair(
    control_plane: ControlPlane, admin: ApiClient, jobs: Jobs, tmp_path: Path, ports: list[int]
) -> AsyncIterator[Pair]:
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                running_operator(
                    control_plane.kubeconfig,
                    tmp_path / name,
                    namespace=jobs.namespace,
                    health_port=port,
                    options=options(jobs.namespace),
                )
            )
            for name, port in zip(("one", "other"), ports, strict=True)
        ]
        pair = Pair(admin, jobs, processes)
        watching = asyncio.create_task(pair.watch.run())
        try:
            await pair.watch.wait_synced(timeout_seconds=60)
            leader = await pair.leader()
            standby = pair.other(leader)
            await eventually(
                lambda: "standing by" in standby.log,
                interval_seconds=0.05,
                describe=lambda: standby.log,
            )
            yield pair
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        assert not any("Traceback" in process.log for process in processes)


async def test_both_are_ready_and_a_leader_that_is_stopped_hands_over(
    pair: Pair, ports: list[int]
) -> None:
    async with aiohttp.ClientSession() as session:

        async def ready() -> bool:
            statuses = []
            for port in ports:
                async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                    statuses.append(answer.status)
            return statuses == [200, 200]

        await eventually(ready, interval_seconds=0.05)
    leader = await pair.leader()
    await pair.create(["before"])
    await pair.until_created()
    assert ": serving " not in pair.other(leader).log
    await pair.create(f"during-{index}" for index in range(10))
    leader.terminate()
    assert await leader.exit_code() == 0
    assert "released the lease" in leader.log
    await pair.leader(other_than=leader)
    await pair.create(["after"])
    await pair.until_created()


async def test_leaders_killed_during_writes_create_no_pod_twice(pair: Pair) -> None:
    for turn in range(2):
        leader = await pair.leader()
        created = len(pair.created)
        await pair.create(f"turn-{turn}-{index}" for index in range(10))
        await eventually(lambda created=created: len(pair.created) > created)  # type: ignore[misc]
        leader.kill()
        leader.start()
    await pair.until_created()


async def test_frozen_leader_ends_before_it_writes(pair: Pair) -> None:
    leader = await pair.leader()
    leader.freeze()
    try:
        await pair.create(["job"])
        await pair.leader(other_than=leader)
        await pair.until_created()
    finally:
        leader.may_end = True
        leader.thaw()
    assert await leader.exit_code() == 1
    assert "lost the lease" in leader.log.splitlines()[-1]
    await pair.create(["next"])
    await pair.until_created()


async def test_leader_without_api_server_ends_and_standby_survives(
    pair: Pair, control_plane: ControlPlane
) -> None:
    leader = await pair.leader()
    standby = pair.other(leader)
    await asyncio.to_thread(control_plane.stop_apiserver)
    try:
        leader.may_end = True
        assert await leader.exit_code() == 1
        assert "lost the lease" in leader.log.splitlines()[-1]
        assert standby.running
    finally:
        await asyncio.to_thread(control_plane.start_apiserver)
    await pair.leader(other_than=leader)
    await pair.create(["job"])
    await pair.until_created()
