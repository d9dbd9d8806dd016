"""The operator crashes after each of its writes in turn, and its successor continues.

The engine, the reflector and KubeCluster are the real ones, on the real API server. They run in
this process, so that a crash can be placed exactly. A reflector replaces kopf's watch. The answer
to the fatal write is lost, and no call follows; then a successor starts with an empty memory. The
user and the kubelet notice nothing.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from ddp_operator.api.constants import LABEL_JOB_NAME
from ddp_operator.engine.engine import Engine
from ddp_operator.job.pods.projection import job_of, project
from ddp_operator.job.pods.state import PodState
from ddp_operator.kube import PODS, ApiClient, KubeCluster, Reflector
from ddp_operator.kube.credentials import Credentials
from ddp_operator.ports import Key, Manifest

from tests.good_manifests import Json, job
from tests.integration.conftest import new_namespace
from tests.integration.jobs import JOBS, Jobs
from tests.integration.kubelet import FakeKubelet
from tests.unit.engine.fakes import SETTINGS

SIDE_BY_SIDE = 4
"""Runs at the same time, because they wait more than they compute."""


class CrashError(BaseException):
    """The operator is dead. No error handler may catch this."""


@dataclass
class Writes:
    """Counts an operator's writes, over all its lives, and ends a life after a certain one."""

    fatal: int | None
    made: list[tuple[str, str]] = field(default_factory=list)
    crashed: asyncio.Event = field(default_factory=asyncio.Event)
    dead: bool = False

    def created(self) -> Counter[str]:
        """Return how often each object was created."""
        return Counter(path for method, path in self.made if method == "POST")


class MortalClient(ApiClient):
    """Sends writes one at a time and dies after the fatal one; Events do not count."""

    def __init__(self, credentials: Credentials, writes: Writes) -> None:
        super().__init__(credentials)
        self._record = writes
        self._one_at_a_time = asyncio.Lock()

    async def request(self, method: str, path: str, **options: Any) -> Any:
        if method == "GET" or path.endswith("/events"):
            return await super().request(method, path, **options)
        async with self._one_at_a_time:
            if self._record.dead:
                raise CrashError
            answer = await super().request(method, path, **options)
            name = options["body"]["metadata"]["name"] if method == "POST" else ""
            self._record.made.append((method, f"{path}/{name}" if name else path))
            if len(self._record.made) == self._record.fatal:
                self._record.dead = True
                self._record.crashed.set()
                raise CrashError
            return answer


@contextlib.asynccontextmanager
async def one_life(client: ApiClient, namespace: str) -> AsyncIterator[None]:
    """Run an operator for one namespace, with an empty memory."""

    def job_changed(key: Key) -> None:
        manifests = seen_jobs.group_members(key)
        if manifests:
            engine.job_changed(manifests[0])
        else:
            engine.job_gone(key)

    pods: Reflector[PodState] = Reflector(
        client,
        PODS.path(namespace=namespace),
        label_selector=LABEL_JOB_NAME,
        project=project,
        group=job_of,
        on_change=lambda key: engine.pods_changed(key),  # noqa: PLW0108 - the engine comes later
    )
    seen_jobs: Reflector[Manifest] = Reflector(
        client,
        JOBS.path(namespace=namespace),
        label_selector="",
        project=lambda manifest: manifest,
        group=lambda manifest: Key(namespace, manifest["metadata"]["name"]),
        on_change=job_changed,
    )
    cluster = KubeCluster(client, job_resource=JOBS, pods=pods)
    engine = Engine(cluster, settings=SETTINGS, workers=2)
    tasks = [asyncio.create_task(pods.run())]
    try:
        await pods.wait_synced(timeout_seconds=60)
        engine.start()
        tasks.append(asyncio.create_task(seen_jobs.run()))
        yield
    finally:
        await engine.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def operate(credentials: Credentials, namespace: str, writes: Writes) -> None:
    """Run an operator until it crashes, then its successor until cancelled."""
    async with MortalClient(credentials, writes) as client, one_life(client, namespace):
        await writes.crashed.wait()
    writes.dead = False
    async with MortalClient(credentials, writes) as client, one_life(client, namespace):
        await asyncio.Event().wait()


Story = Callable[[Jobs, FakeKubelet], Awaitable[None]]


async def run_all(jobs: Jobs, kubelet: FakeKubelet, *pods: str) -> None:
    """Wait for exactly these pods and run them."""
    await jobs.until_pods(*pods)
    await jobs.until(lambda status: status.is_true("PodsCreated"))
    for pod in pods:
        await kubelet.run(pod)
    await jobs.until_phase("Running")


async def gang(jobs: Jobs, kubelet: FakeKubelet) -> None:
    """Start, restart after a failure and after a disruption, succeed, clean up."""
    await jobs.create(job(replicas=2, cleanPodPolicy="All"))
    await run_all(jobs, kubelet, "job-0-0", "job-0-1")
    await kubelet.fail("job-0-1")
    await kubelet.finish_deleted("job-0-0")
    await run_all(jobs, kubelet, "job-1-0", "job-1-1")
    await kubelet.evict("job-1-0")
    await kubelet.finish_deleted("job-1-1")
    await run_all(jobs, kubelet, "job-2-0", "job-2-1")
    for pod in ("job-2-0", "job-2-1"):
        await kubelet.succeed(pod)
    await jobs.until_phase("Succeeded")
    await jobs.until_pods()


async def replacement(jobs: Jobs, kubelet: FakeKubelet) -> None:
    """Replace a failed pod and a deleted one that hangs, then use up the restarts."""
    await jobs.create(job(replicas=3, restart={"scope": "Pod", "maxRestarts": 1}))
    await run_all(jobs, kubelet, "job-0-0", "job-0-1", "job-0-2")
    await kubelet.fail("job-0-1")
    await run_all(jobs, kubelet, "job-0-0", "job-0-1-r1", "job-0-2")
    await jobs.delete_pod("job-0-0")
    await run_all(jobs, kubelet, "job-0-0-r1", "job-0-1-r1", "job-0-2")
    await kubelet.finish("job-0-0")
    await kubelet.fail("job-0-2")
    await jobs.until_phase("Failed")
    await jobs.until_pods("job-0-2")
    for pod in ("job-0-0-r1", "job-0-1-r1"):
        await kubelet.finish(pod)


@dataclass(frozen=True)
class End:
    """The result of a story, without what differs between any two runs."""

    status: Json
    pods: dict[str, str]
    created: Counter[str]


async def play(story: Story, admin: ApiClient, *, fatal: int | None) -> tuple[End, int]:
    """Play a story to its end; return its result and the number of writes."""
    async with new_namespace(admin) as namespace:
        jobs, kubelet = Jobs(admin, namespace), FakeKubelet(admin, namespace)
        writes = Writes(fatal)
        operator = asyncio.create_task(operate(admin.credentials, namespace, writes))
        try:
            await story(jobs, kubelet)
            await jobs.until_settled()
        finally:
            operator.cancel()
            ended = await asyncio.gather(operator, return_exceptions=True)
        assert isinstance(ended[0], asyncio.CancelledError), ended
        end = End(
            status=timeless((await jobs.status()).model_dump(mode="json", by_alias=True)),
            pods={name: pod["status"]["phase"] for name, pod in (await jobs.pods()).items()},
            created=Counter(
                {path.replace(namespace, "N"): n for path, n in writes.created().items()}
            ),
        )
        return end, len(writes.made)


def timeless(value: Any) -> Any:
    """Remove every time from a status, and what depends on one."""
    times = {
        *("time", "startTime", "firstPodStartTime", "completionTime", "lastTransitionTime"),
        "suspendedSeconds",
    }
    times |= {"nextStartTime", "goodput", "stopwatch"}
    if isinstance(value, dict):
        return {key: timeless(inner) for key, inner in value.items() if key not in times}
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "story",
    [gang, pytest.param(replacement, marks=pytest.mark.nightly)],
    ids=lambda story: story.__name__,
)
@pytest.mark.usefixtures("jobs")
async def test_a_crash_after_any_write_changes_nothing(admin: ApiClient, story: Story) -> None:
    undisturbed, writes = await play(story, admin, fatal=None)
    assert set(undisturbed.created.values()) == {1}
    turns = asyncio.Semaphore(SIDE_BY_SIDE)

    async def crash_after(fatal: int) -> None:
        async with turns:
            end, _ = await play(story, admin, fatal=fatal)
        assert end.created == undisturbed.created, f"crash after write {fatal}"
        assert end == undisturbed, f"crash after write {fatal}"

    await asyncio.gather(*(crash_after(fatal) for fatal in range(1, writes + 1)))
