"""The operator beside JobSet and Kubeflow Trainer: what the same jobs take, and cost, under each.

Each project runs alone with Kubernetes' own controllers, in turns. There are no nodes: pods are
never scheduled, and simulated nodes report what a kubelet would, at once. CPU and memory are those
of a project's own controllers; JobSet and Trainer leave the pods to kube-controller-manager. Its
CPU is shown apart.
"""

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from tests.bench.benchmark import BenchmarkError, Outcome, Settings
from tests.bench.reports import peers as report
from tests.bench.reports.peers import Cost, Rest, Results, Round
from tests.bench.server import creation
from tests.bench.server.client import BareClient, wait_for
from tests.bench.server.control_plane import namespace_of, pods_exist, pods_path, say, server
from tests.bench.server.creation import Shape
from tests.bench.server.nodes import SimulatedNodes, count_running, nodes_of
from tests.bench.server.peers import SETTINGS, Controllers, Project, projects
from tests.bench.server.process import ControllerProcess, cpu_seconds

MANY, ONE = Shape(jobs=100, replicas=8), Shape(jobs=1, replicas=500)
REST = Shape(jobs=1000, replicas=2)
_TEAMS = 5
"""The namespaces of REST's jobs: in one alone, Kubernetes' own controllers would look through all
pods for each of its Services."""
_REST_SECONDS = 10.0
_DEADLINE_SECONDS = 600.0
_CANARY = "canary"
"""The job that shows in each namespace that the controllers work; it is no part of the figures."""


def measure(settings: Settings) -> Outcome:
    """Lead jobs through their lives under each project, in turns; those at rest once."""
    results = asyncio.run(_measure(settings))
    return Outcome(report.text(results, SETTINGS), results)


async def _measure(settings: Settings) -> Results:
    load = os.getloadavg()
    async with server() as (control_plane, client):
        version = await client.get("/version")
        controllers = Controllers(control_plane, settings.scratch)
        await controllers.install(client)
        kube = control_plane.process("kube-controller-manager").pid
        contenders = projects()
        rounds: list[Round] = []
        for i in range(settings.repeat):
            say(f"repetition {i + 1} of {settings.repeat}: {MANY.pods} pods by a bare client")
            raw = await creation.raw(client, f"raw-{i}", pods=MANY.pods)
            costs = {}
            # Nobody is always the first.
            for project in (*contenders[i % 3 :], *contenders[: i % 3]):
                say(f"repetition {i + 1} of {settings.repeat}: {project.kind}")
                run = f"{project.kind.lower()}-{i}"
                with controllers.running(project, run) as processes:
                    life = _Life(client, project, processes, kube)
                    costs[project.kind] = await life.costs(run)
            rounds.append(Round(raw, costs))
        rest = {}
        for project in contenders:
            say(f"{REST.jobs} x {REST.replicas} pods at rest: {project.kind}")
            run = f"{project.kind.lower()}-rest"
            with controllers.running(project, run) as processes:
                life = _Life(client, project, processes, kube)
                rest[project.kind] = await life.rest(run)
    versions = {project.kind: project.version for project in contenders}
    return Results(version["gitVersion"], versions, load, rounds, rest)


class _Life:
    """The jobs of one project while its controllers run."""

    def __init__(
        self,
        client: BareClient,
        project: Project,
        processes: Sequence[ControllerProcess],
        kube_controller_manager: int,
    ) -> None:
        self._client = client
        self._project = project
        self._processes = processes
        self._kube = kube_controller_manager
        self._alive = [process.check_alive for process in processes]

    async def costs(self, run: str) -> dict[str, Cost]:
        """Return what each step of MANY's and ONE's lives took, by its name."""
        found = {}
        namespace = f"{run}-many"
        async with namespace_of(self._client, namespace):
            await self._begin(namespace)
            found[report.MANY] = await self._step(
                report.MANY, lambda: self._create([namespace], MANY)
            )
            await self._verify(namespace, MANY)
        namespace = f"{run}-one"
        async with namespace_of(self._client, namespace), AsyncExitStack() as stack:
            await self._begin(namespace)
            found[report.ONE] = await self._step(report.ONE, lambda: self._create([namespace], ONE))
            await self._verify(namespace, ONE)
            nodes: list[SimulatedNodes] = []

            async def make_ready() -> float:
                nodes.extend(await stack.enter_async_context(nodes_of(self._client, [namespace])))
                return await self._run(nodes, ONE.pods + 1)

            found[report.READY] = await self._step(report.READY, make_ready)
            found[report.RESTART] = await self._step(
                report.RESTART, lambda: self._restart(nodes[0])
            )
            await self._verify(namespace, ONE)
        return found

    async def rest(self, run: str) -> Rest:
        """Return what REST's jobs cost while nothing happens."""
        namespaces = [f"{run}-{i}" for i in range(_TEAMS)]
        async with namespace_of(self._client, *namespaces):
            await self._begin(namespaces[0])
            before = self._memory_mb()
            async with nodes_of(self._client, namespaces) as nodes:

                async def load() -> float:
                    await self._create(namespaces, REST)
                    return await self._run(nodes, REST.pods + 1)

                cost = await self._step("until they run", load)
                cpu, began = self._cpu(), time.monotonic()
                await asyncio.sleep(_REST_SECONDS)
                percent = 100 * (self._cpu() - cpu) / (time.monotonic() - began)
                return Rest(before, self._memory_mb(), percent, cost)

    async def _begin(self, namespace: str) -> None:
        """Wait until a job has its pod, and nobody writes anything any more."""
        body = json.dumps(self._project.job(namespace, _CANARY, 1)).encode()

        async def accepted() -> bool:
            try:
                await self._client.post(self._project.path(namespace), body)
            except BenchmarkError:  # its webhooks do not answer yet
                return False
            return True

        await wait_for(accepted, what="a job is accepted", interval_seconds=0.2, alive=self._alive)
        await pods_exist(self._client, namespace, 1, alive=self._alive)
        await self._client.settle(deadline_seconds=_DEADLINE_SECONDS)

    async def _create(self, namespaces: Sequence[str], shape: Shape) -> float:
        """Apply jobs, and return when all their pods existed."""
        count = shape.jobs // len(namespaces)
        pods = await self._client.count_pods() + shape.pods
        for namespace in namespaces:
            jobs = (self._project.job(namespace, _name(i), shape.replicas) for i in range(count))
            bodies = [json.dumps(job).encode() for job in jobs]
            await self._client.post_all(self._project.path(namespace), bodies)
        await pods_exist(
            self._client, "", pods, alive=self._alive, deadline_seconds=_DEADLINE_SECONDS
        )
        return time.monotonic()

    async def _run(self, nodes: Sequence[SimulatedNodes], pods: int) -> float:
        """Have pods run, and return when so many did."""

        async def run() -> bool:
            return count_running(nodes) >= pods

        await wait_for(
            run, what=f"{pods} pods run", alive=self._alive, deadline_seconds=_DEADLINE_SECONDS
        )
        return time.monotonic()

    async def _restart(self, nodes: SimulatedNodes) -> float:
        """Have a pod fail, and return when the last new pod existed."""
        former = set(nodes.seen)
        await nodes.fail(min(name for name in former if name.startswith(_name(0))))
        await self._run([nodes], 2 * ONE.pods + 1)
        new = nodes.seen.keys() - former
        if len(new) != ONE.pods:
            raise BenchmarkError(f"{len(new)} new pods instead of {ONE.pods}")
        return max(nodes.seen[name] for name in new)

    async def _verify(self, namespace: str, shape: Shape) -> None:
        """Compare with what there is: a benchmark that measured anything else must fail."""
        self._client.pod_lists += 1
        listed = await self._client.get(pods_path(namespace))
        labels = [pod["metadata"]["labels"].get(self._project.pod_label) for pod in listed["items"]]
        wanted = {_CANARY: 1} | {_name(i): shape.replicas for i in range(shape.jobs)}
        if (found := dict(Counter(labels))) != wanted:
            differing = {name: n for name, n in found.items() if wanted.get(name) != n}
            raise BenchmarkError(
                f"{namespace}: {len(labels)} pods of {len(found)} jobs instead of {shape.pods} of "
                f"{shape.jobs}; with other numbers than wanted: {differing}"
            )

    async def _step(self, name: str, do: Callable[[], Awaitable[float]]) -> Cost:
        """Take a step, which returns when it had done what counts; count until nobody writes."""
        requests = await self._client.requests()
        cpu, kube, began = self._cpu(), cpu_seconds(self._kube), time.monotonic()
        ended = await do()
        await self._client.settle(deadline_seconds=_DEADLINE_SECONDS)
        cost = Cost(
            seconds=ended - began,
            cpu_seconds=self._cpu() - cpu,
            kube_cpu_seconds=cpu_seconds(self._kube) - kube,
            requests=(await self._client.requests()).since(requests),
        )
        say(f"  {name}: {cost.seconds:.1f} s, CPU {cost.cpu_seconds:.1f} s, {cost.writes} writes")
        return cost

    def _cpu(self) -> float:
        return sum(process.cpu_seconds() for process in self._processes)

    def _memory_mb(self) -> float:
        return sum(process.memory_mb() for process in self._processes)


def _name(i: int) -> str:
    return f"job-{i:03}"
