"""The `Cluster` port on a Kubernetes API server: all that the engine may do."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from ddp_operator.api.constants import KUEUE_BOOST
from ddp_operator.kube.client import MERGE_PATCH, STRATEGIC_MERGE_PATCH, ApiClient
from ddp_operator.kube.events import EventRecorder
from ddp_operator.kube.ownership import require_same_owner
from ddp_operator.kube.preflight import Permission, check_access
from ddp_operator.kube.resources import (
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICES,
    WORKLOADS,
    Resource,
    resource_of,
)
from ddp_operator.kube.view.listing import MAX_PAGE_BYTES, METADATA_ONLY, list_metadata
from ddp_operator.kube.view.reflector import Reflector
from ddp_operator.ports import (
    LOG_END_BYTES,
    AlreadyExistsError,
    ClusterError,
    ConflictError,
    Event,
    ForbiddenError,
    InvalidError,
    Key,
    Manifest,
    Node,
    Nodes,
    NotFoundError,
    NotLeaderError,
    NotServedError,
    UnavailableError,
    controller_of,
)

PodT = TypeVar("PodT")

ALL_NODES = Key("", "")
"""The group in which a reflector keeps all nodes."""

_IMMUTABLE = frozenset({"ComputeDomain", "ResourceClaimTemplate"})
"""Kinds with an immutable spec."""

_LOG_LINES = 100
"""At most this many lines of 16 KiB, the length at which container runtimes split lines."""
_LOG_BYTES = 2 * 1024 * 1024
_LOG_SECONDS = 5.0

# If a name exists at each creation and is gone at each read, somebody else creates and deletes it.
_CREATE_ATTEMPTS = 3


class KubeCluster(Generic[PodT]):
    """Implements `ports.Cluster`; `job_resource` is the kind of object that owns the pods.

    Every response to a write on pods goes to the reflector, so that the cache is never older than
    the write.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        job_resource: Resource,
        pods: Reflector[PodT],
        nodes: Reflector[Node] | None = None,
        namespace: str | None = None,
    ) -> None:
        """`nodes`: None if the operator may not read them. `namespace`: the only one that it
        serves, or None.
        """
        self._client = client
        self._namespace = namespace
        self._job_resource = job_resource
        self._pods = pods
        self._nodes = nodes
        self._known_nodes: Nodes | None = None
        self._events = EventRecorder(client)

    async def close(self, *, timeout_seconds: float = 2.0) -> None:
        """Let Events in progress be posted."""
        await self._events.flush(timeout_seconds=timeout_seconds)

    def pods_of(self, job: Key) -> list[PodT]:
        """See `ports.Cluster`."""
        return self._pods.group_members(job)

    def nodes_changed(self) -> None:
        """Drop the cached nodes; the next call of `nodes` reads them again."""
        self._known_nodes = None

    def nodes(self) -> Nodes:
        """See `ports.Cluster`."""
        if self._known_nodes is None:
            members = self._nodes.group_members(ALL_NODES) if self._nodes else ()
            self._known_nodes = Nodes(members)
        return self._known_nodes

    async def create_pod(self, manifest: Manifest) -> None:
        """See `ports.Cluster`."""
        self._pods.offer(await self._create(PODS, manifest))

    async def create_service(self, manifest: Manifest) -> None:
        """See `ports.Cluster`."""
        await self._create(SERVICES, manifest)

    async def create_secret(self, manifest: Manifest) -> None:
        """See `ports.Cluster`. It does not read an existing Secret, which would need another
        permission.
        """
        collection = SECRETS.path(namespace=manifest["metadata"]["namespace"])
        with contextlib.suppress(AlreadyExistsError):
            await self._client.request("POST", collection, body=manifest)

    async def apply(self, manifest: Manifest) -> None:
        """See `ports.Cluster`."""
        resource = resource_of(manifest)
        try:
            stored = await self._create(resource, manifest)
        except NotFoundError as error:
            if error.message.startswith("namespaces"):
                raise
            raise _not_served(resource) from None
        wanted = {**stored["spec"], **manifest["spec"]}  # keep what the server has filled in
        if stored["spec"] != wanted and manifest["kind"] not in _IMMUTABLE:
            # Of another release, or another spec of the job. Replaced, so that it is never absent.
            await self.update({**stored, "spec": wanted})

    async def read(self, named: Manifest) -> Manifest:
        """See `ports.Cluster`."""
        found: Manifest = await self._client.request("GET", _path(named))
        return found

    async def find(self, like: Manifest, *, labels: Mapping[str, str]) -> Sequence[Manifest]:
        """See `ports.Cluster`."""
        resource = resource_of(like)
        namespace = (like.get("metadata") or {}).get("namespace") or self._namespace
        permission = Permission("list", resource, namespace=namespace)
        if await check_access(self._client, [permission]):  # so that no request is refused
            raise ForbiddenError(f"a permission is missing: {permission}", status=403)
        try:
            found = await list_metadata(
                self._client, resource.path(namespace=namespace), labels=labels
            )
        except NotFoundError:
            raise _not_served(resource) from None
        kind = {"apiVersion": like["apiVersion"], "kind": like["kind"]}
        return [{**kind, "metadata": one["metadata"]} for one in found]

    async def update(self, changed: Manifest) -> Manifest:
        """See `ports.Cluster`."""
        stored: Manifest = await self._client.request("PUT", _path(changed), body=changed)
        return stored

    async def patch_status_of(self, stored: Manifest, status: Manifest) -> None:
        """See `ports.Cluster`."""
        version = {"resourceVersion": stored["metadata"]["resourceVersion"]}
        body = {"metadata": version, "status": status}
        path = _path(stored, subresource="status")
        await self._client.request("PATCH", path, body=body, content_type=MERGE_PATCH)

    async def delete(self, stored: Manifest) -> None:
        """See `ports.Cluster`."""
        await self._delete(resource_of(stored), Key.of(stored), uid=stored["metadata"]["uid"])

    async def set_priority_boost(self, workload: Key, boost: int) -> None:
        """See `ports.Cluster`."""
        path = WORKLOADS.path(namespace=workload.namespace, name=workload.name)
        patch = {"metadata": {"annotations": {KUEUE_BOOST: str(boost)}}}
        await self._client.request("PATCH", path, body=patch, content_type=MERGE_PATCH)

    async def delete_network_policy(self, policy: Key, *, owner_uid: str) -> None:
        """See `ports.Cluster`."""
        existing = await self._get(NETWORK_POLICIES, policy)
        if existing is None or controller_of(existing).get("uid") != owner_uid:
            return
        await self._delete(NETWORK_POLICIES, policy, uid=existing["metadata"]["uid"])

    def uid_of(self, pod: Key) -> str | None:
        """See `ports.Cluster`."""
        return self._pods.uid_of(pod)

    async def delete_pod(
        self, pod: Key, *, grace_seconds: int | None, uid: str | None = None
    ) -> None:
        """See `ports.Cluster`."""
        uid = uid or self._pods.uid_of(pod)
        answer = await self._delete(PODS, pod, uid=uid, options=_delete_options(grace_seconds))
        if answer is None:
            self._forget(pod, uid)
            return
        # A pod without a kubelet is removed at once. The response still has a deletionTimestamp,
        # and the pod counts as terminating until the watch reports its end. Any other response (a
        # Status, or no such field) means that nothing is left.
        is_pod = answer.get("kind") == "Pod"
        if is_pod and _is_stored(answer) and answer["metadata"].get("deletionTimestamp"):
            self._pods.offer(answer)
        else:
            self._forget(pod, uid)

    async def delete_pods(
        self,
        pods: Mapping[Key, str | None],
        *,
        labels: Mapping[str, Sequence[str]],
        grace_seconds: int | None,
    ) -> Sequence[Key]:
        """See `ports.Cluster`."""
        if not labels or not all(labels.values()):
            raise ValueError("without labels, the request would delete all pods of the namespace")
        path = PODS.path(namespace=next(iter(pods)).namespace)
        selector = ",".join(f"{name} in ({','.join(labels[name])})" for name in labels)
        try:
            answer = await self._client.request(
                "DELETE",
                path,
                params={"labelSelector": selector},
                body=_delete_options(grace_seconds),
                accept=METADATA_ONLY,
                max_bytes=MAX_PAGE_BYTES,
            )
        except (NotLeaderError, UnavailableError):
            raise
        except ClusterError:  # refused, perhaps for one of them; or the answer is too large
            return tuple(pods)
        # The pods as they were before. How they end, only the watch reports: a pod without a node
        # that is gone at once may have got a node in between.
        selected = {item["metadata"]["uid"] for item in answer.get("items") or ()}
        return [pod for pod, uid in pods.items() if uid not in selected]

    async def patch_pod(
        self, pod: Key, metadata: Mapping[str, Any], *, uid: str | None = None
    ) -> None:
        """See `ports.Cluster`."""
        uid = uid or self._pods.uid_of(pod)
        path = PODS.path(namespace=pod.namespace, name=pod.name)
        # The UID is immutable: the server refuses it for another pod.
        body = {"metadata": {**metadata, **({} if uid is None else {"uid": uid})}}
        try:
            answer = await self._client.request(
                "PATCH", path, body=body, content_type=STRATEGIC_MERGE_PATCH
            )
        except (NotFoundError, InvalidError) as error:
            if isinstance(error, InvalidError) and "metadata.uid" not in error.message:
                raise
            self._forget(pod, uid)
            return
        if _is_stored(answer):
            self._pods.offer(answer)
        else:
            self._forget(pod, uid)

    async def patch_status(
        self, job: Key, status: Manifest, *, resource_version: str | None
    ) -> Manifest:
        """See `ports.Cluster`."""
        patch: dict[str, Any] = {"status": status} if status else {}
        if resource_version is not None:
            # In a merge patch this is a precondition: the server refuses to change it.
            patch["metadata"] = {"resourceVersion": resource_version}
        path = self._job_resource.path(namespace=job.namespace, name=job.name, subresource="status")
        stored: Manifest = await self._client.request(
            "PATCH", path, body=patch, content_type=MERGE_PATCH
        )
        return stored

    async def delete_job(self, job: Key, *, uid: str) -> None:
        """See `ports.Cluster`. A job that is gone, or another one of the same name, is no error."""
        options = {**_delete_options(), "propagationPolicy": "Background"}
        await self._delete(self._job_resource, job, uid=uid, options=options)

    async def log_end(self, pod: Key, container: str) -> bytes:
        """See `ports.Cluster`."""
        path = PODS.path(namespace=pod.namespace, name=pod.name, subresource="log")
        params = {
            "container": container,
            "tailLines": str(_LOG_LINES),
            "limitBytes": str(_LOG_BYTES),
        }
        end = b""
        try:
            async with asyncio.timeout(_LOG_SECONDS):
                pieces = self._client.stream(path, params=params, idle_timeout_seconds=_LOG_SECONDS)
                async with contextlib.aclosing(pieces):
                    # The newest lines come last.
                    async for piece in pieces:
                        end = (end + piece)[-LOG_END_BYTES:]
        except TimeoutError:
            raise UnavailableError(f"GET {path}: not complete within {_LOG_SECONDS:g} s") from None
        return end

    async def emit_event(self, job: Manifest, event: Event) -> None:
        """See `ports.Cluster`. It returns at once and posts the Event in the background."""
        self._events.record(job, event)

    def _forget(self, pod: Key, uid: str | None) -> None:
        if uid is not None:
            self._pods.forget(pod, uid=uid)

    async def _create(self, resource: Resource, manifest: Manifest) -> Manifest:
        """Create an object and return it as stored, possibly by an earlier attempt of ours."""
        key = Key.of(manifest)
        collection = resource.path(namespace=key.namespace)
        for _ in range(_CREATE_ATTEMPTS):
            try:
                created: Manifest = await self._client.request("POST", collection, body=manifest)
            except AlreadyExistsError:
                existing = await self._get(resource, key)
                if existing is None:
                    continue
                require_same_owner(resource, key, existing=existing, wanted=manifest)
                return existing
            else:
                return created
        raise UnavailableError(f"{resource} {key} keeps appearing and vanishing")

    async def _delete(
        self, resource: Resource, key: Key, *, uid: str | None, options: Manifest | None = None
    ) -> Manifest | None:
        """Delete an object, with a UID only that very one. Return the response, or None if it is
        gone or another object has its name.
        """
        body = dict(options or _delete_options())
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        path = resource.path(namespace=key.namespace, name=key.name)
        try:
            answer: Manifest = await self._client.request("DELETE", path, body=body)
        except (NotFoundError, ConflictError):
            return None
        return answer

    async def _get(self, resource: Resource, key: Key) -> Manifest | None:
        path = resource.path(namespace=key.namespace, name=key.name)
        try:
            found: Manifest = await self._client.request("GET", path)
        except NotFoundError:
            return None
        return found


def _delete_options(grace_seconds: int | None = None) -> dict[str, Any]:
    grace = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
    return {"apiVersion": "v1", "kind": "DeleteOptions", **grace}


def _path(named: Manifest, subresource: str = "") -> str:
    metadata = named["metadata"]
    return resource_of(named).path(
        namespace=metadata.get("namespace"), name=metadata["name"], subresource=subresource
    )


def _not_served(resource: Resource) -> NotServedError:
    words = f"the API server does not serve {resource} {resource.version}"
    return NotServedError(words, status=404)


def _is_stored(answer: Manifest) -> bool:
    """Return whether the object existed when the API server responded. An object that somebody else
    removed meanwhile comes back without a version, as it was about to be stored.
    """
    return bool(answer["metadata"].get("resourceVersion"))
