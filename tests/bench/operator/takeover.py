"""How long jobs wait when the leading replica of the operator ends, by SIGTERM and by SIGKILL.

There is nothing to compare it with: after a SIGTERM the lease is given up, after a SIGKILL it has
to run out.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
from ddp_operator import __version__
from ddp_operator.kube.election.rules import Timing

from tests.bench.benchmark import Outcome, Settings, spread
from tests.bench.server import workload
from tests.bench.server.client import BareClient, wait_for
from tests.bench.server.control_plane import jobs_path, make_namespace, say, server
from tests.bench.server.nodes import SimulatedNodes, simulated_nodes
from tests.bench.server.process import OperatorProcess, running_operator
from tests.cluster import ControlPlane
from tests.ports import free_port

SIGNALS = (signal.SIGTERM, signal.SIGKILL)
NAMESPACE = "takeover"
_LEASE = ("--leader-elect", "--lease-name", "bench", "--lease-namespace", NAMESPACE)
_LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/bench"


@dataclass(frozen=True)
class Takeover:
    """Seconds since the leader was sent the signal."""

    held: float
    """Until the other replica held the lease."""
    acted: float
    """Until it had created the pod of a job that was applied at `held`."""


def measure(settings: Settings) -> Outcome:
    """End leaders, one after the other; a new replica stands by each time."""
    version, found = asyncio.run(_measure(settings))
    lines = [
        f"Kubernetes   {version}: etcd, API server, controllers",
        f"operator     {__version__}, two replicas: until the one that stood by acts",
        f"lease        {Timing().lease_duration} s, renewed every {Timing().renew_interval:g} s",
        f"repetitions  {settings.repeat}, interleaved; shown: median (min-max)",
        "",
        f"{'seconds':13}{'holds the lease':>22}{'creates a pod':>22}",
    ]
    for number, runs in found.items():
        held = spread([run.held for run in runs], 2)
        acted = spread([run.acted for run in runs], 2)
        lines.append(f"{number.name:13}{held:>22}{acted:>22}")
    data = {number.name: [asdict(run) for run in runs] for number, runs in found.items()}
    return Outcome("\n".join(lines), {"kubernetes": version, "seconds": data})


async def _measure(settings: Settings) -> tuple[str, dict[signal.Signals, list[Takeover]]]:
    found: dict[signal.Signals, list[Takeover]] = {number: [] for number in SIGNALS}
    async with server() as (running, client):
        version = await client.get("/version")
        await make_namespace(client, NAMESPACE)
        with ExitStack() as stack:
            async with simulated_nodes(client, NAMESPACE, bind=False) as nodes:
                leader = await _start(stack, running, settings.scratch / "log")
                await _lease_taken(client, "", leader.check_alive)
                for i in range(settings.repeat):
                    for number in SIGNALS:
                        say(f"{number.name}: {i + 1} of {settings.repeat}")
                        job = f"{number.name.lower()}-{i}"
                        standby = await _start(stack, running, settings.scratch / job)
                        former = await _holder(client)
                        began = time.monotonic()
                        leader.send(number)
                        held = await _lease_taken(client, former, standby.check_alive) - began
                        acted = await _acted(client, nodes, standby, job) - began
                        found[number].append(Takeover(held, acted))
                        leader = standby
    return version["gitVersion"], found


async def _start(stack: ExitStack, running: ControlPlane, log: Path) -> OperatorProcess:
    """Start a replica and wait until it watches jobs and pods."""
    port = free_port()
    options = [*_LEASE, "--health-port", str(port)]
    replica = stack.enter_context(running_operator(running.kubeconfig, log=log, options=options))
    async with aiohttp.ClientSession() as session:

        async def ready() -> bool:
            try:
                async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        await wait_for(ready, what="a replica", interval_seconds=0.1, alive=[replica.check_alive])
    return replica


async def _acted(
    client: BareClient, nodes: SimulatedNodes, standby: OperatorProcess, job: str
) -> float:
    """Apply a job, and return when it had its pod."""
    await client.create(jobs_path(NAMESPACE), workload.job(NAMESPACE, job, replicas=1))
    seen = await nodes.wait_until_seen({f"{job}-0-0"}, alive=standby.check_alive)
    return max(seen.values())


async def _lease_taken(client: BareClient, former: str, alive: Callable[[], None]) -> float:
    """Wait for another holder than the former one; return when there was one."""

    async def taken() -> bool:
        return await _holder(client) not in ("", former)

    await wait_for(taken, what="the lease is taken", interval_seconds=0.01, alive=[alive])
    return time.monotonic()


async def _holder(client: BareClient) -> str:
    lease = await client.get(_LEASE_PATH)
    return (lease["spec"].get("holderIdentity") or "") if lease else ""
