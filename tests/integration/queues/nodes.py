"""Nodes with one chip each, and a topology-aware queue over them.

A test has four nodes in one block: two in one sub-block, and two in another.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from ddp_operator.kube import NODES, ApiClient, Resource
from ddp_operator.kube.client import MERGE_PATCH
from ddp_operator.ports import NotFoundError

from tests.good_manifests import Json
from tests.integration.kubelet import HOSTNAME
from tests.integration.queues.queue import CHIP, Queue, new_queue

_TOPOLOGIES: Final = Resource("kueue.x-k8s.io", "v1beta2", "topologies")
BLOCK: Final = "cloud.google.com/gce-topology-block"
_SUB_BLOCK: Final = "cloud.google.com/gce-topology-subblock"
LEVELS: Final = (BLOCK, _SUB_BLOCK, HOSTNAME)
POOL: Final = "example.com/pool"
"""The label of the nodes of one test."""


class NodePool:
    """The nodes of one test."""

    def __init__(self, client: ApiClient, pool: str, chip: str = CHIP) -> None:
        """Each node has one `chip`."""
        self._client = client
        self._pool = pool
        self._chip = chip
        self.names = [f"{pool}-{number}" for number in range(4)]

    async def create(self) -> None:
        """Create ready and empty nodes."""
        for number, name in enumerate(self.names):
            places = {BLOCK: self._pool, _SUB_BLOCK: f"{self._pool}-{number // 2}"}
            labels = {**places, HOSTNAME: name, POOL: self._pool}
            metadata = {"name": name, "labels": labels}
            body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
            await self._client.request("POST", NODES.path(), body=body)
            capacity = {"cpu": "8", "memory": "8Gi", "pods": "110", self._chip: "1"}
            await self._change_status(name, capacity=capacity, allocatable=capacity)
            await self.set_ready(name, "True")
            await self.taint(name, "")  # the server taints each new node as not ready

    async def set_ready(self, name: str, status: str) -> None:
        """Set a node's condition `Ready` to True, False or Unknown."""
        ready = {"type": "Ready", "status": status, "reason": "Test"}
        await self._change_status(name, conditions=[ready])

    async def taint(self, name: str, effect: str) -> None:
        """Give a node a taint with this effect; remove the taint if it is empty."""
        taints = [{"key": "example.com/broken", "effect": effect}] if effect else None
        body = {"spec": {"taints": taints}}
        await self._change(NODES.path(name=name), body)

    async def remove(self, name: str) -> None:
        """Delete a node."""
        with suppress(NotFoundError):
            await self._client.request("DELETE", NODES.path(name=name))

    async def _change_status(self, name: str, **fields: Any) -> None:
        await self._change(f"{NODES.path(name=name)}/status", {"status": fields})

    async def _change(self, path: str, body: Json) -> None:
        await self._client.request("PATCH", path, body=body, content_type=MERGE_PATCH)


@asynccontextmanager
async def new_pool(client: ApiClient, name: str, chip: str = CHIP) -> AsyncIterator[NodePool]:
    """Create the nodes of a test, with one `chip` each, and delete them afterwards."""
    pool = NodePool(client, name, chip)
    await pool.create()
    try:
        yield pool
    finally:
        for node in pool.names:
            await pool.remove(node)


async def new_topology_queue(
    client: ApiClient, namespace: str, levels: Sequence[str] = LEVELS
) -> Queue:
    """Create the queue `team` over a test's nodes; Kueue places its pods by these labels."""
    topology = {
        "apiVersion": f"{_TOPOLOGIES.group}/{_TOPOLOGIES.version}",
        "kind": "Topology",
        "metadata": {"name": namespace},
        "spec": {"levels": [{"nodeLabel": level} for level in levels]},
    }
    await client.request("POST", _TOPOLOGIES.path(), body=topology)
    nodes = {"nodeLabels": {POOL: namespace}, "topologyName": namespace}
    return await new_queue(client, namespace, chips=4, nodes=nodes)


def assigned(workload: Json) -> list[str]:
    """Return the nodes of a Workload's pods in Kueue's order."""
    admission = workload.get("status", {}).get("admission") or {}
    nodes: list[str] = []
    for pods in admission.get("podSetAssignments") or ():
        for part in (pods.get("topologyAssignment") or {}).get("slices") or ():
            hosts = part["valuesPerLevel"][-1]
            if "universal" in hosts:
                nodes += [hosts["universal"]] * part["domainCount"]
                continue
            names = hosts["individual"]
            prefix, suffix = names.get("prefix", ""), names.get("suffix", "")
            nodes += [prefix + root + suffix for root in names["roots"]]
    return nodes
