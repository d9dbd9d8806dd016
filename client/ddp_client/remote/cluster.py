"""Requests to the API server for jobs, pods and logs."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Final

import orjson
from ddp_operator.api.constants import GROUP, LABEL_JOB_NAME, OPERATOR_LABELS, PLURAL, VERSION
from ddp_operator.api.devices import has_accelerators
from ddp_operator.job.pods.projection import project
from ddp_operator.job.pods.state import PodState
from ddp_operator.kube import (
    NAMESPACES,
    NODES,
    PODS,
    ApiClient,
    Resource,
    check_served,
    list_pages,
)
from ddp_operator.kube.client import JSON, MERGE_PATCH
from ddp_operator.ports import (
    ClusterError,
    ForbiddenError,
    Key,
    MalformedError,
    Manifest,
    NotFoundError,
    UnavailableError,
)

from ddp_client.pod_security import PodSecurity

JOBS: Final = Resource(GROUP, VERSION, PLURAL)
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments")
OF_THE_OPERATOR: Final = {
    "labelSelector": ",".join(f"{name}={value}" for name, value in OPERATOR_LABELS.items())
}
"""Parameters that select the operator's Deployments and pods."""

PATIENCE_SECONDS: Final = 600.0
"""How long a follower waits for an unavailable server: longer than an upgrade takes."""
_WATCH_SECONDS: Final = 240
_SLACK_SECONDS: Final = 15.0
_MOST_LISTED: Final = 5000
"""Most objects of a kind, unless the caller wants another number."""
_POLL_SECONDS: Final = 2.0
"""Seconds between two reads without the right to watch, and after a watch broke."""


class NotInstalledError(Exception):
    """The cluster does not serve DDPJobs; the message says what to do."""

    def __init__(self) -> None:
        super().__init__(
            "the DDPJob CRD is not installed: install the CRD and the operator "
            "(kubectl apply -k manifests/install, or the Helm chart ddp-operator)"
        )


class NoSuchJobError(Exception):
    """No job has that name."""

    def __init__(
        self, job: Key, hint: str = "`kubectl ddp list -A` lists the jobs of all namespaces"
    ) -> None:
        super().__init__(f"there is no job {job.name} in namespace {job.namespace}: {hint}")


async def listed(
    client: ApiClient,
    path: str,
    params: Mapping[str, str] | None = None,
    *,
    most: int = _MOST_LISTED,
) -> list[Manifest]:
    """Return the objects of a kind, up to a limit."""
    objects: list[Manifest] = []
    async for items, _ in list_pages(client, path, params=params):
        objects += items[: most - len(objects)]
        if len(objects) >= most:
            break
    return objects


def _has_gpus(pod: Manifest) -> bool:
    spec = pod["spec"]
    return any(map(has_accelerators, [*spec["containers"], *(spec.get("initContainers") or ())]))


class Cluster:
    """The jobs of a cluster, and their pods."""

    def __init__(self, client: ApiClient) -> None:
        self.client = client

    async def job(self, key: Key) -> Manifest:
        """Return a job as stored.

        Raises:
            NoSuchJobError, NotInstalledError: the job or the CRD does not exist.
        """
        return await self._request("GET", key)

    async def pod_security(self, namespace: str) -> PodSecurity | None:
        """Return the Pod Security that a namespace's labels enforce; None if none or unreadable."""
        try:
            stored = await self.client.request("GET", NAMESPACES.path(name=namespace))
        except (ForbiddenError, NotFoundError):
            return None
        return PodSecurity.of_labels(stored["metadata"].get("labels") or {})

    async def nodes(self) -> list[Manifest] | None:
        """Return the nodes; None without the right to read them."""
        try:
            return await listed(self.client, NODES.path())
        except ForbiddenError:
            return None

    async def gpu_pods(self) -> list[Manifest] | None:
        """Return the pods of all namespaces that have GPUs now; None without the right."""
        params = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
        pods: list[Manifest] = []
        try:
            async for items, _ in list_pages(self.client, PODS.path(), params=params):
                pods += filter(_has_gpus, items)
        except ForbiddenError:
            return None
        return pods

    async def jobs(self, namespace: str | None) -> AsyncIterator[Manifest]:
        """Yield the jobs of one namespace, or of all.

        Raises:
            NotInstalledError: the CRD does not exist.
        """
        try:
            async for items, _ in list_pages(self.client, JOBS.path(namespace=namespace)):
                for item in items:
                    yield item
        except NotFoundError:
            raise NotInstalledError from None

    async def pods(self, key: Key) -> list[PodState]:
        """Return the pods with the job's label that the operator could have created."""
        pods: list[PodState] = []
        async for item in self.stored_pods(key):
            with contextlib.suppress(MalformedError):
                pods.append(project(item))
        return pods

    async def stored_pods(self, key: Key) -> AsyncIterator[Manifest]:
        """Yield the pods with the job's label, as stored."""
        path = PODS.path(namespace=key.namespace)
        params = {"labelSelector": f"{LABEL_JOB_NAME}={key.name}"}
        async for items, _ in list_pages(self.client, path, params=params):
            for item in items:
                yield item

    async def changes(self, key: Key) -> AsyncGenerator[Manifest | None, None]:
        """Yield a job now and after each change; None once it is gone, which ends the iteration.

        Uses a watch, or a read every two seconds without the right to watch.

        Raises:
            UnavailableError: the server has not answered for ten minutes.
        """
        clock = asyncio.get_running_loop().time
        reached, may_watch = clock(), True
        while True:
            try:
                job = await self.job(key)
            except NoSuchJobError:
                yield None
                return
            except UnavailableError:
                if clock() - reached > PATIENCE_SECONDS:
                    raise
                await asyncio.sleep(_POLL_SECONDS)
                continue
            reached = clock()
            yield job
            if may_watch:
                try:
                    async with contextlib.aclosing(self._watched(key, job)) as watched:
                        async for changed in watched:
                            yield changed
                            if changed is None:
                                return
                except ForbiddenError:
                    may_watch = False
                except ClusterError:
                    pass  # the next read reports the cause
            await asyncio.sleep(_POLL_SECONDS)

    async def _watched(self, key: Key, job: Manifest) -> AsyncGenerator[Manifest | None, None]:
        lines = self.client.stream_lines(
            JOBS.path(namespace=key.namespace),
            params={
                "watch": "true",
                "fieldSelector": f"metadata.name={key.name}",
                "resourceVersion": job["metadata"]["resourceVersion"],
                "timeoutSeconds": str(_WATCH_SECONDS),
            },
            idle_timeout_seconds=_WATCH_SECONDS + _SLACK_SECONDS,
        )
        async with contextlib.aclosing(lines):
            async for line in lines:
                event = orjson.loads(line)
                changed: Manifest = event["object"]
                if event["type"] == "ERROR":
                    return
                if changed["metadata"].get("name") == key.name and event["type"] != "BOOKMARK":
                    yield None if event["type"] == "DELETED" else changed

    async def log(
        self, pod: Key, container: str, options: Mapping[str, str], *, idle_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield a container's log in pieces, each line with its time.

        With the option `follow`, continue until the container ends.
        """
        path = PODS.path(namespace=pod.namespace, name=pod.name, subresource="log")
        params = {"container": container, "timestamps": "true", **options}
        pieces = self.client.stream(path, params=params, idle_timeout_seconds=idle_seconds)
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def patch(self, key: Key, uid: str, patch: Mapping[str, Any]) -> None:
        """Change the job with this UID; the server refuses the patch for another job."""
        metadata = {**patch.get("metadata", {}), "uid": uid}
        await self._request("PATCH", key, {**patch, "metadata": metadata})

    async def delete(self, key: Key, uid: str) -> None:
        """Delete the job with this UID and, in the background, everything it owns."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        await self._request("DELETE", key, options)

    async def _request(
        self, method: str, key: Key, body: Mapping[str, Any] | None = None
    ) -> Manifest:
        path = JOBS.path(namespace=key.namespace, name=key.name)
        kind = MERGE_PATCH if method == "PATCH" else JSON
        try:
            answer: Manifest = await self.client.request(method, path, body=body, content_type=kind)
        except NotFoundError:
            if not await check_served(self.client, JOBS):
                raise NotInstalledError from None
            raise NoSuchJobError(key) from None
        return answer
