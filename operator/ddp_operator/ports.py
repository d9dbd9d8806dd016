"""Interfaces that the operator needs from the place where pods run.

`kube` implements them with a Kubernetes API server, `local` with processes on this machine. The
engine works with either and does not know which. Objects cross this border as plain manifests
(dicts), because pod templates must stay exactly as their users wrote them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol, TypeVar

Manifest = Mapping[str, Any]

PodT = TypeVar("PodT")

LOG_END_BYTES: Final = 16 * 1024
"""Bytes at the end of a log that are searched for progress."""


class Key(NamedTuple):
    """Identifies one namespaced object, usually a job."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Node:
    """What a node reports, and where it is."""

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
    unready: bool = False
    """True if its kubelet does not answer, or reports that it is not ready."""

    @property
    def unwell(self) -> bool:
        """True if the node is broken, about to leave, or silent."""
        return bool(self.bad or self.leaving or self.unready)


class Nodes(tuple[Node, ...]):
    """All nodes. There may be thousands, but jobs read the same few again and again."""

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self}

    @cached_property
    def signalled(self) -> Mapping[str, Node]:
        """By name: nodes that are bad, leaving or not ready, or with a known end."""
        return {node.name: node for node in self if node.unwell or node.ends_at}

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
    `pods_of` at once: a reconcile never acts on a state older than its own writes.
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
        """Create a pod.

        Raises `AlreadyExistsError` only if the existing pod has another controller than the
        manifest. A pod with the same controller proves that an earlier attempt at this call
        succeeded.
        """

    def uid_of(self, pod: Key) -> str | None:
        """Return the UID of the pod with that name, as `pods_of` shows it, or None."""

    async def delete_pod(
        self, pod: Key, *, grace_seconds: int | None, uid: str | None = None
    ) -> None:
        """Delete a pod. A pod that is already gone counts as deleted. Without `grace_seconds` the
        pod's own grace period applies. With `uid` only that very pod is deleted; otherwise the
        known one.
        """

    async def patch_pod(
        self, pod: Key, metadata: Mapping[str, Any], *, uid: str | None = None
    ) -> None:
        """Change a pod's metadata by a strategic merge patch, in which None removes a label or
        an annotation. A pod that is already gone is no error. `uid` is as in `delete_pod`.
        """

    async def create_service(self, manifest: Manifest) -> None:
        """Create a Service; `AlreadyExistsError` as in `create_pod`."""

    async def create_secret(self, manifest: Manifest) -> None:
        """Create a Secret. An existing one of that name is no error."""

    async def apply(self, manifest: Manifest) -> None:
        """Create an object of another kind. If one of the same controller exists, give it the
        manifest's spec, if its kind allows changes.

        Raises `AlreadyExistsError` as in `create_pod`, `NotServedError` if the server has no such
        kind.
        """

    async def read(self, named: Manifest) -> Manifest:
        """Return the object with the type and name of a manifest.

        Raises `NotFoundError` if there is none.
        """

    async def update(self, changed: Manifest) -> Manifest:
        """Store an object that was read and changed. Return it as stored.

        Raises `ConflictError` if it has changed since it was read.
        """

    async def patch_status_of(self, stored: Manifest, status: Manifest) -> None:
        """Merge-patch the status of an object.

        Raises `ConflictError` if the object has changed since it was read.
        """

    async def delete(self, stored: Manifest) -> None:
        """Delete an object that was read. One that is gone, or another of its name, is no error."""

    async def set_priority_boost(self, workload: Key, boost: int) -> None:
        """Set the priority boost of a Workload of Kueue.

        Raises `NotFoundError` if the Workload does not exist.
        """

    async def delete_network_policy(self, policy: Key, *, owner_uid: str) -> None:
        """Delete a NetworkPolicy. One that is gone, or of another controller, is no error."""

    async def patch_status(
        self, job: Key, status: Manifest, *, resource_version: str | None
    ) -> Manifest:
        """Merge-patch the job's status and return the whole job as stored. An empty patch only
        reads.

        With a resource version, raises `ConflictError` if the job has changed since.
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


NOTHING_YET: Final = "HTTP status 503"


class WorldAnswer(NamedTuple):
    """A launcher's response to an assignment in its job's group."""

    generation: int
    """The generation that the launcher has now."""
    ended: bool
    """True if no process of an earlier generation runs."""
    led: bool = False
    """True if a launcher began that generation, not the operator: it is not the assigned one."""


class Trainers(Protocol):
    """The trainers in pods, over HTTP; an address is `ip:port`. With a job's token, a request is
    signed but does not carry the token.

    Failures are part of the result: methods raise nothing, except `OutOfFilesError` where
    documented.
    """

    async def status(self, address: str) -> bytes | str:
        """GET /status: return the response's content, or a text that says why there is none.
        `NOTHING_YET` is a launcher's response while there is nothing to report.
        """

    async def dump_stacks(self, address: str, *, token: str) -> bool:
        """POST /dump-stacks, with the job's token. Return whether the trainer will write its stacks
        to the pod's log.
        """

    async def traces(self, address: str, *, token: str) -> bytes | str:
        """GET /traces, with the job's token: return the response's content, or a text that says why
        there is none. The launcher responds with its ranks' last collectives and stacks.
        """

    async def checkpoint(self, address: str, *, token: str) -> bool:
        """POST /checkpoint, with the job's token. Return whether the trainer will save at the next
        possible step.
        """

    async def put_world(
        self, address: str, document: Mapping[str, Any], *, wait_seconds: int, token: str
    ) -> WorldAnswer | None:
        """PUT /world, with the job's token. The launcher responds when processes of an earlier
        generation have ended, but at the latest after `wait_seconds`. Return None without a
        response.

        Raises `OutOfFilesError`.
        """

    async def poll_world(
        self, address: str, *, after: int, wait_seconds: int, token: str
    ) -> bytes | str:
        """GET /world: return the response's content, or a text that says why there is none. The
        launcher responds once its number is beyond `after`, or after `wait_seconds`. The request
        may ask for a shorter wait if there are too few connections.

        Raises `OutOfFilesError`.
        """

    async def close(self) -> None:
        """Close the connections."""
