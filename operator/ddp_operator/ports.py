"""What the operator needs from the place where pods run.

`kube` implements this against a Kubernetes API server, `local` against processes on this machine;
the engine works with either and cannot tell which. Objects cross this border as plain manifests
(dicts), because pod templates must travel exactly as their users wrote them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol, TypeVar

Manifest = Mapping[str, Any]

PodT = TypeVar("PodT")

LOG_END_BYTES: Final = 16 * 1024
"""Of a log, that are looked at for progress."""


class Key(NamedTuple):
    """Identifies one namespaced object, usually a job."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Node:
    """What tells whether a pod may run on a node."""

    name: str
    labels: Mapping[str, str]
    schedulable: bool = True
    """false: cordoned."""
    taints: tuple[Mapping[str, str], ...] = ()
    """Those that keep pods away: effects NoSchedule and NoExecute."""
    boot_id: str = ""
    """Another one after each start of the machine; empty where that is not known."""
    bad: str = ""
    """What says that it is broken, such as a condition; empty where nothing does."""
    leaving: str = ""
    """What says that it is about to go, such as a taint; empty where nothing does."""
    ends_at: datetime | None = None
    """When its machine ends, where that is known."""
    unready: bool = False
    """Its kubelet does not answer, or says that it is not ready."""

    @property
    def unwell(self) -> bool:
        """It is broken, about to go, or silent."""
        return bool(self.bad or self.leaving or self.unready)


class Nodes(tuple[Node, ...]):
    """All nodes; of thousands, jobs look at few again and again."""

    @cached_property
    def signalled(self) -> Mapping[str, Node]:
        """By name: those that are bad, leaving or not ready, or whose end is known."""
        return {node.name: node for node in self if node.unwell or node.ends_at}

    @cached_property
    def unwell(self) -> Mapping[str, Node]:
        """By name: those that are bad, leaving or not ready."""
        return {name: node for name, node in self.signalled.items() if node.unwell}


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event about a job: what a person reads in `kubectl describe`."""

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
    """An object is not what its labels claim; says what is wrong with it."""


class NotFoundError(ClusterError):
    """The object does not exist (404)."""


class AlreadyExistsError(ClusterError):
    """An object of that name exists already (409 on create)."""


class ConflictError(ClusterError):
    """The object changed since it was read (409 on a write with a resourceVersion)."""


class InvalidError(ClusterError):
    """The server does not accept this object as it is (400, 413, 422).

    `for_good`: the server itself says so, of fields or of a type that it cannot read. Without, it
    was perhaps a policy's word, which may change.
    """

    def __init__(self, message: str, *, status: int | None = None, for_good: bool = False) -> None:
        super().__init__(message, status=status)
        self.for_good = for_good


class NotServedError(InvalidError):
    """The server has no objects of this kind (404): what brings them is not installed, or not
    yet.
    """


class ForbiddenError(ClusterError):
    """Refused now, by quota, policy or RBAC (401, 403): may be accepted later."""


class NotLeaderError(ClusterError):
    """A write that was not sent, because another replica may be in charge by now."""


class UnavailableError(ClusterError):
    """The server could not answer (429 after retries, 5xx, network): try again later.

    `retry_after_seconds` is the server's wish, when it named one.
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
    """This process can open no more connections for now: nobody was asked, whoever that was."""


class Cluster(Protocol[PodT]):
    """Where a job's Service and Pods live.

    Every method raises a `ClusterError` when the request failed. Writes that succeed are visible to
    `pods_of` at once: a reconcile that follows never acts on a state older than its own writes.
    """

    def pods_of(self, job: Key) -> list[PodT]:
        """The pods labelled with this job's name, finished and terminating ones included."""

    def nodes(self) -> Nodes:
        """The nodes that pods may be placed on; none where that is not to be known. The same object
        until one of them changes.
        """

    async def create_pod(self, manifest: Manifest) -> None:
        """Create a pod.

        Raises `AlreadyExistsError` only when the existing pod has another controller than the
        manifest names; one of the same controller proves that an earlier attempt at this very call
        succeeded.
        """

    def uid_of(self, pod: Key) -> str | None:
        """Which pod bears that name now, as far as `pods_of` shows; None: none."""

    async def delete_pod(
        self, pod: Key, *, grace_seconds: int | None, uid: str | None = None
    ) -> None:
        """Delete a pod; one that is gone already counts as deleted. No `grace_seconds`: the pod's
        own grace period. `uid`: only that very one; without, the one that is known.
        """

    async def patch_pod_labels(
        self, pod: Key, labels: Mapping[str, str | None], *, uid: str | None = None
    ) -> None:
        """Set labels of a pod; None removes one. A pod that is gone already is no error. `uid` as
        in `delete_pod`.
        """

    async def create_service(self, manifest: Manifest) -> None:
        """Create a Service; `AlreadyExistsError` as in `create_pod`."""

    async def create_secret(self, manifest: Manifest) -> None:
        """Create a Secret; one of that name that exists already is no error."""

    async def apply(self, manifest: Manifest) -> None:
        """Create an object of another kind, or give an earlier one of the same controller the
        spec of the manifest, where its kind lets it be changed; `AlreadyExistsError` as in
        `create_pod`, `NotServedError` where there are none of that kind.
        """

    async def delete_network_policy(self, policy: Key, *, owner_uid: str) -> None:
        """Delete a NetworkPolicy; one that is gone, or of another controller, is no error."""

    async def patch_status(
        self, job: Key, status: Manifest, *, resource_version: str | None
    ) -> Manifest:
        """Merge-patch the job's status and return the whole job as stored; an empty patch only
        reads.

        With a resource version, `ConflictError` when the job has changed since.
        """

    async def delete_job(self, job: Key, *, uid: str) -> None:
        """Delete a job and, in the background, all it owns; only if it still has this UID."""

    async def log_end(self, pod: Key, container: str) -> bytes:
        """The last lines of a container's log: at most `LOG_END_BYTES`, of which the first line may
        be a part only.
        """

    async def emit_event(self, job: Manifest, event: Event) -> None:
        """Record an Event about a job; best effort, never raises `ClusterError`."""


NOTHING_YET: Final = "HTTP status 503"


class Told(NamedTuple):
    """The answer of a launcher that was told of its job's group."""

    generation: int
    """The one that it knows now."""
    ended: bool
    """Whether no process of an earlier generation runs."""
    led: bool = False
    """Whether a launcher has begun that generation, not the operator: it is not what was told."""


class TokenSource(Enum):
    """Where a pod has its job's token from, which decides what its launcher accepts."""

    SENT = "sent"
    """A variable in plain text; the launcher knows no signatures and is sent the token."""
    VARIABLE = "variable"
    """A variable in plain text."""
    SECRET = "secret"
    """A Secret of the pod's namespace."""


class SentToken(str):
    """A job's token that a request carries: launchers of earlier versions know no signature."""

    __slots__ = ()


class Trainers(Protocol):
    """The trainers in pods, asked over HTTP; an address is `ip:port`. With a job's token a request
    is signed, and does not carry it, unless it is a `SentToken`.

    Whatever they do, or fail to do, is an answer here: no method raises, but for
    `OutOfFilesError` where that says so.
    """

    async def status(self, address: str) -> bytes | str:
        """GET /status: the content of the answer, or in words why there is none; `NOTHING_YET` if
        a launcher answers that there is nothing to report yet.
        """

    async def dump_stacks(self, address: str, *, token: str) -> bool:
        """POST /dump-stacks, with the job's token: whether the trainer will write its stacks to the
        pod's log.
        """

    async def checkpoint(self, address: str, *, token: str) -> bool:
        """POST /checkpoint, with the job's token: whether the trainer will save at the next step
        that can.
        """

    async def tell_world(
        self, address: str, document: Mapping[str, Any], *, wait_seconds: int, token: str
    ) -> Told | None:
        """PUT /world, with the job's token. The answer waits for processes of an earlier generation
        to end, but not longer than that; None where there is none.

        Raises `OutOfFilesError`.
        """

    async def hear_world(
        self, address: str, *, after: int, wait_seconds: int, token: str
    ) -> bytes | str:
        """GET /world: the content of the answer, which comes once its number is beyond `after` or
        the time is over; or in words why there is none. It may ask for an earlier one, where it
        can have fewer connections than are wanted.

        Raises `OutOfFilesError`.
        """

    async def close(self) -> None:
        """Close the connections."""
