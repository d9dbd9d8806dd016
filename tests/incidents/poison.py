"""Nodes beside the real ones that exist only as Node objects: on one of them each pod dies."""

from __future__ import annotations

import threading
import urllib.error
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from tests.cluster.client import ApiClient
from tests.cluster.node import Node

POISONED: Final = "poisoned"
FULL: Final = ("full-1", "full-2")
"""Nodes without room for a pod."""
_PERIOD_SECONDS: Final = 0.5
_STATUS_PATCH: Final = "application/merge-patch+json"
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def poisoned_node(node: Node) -> AbstractContextManager[None]:
    """Add a node that refuses each pod, and two full ones; remove them at the end."""
    return _imitated(node, (POISONED, *FULL))


def full_nodes(node: Node) -> AbstractContextManager[None]:
    """Add two full nodes; remove them at the end."""
    return _imitated(node, FULL)


@contextmanager
def _imitated(node: Node, names: Sequence[str]) -> Iterator[None]:
    client = node.client
    images = client.get(f"/api/v1/nodes/{node.node_name}")["status"]["images"]
    stop = threading.Event()
    thread = threading.Thread(target=_live, args=(client, names, stop), daemon=True)
    try:
        for name in names:
            _create(client, name, pods=110 if name == POISONED else 0, images=images)
        thread.start()
        yield
    finally:
        stop.set()
        if thread.is_alive():
            thread.join()
        for name in names:
            with suppress(urllib.error.HTTPError):
                client.request("DELETE", f"/api/v1/nodes/{name}")


def _create(client: ApiClient, name: str, *, pods: int, images: list[Any]) -> None:
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    client.request("POST", "/api/v1/nodes", body)
    room = {"cpu": "64", "memory": "256Gi", "pods": str(pods)}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    status = {
        "capacity": room,
        "allocatable": room,
        "conditions": [ready],
        "images": images,  # the scheduler prefers nodes that have them
        "nodeInfo": {"bootID": name},
    }
    _patch(client, f"/api/v1/nodes/{name}/status", {"status": status})
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _now()},
    }
    with suppress(urllib.error.HTTPError):  # it is there from an earlier run
        client.request("POST", _LEASES, lease)


def _live(client: ApiClient, names: Sequence[str], stop: threading.Event) -> None:
    """Renew leases, and refuse pods, as the kubelets of these nodes."""
    while not stop.wait(_PERIOD_SECONDS):
        with suppress(OSError):
            for name in names:
                _patch(client, f"{_LEASES}/{name}", {"spec": {"renewTime": _now()}})
            pods = client.get(f"/api/v1/pods?fieldSelector=spec.nodeName={POISONED}")["items"]
            for pod in pods:
                _refuse(client, pod)


def _refuse(client: ApiClient, pod: Any) -> None:
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    if "deletionTimestamp" in metadata:
        now = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        client.request("DELETE", path, now)
    elif pod["status"]["phase"] == "Pending":
        status = {
            "phase": "Failed",
            "reason": "UnexpectedAdmissionError",
            "message": "Allocate failed due to device plugin GetPreferredAllocation rpc failed",
        }
        _patch(client, f"{path}/status", {"status": status})


def _patch(client: ApiClient, path: str, body: object) -> None:
    client.request("PATCH", path, body, content_type=_STATUS_PATCH)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
