"""How fast Kueue admits jobs, and how much of that time is the operator's.

Compared with a bare client that posts the same pods in the same groups. The size is that of Kueue's
own test with pod groups, test/performance/e2e/podgroups of
https://github.com/kubernetes-sigs/kueue: 1,000 pods in 100 groups.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field

from ddp_operator import __version__

from tests.bench.benchmark import Outcome, Settings, spread
from tests.bench.server import workload
from tests.bench.server.client import BareClient, wait_for
from tests.bench.server.control_plane import (
    jobs_path,
    make_namespace,
    make_owner,
    pods_path,
    say,
    server,
    verify_names,
    wait_until_serving,
)
from tests.bench.server.process import running_operator
from tests.cluster.kueue import Kueue
from tests.integration.queues.queue import is_true

GROUPS = 100
PODS_PER_GROUP = 10
QUEUE = "team"
_API = "/apis/kueue.x-k8s.io/v1beta2"
_CONNECTION = {"qps": 50, "burst": 100}
"""As in Kueue's own manifests; without them, its client is slower."""
_DEADLINE_SECONDS = 300.0
_NAMES = [f"job-{number:03}" for number in range(GROUPS)]


@dataclass
class Results:
    """Seconds until all groups are admitted; lists have a value for each repetition."""

    kubernetes: str = ""
    raw_seconds: list[float] = field(default_factory=list)
    jobs_seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    """CPU time of the operator until then."""


def measure(settings: Settings) -> Outcome:
    """Have all groups admitted, on a new control plane for each repetition."""
    found = asyncio.run(_measure(settings))
    pairs = zip(found.jobs_seconds, found.raw_seconds, strict=True)
    lines = [
        f"Kubernetes   {found.kubernetes}: etcd, API server, controllers; Kueue, no scheduler",
        f"operator     {__version__}",
        f"groups       {GROUPS} x {PODS_PER_GROUP} pods at once, with quota for all",
        f"repetitions  {settings.repeat}; median (min-max)",
        "",
        _row("pods of a bare client: admitted after", found.raw_seconds, "s"),
        _row("  groups a second", [GROUPS / each for each in found.raw_seconds], ""),
        _row("jobs: admitted after", found.jobs_seconds, "s"),
        _row("  groups a second", [GROUPS / each for each in found.jobs_seconds], ""),
        _row("  longer than the bare client", [jobs - raw for jobs, raw in pairs], "s"),
        _row("  CPU of the operator", found.cpu_seconds, "s"),
    ]
    return Outcome("\n".join(lines), asdict(found))


def _row(title: str, values: list[float], unit: str) -> str:
    return f"{title:40}{spread(values):>24} {unit}".rstrip()


async def _measure(settings: Settings) -> Results:
    found = Results()
    for i in range(1, settings.repeat + 1):
        async with server() as (running, client):
            found.kubernetes = (await client.get("/version"))["gitVersion"]
            kueue = Kueue(running)
            kueue.install()
            kueue.stop()
            kueue.start(clientConnection=_CONNECTION)
            await _create_queue(client, "raw")
            await _create_queue(client, "jobs")
            say(f"repetition {i} of {settings.repeat}: pods of a bare client")
            found.raw_seconds.append(await _raw(client))
            say(f"repetition {i} of {settings.repeat}: jobs")
            log = settings.scratch / f"{i}.log"
            with running_operator(running.kubeconfig, log=log) as operator:
                await wait_until_serving(client, "jobs", operator.check_alive)
                await client.settle(deadline_seconds=_DEADLINE_SECONDS)
                cpu = operator.cpu_seconds()
                found.jobs_seconds.append(await _jobs(client, operator.check_alive))
                found.cpu_seconds.append(operator.cpu_seconds() - cpu)
    return found


async def _raw(client: BareClient) -> float:
    owner = await make_owner(client, "raw")
    gang = workload.gang(PODS_PER_GROUP)
    bodies = [
        body
        for name in _NAMES
        for body in workload.pods("raw", owner, gang, job_name=name, queue=QUEUE)
    ]
    await client.settle()
    return await _timed(client, "raw", client.post_all(pods_path("raw"), bodies))


async def _jobs(client: BareClient, alive: Callable[[], None]) -> float:
    jobs = [workload.job("jobs", name, replicas=PODS_PER_GROUP, queue=QUEUE) for name in _NAMES]
    bodies = [json.dumps(job).encode() for job in jobs]
    posted = client.post_all(jobs_path("jobs"), bodies)
    return await _timed(client, "jobs", posted, alive)


async def _timed(
    client: BareClient, namespace: str, posted: Awaitable[None], *alive: Callable[[], None]
) -> float:
    """Return the seconds from the first request until all groups are admitted."""

    async def admitted() -> bool:
        found = await client.get(f"{_API}/namespaces/{namespace}/workloads")
        return sum(is_true(each, "Admitted") for each in found["items"]) == GROUPS

    began = time.monotonic()
    await posted
    await wait_for(
        admitted,
        what=f"{GROUPS} groups are admitted",
        deadline_seconds=_DEADLINE_SECONDS,
        interval_seconds=0.2,
        alive=alive,
    )
    seconds = time.monotonic() - began
    names = [workload.pod_names(name, replicas=PODS_PER_GROUP) for name in _NAMES]
    await verify_names(client, namespace, set[str]().union(*names))
    return seconds


async def _create_queue(client: BareClient, namespace: str) -> None:
    """Create a namespace with a queue that has room for all groups."""
    await make_namespace(client, namespace)

    async def create(kind: str, name: str, spec: workload.Manifest, where: str = "") -> None:
        path = f"{_API}/{where}{kind.lower()}s"
        metadata = {"name": name, **({"namespace": namespace} if where else {})}
        body = {"apiVersion": _API.removeprefix("/apis/"), "kind": kind, "metadata": metadata}
        await client.create(path, {**body, "spec": spec})

    quota: list[workload.Manifest] = [
        {"name": "cpu", "nominalQuota": 10_000},
        {"name": "memory", "nominalQuota": "64Ti"},
    ]
    group = {
        "coveredResources": [each["name"] for each in quota],
        "flavors": [{"name": namespace, "resources": quota}],
    }
    await create("ResourceFlavor", namespace, {})
    await create("ClusterQueue", namespace, {"namespaceSelector": {}, "resourceGroups": [group]})
    await create("LocalQueue", QUEUE, {"clusterQueue": namespace}, f"namespaces/{namespace}/")
