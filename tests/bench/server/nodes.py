"""Nodes that are none: they report of pods what a kubelet would, and run nothing."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from ddp_operator.api.values.bounded import format_time

from tests.bench.benchmark import BenchmarkError
from tests.bench.server.client import IN_FLIGHT, BareClient
from tests.bench.server.control_plane import pods_path

Manifest = dict[str, Any]


class SimulatedNodes:
    """Runs all pods of a namespace, as soon as they exist; made by `nodes_of`."""

    def __init__(self, client: BareClient, namespace: str) -> None:
        self._client = client
        self._path = pods_path(namespace)
        self._created: asyncio.Queue[Manifest] = asyncio.Queue()
        self._failed: BaseException | None = None
        self.seen: dict[str, float] = {}
        """By name of each pod: when the watch told of it, by `time.monotonic`."""
        self._containers: dict[str, str] = {}
        """By name of each pod: the name of its first container."""
        self.running = 0
        """Pods that were reported as running and ready."""

    def check(self) -> None:
        """Raise what has gone wrong in the background."""
        if self._failed is not None:
            raise BenchmarkError(f"the simulated nodes: {self._failed!r}") from self._failed

    async def fail(self, pod: str, *, exit_code: int = 1) -> None:
        """Report that the container of a running pod has ended."""
        ended = {"exitCode": exit_code, "reason": "Error", "finishedAt": _now()}
        await self._report(pod, phase="Failed", ready=False, state={"terminated": ended})

    async def _watch(self, events: AsyncIterator[Manifest]) -> None:
        async for event in events:
            pod = event["object"]
            name = pod["metadata"]["name"]
            if event["type"] == "ADDED":
                self.seen[name] = time.monotonic()
                self._containers[name] = pod["spec"]["containers"][0]["name"]
                self._created.put_nowait(pod)

    async def _run_pods(self) -> None:
        while True:
            name = (await self._created.get())["metadata"]["name"]
            await self._report(
                name, phase="Running", ready=True, state={"running": {"startedAt": _now()}}
            )
            self.running += 1

    async def _report(self, pod: str, *, phase: str, ready: bool, state: Manifest) -> None:
        container = {
            "name": self._containers[pod],
            "image": "registry.example.com/research/trainer:1.0.0",
            "imageID": "",
            "ready": ready,
            "restartCount": 0,
            "state": state,
        }
        condition = {
            "type": "Ready",
            "status": "True" if ready else "False",
            "lastTransitionTime": _now(),
        }
        status = {"phase": phase, "conditions": [condition], "containerStatuses": [container]}
        await self._client.patch(f"{self._path}/{pod}/status", {"status": status})

    async def work(self, events: AsyncIterator[Manifest]) -> None:
        """Run pods until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch(events))
                for _ in range(IN_FLIGHT):
                    group.create_task(self._run_pods())
        except BaseExceptionGroup as errors:
            self._failed = errors.exceptions[0]


@asynccontextmanager
async def _simulated_nodes(client: BareClient, namespace: str) -> AsyncIterator[SimulatedNodes]:
    """Run a namespace's pods for the length of an `async with` block."""
    nodes = SimulatedNodes(client, namespace)
    async with client.watch(pods_path(namespace)) as events:
        working = asyncio.create_task(nodes.work(events))
        try:
            yield nodes
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
    nodes.check()


@asynccontextmanager
async def nodes_of(
    client: BareClient, namespaces: Iterable[str]
) -> AsyncIterator[list[SimulatedNodes]]:
    """Run the pods of several namespaces, unbound: no kubelet would end their termination."""
    async with AsyncExitStack() as stack:
        nodes = [_simulated_nodes(client, namespace) for namespace in namespaces]
        yield [await stack.enter_async_context(one) for one in nodes]


def count_running(nodes: Sequence[SimulatedNodes]) -> int:
    """Return how many pods run; raise what has gone wrong in the background."""
    for one in nodes:
        one.check()
    return sum(one.running for one in nodes)


def _now() -> str:
    return format_time(datetime.now(UTC))
