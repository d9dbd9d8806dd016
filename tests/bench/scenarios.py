"""What is measured: pods created by a bare client, and by the operator for its jobs."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ddp_operator.api.constants import GROUP, PLURAL, VERSION
from ddp_operator.api.crd import custom_resource_definition

from tests.bench import workload
from tests.bench.client import BareClient, BenchmarkError, wait_for
from tests.bench.metrics import Requests
from tests.bench.operator_process import OperatorProcess, running_operator
from tests.cluster import ControlPlane

_API = f"/apis/{GROUP}/{VERSION}"


@dataclass(frozen=True)
class Shape:
    """How many jobs of how many pods are applied at once."""

    jobs: int
    replicas: int

    @property
    def pods(self) -> int:
        """Pods of all jobs."""
        return self.jobs * self.replicas


@dataclass(frozen=True)
class RawRun:
    """Pods created by a bare client: the limit."""

    pods: int
    seconds: float
    body_bytes: int

    @property
    def pods_per_second(self) -> float:
        """The rate."""
        return self.pods / self.seconds


@dataclass(frozen=True)
class JobsRun:
    """Jobs applied at once; `seconds` from the first job's creation until all pods exist."""

    shape: Shape
    seconds: float
    requests: Requests
    """All that the API server counted for these jobs, from before they were created until nobody
    wrote anything any more."""
    peak_memory_mb: float
    cpu_seconds: float
    troubles: list[str]
    """What the operator warned of."""

    @property
    def pods_per_second(self) -> float:
        """The rate."""
        return self.shape.pods / self.seconds


async def install_crd(client: BareClient) -> None:
    """Create the CRD and wait until jobs are served."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await client.create(path, custom_resource_definition())

    async def served() -> bool:
        return await client.get(f"{_API}/{PLURAL}") is not None

    await wait_for(served, what="the CRD is served")


async def raw(client: BareClient, namespace: str, *, pods: int) -> RawRun:
    """Create pods with the bare client alone; nobody else watches them but the controllers."""
    async with _namespace(client, namespace):
        owner = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "owner", "namespace": namespace},
        }
        owner |= await client.create(f"/api/v1/namespaces/{namespace}/configmaps", owner)
        bodies = workload.pods(namespace, owner, count=pods)
        await client.settle()
        started = time.monotonic()
        await client.post_all(f"/api/v1/namespaces/{namespace}/pods", bodies)
        await _pods_exist(client, namespace, pods)
        seconds = time.monotonic() - started
        await client.settle()
        await _verify_names(client, namespace, workload.pod_names("raw", replicas=pods))
    return RawRun(pods, seconds, len(bodies[0]))


async def jobs(
    client: BareClient, control_plane: ControlPlane, namespace: str, *, shape: Shape, log: Path
) -> JobsRun:
    """Start an operator, apply jobs at once, and see what it makes of them."""
    names = [f"job-{i:03}" for i in range(shape.jobs)]
    bodies = [
        json.dumps(workload.job(namespace, name, replicas=shape.replicas)).encode()
        for name in names
    ]
    path = f"{_API}/namespaces/{namespace}/{PLURAL}"
    async with _namespace(client, namespace):
        with running_operator(control_plane.kubeconfig, log=log) as operator:
            await _wait_until_serving(client, operator, path, namespace)
            await client.settle()
            before, cpu_before = await client.requests(), operator.cpu_seconds()
            started = time.monotonic()
            await client.post_all(path, bodies)
            await _pods_exist(client, namespace, shape.pods, operator)
            seconds = time.monotonic() - started
            await client.settle()
            run = JobsRun(
                shape=shape,
                seconds=seconds,
                requests=(await client.requests()).since(before),
                peak_memory_mb=operator.peak_memory_mb(),
                cpu_seconds=operator.cpu_seconds() - cpu_before,
                troubles=operator.troubles(),
            )
            wanted = set[str]().union(
                *(workload.pod_names(name, replicas=shape.replicas) for name in names)
            )
            await _verify_names(client, namespace, wanted)
            operator.check_alive()
    return run


async def _wait_until_serving(
    client: BareClient, operator: OperatorProcess, path: str, namespace: str
) -> None:
    """Wait until the operator answers a job that asks for nothing."""
    canary = workload.job(namespace, "canary", replicas=1, suspend=True)
    await client.create(path, canary)

    async def answered() -> bool:
        status = (await client.get(f"{path}/canary")).get("status") or {}
        return bool(status.get("phase") == "Suspended")

    await wait_for(
        answered, what="the operator serves", interval_seconds=0.1, alive=[operator.check_alive]
    )


async def _pods_exist(
    client: BareClient, namespace: str, count: int, operator: OperatorProcess | None = None
) -> None:
    async def complete() -> bool:
        return await client.count_pods(namespace) >= count

    alive = [operator.check_alive] if operator else []
    await wait_for(complete, what=f"{count} pods exist", alive=alive)


async def _verify_names(client: BareClient, namespace: str, wanted: set[str]) -> None:
    """Compare with what there is: a benchmark that measured anything else must fail."""
    client.pod_lists += 1
    listed = await client.get(f"/api/v1/namespaces/{namespace}/pods")
    found = [pod["metadata"]["name"] for pod in listed["items"]]
    if set(found) != wanted or len(found) != len(wanted):
        raise BenchmarkError(
            f"{namespace} should have {len(wanted)} pods and has {len(found)}; "
            f"missing: {sorted(wanted - set(found))[:3]}, extra: {sorted(set(found) - wanted)[:3]}"
        )


@asynccontextmanager
async def _namespace(client: BareClient, name: str) -> AsyncIterator[None]:
    """A namespace for the length of an `async with` block, and all of it gone afterwards."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await client.create("/api/v1/namespaces", body)
    yield
    path = f"/api/v1/namespaces/{name}"
    await client.delete(path)

    async def gone() -> bool:
        return await client.get(path) is None

    await wait_for(gone, what=f"{name} is deleted", deadline_seconds=300, interval_seconds=0.2)
