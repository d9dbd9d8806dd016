"""A KubeCluster for one namespace of a real API server, and its view of the pods."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from ddp_operator.kube import PODS, ApiClient, KubeCluster, Reflector, Resource
from ddp_operator.ports import Key

from tests.waiting import eventually

# An Ingress replaces the job: it has a group, a spec and a status subresource, which nobody else
# writes without an ingress controller.
JOBS = Resource("networking.k8s.io", "v1", "ingresses")
LABEL = "kube-test.example.com/job"


def pod(
    namespace: str, name: str, *, job: dict[str, Any] | None = None, node: str | None = None
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"namespace": namespace, "name": name, "labels": {LABEL: "job"}}
    if job is not None:
        metadata["ownerReferences"] = [owner_reference(job)]
    spec: dict[str, Any] = {"containers": [{"name": "trainer", "image": "none"}]}
    if node is not None:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def owner_reference(job: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
    }


def project(manifest: Any) -> tuple[str, str]:
    """Return a pod's name, and its phase or `Terminating`."""
    metadata = manifest["metadata"]
    state = "Terminating" if "deletionTimestamp" in metadata else manifest["status"]["phase"]
    return metadata["name"], state


def group(manifest: Any) -> Key | None:
    metadata = manifest["metadata"]
    name = metadata.get("labels", {}).get(LABEL)
    return Key(metadata["namespace"], name) if name else None


class View:
    """A KubeCluster for one namespace."""

    def __init__(self, client: ApiClient, namespace: str, **options: Any) -> None:
        self.job = Key(namespace, "job")
        self.changes: Counter[Key] = Counter()
        self.reflector = Reflector(
            client,
            PODS.path(namespace=namespace),
            label_selector=LABEL,
            project=project,
            group=group,
            on_change=self._on_change,
            **options,
        )
        self.cluster = KubeCluster(client, job_resource=JOBS, pods=self.reflector)

    def _on_change(self, changed: Key) -> None:
        self.changes[changed] += 1

    def pods(self) -> dict[str, str]:
        return dict(sorted(self.cluster.pods_of(self.job)))

    async def shows(self, expected: dict[str, str]) -> None:
        await eventually(lambda: self.pods() == expected, describe=self.pods)


@contextlib.asynccontextmanager
async def viewing(client: ApiClient, namespace: str, **options: Any) -> AsyncIterator[View]:
    view = View(client, namespace, **options)
    task = asyncio.create_task(view.reflector.run())
    try:
        await view.reflector.wait_synced(timeout_seconds=60)
        yield view
        assert not task.done()
        await view.cluster.close(timeout_seconds=30)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def status(address: str) -> dict[str, Any]:
    """Return a valid status of an Ingress."""
    return {"loadBalancer": {"ingress": [{"ip": address}]}}
