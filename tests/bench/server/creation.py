"""Measures the creation of pods by a bare client."""

import time
from dataclasses import dataclass

from tests.bench.server import workload
from tests.bench.server.client import BareClient
from tests.bench.server.control_plane import (
    make_owner,
    namespace_of,
    pods_exist,
    pods_path,
    verify_names,
)


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
