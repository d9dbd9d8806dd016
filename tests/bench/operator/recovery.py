"""How soon after a container's exit the operator has created the pods that take its place.

Compared with a bare client that watches too, and creates as many pods as soon as it sees the
exit: it decides nothing, records nothing, and deletes no old pods.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from ddp_operator import __version__
from ddp_operator.job.pods.state import Identity

from tests.bench.benchmark import Outcome, Settings, spread
from tests.bench.server import workload
from tests.bench.server.client import IN_FLIGHT, BareClient, wait_for
from tests.bench.server.control_plane import (
    jobs_path,
    make_namespace,
    make_owner,
    pods_path,
    say,
    server,
    wait_until_serving,
)
from tests.bench.server.nodes import SimulatedNodes, simulated_nodes
from tests.bench.server.process import running_operator

JOB = "job"


@dataclass(frozen=True)
class Loss:
    """A job that loses one pod."""

    scope: str
    replicas: int

    @property
    def title(self) -> str:
        """Return a title for people."""
        return f"{'gang' if self.scope == 'Gang' else 'one pod'} of {self.replicas}"

    @property
    def lost(self) -> Identity:
        """The pod that fails."""
        return Identity(self.replicas - 1, attempt=0)

    @property
    def new(self) -> list[Identity]:
        """The pods that must come into being."""
        if self.scope == "Pod":
            return [replace(self.lost, replacement=1)]
        return workload.gang(self.replicas, attempt=1)


LOSSES = (
    Loss(scope="Pod", replicas=8),
    Loss(scope="Gang", replicas=8),
    Loss(scope="Gang", replicas=200),
)


@dataclass(frozen=True)
class Recovery:
    """Seconds since the exit was about to be reported, as seen by a watch."""

    first_pod: float
    all_pods: float


@dataclass(frozen=True)
class Pair:
    """The times of the operator, and of the bare client right before it."""

    raw: Recovery
    operator: Recovery


def measure(settings: Settings) -> Outcome:
    """Let containers of running jobs end."""
    version, found = asyncio.run(_measure(settings))
    lines = [
        f"Kubernetes   {version}: etcd, API server, controllers; simulated nodes",
        f"operator     {__version__}; a container exits with 1: until the new pods exist",
        "             (replaceWhen: Terminating; by default a gang waits for its old pods, too)",
        "raw          a bare client that sees the exit posts as many pods and no more",
        f"             ({IN_FLIGHT} requests in flight, as the operator has)",
        f"repetitions  {settings.repeat}, interleaved; shown: median (min-max)",
        "",
        _row("milliseconds", "first pod", "all pods", "raw: all", "ratio"),
    ]
    for loss, pairs in found.items():
        row = _row(
            loss.title,
            spread([1e3 * pair.operator.first_pod for pair in pairs], 0),
            spread([1e3 * pair.operator.all_pods for pair in pairs], 0),
            spread([1e3 * pair.raw.all_pods for pair in pairs], 0),
            spread([pair.raw.all_pods / pair.operator.all_pods for pair in pairs], 2),
        )
        lines.append(row)
    data: dict[str, Any] = {
        loss.title: [asdict(pair) for pair in pairs] for loss, pairs in found.items()
    }
    return Outcome("\n".join(lines), {"kubernetes": version, "seconds": data})


def _row(title: str, first: str, all_: str, raw: str, ratio: str) -> str:
    return f"{title:13}{first:>16}{all_:>17}{raw:>17}{ratio:>17}"


async def _measure(settings: Settings) -> tuple[str, dict[Loss, list[Pair]]]:
    found: dict[Loss, list[Pair]] = {loss: [] for loss in LOSSES}
    async with server() as (running, client):
        version = await client.get("/version")
        with running_operator(running.kubeconfig, log=settings.scratch / "log") as operator:
            await make_namespace(client, "canary")
            await wait_until_serving(client, "canary", operator.check_alive)
            for i in range(-1, settings.repeat):  # the first round warms all of it up
                for loss in LOSSES:
                    say(f"{loss.title}: {'warm-up' if i < 0 else f'{i + 1} of {settings.repeat}'}")
                    name = f"{loss.scope.lower()}-{loss.replicas}-{i + 1}"
                    raw = await _bare(client, f"raw-{name}", loss)
                    ours = await recovery(client, f"job-{name}", loss, operator.check_alive)
                    if i >= 0:
                        found[loss].append(Pair(raw, ours))
    return version["gitVersion"], found


async def recovery(
    client: BareClient, namespace: str, loss: Loss, alive: Callable[[], None]
) -> Recovery:
    """Make a job in a new namespace, let one of its pods fail when all run, and see what comes."""
    await make_namespace(client, namespace)
    async with simulated_nodes(client, namespace, bind=True) as nodes:
        job = workload.job(namespace, JOB, replicas=loss.replicas, scope=loss.scope)
        await client.create(jobs_path(namespace), job)

        async def runs() -> bool:
            nodes.check()
            status = (await client.get(f"{jobs_path(namespace)}/{JOB}")).get("status") or {}
            return bool(status.get("phase") == "Running")

        await wait_for(runs, what="the job runs", interval_seconds=0.1, alive=[alive])
        await client.settle()
        began = time.monotonic()
        await nodes.fail(loss.lost.pod_name(JOB))
        return await _seen(nodes, loss, began, alive)


async def _bare(client: BareClient, namespace: str, loss: Loss) -> Recovery:
    await make_namespace(client, namespace)
    owner = await make_owner(client, namespace)
    (lost,) = workload.pods(namespace, owner, [loss.lost], job_name=JOB)
    new = workload.pods(namespace, owner, loss.new, job_name=JOB)
    async with simulated_nodes(client, namespace, bind=True) as nodes:
        await client.post(pods_path(namespace), lost)
        await wait_for(lambda: _running(nodes, 1), what="the pod runs", alive=[nodes.check])
        await client.settle()

        async def react() -> None:
            assert await nodes.failures_seen.get() == loss.lost.pod_name(JOB)
            await client.post_all(pods_path(namespace), new)

        reacting = asyncio.create_task(react())
        began = time.monotonic()
        await nodes.fail(loss.lost.pod_name(JOB))
        await reacting
        return await _seen(nodes, loss, began, lambda: None)


async def _running(nodes: SimulatedNodes, count: int) -> bool:
    return nodes.running >= count


async def _seen(
    nodes: SimulatedNodes, loss: Loss, began: float, alive: Callable[[], None]
) -> Recovery:
    new = [identity.pod_name(JOB) for identity in loss.new]
    seen = await nodes.wait_until_seen(new, alive=alive)
    return Recovery(min(seen.values()) - began, max(seen.values()) - began)
