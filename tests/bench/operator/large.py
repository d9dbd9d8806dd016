"""The life of one job of thousands of pods, and of thousands of jobs of one pod.

Created, all ready, one pod failed and the gang started again, suspended, deleted: for each step how
long it took, and what it cost the operator. There is no kubelet: simulated nodes patch what it
would. While pods become ready the operator hears of each once, so that its CPU a pod is its CPU an
event. Thousands of jobs are those of many teams: in one namespace, Kubernetes' own controllers
would look through all pods for each of its Services.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from ddp_operator import __version__

from tests.bench.benchmark import BenchmarkError, Outcome, Settings
from tests.bench.server import workload
from tests.bench.server.client import IN_FLIGHT, BareClient, wait_for
from tests.bench.server.control_plane import (
    jobs_path,
    make_namespace,
    say,
    server,
    wait_until_serving,
)
from tests.bench.server.creation import Shape
from tests.bench.server.nodes import SimulatedNodes, count_running, nodes_of
from tests.bench.server.process import OperatorProcess, running_operator
from tests.cluster import ControlPlane

SHAPES = (Shape(1, 100), Shape(1, 1000), Shape(1, 5000), Shape(10_000, 1))
JOBS_OF_A_TEAM = 200
"""In a namespace of theirs."""
_STEP_SECONDS = 1800.0
"""Deadline of each step."""

Steps = dict[str, "Step"]


@dataclass(frozen=True)
class Step:
    """The cost of one step of all jobs' lives."""

    seconds: float
    cpu_seconds: float
    """Of the operator, until nobody wrote anything any more."""
    memory_mb: float
    """Of the operator, at the end of the step."""
    writes: int
    """API writes by anybody, the simulated kubelets among them; Events and leases left out."""


def measure(settings: Settings) -> Outcome:
    """Lead jobs of each shape through their lives, once: it takes long enough."""
    version, found = asyncio.run(_measure(settings))
    lines = [
        f"Kubernetes   {version}: etcd, API server, controllers; simulated nodes",
        f"operator     {__version__}; a new process for each shape",
        "repetitions  1",
        *table(found),
    ]
    data = {title(shape): steps for shape, steps in found.items()}
    return Outcome("\n".join(lines), {"kubernetes": version, "steps": data})


def title(shape: Shape) -> str:
    """Return what is measured, in words: `1 x 5000`."""
    return f"{shape.jobs} x {shape.replicas}"


def table(found: dict[Shape, Steps]) -> list[str]:
    """Return the figures of each step, those of CPU and writes for one pod."""
    lines: list[str] = []
    for shape, steps in found.items():
        head = (f"{title(shape)} pods", "seconds", "CPU ms/pod", "writes/pod", "memory MB")
        lines += ["", _row(*head)]
        lines += [_row(name, *_figures(shape, step)) for name, step in steps.items()]
    return lines


def _figures(shape: Shape, step: Step) -> tuple[str, ...]:
    return (
        f"{step.seconds:.1f}",
        f"{1e3 * step.cpu_seconds / shape.pods:.2f}",
        f"{step.writes / shape.pods:.2f}",
        f"{step.memory_mb:.0f}",
    )


def _row(name: str, *figures: str) -> str:
    return f"{name:22}" + "".join(f"{figure:>13}" for figure in figures)


async def _measure(settings: Settings) -> tuple[str, dict[Shape, Steps]]:
    found: dict[Shape, Steps] = {}
    async with server() as (running, client):
        version = await client.get("/version")
        await make_namespace(client, "canary")
        for shape in SHAPES:
            found[shape] = await _live(client, running, shape, settings)
            await client.delete(f"{jobs_path('canary')}/canary")
    return version["gitVersion"], found


async def _live(
    client: BareClient, running: ControlPlane, shape: Shape, settings: Settings
) -> Steps:
    log = settings.scratch / f"{shape.jobs}-{shape.replicas}"
    with running_operator(running.kubeconfig, log=log) as operator:
        await wait_until_serving(client, "canary", operator.check_alive)
        life = _Life(client, operator, shape)
        for namespace in life.namespaces:
            await make_namespace(client, namespace)
        await life.step("created", life.create)
        async with AsyncExitStack() as stack:
            nodes: list[SimulatedNodes] = []

            async def run() -> None:
                # Not before: the pods would be ready before the step begins.
                nodes.extend(await stack.enter_async_context(nodes_of(client, life.namespaces)))
                await life.until(all_run)

            async def all_run() -> bool:
                return count_running(nodes) >= shape.pods

            async def restart() -> None:
                await nodes[0].fail(f"{life.names[0]}-0-0")
                await life.until(life.runs_again)

            await life.step("all ready", run)
            await life.step("one failed, all again", restart)
        await life.step("suspended", life.suspend)
        await life.step("deleted", life.delete)
    return life.steps


class _Life:
    """The steps of all jobs of one shape."""

    def __init__(self, client: BareClient, operator: OperatorProcess, shape: Shape) -> None:
        self._client = client
        self._operator = operator
        self._shape = shape
        self.names = [f"job-{i:05}" for i in range(shape.jobs)]
        teams = -(-shape.jobs // JOBS_OF_A_TEAM)
        self.namespaces = [f"jobs-{shape.jobs}-{shape.replicas}-{i}" for i in range(teams)]
        self.steps: Steps = {}

    async def step(self, name: str, do: Callable[[], Awaitable[None]]) -> None:
        """Take a step, and count what it costs until nobody writes any more."""
        say(f"{title(self._shape)}: {name}")
        client, operator = self._client, self._operator
        await client.settle(deadline_seconds=_STEP_SECONDS)
        before, cpu, began = await client.requests(), operator.cpu_seconds(), time.monotonic()
        await do()
        seconds = time.monotonic() - began
        await client.settle(deadline_seconds=_STEP_SECONDS)
        self.steps[name] = Step(
            seconds=seconds,
            cpu_seconds=operator.cpu_seconds() - cpu,
            memory_mb=operator.memory_mb(),
            writes=(await client.requests()).since(before).writes().total(),
        )
        say(_row(name, *_figures(self._shape, self.steps[name])))

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait, for as long as a step may take."""
        await wait_for(
            condition,
            what=f"a step of {title(self._shape)}",
            deadline_seconds=_STEP_SECONDS,
            interval_seconds=0.2,
            alive=[self._operator.check_alive],
        )

    async def create(self) -> None:
        replicas = self._shape.replicas

        for i, namespace in enumerate(self.namespaces):
            names = self.names[i * JOBS_OF_A_TEAM : (i + 1) * JOBS_OF_A_TEAM]
            jobs = (workload.job(namespace, n, replicas=replicas, scope="Gang") for n in names)
            bodies = [json.dumps(job).encode() for job in jobs]
            await self._client.post_all(jobs_path(namespace), bodies)
        await self.until(lambda: self._pods_are(self._shape.pods))

    async def runs_again(self) -> bool:
        job = await self._client.get(self._path(0))
        status = job.get("status") or {}
        if status.get("phase") == "Failed":
            raise BenchmarkError(f"{self.names[0]} has failed: {status.get('message')}")
        return bool(status.get("attempt") == 1 and status.get("phase") == "Running")

    async def suspend(self) -> None:
        waiting = iter(range(self._shape.jobs))

        async def work() -> None:
            for i in waiting:
                await self._client.merge(self._path(i), {"spec": {"suspend": True}})

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
        await self.until(lambda: self._pods_are(0))

    async def delete(self) -> None:
        for namespace in self.namespaces:
            await self._client.delete(jobs_path(namespace))

        async def gone() -> bool:
            lists = [self._client.get(f"{jobs_path(n)}?limit=1") for n in self.namespaces]
            return not any(found["items"] for found in await asyncio.gather(*lists))

        await self.until(gone)

    def _path(self, i: int) -> str:
        """Of the i-th job."""
        return f"{jobs_path(self.namespaces[i // JOBS_OF_A_TEAM])}/{self.names[i]}"

    async def _pods_are(self, count: int) -> bool:
        return await self._client.count_pods() == count
