"""Measures the creation of pods by a bare client, and by the operator for its jobs."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.server import workload
from tests.bench.server.client import BareClient
from tests.bench.server.control_plane import (
    jobs_path,
    make_owner,
    namespace_of,
    pods_exist,
    pods_path,
    verify_names,
    wait_until_serving,
)
from tests.bench.server.metrics import Requests
from tests.bench.server.process import running_operator
from tests.cluster import ControlPlane


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
    """The operator's warnings."""

    @property
    def pods_per_second(self) -> float:
        """The rate."""
        return self.shape.pods / self.seconds


async def raw(client: BareClient, namespace: str, *, pods: int) -> RawRun:
    """Create pods with the bare client alone; nobody else watches them but the controllers."""
    async with namespace_of(client, namespace):
        owner = await make_owner(client, namespace)
        bodies = workload.pods(namespace, owner, pods)
        await client.settle()
        started = time.monotonic()
        await client.post_all(pods_path(namespace), bodies)
        await pods_exist(client, namespace, pods)
        seconds = time.monotonic() - started
        await client.settle()
        await verify_names(client, namespace, workload.pod_names("raw", replicas=pods))
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
    async with namespace_of(client, namespace):
        with running_operator(control_plane.kubeconfig, log=log) as operator:
            await wait_until_serving(client, namespace, operator.check_alive)
            await client.settle()
            before, cpu_before = await client.requests(), operator.cpu_seconds()
            started = time.monotonic()
            await client.post_all(jobs_path(namespace), bodies)
            await pods_exist(client, namespace, shape.pods, alive=[operator.check_alive])
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
            await verify_names(client, namespace, wanted)
            operator.check_alive()
    return run
