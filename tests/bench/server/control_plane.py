"""The API server that the operator's benchmarks run against, and what each of them does there."""

import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ddp_operator.api.constants import GROUP, PLURAL, VERSION
from ddp_operator.api.schema.crd import custom_resource_definition

from tests.bench.benchmark import BenchmarkError
from tests.bench.server.client import BareClient, wait_for
from tests.cluster import ControlPlane, control_plane

_API = f"/apis/{GROUP}/{VERSION}"


@asynccontextmanager
async def server() -> AsyncIterator[tuple[ControlPlane, BareClient]]:
    """An API server that serves jobs, and a client of it.

    The controllers write too, as in any cluster: Endpoints and EndpointSlices of a Service. A
    scheduler would write as often for every pod of any client.
    """
    with control_plane(controllers=True, scheduler=False) as running:
        async with BareClient(running) as client:
            await _install_crd(client)
            yield running, client


def jobs_path(namespace: str) -> str:
    """Return the path of a namespace's jobs."""
    return f"{_API}/namespaces/{namespace}/{PLURAL}"


def pods_path(namespace: str) -> str:
    """Return the path of a namespace's pods."""
    return f"/api/v1/namespaces/{namespace}/pods"


async def pods_exist(
    client: BareClient,
    namespace: str,
    count: int,
    *,
    alive: Sequence[Callable[[], None]] = (),
    deadline_seconds: float = 120.0,
) -> None:
    """Wait until a namespace has so many pods, or all namespaces where it is empty."""

    async def complete() -> bool:
        return await client.count_pods(namespace) >= count

    await wait_for(
        complete, what=f"{count} pods exist", alive=alive, deadline_seconds=deadline_seconds
    )


async def verify_names(client: BareClient, namespace: str, wanted: set[str]) -> None:
    """Compare with what there is: a benchmark that measured anything else must fail."""
    client.pod_lists += 1
    listed = await client.get(pods_path(namespace))
    found = [pod["metadata"]["name"] for pod in listed["items"]]
    if set(found) != wanted or len(found) != len(wanted):
        raise BenchmarkError(
            f"{namespace} should have {len(wanted)} pods and has {len(found)}; "
            f"missing: {sorted(wanted - set(found))[:3]}, extra: {sorted(set(found) - wanted)[:3]}"
        )


async def make_namespace(client: BareClient, name: str) -> None:
    """Create a namespace that goes with the server."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await client.create("/api/v1/namespaces", body)


async def make_owner(client: BareClient, namespace: str) -> dict[str, Any]:
    """Create an object that pods of nobody can belong to."""
    metadata = {"name": "owner", "namespace": namespace}
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    return owner | await client.create(f"/api/v1/namespaces/{namespace}/configmaps", owner)


@asynccontextmanager
async def namespace_of(client: BareClient, *names: str) -> AsyncIterator[None]:
    """Namespaces for the length of an `async with` block, and all of them gone afterwards."""
    for name in names:
        await make_namespace(client, name)
    yield
    paths = [f"/api/v1/namespaces/{name}" for name in names]
    for path in paths:
        await client.delete(path)

    async def gone() -> bool:
        return not any([await client.get(path) for path in paths])

    what = f"{', '.join(names)} deleted"
    await wait_for(gone, what=what, deadline_seconds=600, interval_seconds=0.2)


def say(text: str) -> None:
    """Print how far a benchmark is."""
    print(f"{time.strftime('%X')} {text}", file=sys.stderr, flush=True)


async def _install_crd(client: BareClient) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await client.create(path, custom_resource_definition())

    async def served() -> bool:
        return await client.get(f"{_API}/{PLURAL}") is not None

    await wait_for(served, what="the CRD is served")
