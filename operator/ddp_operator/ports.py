"""Interfaces that the operator needs from the place where pods run.

`kube` implements them with a Kubernetes API server, `local` with processes on this machine. The
engine works with either and does not know which. Objects cross this border as plain manifests
(dicts), because pod templates must stay exactly as their users wrote them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

Manifest = Mapping[str, Any]

PodT = TypeVar("PodT")

LOG_END_BYTES: Final = 16 * 1024
"""Bytes at the end of a log that are searched for progress."""


class Key(NamedTuple):
    """Identifies one object of a kind, usually a job."""

    namespace: str
    name: str

    @classmethod
    def of(cls, manifest: Manifest) -> "Key":
        """Return the key of an object; the namespace is empty if it is in none."""
        return cls(manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"])

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def controller_of(manifest: Manifest) -> Manifest:
    """Return the reference to the owner that controls an object; empty if there is none."""
    references = manifest["metadata"].get("ownerReferences") or ()
    return next((owner for owner in references if owner.get("controller")), {})


@dataclass(frozen=True, slots=True)
class Node:
    """A node's report of itself, and where it is."""

    name: str
    labels: Mapping[str, str]
    boot_id: str = ""
    """New after each start of the machine; empty if unknown."""
    bad: str = ""
    """Signal that the node is broken, such as a condition; empty if there is none."""
    leaving: str = ""
    """Signal that the node is about to leave, such as a taint; empty if there is none."""
    ends_at: datetime | None = None
    """When its machine ends, if known."""
    maintenance_at: datetime | None = None
    """When a maintenance will stop its machine, if one is scheduled."""
    unready: bool = False
    """True if its kubelet does not answer, or reports that it is not ready."""

    @property
    def unwell(self) -> bool:
        """True if the node is broken, about to leave, or silent."""
        return bool(self.bad or self.leaving or self.unready)


class Nodes(tuple[Node, ...]):
    """All nodes. There may be thousands, but jobs read the same few again and again."""

    _replaced: "tuple[tuple[Node, ...], Nodes] | None" = None

    @cached_property
    def groups(self) -> dict[str, object]:
        """What was found out about jobs' pods on these nodes, by the job's UID. Not part of the
        value.
        """
        return {}

    def replacing(self, changed: tuple[Node, ...]) -> "Nodes":
        """Return the nodes with some of them changed. The last result is kept."""
        if self._replaced is None or self._replaced[0] != changed:
            by_name = {node.name: node for node in changed}
            self._replaced = changed, Nodes(by_name.get(node.name, node) for node in self)
        return self._replaced[1]

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self}

    @cached_property
    def signalled(self) -> Mapping[str, Node]:
        """By name: nodes that are bad, leaving or not ready, or with a known end."""
        return {n.name: n for n in self if n.unwell or n.ends_at or n.maintenance_at}

    @cached_property
    def unwell(self) -> Mapping[str, Node]:
        """By name: nodes that are bad, leaving or not ready."""
        return {name: node for name, node in self.signalled.items() if node.unwell}


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event about a job, for people who read `kubectl describe`."""

    reason: str
    message: str
    warning: bool = False


class ClusterError(Exception):
    """A request that the cluster refused or could not serve; `message` is the server's own."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status

    def because(self, need: str) -> Self:
        """Return the same error; its message also says what the request was for."""
        return type(self)(f"{self.message}: {need}", status=self.status)


class MalformedError(ValueError):
    """An object is not what its labels claim. The message says what is wrong."""


class NotFoundError(ClusterError):
    """The object does not exist (404)."""


class AlreadyExistsError(ClusterError):
    """An object of that name already exists (409 on create)."""


class ConflictError(ClusterError):
    """The object has changed since it was read (409 on a write with a resourceVersion)."""


class InvalidError(ClusterError):
    """The server does not accept this object as it is (400, 413, 422).

    `permanent` is true if the server itself refuses fields or an unreadable type. Otherwise a
    policy may have refused it, and policies can change.
    """

    def __init__(self, message: str, *, status: int | None = None, permanent: bool = False) -> None:
        super().__init__(message, status=status)
        self.permanent = permanent


class NotServedError(InvalidError):
    """The server has no objects of this kind (404): their CRD is not installed, or not yet."""


class ForbiddenError(ClusterError):
    """Refused now, by quota, policy or RBAC (401, 403); may be accepted later."""


class NamespaceEndsError(ForbiddenError):
    """Refused because the namespace is being deleted."""


class NotLeaderError(ClusterError):
    """A write that was not sent, because another replica may be the leader by now."""


class UnavailableError(ClusterError):
    """The server could not answer (429 after retries, 5xx, network); try again later.

    `retry_after_seconds` is the server's own value, if it sent one.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message, status=status)
        self.retry_after_seconds = retry_after_seconds


class OutOfFilesError(Exception):
    """This process cannot open another connection now, so no request was sent."""


class Cluster(Protocol[PodT]):
    """Where a job's Service and pods live.

    Every method raises a `ClusterError` if the request failed. Successful writes are visible to
    `pods_of` at once, except those of `delete_pods`, which may be repeated: a reconcile never acts
    on a state older than its own writes.

    Creating an object again is no error, since an earlier attempt may have succeeded: only one of
    another controller raises `AlreadyExistsError`. Nor is it an error to delete or patch an object
    that is gone. Storing an object that has changed since it was read raises `ConflictError`.
    """

    def pods_of(self, job: Key) -> list[PodT]:
        """Return the pods labelled with this job's name, including finished and
        terminating ones.
        """

    def nodes(self) -> Nodes:
        """Return the nodes on which pods may run, or none if they may not be read. The result is
        the same object until a node changes.
        """

    async def create_pod(self, manifest: Manifest) -> None:
        """Create a pod."""

    def uid_of(self, pod: Key) -> str | None:
        """Return the UID of the pod with that name, as `pods_of` shows it, or None."""

    async def delete_pod(
        self, pod: Key, *, grace_seconds: int | None, uid: str | None = None
    ) -> None:
        """Delete a pod. Without `grace_seconds` the pod's own grace period applies. With `uid` only
        that very pod is deleted; otherwise the known one.
        """

    async def delete_pods(
        self,
        pods: Mapping[Key, str | None],
        *,
        labels: Mapping[str, Sequence[str]],
        grace_seconds: int | None,
    ) -> Sequence[Key]:
        """Delete pods of one namespace, given with their UIDs, by one request: those that have one
        of the values of each label. No other pod may have these labels.

        Return the pods that it has not deleted: they lack the labels, or the cluster cannot delete
        several pods at once, or refuses it for one of them.
        """

    async def patch_pod(
        self, pod: Key, metadata: Mapping[str, Any], *, uid: str | None = None
    ) -> None:
        """Change a pod's metadata by a strategic merge patch, in which None removes a label or
        an annotation. `uid` is as in `delete_pod`.
        """

    async def create_service(self, manifest: Manifest) -> None:
        """Create a Service."""

    async def create_secret(self, manifest: Manifest) -> None:
        """Create a Secret. One of that name is no error, of any controller."""

    async def apply(self, manifest: Manifest) -> None:
        """Create an object of another kind. If one of the same controller exists, give it the
        manifest's spec, if its kind allows changes. Without a controller, an object belongs to
        the job of its UID label. Raises `NotServedError` without such a kind.
        """

    async def read(self, named: Manifest) -> Manifest:
        """Return the object with the type and name of a manifest, or raise `NotFoundError`."""

    async def find(self, like: Manifest, *, labels: Mapping[str, str]) -> Sequence[Manifest]:
        """Return the objects of a type that have these labels now, as type and metadata: of the
        namespace in `like`, or of all that the operator serves. An empty value stands for any.
        Raises `NotServedError` without such a type, `ForbiddenError` without the right to list it.
        """

    async def update(self, changed: Manifest) -> Manifest:
        """Store an object that was read and changed. Return it as stored."""

    async def patch_status_of(self, stored: Manifest, status: Manifest) -> None:
        """Merge-patch the status of an object that was read."""

    async def delete(self, stored: Manifest) -> None:
        """Delete an object that was read, but no other of its name."""

    async def set_priority_boost(self, workload: Key, boost: int) -> None:
        """Set the priority boost of a Workload of Kueue, or raise `NotFoundError`."""

    async def delete_network_policy(self, policy: Key, *, owner_uid: str) -> None:
        """Delete a NetworkPolicy, but none of another controller."""

    async def patch_status(
        self, job: Key, status: Manifest, *, resource_version: str | None
    ) -> Manifest:
        """Merge-patch the job's status and return the whole job as stored. An empty patch only
        reads. Without a resource version, the job may have changed.
        """

    async def delete_job(self, job: Key, *, uid: str) -> None:
        """Delete a job and, in the background, everything that it owns; only if it still has this
        UID.
        """

    async def log_end(self, pod: Key, container: str) -> bytes:
        """Return the last lines of a container's log: at most `LOG_END_BYTES`. The first line may
        be cut.
        """

    async def emit_event(self, job: Manifest, event: Event) -> None:
        """Record an Event about a job. Best effort; never raises `ClusterError`."""
