"""Memory and CPU of the operator with a thousand running jobs, and what one failure takes then.

Also how long a freshly started operator needs until it acts, with all of that in the cluster.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ddp_operator import __version__
from ddp_operator.job.pods.state import Identity

from tests.bench.benchmark import BenchmarkError, Outcome, Settings, spread
from tests.bench.server import workload
from tests.bench.server.client import BareClient, wait_for
from tests.bench.server.control_plane import (
    jobs_path,
    make_namespace,
    say,
    server,
    wait_until_serving,
)
from tests.bench.server.metrics import Requests
from tests.bench.server.nodes import simulated_nodes
from tests.bench.server.process import OperatorProcess, running_operator
from tests.cluster import ControlPlane

JOBS = 1000
REPLICAS = 8
PODS = JOBS * REPLICAS
IDLE_SECONDS = 10.0
_DEADLINE_SECONDS = 600.0


@dataclass(frozen=True)
class Load:
    """The cost until all jobs ran."""

    seconds: float
    cpu_seconds: float
    peak_memory_mb: float
    requests: Requests


@dataclass
class Results:
    """All that was measured; lists have a value for each repetition."""

    kubernetes: str
    load: Load
    memory_mb: float = 0.0
    """While all jobs run."""
    idle_cpu_percent: list[float] = field(default_factory=list)
    replaced_seconds: list[float] = field(default_factory=list)
    start_seconds: list[float] = field(default_factory=list)
    """From the start of a process until it has answered a new job."""
    start_cpu_seconds: list[float] = field(default_factory=list)
    start_peak_memory_mb: list[float] = field(default_factory=list)


def measure(settings: Settings) -> Outcome:
    """Run jobs on simulated nodes."""
    found = asyncio.run(_measure(settings))
    load, writes = found.load, found.load.requests.writes()
    times = settings.repeat
    lines = [
        f"Kubernetes   {found.kubernetes}: etcd, API server, controllers; simulated nodes",
        f"operator     {__version__}",
        f"jobs         {JOBS} x {REPLICAS} pods, applied at once, until all are Running",
        f"repetitions  loaded once; what follows {times} times: median (min-max)",
        "",
        _row("until all jobs run", f"{load.seconds:.0f} s"),
        _row("  CPU of the operator", f"{load.cpu_seconds:.0f} s"),
        _row("  CPU of the operator, per pod", f"{1e3 * load.cpu_seconds / PODS:.1f} ms"),
        _row("  peak memory", f"{load.peak_memory_mb:.0f} MB"),
        _row("  API writes per job, by anybody", f"{sum(writes.values()) / JOBS:.1f}"),
        *(
            _row(f"    {verb} {resource}", f"{count / JOBS:.1f}")
            for (verb, resource), count in writes.most_common()
            if count >= JOBS / 10
        ),
        _row("while they run: memory", f"{found.memory_mb:.0f} MB"),
        _row("  CPU of one core", f"{spread(found.idle_cpu_percent)} %"),
        _row("  from exit to a new pod", f"{spread(found.replaced_seconds, 3)} s"),
        _row("a new operator: acts after", f"{spread(found.start_seconds)} s"),
        _row("  CPU until then", f"{spread(found.start_cpu_seconds)} s"),
        _row("  peak memory", f"{spread(found.start_peak_memory_mb, 0)} MB"),
    ]
    return Outcome("\n".join(lines), found)


def _row(title: str, figure: str) -> str:
    return f"{title:36}{figure:>24}"


async def _measure(settings: Settings) -> Results:
    async with server() as (running, client):
        version = await client.get("/version")
        await make_namespace(client, "canary")
        await make_namespace(client, "jobs")
        with running_operator(running.kubeconfig, log=settings.scratch / "log") as operator:
            await wait_until_serving(client, "canary", operator.check_alive)
            found = Results(version["gitVersion"], await _load(client, operator))
            found.memory_mb = operator.memory_mb()
            for i in range(settings.repeat):
                say(f"idle, and one failure: {i + 1} of {settings.repeat}")
                cpu, began = operator.cpu_seconds(), time.monotonic()
                await asyncio.sleep(IDLE_SECONDS)
                used, idle = operator.cpu_seconds() - cpu, time.monotonic() - began
                found.idle_cpu_percent.append(100 * used / idle)
                seconds = await _replaced(client, f"loss-{i}", operator.check_alive)
                found.replaced_seconds.append(seconds)
        for i in range(settings.repeat):
            say(f"a new operator: {i + 1} of {settings.repeat}")
            await _start(client, running, settings, found, f"start-{i}")
    return found


async def _load(client: BareClient, operator: OperatorProcess) -> Load:
    names = [f"job-{i:04}" for i in range(JOBS)]
    bodies = [json.dumps(workload.job("jobs", name, replicas=REPLICAS)).encode() for name in names]
    # No nodes to bind to: that would only make the simulation slower.
    async with simulated_nodes(client, "jobs", bind=False) as nodes:
        await client.settle()
        before, cpu, began = await client.requests(), operator.cpu_seconds(), time.monotonic()

        async def all_run() -> bool:
            nodes.check()
            if nodes.running < PODS:
                return False
            listed = await client.get(jobs_path("jobs"))
            phases = [(job.get("status") or {}).get("phase") for job in listed["items"]]
            return phases.count("Running") == JOBS

        say(f"{JOBS} jobs x {REPLICAS} pods")
        await client.post_all(jobs_path("jobs"), bodies)
        await wait_for(
            all_run,
            what="all jobs run",
            deadline_seconds=_DEADLINE_SECONDS,
            interval_seconds=0.5,
            alive=[operator.check_alive],
        )
        seconds = time.monotonic() - began
        expected = {name for job in names for name in workload.pod_names(job, replicas=REPLICAS)}
        if nodes.seen.keys() != expected:
            raise BenchmarkError(f"{len(nodes.seen)} pods instead of {PODS}")
        await client.settle(deadline_seconds=_DEADLINE_SECONDS)
        return Load(
            seconds=seconds,
            cpu_seconds=operator.cpu_seconds() - cpu,
            peak_memory_mb=operator.peak_memory_mb(),
            requests=(await client.requests()).since(before),
        )


async def _replaced(client: BareClient, namespace: str, alive: Callable[[], None]) -> float:
    """Run a new job; return the seconds from the exit of a container until the new pod exists."""
    await make_namespace(client, namespace)
    async with simulated_nodes(client, namespace, bind=True) as nodes:
        await client.create(jobs_path(namespace), workload.job(namespace, "job", replicas=REPLICAS))

        async def runs() -> bool:
            nodes.check()
            status = (await client.get(f"{jobs_path(namespace)}/job")).get("status") or {}
            return bool(status.get("phase") == "Running")

        await wait_for(runs, what="the job runs", interval_seconds=0.1, alive=[alive])
        await client.settle()
        lost = Identity(REPLICAS - 1, attempt=0)
        began = time.monotonic()
        await nodes.fail(lost.pod_name("job"))
        new = replace(lost, replacement=1).pod_name("job")
        return await nodes.wait_until_seen(new, alive=alive) - began


async def _start(
    client: BareClient, running: ControlPlane, settings: Settings, found: Results, namespace: str
) -> None:
    await make_namespace(client, namespace)
    began = time.monotonic()
    with running_operator(running.kubeconfig, log=settings.scratch / namespace) as operator:
        await wait_until_serving(client, namespace, operator.check_alive)
        found.start_seconds.append(time.monotonic() - began)
        found.start_cpu_seconds.append(operator.cpu_seconds())
        found.start_peak_memory_mb.append(operator.peak_memory_mb())
