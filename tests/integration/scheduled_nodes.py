"""A control plane with the real scheduler, and nodes without kubelets for it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from ddp_operator.kube import NODES, ApiClient, load_credentials
from ddp_operator.kube.client import MERGE_PATCH

from tests import cluster
from tests.good_manifests import Json
from tests.integration.conftest import install_crd
from tests.skipping import skip_or_fail

_ROOM: Final = {"cpu": "8", "memory": "8Gi", "pods": "110"}


@contextmanager
def with_scheduler(
    prepare: Callable[[ApiClient], Awaitable[None]],
) -> Iterator[cluster.ControlPlane]:
    """Run a control plane that has the CRD and what `prepare` adds.

    It is a separate one, because its scheduler would also place the pods of other tests.
    """

    async def fill(running: cluster.ControlPlane) -> None:
        async with ApiClient(load_credentials(kubeconfig=str(running.kubeconfig))) as client:
            await install_crd(client)
            await prepare(client)

    try:
        with cluster.control_plane(controllers=True, scheduler=True) as running:
            asyncio.run(fill(running))
            yield running
    except cluster.ClusterUnavailableError as reason:
        skip_or_fail("API SERVER WITH A SCHEDULER", reason)


async def add_node(
    client: ApiClient, name: str, labels: Mapping[str, str], devices: Mapping[str, str]
) -> None:
    """Add a node that is Ready. `devices`: how many it has, by resource."""
    metadata = {"name": name, "labels": {**labels, "kubernetes.io/hostname": name}}
    body: Json = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    await client.request("POST", NODES.path(), body=body)
    room = {**_ROOM, **devices}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}}
    path = NODES.path(name=name)
    await client.request("PATCH", f"{path}/status", body=status, content_type=MERGE_PATCH)
    # The server taints each new node as not ready, and no controller removes the taint.
    untainted = {"spec": {"taints": None}}
    await client.request("PATCH", path, body=untainted, content_type=MERGE_PATCH)
